"""A validation: best and baseline measured again side by side, and whether the search's claim holds.

Runs are interleaved in the order baseline-best, best-baseline, ... (ABBA), so that a drift of the machine's speed
cancels out of the ratios. Ratios of positive figures are averaged as logarithms, with a t interval (P. J. Fleming and
J. J. Wallace, "How not to lie with statistics", CACM 29, 1986: the geometric mean is the one mean of ratios).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from autotune.errors import StudyError
from autotune.objective import Objective
from autotune.report import units
from autotune.study import Study
from autotune.trials import Outcome, Trial

LEAST_REPEATS = 3
"""With two pairs a t interval spans orders of magnitude."""
LEVEL = 0.95
"""Of every interval."""


class Verdict(StrEnum):
    """Whether the best beats the baseline when measured again. Values reach the storage: add, never rename."""

    HOLDS = "HOLDS"
    DOES_NOT_HOLD = "DOES_NOT_HOLD"
    CANNOT_TELL = "CANNOT_TELL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remeasured:
    """One run of a configuration: its figures, or why there are none."""

    samples_per_second: float | None = None
    convergence_per_second: float | None = None
    failure: str | None = None

    @classmethod
    def of(cls, outcome: Outcome) -> Remeasured:
        measurement, failure = outcome.measurement, outcome.failure
        if measurement is None:
            return cls(failure=f"{failure.kind}: {failure.reason}" if failure else "unknown")
        return cls(
            samples_per_second=measurement.samples_per_second,
            convergence_per_second=measurement.convergence_per_second,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Baseline and best, run one after the other."""

    baseline: Remeasured
    best: Remeasured
    best_first: bool

    @property
    def is_whole(self) -> bool:
        return self.baseline.failure is None and self.best.failure is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """One figure of best over baseline: as the search claimed it, and as measured again."""

    name: str
    claimed: float | None
    pairs: tuple[float, ...]
    """The ratio of each whole pair."""
    value: float | None
    """Their mean: geometric where all are positive, else arithmetic. None without a pair."""
    low: float | None
    """Bounds of the interval; None with fewer than two pairs."""
    high: float | None

    @property
    def has_no_noise(self) -> bool:
        """Whether every pair gave the very same ratio, as a simulated trial does."""
        return len(self.pairs) > 1 and math.isclose(min(self.pairs), max(self.pairs), rel_tol=1e-12)

    @property
    def words(self) -> str:
        if self.low is None or self.high is None or self.has_no_noise:
            return units.times(self.value)
        return f"{units.times(self.value)} ({units.times(self.low)} to {units.times(self.high)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """What came of measuring a study's best and baseline again."""

    best_number: int
    baseline_number: int
    pairs: tuple[Pair, ...]
    ratios: tuple[Ratio, ...]
    """Throughput, convergence speed and R, in this order; R over the baseline's own."""
    verdict: Verdict
    headline: str
    """The verdict in one sentence, with the numbers."""
    notes: tuple[str, ...]
    """What else a reader must know: failures, a claim that was flattered, an early stop."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data; `Validation.from_json` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Validation:
        """Read what `to_json` wrote."""
        pairs = tuple(
            Pair(
                baseline=Remeasured(**pair["baseline"]), best=Remeasured(**pair["best"]), best_first=pair["best_first"]
            )
            for pair in data["pairs"]
        )
        ratios = tuple(Ratio(**{**ratio, "pairs": tuple(ratio["pairs"])}) for ratio in data["ratios"])
        return cls(
            best_number=data["best_number"],
            baseline_number=data["baseline_number"],
            pairs=pairs,
            ratios=ratios,
            verdict=Verdict(data["verdict"]),
            headline=data["headline"],
            notes=tuple(data["notes"]),
        )


OnPair = Callable[[int, int, Pair], None]
"""Hears (pairs done, pairs wanted, the pair just measured)."""


def validate(
    study: Study,
    *,
    best: Trial,
    baseline: Trial,
    repeats: int,
    objective: Objective,
    on_pair: OnPair | None = None,
) -> Validation:
    """Measure best and baseline again, in turns, and judge the search's claim.

    Args:
        study: entered; nothing is recorded in it.
        best: the trial whose gain is claimed.
        baseline: the trial that it is compared with, of the same study.
        repeats: pairs to run.
        objective: of the study.
        on_pair: called after each pair.

    Raises:
        StudyError: when the two are one trial, one of them was never measured, or `repeats` is below 2.
    """
    _refuse_useless(best, baseline, repeats)
    pairs: list[Pair] = []
    for index in range(repeats):
        pair = _pair(study, best=best, baseline=baseline, best_first=index % 2 == 1)
        if pair is None:
            break
        pairs.append(pair)
        if on_pair is not None:
            on_pair(len(pairs), repeats, pair)
    return judge(pairs, best=best, baseline=baseline, repeats=repeats, objective=objective)


def judge(pairs: Sequence[Pair], *, best: Trial, baseline: Trial, repeats: int, objective: Objective) -> Validation:
    """Return the verdict on pairs that have been measured (`repeats` were wanted)."""
    ratios = _ratios([pair for pair in pairs if pair.is_whole], best=best, baseline=baseline, objective=objective)
    verdict, headline = _verdict(pairs, ratios[-1], ratios)
    return Validation(
        best_number=best.number,
        baseline_number=baseline.number,
        pairs=tuple(pairs),
        ratios=ratios,
        verdict=verdict,
        headline=headline,
        notes=tuple(_notes(pairs, ratios[-1], repeats)),
    )


def _refuse_useless(best: Trial, baseline: Trial, repeats: int) -> None:
    if best.number == baseline.number:
        raise StudyError(
            f"trial {best.number} is the baseline itself: nothing beat it, so there is no gain to validate"
        )
    for trial in (best, baseline):
        if trial.measurement is None:
            raise StudyError(
                f"trial {trial.number} gave no measurement in the search, so there is no claim to validate"
            )
    if repeats < LEAST_REPEATS:
        raise StudyError(f"repeats: got {repeats}; at least {LEAST_REPEATS} pairs are needed to tell a gain from noise")


def _pair(study: Study, *, best: Trial, baseline: Trial, best_first: bool) -> Pair | None:
    """Run one pair; None when a stop came first."""
    outcomes: dict[int, Outcome] = {}
    for trial in (best, baseline) if best_first else (baseline, best):
        outcome = study.remeasure(trial)
        if outcome is None:
            return None
        outcomes[trial.number] = outcome
    return Pair(
        baseline=Remeasured.of(outcomes[baseline.number]),
        best=Remeasured.of(outcomes[best.number]),
        best_first=best_first,
    )


def _ratios(pairs: Sequence[Pair], *, best: Trial, baseline: Trial, objective: Objective) -> tuple[Ratio, Ratio, Ratio]:
    throughput = [_of(p.best.samples_per_second) / _of(p.baseline.samples_per_second) for p in pairs]
    convergence = _convergence_ratios(pairs)
    whole = objective.alpha + (objective.beta if convergence else 0.0)
    scores = [
        (objective.alpha * speed + objective.beta * learning) / whole if whole else 0.0
        for speed, learning in zip(throughput, convergence or [0.0] * len(pairs), strict=True)
    ]
    claimed = None if best.score is None or not baseline.score else best.score / baseline.score
    return (
        _ratio("throughput", _over(best.throughput_ratio, baseline.throughput_ratio), throughput),
        _ratio("convergence speed", _over(best.convergence_ratio, baseline.convergence_ratio), convergence),
        _ratio("R", claimed, scores),
    )


def _convergence_ratios(pairs: Sequence[Pair]) -> list[float]:
    """Return a ratio for each pair; none where the baseline did not learn.

    Where a figure is not positive, a ratio by pair has no meaning: then each best is put over the mean baseline by its
    difference, 1 + (best - baseline) / mean baseline, whose mean is the ratio of the means.
    """
    best = [_of(pair.best.convergence_per_second) for pair in pairs]
    base = [_of(pair.baseline.convergence_per_second) for pair in pairs]
    if all(figure > 0 for figure in (*best, *base)):
        return [one / other for one, other in zip(best, base, strict=True)]
    mean = math.fsum(base) / len(base)
    return [1 + (one - other) / mean for one, other in zip(best, base, strict=True)] if mean > 0 else []


def _ratio(name: str, claimed: float | None, ratios: Sequence[float]) -> Ratio:
    value, low, high = mean_with_interval(ratios)
    return Ratio(name=name, claimed=claimed, pairs=tuple(ratios), value=value, low=low, high=high)


def mean_with_interval(ratios: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Return the mean of ratios and the bounds of its t interval: of their logarithms where all are positive."""
    if not ratios:
        return None, None, None
    in_logarithms = all(ratio > 0 for ratio in ratios)
    figures = np.log(ratios) if in_logarithms else np.asarray(ratios, dtype=float)
    bounds = [float(figures.mean())]
    if len(figures) > 1:
        from scipy.stats import t as student  # loads as long as all the rest of a command that shows a validation

        arm = float(student.ppf((1 + LEVEL) / 2, len(figures) - 1) * figures.std(ddof=1) / math.sqrt(len(figures)))
        bounds += [bounds[0] - arm, bounds[0] + arm]
    if in_logarithms:
        bounds = [math.exp(bound) for bound in bounds]
    return (bounds[0], bounds[1], bounds[2]) if len(bounds) == 3 else (bounds[0], None, None)


def _verdict(pairs: Sequence[Pair], score: Ratio, ratios: Sequence[Ratio]) -> tuple[Verdict, str]:
    failed = sum(pair.best.failure is not None for pair in pairs)
    if pairs and failed == len(pairs):
        times = "once" if failed == 1 else f"all {failed} times"
        return (
            Verdict.DOES_NOT_HOLD,
            f"The claim does not hold: the best configuration failed {times} it was run again.",
        )
    if failed:
        of = f"{failed} of {units.count(len(pairs), 'run')}"
        return (
            Verdict.CANNOT_TELL,
            f"Can't tell: the best configuration failed in {of}; it is not safe to use as it is.",
        )
    if score.low is None or score.high is None:
        return Verdict.CANNOT_TELL, "Can't tell: fewer than two pairs gave figures."
    parts = units.listed([f"{ratio.words} {_CALLED[ratio.name]}" for ratio in ratios if ratio.value is not None])
    measured = f"measured again {len(score.pairs)} times each, the best has {parts} of your start"
    if score.low > 1:
        return Verdict.HOLDS, f"The gain holds: {measured}."
    if score.high < 1:
        return Verdict.DOES_NOT_HOLD, f"The gain does not hold: {measured}."
    return (
        Verdict.CANNOT_TELL,
        f"Can't tell: {measured}, and 1.00x is within the interval of R; more --repeats narrow it.",
    )


def _notes(pairs: Sequence[Pair], score: Ratio, repeats: int) -> list[str]:
    notes = []
    if len(pairs) < repeats:
        notes.append(f"Stopped after {len(pairs)} of {repeats} pairs.")
    for who in ("baseline", "best"):
        reasons = [getattr(pair, who).failure for pair in pairs if getattr(pair, who).failure is not None]
        notes += [f"The {who} failed in {units.count(reasons.count(r), 'run')}: {r}" for r in dict.fromkeys(reasons)]
    if score.claimed is not None and score.value is not None:
        is_less = score.high is not None and score.claimed > score.high and not score.has_no_noise
        less = ", less than claimed (the winner's curse)" if is_less else ""
        notes.append(
            f"The search claimed {units.times(score.claimed)} in R, picked as the highest of many noisy figures; "
            f"measured again it is {score.words}{less}. Rely on the latter."
        )
    if score.has_no_noise:
        notes.append("Every pair gave the very same figures: this evaluator has no noise, so there is no interval.")
    return notes


_CALLED = {"throughput": "the throughput", "convergence speed": "the convergence speed", "R": "the R"}


def _over(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def _of(figure: float | None) -> float:
    if figure is None:
        raise ValueError("a whole pair has all of its figures")
    return figure
