"""A study: ask -> submit -> collect -> record -> tell, over one storage, until its budget is spent.

Two doors lead to a trial, and both take the same two steps (start, finish): `Study.run` drives a searcher, and
`Study.evaluate_all` serves whoever drives itself, such as a Gymnasium environment. Through both, as many trials run at
once as the runner has slots.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Protocol, Self

import psutil

from autotune import ds_config as config_file
from autotune.errors import SearcherError, SpaceError, SpaceExhausted, StudyError
from autotune.objective import Objective, Reference, Score
from autotune.runners.protocol import Finished, TrialRunner
from autotune.searchers.protocol import Searcher
from autotune.searchers.pruning import TrialPruner
from autotune.space import SearchSpace
from autotune.storage import StoredStudy, command
from autotune.trials import Budget, Failure, FailureKind, Outcome, Point, Stage, Trial, TrialRequest, TrialState, Value

_POLL_S = 0.2
_HEARTBEAT_S = 2.0
_HEARTBEAT_LOST_S = 60.0
"""A controller on another host that has not written for this long is taken for dead."""
_ALIKE_FAILURES = 3
"""So many trials of one run that fail alike before their first step, and none that was ever measured, end the run:
the workload or the machine is broken, not a configuration."""
_REPEATS_ALLOWED = 100
"""Known points in a row after which a searcher is taken to be stuck."""


class StudyListener(Protocol):
    """Hears what a study does; called from the thread that drives it."""

    def note(self, text: str) -> None:
        """Something that takes a while is being prepared."""
        ...

    def trial_started(self, trial: Trial) -> None:
        """A trial was recorded as RUNNING and goes to the runner."""
        ...

    def trial_finished(self, trial: Trial) -> None:
        """A trial has its final state."""
        ...

    def waiting(self) -> None:
        """Called a few times a second while trials run."""
        ...


class Silence:
    """A listener that does nothing."""

    def note(self, text: str) -> None:
        """Ignore it."""

    def trial_started(self, trial: Trial) -> None:
        """Ignore it."""

    def trial_finished(self, trial: Trial) -> None:
        """Ignore it."""

    def waiting(self) -> None:
        """Ignore it."""


class StopRequest:
    """A wish to stop: first after the running trials, and when repeated at once (they end as CANCELLED)."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1

    @property
    def wanted(self) -> bool:
        return self.count > 0

    @property
    def at_once(self) -> bool:
        return self.count > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The user's own configuration: what index 0 of the objective stands for."""

    ds_config: Mapping[str, Any]
    """Whole and concrete, as it is measured."""
    point: Point
    """The same as a canonical point; empty where it lies outside the space."""
    activation_checkpointing: bool = False
    outside: str | None = None
    """Why it lies outside the space, for the user to read; None where it is a point of it."""

    @classmethod
    def of(cls, ds_config: Mapping[str, Any], space: SearchSpace, *, activation_checkpointing: bool = False) -> Start:
        """Place a configuration in a space."""
        settings = config_file.settings_of(ds_config)
        settings[config_file.ACTIVATION_CHECKPOINTING] = activation_checkpointing
        values: dict[str, Value] = {d.name: settings.get(d.name, d.default) for d in space.dimensions}
        point: Point = {}
        outside = None
        try:
            point = space.canonical(values)
        except SpaceError as error:
            outside = str(error)
        for name, value in space.settings(point).items():
            if name in space.fixed and settings.get(name) != value:
                point = {}
                outside = f"{name}: got {settings.get(name)!r}; the campaign fixes it at {value!r}"
        return cls(ds_config=ds_config, point=point, activation_checkpointing=activation_checkpointing, outside=outside)

    @property
    def remark(self) -> str | None:
        """What a user must know who expects the search to begin at this configuration; None where it may."""
        if self.outside is None:
            return None
        return f"outside the space ({self.outside}): it is measured first all the same, and no trial is like it"


class _Stopwatch:
    """Adds up the time spent inside its `with` blocks."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self._entered_at = 0.0

    def __enter__(self) -> None:
        self._entered_at = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.elapsed_s += time.monotonic() - self._entered_at


class Study:
    """Runs trials of one search space and keeps them; a context manager that holds the controller's place.

    Args:
        stored: where trials are kept.
        space: what is searched.
        start: the user's own configuration, measured first.
        objective: weighs throughput and convergence.
        runner: where trials run; opened and closed by the study.
        budget: length of one trial.
        trial_budget: how many trials may be executed in all, the baseline included; cancelled ones don't count.
        world_size: data-parallel ranks of one trial.
        seed: of the trials (model, data); the searcher has its own.
        listener: hears what happens.
        stop: looked at between polls.
        pruner: judges the runner's trials; hears of those that have ended. None: every trial runs to its end.
    """

    def __init__(
        self,
        *,
        stored: StoredStudy,
        space: SearchSpace,
        start: Start,
        objective: Objective,
        runner: TrialRunner,
        budget: Budget,
        trial_budget: int,
        world_size: int,
        seed: int = 0,
        listener: StudyListener | None = None,
        stop: StopRequest | None = None,
        pruner: TrialPruner | None = None,
    ) -> None:
        self.space = space
        self.trial_budget = trial_budget
        self._stored = stored
        self._start = start
        self._objective = objective
        self._runner = runner
        self._budget = budget
        self._world_size = world_size
        self._seed = seed
        self._listener: StudyListener = listener or Silence()
        self._stop = stop or StopRequest()
        self._pruner = pruner
        self._open: dict[int, Trial] = {}
        self._heartbeat_at = 0.0
        self._ended_meanwhile: list[Trial] = []
        self._controller: dict[str, Any] | None = None
        self._begun_with = 0
        self._has_hope = False
        self._measured: Trial | None = None
        self._history: list[Trial] = []
        self._by_point: dict[tuple[tuple[str, Value], ...], Trial] = {}

    def __enter__(self) -> Self:
        self._take_control()
        self._stored.hold_on(self._listener.note)
        try:
            self._runner.open(self._configs_to_prepare_for(), self._listener.note)
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._runner.close(cancel=True)
            while self._open and (finished := self._runner.collect(_POLL_S)) is not None:
                if not finished.request.repeat:
                    self._finish(finished)
        finally:
            self._stored.hold_on(None)
            self._release()

    @property
    def name(self) -> str:
        return self._stored.name

    @property
    def slots(self) -> int:
        """How many trials run at once."""
        return self._runner.slots

    @property
    def history(self) -> Sequence[Trial]:
        """Finished trials that count, in order, the baseline first; read from the storage when the study is entered."""
        return tuple(self._history)

    @property
    def baseline(self) -> Trial | None:
        """The trial of the user's own configuration, once it has run."""
        return next((trial for trial in self._history if trial.is_baseline), None)

    def run(self, searcher: Searcher, *, between: Callable[[], None] | None = None) -> str:
        """Measure the baseline, then what the searcher proposes, until the budget is spent.

        Args:
            searcher: new, of this study's space; it is restored from the storage.
            between: called between trials, with a slot free; it may `remeasure`.

        Returns:
            Why it ended, in words.

        Raises:
            SearcherError: when the searcher breaks its protocol.
        """
        self.measure_baseline()
        searcher.restore(self._stored.attribute("searcher_state") or {}, list(self.history))
        repeats, thinking = 0, _Stopwatch()
        while True:
            broken = self._broken()
            if between is not None and not broken and self._may_start():
                between()
            while not broken and self._may_start():
                try:
                    with thinking:
                        point = searcher.ask()
                except SpaceExhausted as exhausted:
                    if not self._open:
                        return str(exhausted)
                    break
                if self._stop.wanted:  # it came while the searcher thought
                    break
                known = self._known(point)
                if known is None and not self._is_open(point):
                    self._submit(point, searcher_s=thinking.elapsed_s)
                    repeats, thinking = 0, _Stopwatch()
                    continue
                repeats += 1
                if repeats > _REPEATS_ALLOWED:
                    raise SearcherError(f"searcher {type(searcher).__name__} proposed {repeats} known points in a row")
                if known is None:  # it runs: ask again when something is known of it
                    break
                with thinking:
                    searcher.tell(known)
            if not self._open and not self._ended_meanwhile:
                return broken or self._why_it_ended()
            for trial in self._wait():
                if trial.counts:
                    with thinking:
                        searcher.tell(trial)
                    self._stored.set_attribute("searcher_state", dict(searcher.state()))

    def measure_baseline(self) -> Trial | None:
        """Run the user's own configuration unless it has been; None when a stop came first."""
        if self.baseline is None and self._may_start():
            self._submit(self._start.point, is_baseline=True)
            while self._open:
                self._wait()
        return self.baseline

    def evaluate(self, point: Point) -> Trial:
        """Measure one canonical point and wait for it; a point that has run before is answered from its record.

        Raises:
            SpaceError: when the point is outside the space or not canonical.
            StudyError: when the trial budget is spent, or a stop is wanted.
        """
        (trial,) = self.evaluate_all([point])
        if trial is None:
            raise StudyError(f"study {self.name!r}: no further trial: {self._why_it_ended()}")
        return trial

    def evaluate_all(self, points: Sequence[Point]) -> list[Trial | None]:
        """Measure canonical points, as many at once as there are slots, and wait for all of them.

        A point that has run before is answered from its record, and one that comes twice runs once.

        Args:
            points: in the order in which they are started.

        Returns:
            The trial of each point; None for those that the study took no further trial for: the trial budget was
            spent, or a stop was wanted.

        Raises:
            SpaceError: when a point is outside the space or not canonical; nothing runs then.
        """
        for point in points:
            self.space.check(point)
        self.measure_baseline()
        ended: dict[tuple[tuple[str, Value], ...], Trial] = {}
        waiting = deque({_key(point): point for point in points if self._known(point) is None}.values())
        while waiting or self._open:
            while waiting and self._may_start():
                self._submit(waiting.popleft())
            if not self._open:
                break
            ended |= {_key(trial.point): trial for trial in self._wait()}
        return [self._known(point) or ended.get(_key(point)) for point in points]

    def remeasure(self, trial: Trial, *, cold: bool = False) -> Outcome | None:
        """Run a trial's very configuration once more, without recording it; None when a stop came first.

        It takes a free slot; trials that end meanwhile are recorded.

        Args:
            trial: of this study.
            cold: in processes that start from nothing, whatever the campaign says.
        """
        repeat = int(self._stored.attribute("repeats") or 0) + 1
        request = self.request(trial.point, is_baseline=trial.is_baseline)
        request = replace(request, number=trial.number, repeat=repeat, cold=cold)
        if request.config_hash != trial.config_hash:
            raise StudyError(f"trial {trial.number}: its configuration can't be built again; was the campaign changed?")
        self._beat()
        if self._stop.wanted:
            return None
        self._stored.set_attribute("repeats", repeat)
        self._runner.submit(request)
        while True:
            finished = self._poll()
            if finished is not None and finished.request.repeat:
                return None if _was_cancelled(finished.outcome) else finished.outcome
            if finished is not None:
                self._ended_meanwhile.append(self._finish(finished))

    def request(self, point: Point, *, is_baseline: bool = False, number: int = 0) -> TrialRequest:
        """Return what is sent to the evaluator for a point, or for the user's own configuration."""
        if is_baseline:
            config, checkpointing = self._start.ds_config, self._start.activation_checkpointing
        else:
            settings = self.space.settings(point)
            config = config_file.build(self._start.ds_config, settings, world_size=self._world_size)
            checkpointing = bool(
                settings.get(config_file.ACTIVATION_CHECKPOINTING, self._start.activation_checkpointing)
            )
        return TrialRequest(
            number=number,
            point=dict(point),
            ds_config=config,
            activation_checkpointing=checkpointing,
            budget=self._budget,
            convergence_at_s=self._convergence_at_s(),
            seed=self._seed,
        )

    def _convergence_at_s(self) -> float | None:
        """Equal training time for all: the budget's seconds if all use them up, else what the first measured took."""
        if self._budget.seconds is not None and self._budget.precision is None:
            return self._budget.seconds
        first = self._first_measured()
        return first.measurement.convergence_time_s if first and first.measurement else None

    def _first_measured(self) -> Trial | None:
        return self._measured

    def _known(self, point: Point) -> Trial | None:
        return self._by_point.get(_key(point))

    def _is_open(self, point: Point) -> bool:
        return any(_key(trial.point) == _key(point) for trial in self._open.values())

    def _may_start(self) -> bool:
        used = len(self._history) + len(self._open)
        # One at a time until something was measured: it is the reference, and says when losses are compared.
        slots = self.slots if self._first_measured() is not None else 1
        return not self._stop.wanted and len(self._open) < slots and used < self.trial_budget

    def _submit(self, point: Point, *, is_baseline: bool = False, searcher_s: float | None = None) -> None:
        request = self.request(point, is_baseline=is_baseline)
        number = self._stored.start_trial(request, self.space, is_baseline=is_baseline, searcher_s=searcher_s)
        trial = self._stored.trial(number)
        self._open[number] = trial
        self._listener.trial_started(trial)
        self._runner.submit(replace(request, number=number))

    def _wait(self) -> list[Trial]:
        """Wait a moment; return the trials that finished meanwhile."""
        if self._ended_meanwhile:
            ended, self._ended_meanwhile = self._ended_meanwhile, []
            return ended
        finished = self._poll()
        return [self._finish(finished)] if finished is not None else []

    def _poll(self) -> Finished | None:
        """Wait a moment for a trial, hear wishes to stop, and say that this controller lives."""
        self._beat()
        if self._stop.at_once:
            self._runner.close(cancel=True)
        finished = self._runner.collect(_POLL_S)
        self._listener.waiting()
        return finished

    def _finish(self, finished: Finished) -> Trial:
        number, outcome = finished.request.number, finished.outcome
        trial = self._stored.finish_trial(number, outcome, self._score(outcome))
        del self._open[number]
        self._keep(trial)
        self._listener.trial_finished(trial)
        return trial

    def _keep(self, trial: Trial) -> None:
        if trial.counts:
            self._history.append(trial)
            if self._pruner is not None:
                self._pruner.hear(trial)
            if self._measured is None and trial.measurement is not None:
                self._measured = trial
            if trial.point:
                self._by_point[_key(trial.point)] = trial

    def _score(self, outcome: Outcome) -> Score | None:
        """Return R; of a pruned trial as far as it came, which is an estimate for searchers and no claim."""
        first = self._first_measured()
        if outcome.pruned is not None and first is not None and first.measurement is not None:
            reference = Reference.of(first.measurement, course=first.intermediates)
            return self._objective.score_so_far(outcome.intermediates, reference)
        if outcome.measurement is None:
            return None
        measured = first.measurement if first and first.measurement else outcome.measurement
        return self._objective.score(outcome.measurement, Reference.of(measured))

    def _broken(self) -> str | None:
        """Say so when what failed has nothing to do with the configurations tried; None while there is hope."""
        if self._has_hope or self._first_measured() is not None:
            return None
        failures = [trial.failure for trial in self._history[self._begun_with :] if trial.failure is not None]
        if len(failures) < _ALIKE_FAILURES:
            return None
        kinds = {(failure.kind, failure.reason) for failure in failures}
        late = any(failure.stage in (Stage.FIRST_STEP, Stage.RUN, None) for failure in failures)
        if len(kinds) > 1 or late or failures[0].kind is FailureKind.OUT_OF_MEMORY:
            self._has_hope = True
            return None
        return (
            f"all {len(failures)} trials of this run failed alike before their first step: {failures[0].reason}; "
            f"mend the cause, then resume"
        )

    def _why_it_ended(self) -> str:
        if self._stop.wanted:
            return "stopped as asked"
        return f"the budget of {self.trial_budget} trials is spent"

    def _take_control(self) -> None:
        """Become the study's one controller, and end what a dead one left behind."""
        found = refuse_if_controlled(self._stored)
        self._controller = _this_process()
        if not self._stored.swap_attribute("controller", old=found, new=self._controller):
            refuse_if_controlled(self._stored)
            raise StudyError(
                f"study {self.name!r} was taken by another process at this moment; "
                f"see who: {command('status', self.name, url=self._stored.url)}"
            )
        self._heartbeat_at = time.monotonic()
        self._stored.set_attribute("stop_requested", None)
        trials = self._stored.trials()
        for trial in trials:
            if trial.state is not TrialState.RUNNING:
                self._keep(trial)
        self._begun_with = len(self._history)
        for trial in trials:
            if trial.state is TrialState.RUNNING:
                lost = Failure(kind=FailureKind.CANCELLED, reason="the controller ended before the trial did")
                outcome = trial.outcome or Outcome(failure=lost)
                self._keep(self._stored.finish_trial(trial.number, outcome, self._score(outcome)))

    def _release(self) -> None:
        self._stored.swap_attribute("controller", old=self._controller, new=None)

    def _configs_to_prepare_for(self) -> list[Mapping[str, Any]]:
        """Return configurations that between them need every op the study can meet: one for each level."""
        configs = [self._start.ds_config]
        for dimension in self.space.dimensions:
            for level in dimension.levels:
                values = {d.name: self._start.point.get(d.name, d.default) for d in self.space.dimensions}
                levels = {d.name: d.levels for d in self.space.dimensions}
                for condition in (*dimension.conditions, *dimension.level_conditions.get(level, ())):
                    for allowed in condition.allowed:
                        if allowed in levels.get(condition.dimension, ()):  # the campaign may have narrowed them
                            values[condition.dimension] = allowed
                point = self.space.canonical({**values, dimension.name: level})
                configs.append(self.request(point).ds_config)
        return configs

    def _beat(self) -> None:
        """Say now and then that this controller lives, and hear whether a stop was asked for from elsewhere."""
        now = time.monotonic()
        if now - self._heartbeat_at < _HEARTBEAT_S:
            return
        wishes = int(self._stored.attribute("stop_requested") or 0)
        while self._stop.count < wishes:
            self._stop()
        self._heartbeat_at = now
        before, self._controller = self._controller, _this_process()
        if not self._stored.swap_attribute("controller", old=before, new=self._controller):
            raise StudyError(
                f"study {self.name!r} is run by another process now, which took this one for dead; "
                f"see who: {command('status', self.name, url=self._stored.url)}"
            )


def _key(point: Point) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(point.items()))


def _was_cancelled(outcome: Outcome) -> bool:
    return outcome.failure is not None and outcome.failure.kind is FailureKind.CANCELLED


def refuse_if_controlled(stored: StoredStudy) -> dict[str, Any] | None:
    """Refuse to touch a study that a live controller runs; return what a dead one left behind.

    Raises:
        StudyError: naming the process.
    """
    controller: dict[str, Any] | None = stored.attribute("controller")
    if controller is not None and controller_is_alive(controller):
        raise StudyError(
            f"study {stored.name!r} is being run by process {controller['pid']} on {controller['host']}; "
            f"wait for it, or end it: {command('stop', stored.name, url=stored.url)}"
        )
    return controller


def controller_is_alive(controller: Mapping[str, Any] | None) -> bool:
    """Whether the process that wrote a study's 'controller' attribute still runs."""
    if not controller:
        return False
    if controller["host"] != socket.gethostname():
        return time.time() - float(controller["heartbeat_at"]) < _HEARTBEAT_LOST_S
    try:
        process = psutil.Process(controller["pid"])
        same = abs(process.create_time() - float(controller["created_at"])) < 1.0
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _this_process() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "created_at": psutil.Process().create_time(),
        "heartbeat_at": time.time(),
    }
