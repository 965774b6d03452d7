"""Cold checks: a trial that ran warm runs again cold now and then, and its losses must be the same.

On a CPU, bit for bit: the same seed, data and configuration. A warm trial is a fork of a process that never trained
(`autotune.evaluators.rank_worker.fork_server`), so a difference would be news.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from autotune.storage import StoredStudy
from autotune.study import Study
from autotune.trials import Outcome, Trial

_ATTRIBUTE = "cold_checks"
CUDA_TOLERANCE = 1e-3
"""Relative difference of losses that CUDA's kernels explain: some add in the order in which threads come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdCheck:
    """A trial that ran again cold."""

    trial: int
    compared_steps: int
    """Optimizer steps whose training losses both runs have."""
    difference: float | None
    """Largest relative difference of a loss, over the held-out loss at the start and those of the steps; None where
    the cold run gave none."""
    failure: str | None = None
    """Why the cold run gave no losses."""
    tolerance: float = 0.0

    @property
    def agrees(self) -> bool:
        return self.difference is not None and self.difference <= self.tolerance

    @classmethod
    def of(cls, trial: Trial, outcome: Outcome, *, tolerance: float) -> ColdCheck:
        """Compare a trial with its cold run."""
        warm, cold = trial.measurement, outcome.measurement
        if warm is None or cold is None:
            failure = outcome.failure
            why = f"{failure.kind}: {failure.reason}" if failure is not None else "it gave no measurement"
            return cls(trial=trial.number, compared_steps=0, difference=None, failure=why, tolerance=tolerance)
        steps = list(zip(warm.training_losses, cold.training_losses, strict=False))
        pairs = [(warm.held_out_loss_before, cold.held_out_loss_before), *steps]
        difference = max(0.0 if one == other else abs(one - other) / max(abs(one), abs(other)) for one, other in pairs)
        return cls(trial=trial.number, compared_steps=len(steps), difference=difference, tolerance=tolerance)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ColdCheck:
        """Read what `dataclasses.asdict` made."""
        return cls(**data)


class ColdCheckWatch:
    """Runs the last measured trial again, cold, after every so many trials; to be called between trials.

    Args:
        study: entered.
        stored: where checks are kept.
        every: so many executed trials; 0 never.
        tolerance: relative difference of losses that is none.
        before: called with the trial's number when a check begins.
        after: called with each check.
    """

    def __init__(
        self,
        study: Study,
        stored: StoredStudy,
        *,
        every: int,
        tolerance: float,
        before: Callable[[int], None],
        after: Callable[[ColdCheck], None],
    ) -> None:
        self._study = study
        self._stored = stored
        self._every = every
        self._tolerance = tolerance
        self._before = before
        self._after = after
        self._checks = list(checks(stored))

    def __call__(self) -> None:
        """Check a trial where that is due."""
        executed = len(self._study.history)
        if not self._every or executed // self._every <= len(self._checks):
            return
        trial = next((trial for trial in reversed(self._study.history) if trial.measurement is not None), None)
        if trial is None:
            return
        self._before(trial.number)
        outcome = self._study.remeasure(trial, cold=True)
        if outcome is None:
            return
        self._checks.append(ColdCheck.of(trial, outcome, tolerance=self._tolerance))
        self._stored.set_attribute(_ATTRIBUTE, [asdict(check) for check in self._checks])
        self._after(self._checks[-1])


def checks(stored: StoredStudy) -> tuple[ColdCheck, ...]:
    """Return the checks of a study, in order."""
    return tuple(ColdCheck.from_json(data) for data in stored.attribute(_ATTRIBUTE) or ())
