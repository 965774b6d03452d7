"""The inline runner: trials in the thread that collects them; several at once only in simulated time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autotune.errors import ResourceError
from autotune.evaluators.protocol import Evaluator
from autotune.runners.attempt import attempt, cancelled_outcome, ignore_stage, prune_none
from autotune.runners.protocol import Finished, Judge, StageListener
from autotune.trials import Outcome, TrialRequest


@dataclass(slots=True)
class _UnderWay:
    """A trial that was submitted and not collected."""

    request: TrialRequest
    started_at_s: float
    """Simulated time, as is `ends_at_s`."""
    ends_at_s: float = 0.0
    finished: Finished | None = None
    """None until it was evaluated."""


class InlineRunner:
    """Runs evaluators that start no process (simulated, recorded): the evaluation happens inside `collect`.

    Implements `autotune.runners.TrialRunner`. With several slots trials are evaluated one after the other all the same;
    what is parallel is simulated time. A clock that starts at 0 stands still but when a trial is collected: then it is
    the trial's end. Of the trials under way the one that ends first is collected first, of equals the one submitted
    first. A trial takes as long as its outcome says (`duration_s`, a recorded trial's), else as long as it trained
    (`training_time_s`, a simulated trial's); a simulated failure takes no time.

    Args:
        evaluator: one with `ranks == 0`.
        slots: how many trials are under way at once.
        on_stage: called with (trial number, stage) as trials enter their stages.
        judge: says which running trials are to be pruned.

    Raises:
        ResourceError: when the evaluator needs hosts for ranks, or `slots` is below 1.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        *,
        slots: int = 1,
        on_stage: StageListener = ignore_stage,
        judge: Judge = prune_none,
    ) -> None:
        if evaluator.ranks != 0:
            raise ResourceError(
                f"runner inline: the evaluator {type(evaluator).__name__} needs {evaluator.ranks} rank process(es), "
                "and the inline runner starts none; use the runner local or ray"
            )
        if slots < 1:
            raise ResourceError(f"slots: got {slots}; it must be 1 or more")
        self.slots = slots
        self.clock_s = 0.0
        """Simulated time: the end of the trial collected last, in seconds."""
        self._evaluator = evaluator
        self._on_stage = on_stage
        self._judge = judge
        self._under_way: list[_UnderWay] = []
        self._cancelled = False

    def open(self, ds_configs: Sequence[Mapping[str, object]], progress: Callable[[str], None]) -> None:
        """Prepare the evaluator; there is nothing to reserve."""
        self._evaluator.prepare(ds_configs, progress)

    def submit(self, request: TrialRequest) -> None:
        """Take a request, to be evaluated by the next `collect`.

        Raises:
            ResourceError: when every slot is busy.
        """
        if len(self._under_way) == self.slots:
            busy = ", ".join(str(trial.request.number) for trial in self._under_way)
            raise ResourceError(
                f"trial {request.number}: {self.slots} of {self.slots} slots are busy (trials {busy}); "
                "collect one first"
            )
        self._under_way.append(_UnderWay(request, self.clock_s))

    def collect(self, timeout_s: float) -> Finished | None:
        """Evaluate what is under way, however long that takes; return what ends first, None when there is nothing."""
        if not self._under_way:
            return None
        if self._cancelled:
            stopped = cancelled_outcome("the runner was closed before the trial ended")
            return Finished(self._under_way.pop(0).request, stopped)
        for trial in self._under_way:
            if trial.finished is None:  # an interrupted evaluation is still to be collected
                outcome = self._evaluate(trial.request)
                trial.ends_at_s = trial.started_at_s + outcome.taken_s
                trial.finished = Finished(trial.request, outcome)
        first = min(self._under_way, key=lambda trial: trial.ends_at_s)
        self._under_way.remove(first)
        self.clock_s = first.ends_at_s
        return first.finished

    def close(self, *, cancel: bool) -> None:
        """With `cancel`, what is under way comes back as CANCELLED; without, `collect` still evaluates it."""
        self._cancelled = self._cancelled or cancel

    def _evaluate(self, request: TrialRequest) -> Outcome:
        return attempt(
            self._evaluator,
            request,
            hosts=(),
            progress=lambda stage: self._on_stage(request.number, stage),
            cancelled=lambda: self._cancelled,
            should_prune=lambda intermediates: self._judge(request, intermediates),
        )
