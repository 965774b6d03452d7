"""The contract of a trial runner: the law of `autotune.runners.TrialRunner`, as tests.

class TestMyRunner(RunnerContract):
    ranks = 1

    def make_runner(self, evaluator):
        return MyRunner(evaluator)
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import psutil

from autotune.errors import ResourceError
from autotune.evaluators.protocol import Evaluator, RankCommand, RankHost, RankReport, ShouldPrune, never_prune
from autotune.runners.protocol import Finished, TrialRunner
from autotune.trials import Budget, Failure, FailureKind, Measurement, Outcome, Stage, TrialRequest

PATIENCE_S = 60.0
"""After this a contract test fails instead of waiting on."""


class Behaviour(StrEnum):
    """What `ScriptedEvaluator` does with a request."""

    MEASURE = "measure"
    FAIL = "fail"
    RAISE = "raise"
    WAIT = "wait"
    """Until it is cancelled."""
    LINGER = "linger"
    """Half a second, deaf to cancellation, then measure."""


@dataclass(slots=True, kw_only=True)
class ScriptedEvaluator:
    """An evaluator whose behaviour is written in each request's point; starts no process on its hosts."""

    ranks: int
    prepared: list[Mapping[str, object]] = field(default_factory=list)
    evaluated: list[int] = field(default_factory=list)

    def prepare(self, ds_configs: Sequence[Mapping[str, object]], progress: Callable[[str], None]) -> None:
        """Note the configurations."""
        progress("preparing")
        self.prepared.extend(ds_configs)

    def evaluate(
        self,
        request: TrialRequest,
        *,
        hosts: Sequence[RankHost],
        progress: Callable[[Stage], None],
        cancelled: Callable[[], bool],
        should_prune: ShouldPrune = never_prune,
    ) -> Outcome:
        """Do what the request says."""
        assert len(hosts) == self.ranks, f"got {len(hosts)} hosts for {self.ranks} ranks"
        self.evaluated.append(request.number)
        for host in hosts:
            _, port = host.reserve_address()
            assert 0 < port < 65536, f"port: got {port}"
            assert not host.poll().running, "an idle host says that its process runs"
        progress(Stage.RUN)
        behaviour = Behaviour(str(request.point["behaviour"]))
        if behaviour is Behaviour.RAISE:
            raise LookupError("a bug in the evaluator")
        if behaviour is Behaviour.FAIL:
            return Outcome(failure=Failure(kind=FailureKind.OUT_OF_MEMORY, reason="as asked"))
        if behaviour is Behaviour.WAIT:
            return _wait_for(cancelled)
        if behaviour is Behaviour.LINGER:
            time.sleep(0.5)
        return Outcome(measurement=measurement(samples_per_second=float(request.number)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEvaluator:
    """An evaluator whose ranks run a piece of Python, each in `<directory>/<trial>/rank<i>`.

    A trial is measured when every rank exits with 0.
    """

    ranks: int
    source: str
    directory: str

    def prepare(self, ds_configs: Sequence[Mapping[str, object]], progress: Callable[[str], None]) -> None:
        """Do nothing."""

    def evaluate(
        self,
        request: TrialRequest,
        *,
        hosts: Sequence[RankHost],
        progress: Callable[[Stage], None],
        cancelled: Callable[[], bool],
        should_prune: ShouldPrune = never_prune,
    ) -> Outcome:
        """Run the ranks to their ends, or to the first that dies."""
        for rank, host in enumerate(hosts):
            directory = f"{self.directory}/{request.number}/rank{rank}"
            host.start(
                RankCommand(
                    rank=rank, argv=("-c", _TIED + self.source), environment={"RANK": str(rank)}, directory=directory
                )
            )
        progress(Stage.RUN)
        stopped = False
        reports = [host.poll() for host in hosts]
        while any(report.running for report in reports) and not any(map(_died, reports)) and not stopped:
            time.sleep(0.02)
            stopped = cancelled()
            reports = [host.poll() for host in hosts]
        final = [host.stop() for host in hosts]
        if stopped:
            return Outcome(failure=Failure(kind=FailureKind.CANCELLED, reason="stopped, as asked"))
        for rank, report in enumerate(reports):
            if _died(report):
                failure = Failure(
                    kind=FailureKind.CRASH,
                    reason=f"rank {rank} died",
                    rank=rank,
                    exit_code=report.exit_code,
                    log_tail=final[rank].log_tail,
                    host_lost=report.host_lost is not None,
                )
                return Outcome(failure=failure)
        return Outcome(measurement=measurement(samples_per_second=1.0))


_TIED = "from autotune.evaluators.rank_worker.lifeline import hold_on\nhold_on()\n"


def _died(report: RankReport) -> bool:
    return not report.running and report.exit_code != 0


def request(number: int, behaviour: Behaviour = Behaviour.MEASURE) -> TrialRequest:
    """Return a request that `ScriptedEvaluator` understands."""
    return TrialRequest(
        number=number,
        point={"behaviour": behaviour.value},
        ds_config={"train_micro_batch_size_per_gpu": 1},
        budget=Budget(steps=1),
    )


def measurement(*, samples_per_second: float) -> Measurement:
    """Return a measurement with this throughput and plausible figures beside it."""
    return Measurement(
        samples_per_second=samples_per_second,
        samples_per_second_spread=0.0,
        step_time_s=1.0,
        timed_steps=1,
        warmup_steps=0,
        samples_per_step=1,
        training_time_s=1.0,
        held_out_loss_before=2.0,
        held_out_loss_after=1.0,
        convergence_time_s=1.0,
        training_loss_last=1.0,
    )


class RunnerContract(ABC):
    """Subclass it in a test module, with a name that pytest collects, and say how to make the runner."""

    ranks: int = 0
    """How many ranks the evaluator asks for."""

    @abstractmethod
    def make_runner(self, evaluator: Evaluator) -> TrialRunner:
        """Return a new runner of `evaluator`, not opened; each test opens and closes one."""

    def test_open_prepares_the_evaluator_once(self) -> None:
        evaluator = ScriptedEvaluator(ranks=self.ranks)
        told: list[str] = []
        runner = self.make_runner(evaluator)
        assert evaluator.prepared == []
        try:
            runner.open([{"a": 1}], told.append)
            assert evaluator.prepared == [{"a": 1}]
            assert "preparing" in told
        finally:
            runner.close(cancel=True)

    def test_every_request_comes_back_exactly_once(self) -> None:
        evaluator = ScriptedEvaluator(ranks=self.ranks)
        behaviours = (Behaviour.MEASURE, Behaviour.FAIL, Behaviour.RAISE)
        requests = [request(number, behaviours[number % 3]) for number in range(9)]
        with self._opened(evaluator) as runner:
            finished = _run_all(runner, requests)
            assert runner.collect(0.0) is None
        assert sorted(done.request.number for done in finished) == list(range(9))
        assert sorted(evaluator.evaluated) == list(range(9))
        assert all(done.request is requests[done.request.number] for done in finished)

    def test_a_measurement_comes_back_as_it_is(self) -> None:
        (done,) = self._finished(request(7, Behaviour.MEASURE))
        assert done.outcome.measurement == measurement(samples_per_second=7.0)

    def test_a_failure_comes_back_as_it_is(self) -> None:
        (done,) = self._finished(request(0, Behaviour.FAIL))
        assert done.outcome.failure == Failure(kind=FailureKind.OUT_OF_MEMORY, reason="as asked")

    def test_an_evaluator_that_raises_is_a_crash_with_its_traceback(self) -> None:
        crashed, after = self._finished(request(0, Behaviour.RAISE), request(1, Behaviour.MEASURE))
        failure = crashed.outcome.failure
        assert failure is not None
        assert failure.kind is FailureKind.CRASH
        assert "a bug in the evaluator" in failure.reason
        assert any("Traceback" in line for line in failure.log_tail)
        assert any("LookupError" in line for line in failure.log_tail)
        assert after.outcome.measurement is not None

    def test_slots_are_respected(self) -> None:
        with self._opened(ScriptedEvaluator(ranks=self.ranks)) as runner:
            for number in range(runner.slots):
                runner.submit(request(number, Behaviour.LINGER))
            message = _refusal(runner, request(99, Behaviour.MEASURE))
            assert "99" in message, f"the message does not name the trial: {message}"
            for _ in range(runner.slots):
                assert _collect(runner).request.number != 99
            runner.submit(request(100, Behaviour.MEASURE))
            assert _collect(runner).request.number == 100

    def test_collect_without_a_finished_trial_is_none(self) -> None:
        with self._opened(ScriptedEvaluator(ranks=self.ranks)) as runner:
            assert runner.collect(0.05) is None

    def test_close_with_cancel_ends_trials_as_cancelled(self) -> None:
        with self._opened(ScriptedEvaluator(ranks=self.ranks)) as runner:
            for number in range(runner.slots):
                runner.submit(request(number, Behaviour.WAIT))
            runner.close(cancel=True)
            finished = [_collect(runner) for _ in range(runner.slots)]
            assert runner.collect(0.0) is None
        assert sorted(done.request.number for done in finished) == list(range(runner.slots))
        for done in finished:
            assert done.outcome.failure is not None
            assert done.outcome.failure.kind is FailureKind.CANCELLED

    def test_close_without_cancel_lets_trials_end(self) -> None:
        with self._opened(ScriptedEvaluator(ranks=self.ranks)) as runner:
            runner.submit(request(0, Behaviour.LINGER))
            runner.close(cancel=False)
            assert _collect(runner).outcome.measurement is not None

    def test_hosts_run_processes_and_stop_them(self, tmp_path: Path) -> None:
        if self.ranks == 0:
            return
        source = "import os, pathlib; pathlib.Path('pid').write_text(f'{os.getpid()} {os.environ[\"RANK\"]}')"
        waits = f"{source}; import time; time.sleep({PATIENCE_S})"
        with self._opened(ProcessEvaluator(ranks=self.ranks, source=source, directory=str(tmp_path))) as runner:
            assert _run_all(runner, [request(0)])[0].outcome.measurement is not None
        with self._opened(ProcessEvaluator(ranks=self.ranks, source=waits, directory=str(tmp_path))) as runner:
            runner.submit(request(1))
            notes = [tmp_path / "1" / f"rank{rank}" / "pid" for rank in range(self.ranks)]
            _wait_until(lambda: all(note.exists() and note.read_text() for note in notes))
            runner.close(cancel=True)
            failure = _collect(runner).outcome.failure
            assert failure is not None
            assert failure.kind is FailureKind.CANCELLED
        for rank, note in enumerate(notes):
            pid, rank_told = note.read_text().split()
            assert rank_told == str(rank)
            assert not psutil.pid_exists(int(pid)), f"rank {rank} (pid {pid}) outlived its trial"

    def test_close_is_idempotent(self) -> None:
        runner = self.make_runner(ScriptedEvaluator(ranks=self.ranks))
        runner.close(cancel=True)
        runner = self.make_runner(ScriptedEvaluator(ranks=self.ranks))
        runner.open([], _ignore)
        for cancel in (False, True, True):
            runner.close(cancel=cancel)
        assert runner.collect(0.0) is None

    def _finished(self, *requests: TrialRequest) -> list[Finished]:
        with self._opened(ScriptedEvaluator(ranks=self.ranks)) as runner:
            return sorted(_run_all(runner, requests), key=lambda done: done.request.number)

    @contextmanager
    def _opened(self, evaluator: Evaluator) -> Iterator[TrialRunner]:
        runner = self.make_runner(evaluator)
        try:
            runner.open([], _ignore)
            yield runner
        finally:
            runner.close(cancel=True)


def _run_all(runner: TrialRunner, requests: Sequence[TrialRequest]) -> list[Finished]:
    finished: list[Finished] = []
    for number, each in enumerate(requests):
        if number - len(finished) == runner.slots:
            finished.append(_collect(runner))
        runner.submit(each)
    while len(finished) < len(requests):
        finished.append(_collect(runner))
    return finished


def _collect(runner: TrialRunner) -> Finished:
    finished = runner.collect(PATIENCE_S)
    assert finished is not None, f"nothing came back within {PATIENCE_S:g} s"
    return finished


def _refusal(runner: TrialRunner, one_too_many: TrialRequest) -> str:
    try:
        runner.submit(one_too_many)
    except ResourceError as error:
        return str(error)
    raise AssertionError(f"took {runner.slots + 1} requests for {runner.slots} slots")


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"it did not come about within {PATIENCE_S:g} s"
        time.sleep(0.01)


def _wait_for(cancelled: Callable[[], bool]) -> Outcome:
    _wait_until(cancelled)
    return Outcome(failure=Failure(kind=FailureKind.CANCELLED, reason="stopped, as asked"))


def _ignore(_line: str) -> None:
    """Take what `open` tells of its progress."""
