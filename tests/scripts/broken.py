"""Go wrong before any library is loaded, in one way, in one rank or in each; the other ranks wait for it.

torchrun --nproc_per_node 2 broken.py --fault traceback --rank 1 --deepspeed_config plain_loop.json
"""

import argparse
import ctypes
import multiprocessing.shared_memory
import os
import signal
import socket
import subprocess
import sys
import time

MEBIBYTE = 2**20
A_MOMENT_S = 0.5
"""Nobody but the launcher, which asks ten times a second, could tell how a rank ended that just began."""
ASLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def traceback():
    raise RuntimeError("the data set has no file train.bin")


def segfault():
    time.sleep(A_MOMENT_S)
    ctypes.string_at(0)


def sigkill_self():
    time.sleep(A_MOMENT_S)
    os.kill(os.getpid(), signal.SIGKILL)


def exit_0():
    sys.exit(0)


def exit_0_late():
    """End well, after a while."""
    time.sleep(0.5)
    sys.exit(0)


def sleep():
    time.sleep(3600)


def hoard():
    """Touch 32 MiB more every 20 ms and keep them, up to 4 GiB."""
    kept = []
    while len(kept) < 128:
        kept.append(b"x" * (32 * MEBIBYTE))
        time.sleep(0.02)


def ignore_sigterm():
    """Sleep on, as does a child, whoever asks to end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(ASLEEP)  # inherits the ignored signal
    time.sleep(3600)


def leave_children():
    """Leave processes in sessions of their own (one with an empty environment), a port, and a segment; then crash."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.set_inheritable(True)
    subprocess.Popen(ASLEEP, start_new_session=True, close_fds=False)
    subprocess.Popen(ASLEEP, start_new_session=True, env={})
    segment = multiprocessing.shared_memory.SharedMemory(name=f"left-{os.getpid()}", create=True, size=MEBIBYTE)
    multiprocessing.resource_tracker.unregister(segment._name, "shared_memory")
    print(f"left behind: port {listener.getsockname()[1]}", flush=True)
    time.sleep(1)
    raise RuntimeError("everything is left behind")


def hold_lock():
    """Die while an op is being built: its lock stays, as torch's FileBaton leaves it."""
    folder = os.path.join(os.environ["TORCH_EXTENSIONS_DIR"], "half_built")
    os.makedirs(folder, exist_ok=True)
    open(os.path.join(folder, "lock"), "x").close()
    sigkill_self()


def much_output():
    """Print 100 MiB, then crash."""
    for _ in range(100):
        print("\n".join(["the loader has nothing to say, and says it at length".ljust(127, ".")] * 8192), flush=True)
    raise RuntimeError("said enough")


FAULTS = {
    function.__name__: function
    for function in (
        traceback,
        segfault,
        sigkill_self,
        exit_0,
        exit_0_late,
        sleep,
        hoard,
        ignore_sigterm,
        leave_children,
        hold_lock,
        much_output,
    )
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--deepspeed_config")
    parser.add_argument("--fault", required=True, choices=FAULTS)
    parser.add_argument("--rank", type=int, default=-1, help="which rank goes wrong; -1 is each")
    args = parser.parse_args()
    if args.rank in (-1, int(os.environ.get("RANK", "0"))):
        FAULTS[args.fault]()
    else:
        time.sleep(3600)


if __name__ == "__main__":
    main()
