"""The memory filter in front of a searcher: what can't fit in a device's memory costs no trial."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from autotune.errors import SpaceExhausted
from autotune.performance.memory_filter import MemoryFilter
from autotune.searchers.protocol import Searcher
from autotune.searchers.refusals import Refusal
from autotune.space import SearchSpace
from autotune.trials import Failure, FailureKind, Outcome, Point, Trial, TrialState

PATIENCE = 16
"""Proposals in a row that are refused; then the one that is the least likely to run out is tried all the same."""
GROWTH = 1.5
"""The filter is calibrated anew once there are so many times the trials it was calibrated to, or one ran out."""
_STATE = "memory_filter"

_Encoding = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Refused:
    """A refusal, and whether it was run all the same: nothing but such was proposed `PATIENCE` times in a row."""

    refusal: Refusal
    tried: bool = False


class MemoryFiltered:
    """Refuses what another searcher proposes where it can't fit; implements `autotune.searchers.Searcher`.

    The other searcher is told of a refused point at once, as of a trial that ran out of memory (its number is
    negative: it is no trial of the study), and asked again.

    Args:
        searcher: new, of the same space.
        space: what is searched.
        configured: returns a point's whole configuration, as `MemoryFilter.judge` takes it.
        calibrated: returns the filter that is calibrated to some trials; None where they don't tell enough yet.
        refused: hears of all refusals so far, whenever there is a new one.
    """

    def __init__(
        self,
        searcher: Searcher,
        space: SearchSpace,
        *,
        configured: Callable[[Point], Mapping[str, Any]],
        calibrated: Callable[[Sequence[Trial]], MemoryFilter | None],
        refused: Callable[[Sequence[Refusal]], None] | None = None,
    ) -> None:
        self._searcher = searcher
        self._space = space
        self._configured = configured
        self._calibrated = calibrated
        self._keep = refused
        self._told: dict[int, Trial] = {}
        self._open: list[_Encoding] = []
        self._lost: set[_Encoding] = set()
        self._refusals: list[_Refused] = []
        self._filter: MemoryFilter | None = None
        self._calibrated_to: list[int] = []
        """Numbers of trials; the filter is made of them when it is needed."""

    def ask(self) -> Point:
        before = len(self._refusals)
        try:
            point = self._next()
        finally:
            if self._keep is not None and len(self._refusals) > before:
                self._keep([each.refusal for each in self._refusals if not each.tried])
        self._open.append(self._space.encode(point))
        return point

    def tell(self, trial: Trial) -> None:
        self._hear(trial)
        self._searcher.tell(trial)

    def state(self) -> Mapping[str, str]:
        """Return the searcher's state, what was refused, and which trials the filter was calibrated to."""
        own = {
            "refused": [(asdict(each.refusal), each.tried) for each in self._refusals],
            "calibrated_to": self._calibrated_to,
            "open": self._open,
        }
        return {**self._searcher.state(), _STATE: json.dumps(own)}

    def restore(self, state: Mapping[str, str], history: list[Trial]) -> None:
        """Take up where both were; a state that was kept without a filter goes on with one."""
        own = json.loads(state.get(_STATE, "{}"))
        self._refusals = [_Refused(Refusal(**data), tried) for data, tried in own.get("refused", ())]
        self._open = [tuple(encoding) for encoding in own.get("open", ())]
        for trial in history:
            self._hear(trial)
        self._lost = set(self._open)
        self._calibrated_to = [number for number in own.get("calibrated_to", ()) if number in self._told]
        told = [_as_trial(place, each.refusal) for place, each in enumerate(self._refusals)]
        self._searcher.restore({name: text for name, text in state.items() if name != _STATE}, [*told[::-1], *history])

    def _hear(self, trial: Trial) -> None:
        self._told[trial.number] = trial
        if trial.point and not set(trial.point) - set(self._space.names):
            encoding = self._space.encode(trial.point)
            if encoding in self._open:
                self._open.remove(encoding)

    def _next(self) -> Point:
        begun = len(self._refusals)
        while len(self._refusals) < begun + PATIENCE:
            try:
                point = self._searcher.ask()
            except SpaceExhausted as exhausted:
                if not self._refusals:
                    raise
                raise SpaceExhausted(f"{exhausted} (those that can't fit in memory were not run)") from None
            refusal = self._judge(point)
            if refusal is None:
                return point
            self._searcher.tell(_as_trial(len(self._refusals), refusal))
            self._refusals.append(_Refused(refusal))
        chosen = min(range(begun, begun + PATIENCE), key=lambda place: self._refusals[place].refusal.needed_bytes)
        self._refusals[chosen] = replace(self._refusals[chosen], tried=True)
        return self._refusals[chosen].refusal.point

    def _judge(self, point: Point) -> Refusal | None:
        """Return why a point is refused, None where it may fit.

        A filter that is not up to date is brought so only for a point that it sees at risk.
        """
        encoding = self._space.encode(point)
        if encoding in self._lost:  # it was let through, and its trial ended with the controller
            self._lost.remove(encoding)
            self._open.remove(encoding)
            return None
        configuration = self._configured(point)
        if self._filter is None and self._calibrated_to:
            self._calibrate(self._calibrated_to)
        said = self._filter.judge([configuration]) if self._filter is not None else None
        if self._is_stale() and (said is None or said.probability[0] > 0):
            self._calibrate(sorted(self._told))
            said = self._filter.judge([configuration]) if self._filter is not None else None
        if said is None or not said.refused[0]:
            return None
        return Refusal(
            point=point, needed_bytes=float(said.optimistic_bytes[0]), capacity_bytes=float(said.capacity_bytes[0])
        )

    def _is_stale(self) -> bool:
        known = set(self._calibrated_to)
        new = [trial for number, trial in self._told.items() if number not in known]
        return len(self._told) >= max(1, GROWTH * len(known)) or any(map(_ran_out, new))

    def _calibrate(self, numbers: list[int]) -> None:
        self._filter = self._calibrated([self._told[number] for number in numbers])
        self._calibrated_to = numbers


def _ran_out(trial: Trial) -> bool:
    return trial.failure is not None and trial.failure.kind is FailureKind.OUT_OF_MEMORY


def _as_trial(place: int, refusal: Refusal) -> Trial:
    failure = Failure(kind=FailureKind.OUT_OF_MEMORY, reason=f"refused: {refusal.reason}")
    return Trial(
        number=-1 - place,
        state=TrialState.FAIL,
        is_baseline=False,
        point=refusal.point,
        ds_config={},
        activation_checkpointing=False,
        config_hash=f"refused-{place}",
        outcome=Outcome(failure=failure),
    )
