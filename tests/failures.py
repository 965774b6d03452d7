"""The failure matrix: every way in which a user's script goes wrong, run against a real launcher, and what is left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

from autotune import ds_config, scripts
from autotune.evaluators import op_cache
from autotune.evaluators.deadlines import Deadlines
from autotune.evaluators.script import ScriptEvaluator
from autotune.evaluators.script_files import ASSIGNMENT_FILE, STEPS_FILE, ScriptAssignment
from autotune.runners.rank_process import RankProcess
from autotune.trials import Budget, FailureKind, Outcome, Stage, TrialRequest

SCRIPTS = Path(__file__).parent / "scripts"
CONFIG: Mapping[str, Any] = ds_config.read(SCRIPTS / "plain_loop.json")
STAGE_0 = {**CONFIG, "zero_optimization": {"stage": 0}}
TORCHRUN = "torchrun --nproc_per_node 2"
DEEPSPEED = "deepspeed --num_gpus 2"
ACCELERATE = "accelerate launch --use_deepspeed --deepspeed_config_file {config} --num_processes 2"
CLEAN_WITHIN_S = 10.0
LOG_BYTES = 9 * 1024 * 1024
"""8 MiB of beginning, 64 KiB of end."""
GROWN_BYTES = 40 * 1024 * 1024
BUSY_PORT = 29500
FILE_BYTES = 8 * 1024
SHORT = Budget(steps=3, warmup_steps=1)
USUAL = Deadlines()


@contextlib.contextmanager
def nothing(_folder: Path) -> Iterator[None]:
    """Leave the world as it is."""
    yield


def no_meddling(_folder: Path) -> None:
    """Let the trial run."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to go wrong and how it must end."""

    name: str
    command: str
    kind: FailureKind | None
    """None: the trial must succeed."""
    words: str = ""
    """Must stand in the reason (a regular expression)."""
    rank: int | None = None
    stage: Stage | None = None
    config: Mapping[str, Any] = field(default_factory=lambda: CONFIG)
    searched: tuple[str, ...] = ()
    budget: Budget = SHORT
    deadlines: Deadlines = USUAL
    memory_limit_bytes: int | None = None
    ranks: int = 2
    """That the campaign says."""
    slow: bool = False
    """Whether it trains, and another case goes the same way through the code sooner."""
    around: Callable[[Path], AbstractContextManager[None]] = nothing
    """The state of the machine; gets the trial's folder."""
    meddle: Callable[[Path], None] = no_meddling
    """Done while the trial runs, in a thread; gets the trial's folder."""

    @property
    def launcher(self) -> str:
        """The command's program."""
        return self.command.split()[0]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What came of a case."""

    outcome: Outcome
    decided_s: float
    """From the start to the verdict."""
    clean_s: float | None
    """From the verdict until nothing was left; None: something still was after 10 s more than that."""
    left: tuple[str, ...]
    log_bytes: int
    grown_bytes: int
    """Of this process's resident memory."""


def run(case: Case, folder: Path) -> Observed:
    """Run a case's trial in `folder`."""
    request = TrialRequest(
        number=7, point={}, ds_config=ds_config.complete(dict(case.config), world_size=case.ranks), budget=case.budget
    )
    evaluator = ScriptEvaluator(
        command=scripts.template_of(case.command.split(), case.config, directory=str(SCRIPTS)),
        directory=str(SCRIPTS),
        world_size=case.ranks,
        own_config=case.config,
        searched=case.searched,
        run_directory=str(folder),
        deadlines=case.deadlines,
        memory_limit_bytes=case.memory_limit_bytes,
    )
    trial = folder / "trial-00007"
    resident_bytes = psutil.Process().memory_info().rss
    with ExitStack() as stack:
        stack.enter_context(own_op_cache(folder / "ops"))
        stack.enter_context(case.around(trial))
        traces = stack.enter_context(Traces(trial))
        meddler = threading.Thread(target=case.meddle, args=(trial,), daemon=True)
        meddler.start()
        began_s = time.monotonic()
        outcome = evaluator.evaluate(
            request, hosts=[RankProcess()], progress=lambda stage: None, cancelled=lambda: False
        )
        grown_bytes = psutil.Process().memory_info().rss - resident_bytes
        decided_s = outcome.duration_s - outcome.stage_s.get("cleanup", 0.0)
        left = traces.left()
        while left and time.monotonic() - began_s - outcome.duration_s < CLEAN_WITHIN_S:
            time.sleep(0.1)
            left = traces.left()
        clean_s = None if left else time.monotonic() - began_s - decided_s
        meddler.join()
    logs = [Path(log) for log in outcome.logs.values()]
    return Observed(
        outcome=outcome,
        decided_s=decided_s,
        clean_s=clean_s,
        left=tuple(left),
        log_bytes=max((log.stat().st_size for log in logs if log.is_file()), default=0),
        grown_bytes=grown_bytes,
    )


def complaints(case: Case, seen: Observed) -> list[str]:
    """Return what is not as it must be, in words."""
    failure = seen.outcome.failure
    found = []
    if (failure.kind if failure else None) is not case.kind:
        found.append(f"it must end as {case.kind}: {failure or seen.outcome.measurement}")
    if failure is not None:
        if not re.search(case.words, failure.reason) or "Traceback" in failure.reason:
            found.append(f"its reason must say {case.words!r}: {failure.reason}")
        if case.rank is not None and failure.rank != case.rank:
            found.append(f"it must name rank {case.rank}: {failure}")
        if case.stage is not None and failure.stage is not case.stage:
            found.append(f"it must name the stage {case.stage.value}: {failure}")
    if seen.clean_s is None or seen.clean_s > CLEAN_WITHIN_S:
        found.append(f"left after {CLEAN_WITHIN_S:g} s: {seen.left}")
    if seen.log_bytes > LOG_BYTES:
        found.append(f"its log has {seen.log_bytes} bytes")
    if seen.grown_bytes > GROWN_BYTES:
        found.append(f"it made the controller grow by {seen.grown_bytes} bytes")
    return found


class Traces:
    """What a trial leaves: looks at the descendants of this process while it runs, and for all of it afterwards.

    Args:
        folder: the trial's.
        root: whose descendants are looked at; this process by default.
    """

    def __init__(self, folder: Path, root: psutil.Process | None = None) -> None:
        self._folder = folder
        self._root = root or psutil.Process()
        self._before = {process.pid for process in self._root.children(recursive=True)}
        self._segments = _segments()
        self._seen: dict[int, psutil.Process] = {}
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.25):
            self._look()

    def _look(self) -> None:
        with contextlib.suppress(psutil.Error):
            for process in self._root.children(recursive=True):
                if process.pid not in self._before:
                    self._seen.setdefault(process.pid, process)

    def left(self) -> list[str]:
        """Return what is there of the trial, in words."""
        processes = [each for each in self._seen.values() if is_alive(each)] + _marked(self._folder)
        left = [f"process {pid}" for pid in sorted({process.pid for process in processes})]
        left += [f"port {port}" for port in self._ports() if is_listening(port)]
        left += [f"lock {lock}" for lock in op_cache.directory("cpu").glob("*/lock")]
        return left + [f"segment {name}" for name in self._orphans()]

    def _ports(self) -> list[int]:
        ports = []
        assignment = self._folder / ASSIGNMENT_FILE
        if assignment.is_file():  # and no device
            ports.append(ScriptAssignment.from_text(assignment.read_text()).reserved_port or 0)
        log = self._folder / "log.txt"
        if log.is_file():
            ports += [int(port) for port in re.findall(r"left behind: port (\d+)", log.read_text(errors="replace"))]
        return ports

    def _orphans(self) -> list[str]:
        """Return the new segments of ours that nobody has mapped."""
        new = {name for name, user in (_segments() - self._segments) if user == os.getuid()}
        if not new:
            return []
        mapped = set()
        for maps in Path("/proc").glob("[0-9]*/maps"):
            with contextlib.suppress(OSError):
                text = maps.read_text(errors="replace")
                mapped |= {name for name in new if f"/dev/shm/{name}" in text}
        return sorted(new - mapped)


def is_alive(process: psutil.Process) -> bool:
    """Say whether a process lives, zombies left out."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def is_listening(port: int) -> bool:
    """Say whether anybody listens on a port of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def _marked(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            is_ours = process.environ().get("AUTOTUNE_PROBE_DIRECTORY") == str(folder)
            if (is_ours or process.cwd() == str(folder)) and is_alive(process):
                found.append(process)
    return found


def _segments() -> frozenset[tuple[str, int]]:
    found = set()
    for path in Path("/dev/shm").iterdir():
        with contextlib.suppress(OSError):
            found.add((path.name, path.stat().st_uid))
    return frozenset(found)


def named(name: str) -> Case:
    """Return a case by its name."""
    (case,) = (case for case in CASES if case.name == name)
    return case


def until(condition: Callable[[], object], within_s: float = 120.0) -> None:
    """Wait for a condition; give up silently, the case's own assertions tell then."""
    deadline_s = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.1)


def guards() -> list[psutil.Process]:
    """Return the guards below this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "autotune.evaluators.script_worker" in process.cmdline():
                found.append(process)
    return found


def kill_launcher_in_training(folder: Path) -> None:
    """Kill the launcher's own process, no more, once both ranks train."""
    steps = [folder / f"rank{rank}" / STEPS_FILE for rank in range(2)]
    until(lambda: all(path.exists() for path in steps))
    for guard in guards():
        for launcher in guard.children():
            launcher.send_signal(signal.SIGKILL)


def kill_guard(folder: Path) -> None:
    """Kill the guard once both ranks are there."""
    until(lambda: all((folder / f"rank{rank}" / "pid").exists() for rank in range(2)))
    for guard in guards():
        guard.send_signal(signal.SIGKILL)


@contextlib.contextmanager
def busy_port(_folder: Path) -> Iterator[None]:
    """Have somebody listen on DeepSpeed's and torch's default port."""
    try:
        listener = socket.create_server(("127.0.0.1", BUSY_PORT))
    except OSError:
        yield  # somebody does already
        return
    with listener:
        yield


@contextlib.contextmanager
def full_disk_for_the_log(folder: Path) -> Iterator[None]:
    """Make the log a file on a device that is always full."""
    folder.mkdir(parents=True)
    (folder / "log.txt").symlink_to("/dev/full")
    yield


@contextlib.contextmanager
def full_disk_for_the_assignment(folder: Path) -> Iterator[None]:
    """Make the trial's first file one on a device that is always full."""
    folder.mkdir(parents=True)
    (folder / ASSIGNMENT_FILE).symlink_to("/dev/full")
    yield


@contextlib.contextmanager
def full_disk_for_the_result(folder: Path) -> Iterator[None]:
    """Make the guard's result one on a device that is always full."""
    folder.mkdir(parents=True)
    (folder / "result.json.partial").symlink_to("/dev/full")
    yield


def fill_disk_of_rank(folder: Path) -> None:
    """Let rank 0 write no file above 8 KiB from now on: what it writes down of its steps soon has no room."""
    pid = folder / "rank0" / "pid"
    until(lambda: pid.exists() and pid.read_text())
    psutil.Process(int(pid.read_text())).rlimit(psutil.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))


@contextlib.contextmanager
def own_op_cache(folder: Path) -> Iterator[None]:
    """Keep compiled ops in `folder`: nobody else builds one there."""
    before = os.environ.get(op_cache.ROOT_VARIABLE)
    os.environ[op_cache.ROOT_VARIABLE] = str(folder)
    try:
        yield
    finally:
        del os.environ[op_cache.ROOT_VARIABLE]
        if before is not None:
            os.environ[op_cache.ROOT_VARIABLE] = before


@contextlib.contextmanager
def stale_lock(_folder: Path) -> Iterator[None]:
    """Leave the lock of a builder that is gone on an op that the script builds."""
    lock = op_cache.directory("cpu") / "small_op" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    yield


def broken(fault: str, *, rank: int | None = 1, launcher: str = TORCHRUN) -> str:
    """Return the command of a script that goes wrong before it loads anything."""
    which = "" if rank is None else f" --rank {rank}"
    config = "" if launcher == ACCELERATE else " --deepspeed_config {config}"
    return f"{launcher} broken.py{config} --fault {fault}{which}"


def faulty(fault: str, *, more: str = "") -> str:
    """Return the command of a script that goes wrong in training."""
    return f"{TORCHRUN} faulty.py --deepspeed_config {{config}} --eval_every 0 --fault {fault} {more}"


TRAIN = f"{TORCHRUN} plain_loop.py --deepspeed_config {{config}} --eval_every 0"
SECONDS_5 = Deadlines(launch_s=5.0)
CASES = (
    Case(
        name="a rank sleeps before its first collective",
        command=faulty("sleep_before_first_collective", more="--rank 1"),
        deadlines=Deadlines(rendezvous_s=3.0),
        kind=FailureKind.TIMEOUT,
        words="rank 0 waited 3 s in stage 'rendezvous' for rank 1",
        rank=1,
        stage=Stage.LAUNCH,
    ),
    Case(
        name="host memory, by limit",
        command=broken("hoard"),
        memory_limit_bytes=500_000_000,
        kind=FailureKind.OUT_OF_MEMORY,
        words="rank 1 held .* MiB of resident memory, above its limit",
        rank=1,
        stage=Stage.LAUNCH,
    ),
    Case(
        name="host memory, SIGKILL",
        command=broken("sigkill_self"),
        kind=FailureKind.OUT_OF_MEMORY,
        words="rank 1 was killed by signal 9.*out-of-memory killer",
        rank=1,
    ),
    Case(
        name="CUDA out of memory",
        slow=True,
        command=faulty("cuda_oom", more="--rank 1"),
        kind=FailureKind.OUT_OF_MEMORY,
        words="out of memory: OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB",
        rank=1,
        stage=Stage.FIRST_STEP,
    ),
    Case(
        name="a traceback in rank 1, its peer loses the connection",
        command=faulty("traceback", more="--rank 1 --step 3"),
        budget=Budget(steps=500),
        kind=FailureKind.CRASH,
        words="RuntimeError: the batch has a shape that the model does not know",
        rank=1,
        stage=Stage.RUN,
    ),
    Case(
        name="a traceback before anything is loaded",
        command=broken("traceback"),
        kind=FailureKind.CRASH,
        words="RuntimeError: the data set has no file train.bin",
        rank=1,
        stage=Stage.LAUNCH,
    ),
    Case(
        name="a traceback, deepspeed launcher",
        command=broken("traceback", launcher=DEEPSPEED),
        kind=FailureKind.CRASH,
        words="RuntimeError: the data set has no file train.bin",
        rank=1,
    ),
    Case(
        name="a traceback, accelerate launch",
        slow=True,
        command=broken("traceback", launcher=ACCELERATE),
        kind=FailureKind.CRASH,
        words="RuntimeError: the data set has no file train.bin",
        rank=1,
    ),
    Case(
        name="SIGSEGV",
        command=broken("segfault"),
        kind=FailureKind.CRASH,
        words="rank 1 was killed by signal 11 .SIGSEGV.",
        rank=1,
    ),
    Case(
        name="rank 1 exits 0, rank 0 is left alone",
        command=broken("exit_0"),
        kind=FailureKind.CRASH,
        words="rank 1 ended with exit code 0 and left no result",
        rank=1,
    ),
    Case(
        name="exit 0 before training",
        command=broken("exit_0_late", rank=None),
        kind=FailureKind.CRASH,
        words="the script ended with exit code 0 and left no result: it never called deepspeed.initialize",
    ),
    Case(
        name="exit 0 after too few steps",
        slow=True,
        command=f"{TRAIN} --max_steps 4",
        budget=Budget(steps=50),
        kind=FailureKind.CRASH,
        words="by itself after 4 optimizer steps.*let it train longer",
    ),
    Case(
        name="loss nan",
        command=faulty("nan"),
        kind=FailureKind.DIVERGED,
        words="the training loss was not finite in step 1",
    ),
    Case(
        name="loss inf",
        slow=True,
        command=faulty("inf", more="--step 2"),
        config=STAGE_0,
        kind=FailureKind.DIVERGED,
        words="the training loss was not finite in step 3 .inf on this rank",
    ),
    Case(
        name="every step skipped",
        slow=True,
        command=faulty("skipped_steps"),
        kind=FailureKind.DIVERGED,
        words="skipped every one of 4 optimizer steps",
    ),
    Case(
        name="port 29500 named and busy",
        command=f"{TORCHRUN} --master_port 29500 plain_loop.py --deepspeed_config {{config}}",
        around=busy_port,
        kind=FailureKind.CRASH,
        words="port 29500, which the command names, is taken by another process",
        stage=Stage.LAUNCH,
    ),
    Case(
        name="port 29500 busy, none named",
        slow=True,
        command=TRAIN,
        around=busy_port,
        kind=None,
    ),
    Case(
        name="launcher killed -9 in training",
        command=TRAIN,
        budget=Budget(seconds=60),
        meddle=kill_launcher_in_training,
        kind=FailureKind.CRASH,
        words="the launcher .torchrun. was killed by SIGKILL while its ranks still ran",
        stage=Stage.RUN,
    ),
    Case(
        name="autotune's guard killed -9",
        command=broken("sleep"),
        meddle=kill_guard,
        kind=FailureKind.CRASH,
        words="autotune's own process beside the launcher was killed by signal 9",
    ),
    Case(
        name="stale op-build lock",
        slow=True,
        command=TRAIN.replace("plain_loop.py", "builds_op.py"),
        around=stale_lock,
        kind=None,
    ),
    Case(
        name="killed while it builds an op",
        command=broken("hold_lock"),
        kind=FailureKind.OUT_OF_MEMORY,
        words="rank 1 was killed by signal 9",
        rank=1,
    ),
    Case(
        name="full disk for the log",
        command=broken("much_output"),
        around=full_disk_for_the_log,
        kind=FailureKind.CRASH,
        words="RuntimeError: said enough",
        rank=1,
    ),
    Case(
        name="full disk before the start",
        command=broken("traceback"),
        around=full_disk_for_the_assignment,
        kind=FailureKind.CRASH,
        words="autotune can't write the trial's files to .*trial-00007: No space left on device; .*run_directory",
    ),
    Case(
        name="full disk for the result",
        command=broken("traceback"),
        around=full_disk_for_the_result,
        kind=FailureKind.CRASH,
        words="autotune can't write the trial's files to .*trial-00007: .*run_directory",
    ),
    Case(
        name="full disk in training",
        slow=True,
        command=TRAIN,
        budget=Budget(steps=1000, warmup_steps=1),
        meddle=fill_disk_of_rank,
        kind=FailureKind.CRASH,
        words="autotune can't write the trial's files to .*trial-00007/rank0: File too large; make room there",
        rank=0,
        stage=Stage.RUN,
    ),
    Case(
        name="SIGTERM ignored by a rank and its child",
        command=broken("ignore_sigterm", rank=None),
        deadlines=SECONDS_5,
        kind=FailureKind.TIMEOUT,
        words="still in stage 'launch' after 5 s.*raise deadlines.launch_s",
        stage=Stage.LAUNCH,
    ),
    Case(
        name="100 MiB of output",
        slow=True,
        command=faulty("much_output", more="--rank 0"),
        budget=Budget(steps=50, warmup_steps=1),
        kind=None,
    ),
    Case(
        name="detached children, a port, shared memory",
        command=broken("leave_children"),
        kind=FailureKind.CRASH,
        words="RuntimeError: everything is left behind",
        rank=1,
    ),
    Case(
        name="no such command",
        command="trochrun --nproc_per_node 2 plain_loop.py --deepspeed_config {config}",
        kind=FailureKind.CRASH,
        words="can't be started: its program 'trochrun' was not found",
        stage=Stage.LAUNCH,
    ),
    Case(
        name="wrong arguments of the launcher",
        command="torchrun --nproc_per_node 2 --no_such_option plain_loop.py --deepspeed_config {config}",
        kind=FailureKind.CRASH,
        words="the command ended with exit code 2 before it started any rank",
    ),
    Case(
        name="hard-coded batch size",
        slow=True,
        command=f"{TORCHRUN} own_batches.py --deepspeed_config {{config}} --micro 4",
        searched=("train_micro_batch_size_per_gpu",),
        kind=FailureKind.INVALID_CONFIG,
        words="the script overrides train_micro_batch_size_per_gpu: it feeds micro-batches of 4.*says 8",
        stage=Stage.FIRST_STEP,
    ),
    Case(
        name="another number of ranks than the campaign's",
        slow=True,
        command=f"{TORCHRUN} plain_loop.py --deepspeed_config {{config}}",
        ranks=3,
        kind=FailureKind.INVALID_CONFIG,
        words=r"the command started 2 rank\(s\), and the campaign says 3: set hardware.ranks: 2",
        stage=Stage.RENDEZVOUS,
    ),
    Case(
        name="python -I",
        command=f"{sys.executable} -I broken.py --fault exit_0_late --deepspeed_config {{config}}",
        kind=FailureKind.CRASH,
        words="autotune's probe was loaded in none of its ranks.*-I",
    ),
)
