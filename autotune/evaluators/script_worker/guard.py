"""The guard of a script's launcher: starts it, supervises its ranks where they run, and ends every process of it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.evaluators import op_cache, processes, sent_code
from autotune.evaluators.protocol import RankReport
from autotune.evaluators.rank_files import RankResult
from autotune.evaluators.rank_worker.reporter import Reporter
from autotune.evaluators.script import is_own_environment, resolved
from autotune.evaluators.script_files import (
    ASSIGNMENT_FILE,
    DIRECTORY_VARIABLE,
    OUTPUT_FOLDER,
    PACKAGE_VARIABLE,
    ScriptAssignment,
)
from autotune.evaluators.script_worker.measuring import RankRecord, measure
from autotune.evaluators.script_worker.rank_watch import RankWatch, name_of
from autotune.evaluators.supervision import GRACE_S, Supervision, Verdict
from autotune.trials import Failure, FailureKind, Intermediate, Outcome, Stage

OTHERS_GRACE_S = 5.0
"""Once one rank has spent its budget, the others have this long to end the same step."""
SET_BY_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What a scheduler that started autotune may have set is about autotune's own process, not about the trial's ranks."""
ON_PATH = Path(__file__).parent / "on_path"
PACKAGE = Path(__file__).parents[2]


class Guard:
    """Runs one trial of a script.

    Args:
        directory: the trial's folder; the assignment is in it.
        token: the mark of everything that is started here, this process included.
    """

    def __init__(self, directory: Path, *, token: str) -> None:
        self._directory = directory
        self._token = token
        self._segments_before = processes.shared_memory()
        self._assignment = ScriptAssignment.from_text((directory / ASSIGNMENT_FILE).read_text())
        self._reporter = Reporter(directory)
        self._launcher: subprocess.Popen[bytes] | None = None
        self._launcher_ended_s: float | None = None
        self._done_s: float | None = None
        self._reports: list[RankReport] = []
        self._op_cache: Path | None = None
        self._told: Failure | None = None
        self._ranks = [
            RankWatch(
                rank,
                directory=directory,
                launcher=self._launcher_exit_code,
                memory_limit_bytes=self._assignment.memory_limit_bytes,
            )
            for rank in range(self._assignment.ranks)
        ]

    def run(self) -> None:
        """Run the trial, leave its result, and end what it started."""
        try:
            verdict = self._verdict()
            outcome = Outcome(measurement=verdict.measurement, failure=verdict.failure)
            self._reporter.deliver(RankResult(outcome=outcome, address_in_use=verdict.address_in_use))
        finally:
            self.end()

    def end(self) -> None:
        """End everything that was started; idempotent."""
        processes.end(self._token, there_before=self._segments_before, numbers=self._numbers())
        if self._launcher is not None:
            self._launcher.poll()
        if self._op_cache is not None:
            op_cache.clear_stale_locks(self._op_cache)
        shutil.rmtree(self._directory / OUTPUT_FOLDER, ignore_errors=True)

    def _verdict(self) -> Verdict:
        assignment = self._assignment
        if assignment.fixed_port is not None and _is_taken(assignment.fixed_port):
            return Verdict(
                failure=_crash(
                    f"port {assignment.fixed_port}, which the command names, is taken by another process; "
                    "leave the port out of the command (each trial gets a free one), or put {port} in its place"
                )
            )
        self._make_room()
        environment = self._environment()
        try:
            self._start(environment)
        except OSError as error:
            return Verdict(failure=_crash(_cannot_start(assignment, error)))
        supervision = Supervision(
            hosts=[_First(self), *(_Other(self, rank) for rank in range(1, assignment.ranks))],
            request=assignment.request,
            deadlines=assignment.deadlines,
            progress=self._reporter.enter,
            cancelled=lambda: False,
            should_prune=self._pass_on,
        )
        verdict = supervision.run()
        if verdict.failure is not None and self._told is not None and verdict.failure.reason == self._told.reason:
            # It is about the command, not about the rank that happened to bring it.
            told = replace(verdict.failure, rank=self._told.rank, stage=self._reporter.stage)
            return replace(verdict, failure=told)
        return verdict

    def _pass_on(self, course: Sequence[Intermediate]) -> None:
        """Tell the controller what rank 0 has measured on the way; whether to prune is decided there."""
        self._reporter.report(course)

    def _make_room(self) -> None:
        for rank in self._ranks:
            shutil.rmtree(rank.folder, ignore_errors=True)
        (self._directory / OUTPUT_FOLDER).mkdir(exist_ok=True)

    def _start(self, environment: Mapping[str, str]) -> None:
        assignment = self._assignment
        self._launcher = subprocess.Popen(
            resolved(sent_code.all_here(assignment.command)),
            cwd=sent_code.here(assignment.directory),
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _environment(self) -> Mapping[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name not in SET_BY_LAUNCHERS}
        # Ray sets it to what it reserves for the host, where all ranks are.
        threads = max(1, len(os.sched_getaffinity(0)) // self._assignment.ranks)
        environment = {**inherited, "OMP_NUM_THREADS": str(threads), **self._assignment.environment}
        environment[DIRECTORY_VARIABLE] = str(self._directory)
        environment[PACKAGE_VARIABLE] = str(PACKAGE)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ON_PATH), environment.get("PYTHONPATH")]))
        if is_own_environment(self._assignment.command):
            cache = op_cache.directory(self._assignment.device)
            cache.mkdir(parents=True, exist_ok=True)
            environment["TORCH_EXTENSIONS_DIR"] = str(cache)
            op_cache.clear_stale_locks(cache)
            self._op_cache = cache
        return environment

    def _numbers(self) -> set[int]:
        """Return the numbers that shared memory of the trial has in its name."""
        assignment = self._assignment
        numbers = {rank.pid for rank in self._ranks} | {assignment.fixed_port, assignment.reserved_port}
        return {number for number in numbers if number is not None}

    def _launcher_exit_code(self) -> int | None:
        return self._launcher.poll() if self._launcher is not None else None

    def look(self) -> None:
        """Look at every rank; until the next look that is how they are, or one would be judged by another's past."""
        self._reports = [rank.poll() for rank in self._ranks]

    def report(self, rank: int) -> RankReport:
        """Return how a rank was at the last look."""
        return self._reports[rank]

    def result(self) -> RankResult | None:
        """Return the trial's result as soon as it is clear from the ranks that did their part, or that ended early."""
        result = self._result()
        if result is not None and result.outcome is not None:
            self._told = result.outcome.failure
        return result

    def _result(self) -> RankResult | None:
        reports = self._reports
        results = [RankResult.from_text(report.result) if report.result else None for report in reports]
        if any(result is not None and result.outcome is not None for result in results):
            return None  # a rank's own failure: the supervision has it
        if any(result is not None for result in results):
            return self._measured(sum(result is not None for result in results))
        if any(report.running for report in reports):
            return self._abandoned()
        if any(report.exit_code not in (0, None) for report in reports if not report.running):
            return self._never_started()
        return self._ended_early()

    def _measured(self, done: int) -> RankResult | None:
        now_s = time.monotonic()
        self._done_s = self._done_s or now_s
        records = [RankRecord.of(rank.folder) for rank in self._ranks]
        counts = [len(record.steps) for record in records]
        everyone_is_there = done == len(records) or min(counts) == max(counts)
        if not everyone_is_there and now_s - self._done_s < OTHERS_GRACE_S:
            return None
        return RankResult(outcome=measure(self._assignment.request, records))

    def _abandoned(self) -> RankResult | None:
        """Say so when the launcher is gone and its ranks are not."""
        exit_code = self._launcher_exit_code()
        if exit_code in (0, None):
            return None
        self._launcher_ended_s = self._launcher_ended_s or time.monotonic()
        if time.monotonic() - self._launcher_ended_s < GRACE_S:
            return None
        killed = exit_code == -signal.SIGKILL
        hint = "; somebody or the kernel's out-of-memory killer (`dmesg` tells) may have done it" if killed else ""
        launcher = self._assignment.command[0]
        return _result(f"the launcher ({launcher}) {_ending(exit_code)} while its ranks still ran{hint}")

    def _never_started(self) -> RankResult | None:
        """Say so when the command ended before any rank showed."""
        if any(rank.has_started for rank in self._ranks):
            return None
        exit_code = self._launcher_exit_code()
        port = self._assignment.reserved_port
        words = f"the command {_ending(exit_code)} before it started any rank; its log tells why"
        return _result(words, address_in_use=port is not None and _is_taken(port))

    def _ended_early(self) -> RankResult:
        """Take what a script that ended by itself has trained, if it is enough."""
        request = self._assignment.request
        records = [RankRecord.of(rank.folder) for rank in self._ranks]
        steps = min(len(record.steps) for record in records)
        exit_codes = {report.exit_code for report in self._reports}
        ended = f"the script {_ending(0 if exit_codes == {0} else self._launcher_exit_code())}"
        if not any(rank.has_started for rank in self._ranks):
            return _result(
                f"{ended} and left no result: autotune's probe was loaded in none of its ranks. Is it a Python script, "
                "and started without -I, -E or -S?"
            )
        if all(record.engine is None for record in records):
            return _result(f"{ended} and left no result: it never called deepspeed.initialize; its log tells more")
        if steps == 0:
            return _result(
                f"{ended} and left no result: it called deepspeed.initialize and trained not one optimizer step; "
                "its log tells more"
            )
        outcome = measure(request, records)
        if outcome.failure is not None and outcome.failure.kind is not FailureKind.CRASH:
            return RankResult(outcome=outcome)  # more steps of that kind would not help
        trained_s = outcome.measurement.training_time_s if outcome.measurement else None
        if trained_s is None or trained_s < (request.convergence_at_s or 0.0):
            taken = f" ({trained_s:.3g} s of training)" if trained_s is not None else ""
            return _result(
                f"{ended} by itself after {steps} optimizer steps{taken}, before the trial's budget was spent: let it "
                "train longer (more epochs or steps), or take a shorter budget"
            )
        return RankResult(outcome=outcome)


class _First:
    """Rank 0, with the trial's result once there is one. It is asked first, and looks at all."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def poll(self, wait_s: float = 0.0) -> RankReport:
        self._guard.look()
        report = self._guard.report(0)
        own = RankResult.from_text(report.result) if report.result else None
        if own is not None and own.outcome is not None:
            return report
        result = self._guard.result()
        return replace(report, result=result.to_text() if result else None)


class _Other:
    """Another rank, as it was when rank 0 was asked."""

    def __init__(self, guard: Guard, rank: int) -> None:
        self._guard = guard
        self._rank = rank

    def poll(self, wait_s: float = 0.0) -> RankReport:
        return self._guard.report(self._rank)


def _cannot_start(assignment: ScriptAssignment, error: OSError) -> str:
    program = assignment.command[0]
    if isinstance(error, FileNotFoundError) and error.filename == sent_code.here(assignment.directory):
        return (
            f"the command can't be started: workload.directory {assignment.directory} is not there; on a cluster "
            "placement.ship_code sends it to each node, or put it where every node reads it"
        )
    if isinstance(error, FileNotFoundError):
        return (
            f"the command can't be started: its program {program!r} was not found, neither on the PATH nor beside "
            f"{sys.executable}; check its name, or give its path"
        )
    return f"the command can't be started: {program!r}: {error.strerror or error}"


def _crash(reason: str) -> Failure:
    return Failure(kind=FailureKind.CRASH, reason=reason, stage=Stage.LAUNCH)


def _result(reason: str, *, address_in_use: bool = False) -> RankResult:
    return RankResult(outcome=Outcome(failure=_crash(reason)), address_in_use=address_in_use)


def _ending(exit_code: int | None) -> str:
    if exit_code is None:
        return "ended"
    return f"was killed by {name_of(-exit_code)}" if exit_code < 0 else f"ended with exit code {exit_code}"


def _is_taken(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False


def watch_host(guard: Guard) -> None:
    """End everything when the host that holds our standard input open dies, or asks us to end (SIGTERM)."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            continue
        guard.end()
        os._exit(1)

    def asked(number: int, _frame: object) -> None:
        guard.end()
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, asked)
    threading.Thread(target=wait, name="lifeline", daemon=True).start()
