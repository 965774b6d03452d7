"""Train as plain_loop.py does, and go wrong in one way.

torchrun --nproc_per_node 2 faulty.py --deepspeed_config plain_loop.json --fault traceback --rank 1 --step 5
"""

import ctypes
import multiprocessing.resource_tracker
import multiprocessing.shared_memory
import os
import signal
import socket
import subprocess
import sys
import time

import deepspeed
import torch
from plain_loop import Text, finish, is_main, make_model, make_parser, train

MEBIBYTE = 2**20


def sleep_before_first_collective():
    time.sleep(3600)


def exit_0_before_training():
    sys.exit(0)


def ignore_sigterm():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # inherits the ignored signal


def leave_children():
    """A detached process, a shared memory segment that nobody unlinks, and an open port."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    segment = multiprocessing.shared_memory.SharedMemory(name=f"left-behind-{os.getpid()}", create=True, size=MEBIBYTE)
    multiprocessing.resource_tracker.unregister(segment._name, "shared_memory")
    listener = socket.create_server(("127.0.0.1", 0))
    listener.set_inheritable(True)
    server = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True, close_fds=False
    )
    port = listener.getsockname()[1]
    print(f"left behind: processes {child.pid} {server.pid}, segment {segment.name}, port {port}", flush=True)


def host_memory(engine, loss):
    """Touch 64 MiB more in every micro-step and keep them; at 4 GiB die as the kernel's killer would have it."""
    KEPT.append(b"x" * (64 * MEBIBYTE))
    if len(KEPT) == 64:
        os.kill(os.getpid(), signal.SIGKILL)
    return loss


KEPT = []


def cuda_oom(engine, loss):
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 3.40 GiB "
        "is free. Including non-PyTorch memory, this process has 75.74 GiB memory in use. Of the allocated memory "
        "74.01 GiB is allocated by PyTorch, and 512.33 MiB is reserved by PyTorch but unallocated."
    )


def error(engine, loss):
    raise RuntimeError("the batch has a shape that the model does not know")


def segfault(engine, loss):
    os.kill(os.getpid(), signal.SIGSEGV)


def real_segfault(engine, loss):
    ctypes.string_at(0)


def sigkill_self(engine, loss):
    os.kill(os.getpid(), signal.SIGKILL)


def exit_0(engine, loss):
    os._exit(0)


def hang(engine, loss):
    time.sleep(3600)


def nan(engine, loss):
    return loss * float("nan")


def inf(engine, loss):
    return loss * float("inf")


def overflow(engine, loss):
    """A finite loss whose gradients are infinite: ZeRO 1 to 3 skip such a step, in fp32 too."""
    loss = loss * 1.0
    loss.register_hook(lambda gradient: gradient * float("inf"))
    return loss


def much_output(engine, loss):
    """A mebibyte of lines in every micro-step, up to 100."""
    if engine.micro_steps < 100:
        print("\n".join(["the loader has nothing to say, and says it at length".ljust(127, ".")] * 8192), flush=True)
    return loss


EARLY = {
    "sleep_before_first_collective": sleep_before_first_collective,
    "exit_0_before_training": exit_0_before_training,
    "ignore_sigterm": ignore_sigterm,
    "leaves_children": leave_children,
}
"""Before torch.distributed is initialized."""
AT_STEP = {
    "host_memory": host_memory,
    "cuda_oom": cuda_oom,
    "traceback": error,
    "segfault": segfault,
    "real_segfault": real_segfault,
    "sigkill_self": sigkill_self,
    "exit_0": exit_0,
    "hang": hang,
    "nan": nan,
    "inf": inf,
    "skipped_steps": overflow,
    "much_output": much_output,
}
"""Between forward and backward, from optimizer step `--step` on."""


def main():
    parser = make_parser()
    parser.add_argument("--fault", required=True, choices=[*EARLY, *AT_STEP])
    parser.add_argument("--rank", type=int, default=-1, help="which rank goes wrong; -1 is each")
    parser.add_argument("--step", type=int, default=0, help="from which optimizer step on")
    args = parser.parse_args()
    mine = args.rank in (-1, int(os.environ.get("RANK", "0")))
    if mine and args.fault in EARLY:
        EARLY[args.fault]()

    def on_step(engine, loss):
        if mine and args.fault in AT_STEP and engine.global_steps >= args.step:
            return AT_STEP[args.fault](engine, loss)
        return loss

    deepspeed.init_distributed()
    model = make_model(args)
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=model, model_parameters=model.parameters(), training_data=Text(args.sequence)
    )
    train(engine, loader, args, on_step=on_step)
    if is_main():
        print(f"skipped steps: {engine.skipped_steps}", flush=True)
    finish(engine, args)


if __name__ == "__main__":
    main()
