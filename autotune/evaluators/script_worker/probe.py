"""The probe in one Python of a tuned command: it waits for a rank to show, and follows it to its end."""

from __future__ import annotations

import atexit
import functools
import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from autotune.evaluators.rank_files import RankResult
from autotune.evaluators.rank_worker import failures
from autotune.evaluators.rank_worker.failures import TrialFailed
from autotune.evaluators.rank_worker.reporter import Reporter
from autotune.evaluators.script_files import ASSIGNMENT_FILE, PID_FILE, SEEN_FILE, ScriptAssignment, rank_folder
from autotune.trials import FailureKind, Intermediate, Stage

DISTRIBUTED = "torch.distributed.distributed_c10d"
DEEPSPEED = "deepspeed"
SEEN_WITHIN_S = 2.0
"""A rank that ends at once waits so long for the guard to see it: its launcher takes the exit code away soon."""
LOOK_S = 0.01


def install(directory: str) -> None:
    """Begin to watch this process."""
    assignment = ScriptAssignment.from_text((Path(directory) / ASSIGNMENT_FILE).read_text())
    probe = Probe(Path(directory), assignment)
    sys.meta_path.insert(0, AfterImport({DISTRIBUTED: probe.watch_rendezvous, DEEPSPEED: probe.watch_initialize}))
    sys.excepthook = functools.partial(probe.uncaught, sys.excepthook)
    atexit.register(probe.at_exit)
    rank = os.environ.get("RANK", "")
    if rank.isdigit():
        probe.claim(int(rank))


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls back when a module has been imported, before whoever imports it sees it.

    It stays in place: libraries look for a module's spec to find out whether it is installed, long before they import.
    """

    def __init__(self, callbacks: dict[str, Callable[[ModuleType], None]]) -> None:
        self._callbacks = callbacks

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        callback = self._callbacks.get(name)
        if callback is None:
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            _after(spec.loader, callback)
        return spec


class Probe:
    """Follows the rank that this process turns out to be, if it is one."""

    def __init__(self, directory: Path, assignment: ScriptAssignment) -> None:
        self.assignment = assignment
        self._directory = directory
        self._reporter: Reporter | None = None
        self._stage = Stage.LAUNCH
        self._caught: RankResult | None = None
        """What initialize raised last: told at the end, if the script didn't get over it."""
        self._delivered = False
        self._is_watching = False

    def claim(self, rank: int, *, joins: bool = False) -> None:
        """Say that this process is a rank, unless another living process said so (this one is its child then).

        Args:
            rank: which, as the environment says or the process group.
            joins: whether it has joined the process group. Then it is the rank, whoever had the same environment
                before: a launcher, or a wrapper that started it.
        """
        if self._reporter is not None or not 0 <= rank < self.assignment.ranks:
            return
        folder = self._directory / rank_folder(rank)
        folder.mkdir(exist_ok=True)
        if _claimed(folder / PID_FILE, joins=joins):
            self._reporter = Reporter(folder)
            self._reporter.enter(self._stage)

    def enter(self, stage: Stage) -> None:
        """Say that a stage begins, once it is known which rank this is."""
        self._stage = stage
        if self._reporter is not None:
            self._reporter.enter(stage)

    def report(self, course: Sequence[Intermediate]) -> None:
        """Say what was measured on the way so far."""
        if self._reporter is not None:
            self._reporter.report(course)

    def deliver(self, result: RankResult) -> None:
        """Leave this rank's result; the first one counts."""
        if self._reporter is not None and not self._delivered and os.getpid() == self._pid():
            self._delivered = True
            self._reporter.deliver(result)

    def watch_rendezvous(self, distributed: ModuleType) -> None:
        """Wrap torch's init_process_group."""
        join = distributed.init_process_group

        @functools.wraps(join)
        def init_process_group(*arguments: Any, **named: Any) -> Any:
            self.enter(Stage.RENDEZVOUS)
            joined = join(*arguments, **named)
            self.claim(distributed.get_rank(), joins=True)
            self._check_ranks(distributed.get_world_size())
            self.enter(Stage.INITIALIZE)
            return joined

        setattr(distributed, "init_process_group", init_process_group)  # noqa: B010 - a module's function

    def watch_initialize(self, deepspeed: Any) -> None:
        """Wrap `deepspeed.initialize`, and give DeepSpeed the compiled ops that are there."""
        from autotune.evaluators import op_cache
        from autotune.evaluators.rank_worker import compiled_ops

        cache = op_cache.directory(self.assignment.device)
        if os.environ.get("TORCH_EXTENSIONS_DIR") == str(cache):
            compiled_ops.load_from(cache)
        if self.assignment.device == "cpu":
            compiled_ops.without_inference_collectives()
        initialize = deepspeed.initialize

        @functools.wraps(initialize)
        def watched_initialize(*arguments: Any, **named: Any) -> Any:
            try:
                returned = initialize(*arguments, **named)
            except BaseException as error:
                self._caught = failures.result_of(error, stage=Stage.INITIALIZE, initializing=True)
                raise
            self._caught = None
            self._watch_engine(returned[0])
            return returned

        deepspeed.initialize = watched_initialize

    def uncaught(
        self, hook: Callable[..., Any], kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Report the exception that ends this process (`sys.excepthook`)."""
        hook(kind, error, trace)
        self.deliver(self._caught or failures.result_of(error, stage=self._stage, initializing=False))

    def at_exit(self) -> None:
        """Report what initialize raised, where the script caught it and gave up; end only once the guard looks on."""
        if self._caught is not None:
            self.deliver(self._caught)
        if self._reporter is None or self._delivered or os.getpid() != self._pid():
            return
        seen = self._reporter.directory / SEEN_FILE
        deadline_s = time.monotonic() + SEEN_WITHIN_S
        while not _names(seen, os.getpid()) and time.monotonic() < deadline_s:
            time.sleep(LOOK_S)

    def _check_ranks(self, started: int) -> None:
        """Tell at once of another number of ranks than the trial waits for; the guard then ends the command."""
        expected = self.assignment.ranks
        if started != expected:
            reason = f"the command started {started} rank(s), and the campaign says {expected}: set hardware.ranks"
            failed = TrialFailed(FailureKind.INVALID_CONFIG, f"{reason}: {started}")
            self.deliver(failures.result_of(failed, stage=self._stage, initializing=False))

    def _watch_engine(self, engine: Any) -> None:
        from autotune.evaluators.script_worker import engine_watch

        if self._reporter is None or not engine_watch.trains(engine):
            return
        if self._is_watching:
            engine_watch.shield(engine)
            sys.stderr.write("[autotune] the script has several engines that train; the first one is measured\n")
            return
        self._is_watching = True
        engine_watch.watch(engine, assignment=self.assignment, folder=self._reporter.directory, probe=self)

    def _pid(self) -> int:
        assert self._reporter is not None  # noqa: S101 - asked before
        return int((self._reporter.directory / PID_FILE).read_text())


def _after(loader: Any, callback: Callable[[ModuleType], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        callback(module)

    loader.exec_module = exec_module


def _claimed(path: Path, *, joins: bool) -> bool:
    """Take the file for this process, whole at once; return False where a living process has it and we don't join."""
    own = path.with_name(f"{path.name}.{os.getpid()}")
    own.write_text(str(os.getpid()))
    try:
        for _ in range(2):
            if joins:
                own.replace(path)
                return True
            try:
                os.link(own, path)
            except FileExistsError:
                if _is_alive(path):
                    return False
                path.unlink(missing_ok=True)
            else:
                return True
        return False
    finally:
        own.unlink(missing_ok=True)


def _names(path: Path, pid: int) -> bool:
    """Say whether a file has this process's number."""
    try:
        return path.read_text() == str(pid)
    except FileNotFoundError:
        return False


def _is_alive(path: Path) -> bool:
    """Say whether the process that a file names lives."""
    try:
        os.kill(int(path.read_text()), 0)
    except (ValueError, ProcessLookupError, FileNotFoundError):
        return False
    except PermissionError:
        return True
    return True
