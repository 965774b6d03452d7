"""The inline runner: one trial at a time, in the thread that collects it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from autotune.errors import ResourceError
from autotune.evaluators.protocol import Evaluator
from autotune.runners.attempt import attempt, cancelled_outcome, ignore_stage, prune_none
from autotune.runners.protocol import Finished, Judge, StageListener
from autotune.trials import TrialRequest


class InlineRunner:
    """Runs evaluators that start no process (simulated, recorded): the evaluation happens inside `collect`.

    Implements `autotune.runners.TrialRunner` with one slot.

    Args:
        evaluator: one with `ranks == 0`.
        on_stage: called with (trial number, stage) as trials enter their stages.
        judge: says which running trials are to be pruned.

    Raises:
        ResourceError: when the evaluator needs hosts for ranks.
    """

    slots = 1

    def __init__(
        self, evaluator: Evaluator, *, on_stage: StageListener = ignore_stage, judge: Judge = prune_none
    ) -> None:
        if evaluator.ranks != 0:
            raise ResourceError(
                f"runner inline: the evaluator {type(evaluator).__name__} needs {evaluator.ranks} rank process(es), "
                "and the inline runner starts none; use the runner local or ray"
            )
        self._evaluator = evaluator
        self._on_stage = on_stage
        self._judge = judge
        self._waiting: deque[TrialRequest] = deque()
        self._cancelled = False

    def open(self, ds_configs: Sequence[Mapping[str, object]], progress: Callable[[str], None]) -> None:
        """Prepare the evaluator; there is nothing to reserve."""
        self._evaluator.prepare(ds_configs, progress)

    def submit(self, request: TrialRequest) -> None:
        """Take a request, to be evaluated by the next `collect`.

        Raises:
            ResourceError: when one is waiting already.
        """
        if self._waiting:
            raise ResourceError(
                f"trial {request.number}: 1 of 1 slots is busy with trial {self._waiting[0].number}; collect it first"
            )
        self._waiting.append(request)

    def collect(self, timeout_s: float) -> Finished | None:
        """Evaluate the waiting request to its end, however long that takes; None when there is none."""
        if not self._waiting:
            return None
        request = self._waiting[0]
        if self._cancelled:
            outcome = cancelled_outcome("the runner was closed before the trial began")
        else:
            outcome = attempt(
                self._evaluator,
                request,
                hosts=(),
                progress=lambda stage: self._on_stage(request.number, stage),
                cancelled=lambda: self._cancelled,
                should_prune=lambda intermediates: self._judge(request, intermediates),
            )
        self._waiting.popleft()  # only now: an interrupted evaluation is still to be collected
        return Finished(request, outcome)

    def close(self, *, cancel: bool) -> None:
        """With `cancel`, the waiting request comes back as CANCELLED; without, `collect` still evaluates it."""
        self._cancelled = self._cancelled or cancel
