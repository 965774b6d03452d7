"""A fork server: torch, DeepSpeed and the workload loaded once, and a fork of that state for each trial.

A trial runs in the fork and ends with it, so whatever it leaves behind in the process (patched functions, caches,
hooks, threads, memory, a broken process group) is gone, also after a failure: the server itself never trains. Its other
end is `autotune.runners.fork_server`. The idea is that of `multiprocessing.forkserver` and of Android's zygote.

What makes forking safe here: the server has one Python thread, torch computes with one thread in it (GNU OpenMP's pool
does not survive a fork), no backward pass and no collective runs in it, and CUDA is not initialised in it. Where a
workload holds what forks can't share (`Prepared.unshareable`), its trials start cold. Files that it has open are shared
with their positions, so each fork finds these as building the workload left them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import socket
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from autotune.evaluators import sent_code
from autotune.evaluators.rank_files import RANK_WORKER, RankAssignment
from autotune.evaluators.rank_worker import life, lifeline
from autotune.evaluators.rank_worker.reporter import Reporter
from autotune.trials import Stage

if TYPE_CHECKING:
    from autotune.workload import TrainingWorkload

MESSAGE_BYTES = 256 * 1024
FORK_FAILED = 70
"""Exit code of a fork that did not get as far as its trial (EX_SOFTWARE of sysexits.h)."""
LEARNT_PACKAGES = ("torch", "deepspeed", "numpy")
"""What a fork had to load of these, the server loads too: the next one finds it there."""
IDLE_THREADS = ("tqdm",)
"""Packages whose threads a fork may lack: tqdm's only refreshes progress bars."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A workload that forks find built, the random generators as building it left them."""

    workload: TrainingWorkload | None = None
    """None: each fork builds its own. So it is on CUDA, which a fork must initialise itself, and where building it
    failed here: it may need the process group."""
    identity: tuple[object, ...] = ()
    threads: int = 1
    """What torch computes with in a fork: what it took from the environment."""
    positions: Mapping[int, int] = field(default_factory=dict)
    """Of the files that the workload has open, by descriptor: forks share them, and one moves them for the next."""
    unshareable: str | None = None
    """What this process holds that a fork lacks, or would have in common with the others; None: nothing."""

    def workload_for(self, assignment: RankAssignment) -> TrainingWorkload | None:
        """Return the workload if it is this assignment's."""
        return self.workload if self.identity == _identity(assignment) else None


@dataclass(frozen=True, slots=True)
class Request:
    """A process that the other end asks for."""

    directory: Path
    environment: dict[str, str]
    lifeline: int
    """Descriptor: the fork's standard input."""
    output: int
    """Descriptor: the fork's standard output and error."""


def main() -> None:
    """Serve the socket that is this process's standard input, until its other end is closed."""
    gc.disable()
    channel = socket.socket(fileno=os.dup(0))  # not inheritable
    _replace(0, os.open(os.devnull, os.O_RDONLY))
    prepared: Prepared | None = None
    child = 0
    while (request := _received(channel)) is not None:
        if child:
            os.waitpid(child, 0)  # kept until now, so that its number was nobody else's
        if prepared is None:
            with _tied_to(channel):
                prepared = _prepared(request.directory)
            os.chdir(os.sep)  # the folder is the first trial's
            gc.collect()
            gc.freeze()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            channel.close()
            _live(request, writing, prepared)
        for descriptor in (writing, request.lifeline, request.output):
            os.close(descriptor)
        _replace(1, os.open(os.devnull, os.O_WRONLY))  # it was the first fork's own output
        os.dup2(1, 2)
        _tell(channel, {"pid": child})
        report = _until_ended(child, reading, channel)
        _tell(channel, {"pid": child, "returncode": _returncode(child)})
        _learn(report)
    life.end(0)


def _prepared(directory: Path) -> Prepared:
    """Load what every trial needs. What fails here fails again in the fork, which reports it."""
    assignment = life.assignment_in(directory)
    threads, descriptors = set(threading.enumerate()), set(_descriptors())
    prepared = _built(assignment, directory)
    opened = {number: target for number, target in _descriptors().items() if number not in descriptors}
    unshareable = _unshareable(set(threading.enumerate()) - threads, opened)
    return replace(prepared, positions=_positions(opened), unshareable=unshareable)


def _built(assignment: RankAssignment, directory: Path) -> Prepared:
    prepared = Prepared()
    try:
        sys.path[:0] = sent_code.all_here(assignment.workload.python_path)
        life.make_ready(assignment.device)
        prepared = Prepared(threads=_threads())
        _compute_with(1)
        if assignment.device == "cpu":
            from autotune.evaluators.rank_worker import trial

            Reporter(directory).enter(Stage.BUILD)  # it may take minutes
            workload = trial.build_workload(assignment, "cpu")
            return replace(prepared, workload=workload, identity=_identity(assignment))
        importlib.import_module(assignment.workload.import_path.partition(":")[0])
    except BaseException as error:  # noqa: BLE001 - a workload's own code, which may even call sys.exit
        print(f"[autotune] not built ahead of the trials: {type(error).__name__}: {error}", flush=True)  # noqa: T201
    return prepared


def _unshareable(threads: set[threading.Thread], opened: Mapping[int, str]) -> str | None:
    """Return what of a workload forks can't share, of the threads and descriptors that came with it."""
    names = sorted(thread.name for thread in threads if not type(thread).__module__.startswith(IDLE_THREADS))
    if names:
        return f"it has started threads ({', '.join(names)})"
    children = [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
    if children:
        return f"it has started processes ({', '.join(str(child.pid) for child in children)})"
    if any(target.startswith("socket:") for target in opened.values()):
        return "it has opened connections"
    if "torch" in sys.modules and _threads() != 1:
        return f"it has set torch's threads to {_threads()}"
    return None


def _descriptors() -> dict[int, str]:
    """Return what each open descriptor of this process refers to, as /proc says it."""
    targets = {}
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of this listing
            targets[int(link.name)] = str(link.readlink())
    return targets


def _positions(descriptors: Iterable[int]) -> dict[int, int]:
    positions = {}
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # a pipe, a device
            positions[descriptor] = os.lseek(descriptor, 0, os.SEEK_CUR)
    return positions


@contextlib.contextmanager
def _tied_to(channel: socket.socket) -> Iterator[None]:
    """Die with the host meanwhile: nothing is asked for while the workload is built, so what can be read is the end."""
    waking, wake = os.pipe()

    def watch() -> None:
        both: list[Any] = [channel, waking]
        ready, _, _ = select.select(both, [], [])
        if waking not in ready:
            lifeline.end_group()

    thread = threading.Thread(target=watch, name="lifeline")
    thread.start()
    try:
        yield
    finally:
        os.write(wake, b"\0")
        thread.join()
        os.close(waking)
        os.close(wake)


def _identity(assignment: RankAssignment) -> tuple[object, ...]:
    """Return all that a workload depends on."""
    return (assignment.workload, assignment.request.seed, assignment.rank, assignment.world_size, assignment.device)


def _live(request: Request, report: int, prepared: Prepared) -> None:
    """Be the fork: run a rank and end."""
    exit_code = FORK_FAILED
    try:
        os.setsid()
        _replace(0, request.lifeline)
        _replace(1, request.output)
        os.dup2(1, 2)
        os.chdir(request.directory)
        os.environ.update(request.environment)
        for descriptor, position in prepared.positions.items():
            with contextlib.suppress(OSError):  # closed since
                os.lseek(descriptor, position, os.SEEK_SET)
        _start_cold_if_it_must(prepared)
        _compute_with(prepared.threads)
        gc.enable()
        there = set(sys.modules)
        exit_code = life.live(request.directory, prepared.workload_for(life.assignment_in(request.directory)))
        loaded = [name for name in sys.modules if name not in there and name.partition(".")[0] in LEARNT_PACKAGES]
        os.write(report, json.dumps(loaded).encode())
    except BaseException:  # noqa: BLE001 - the border of the process
        traceback.print_exc()
    finally:
        life.end(exit_code)


def _start_cold_if_it_must(prepared: Prepared) -> None:
    """Become a process of its own where the workload is none that forks can share."""
    import torch

    why = prepared.unshareable
    if torch.cuda._is_in_bad_fork():  # noqa: SLF001 - torch asks itself the same before it refuses
        why = "it initialised CUDA as it was imported"
    if why is not None:
        print(f"[autotune] forks can't share this workload: {why}; its trials start cold", flush=True)  # noqa: T201
        os.execv(sys.executable, [sys.executable, *RANK_WORKER])  # noqa: S606 - our own arguments


def _until_ended(child: int, report: int, channel: socket.socket) -> bytes:
    """Wait for the end of a fork and return what it reported; end this process when the host is gone."""
    told = b""
    ending = os.pidfd_open(child)
    watched: list[Any] = [ending, report, channel]
    ready: list[Any] = []
    while ending not in ready:
        ready, _, _ = select.select(watched, [], [])
        if channel in ready:
            os._exit(0)  # nothing is asked for while a fork runs: the host is gone, and the fork's lifeline with it
        if report in ready:
            chunk = os.read(report, MESSAGE_BYTES)
            told += chunk
            if not chunk:
                watched.remove(report)
    if report in watched and select.select([report], [], [], 0)[0]:
        told += os.read(report, MESSAGE_BYTES)
    os.close(ending)
    os.close(report)
    return told


def _returncode(child: int) -> int:
    """Return how a fork ended, as `subprocess` says it; it stays a zombie."""
    ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    if ended is None:
        raise ChildProcessError(f"process {child} has not ended")
    return int(ended.si_status) if ended.si_code == os.CLD_EXITED else -int(ended.si_status)


def _learn(report: bytes) -> None:
    """Load what a fork had to load itself."""
    try:
        names = json.loads(report) if report else []
    except ValueError:
        return  # cut off: it was killed
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    if names:
        gc.collect()
        gc.freeze()


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def _compute_with(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _received(channel: socket.socket) -> Request | None:
    message, descriptors, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, 2)
    if not message:
        return None
    data = json.loads(message)
    return Request(Path(data["directory"]), data["environment"], *descriptors)


def _tell(channel: socket.socket, message: dict[str, int]) -> None:
    try:
        channel.send(json.dumps(message).encode())
    except BrokenPipeError:
        os._exit(0)  # the host is gone, and the fork's lifeline with it


def _replace(target: int, descriptor: int) -> None:
    os.dup2(descriptor, target)
    os.close(descriptor)


if __name__ == "__main__":
    main()
