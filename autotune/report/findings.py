"""The findings of a study in words: what was gained, at what price, and how far the figures can be trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from autotune.report import agreement, finalists, steadiness, units
from autotune.report.summary import StudySummary
from autotune.searchers.refusals import Refusals
from autotune.storage import command
from autotune.trials import EndedBy, FailureKind, Measurement, Trial, TrialState

FAILURES_IN_WORDS = {
    FailureKind.INVALID_CONFIG: "invalid configuration",
    FailureKind.OUT_OF_MEMORY: "out of memory",
    FailureKind.TIMEOUT: "timed out",
    FailureKind.CRASH: "crashed",
    FailureKind.DIVERGED: "diverged",
    FailureKind.CANCELLED: "cancelled",
}

SIMULATED = (
    "Simulated: every figure here is made up by a formula. None was measured, and none says anything about real "
    "hardware."
)


class ValidatedRatio(Protocol):
    """One figure of best over baseline: as the search claimed it, and as re-measuring found it."""

    @property
    def name(self) -> str: ...
    @property
    def claimed(self) -> float | None: ...
    @property
    def words(self) -> str:
        """The re-measured ratio with its interval."""
        ...


class ValidationLike(Protocol):
    """A re-measurement of best against baseline, as a report shows it (see `autotune.validation`)."""

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        ...

    @property
    def ratios(self) -> Sequence[ValidatedRatio]: ...
    @property
    def notes(self) -> Sequence[str]: ...


def headline(summary: StudySummary) -> str:
    """Return the one sentence that a reader came for."""
    best, baseline = summary.best, summary.baseline
    if summary.finals is not None and summary.finals.winner is not None:
        return finalists.headline(summary)
    if best is None:
        if not summary.executed_count:
            return "No trial has run yet."
        return (
            f"None of {units.count(summary.executed_count, 'trial')} completed: there is no configuration to use yet."
        )
    if baseline is None:
        return f"The best trial so far, {best.number}, scores R = {units.score(best.score)}; your start has not run."
    if baseline.failure is not None:
        kind = FAILURES_IN_WORDS[baseline.failure.kind]
        return (
            f"Your own configuration failed ({kind}); trial {best.number} trains, at "
            f"{units.number(best.measurement.samples_per_second if best.measurement else None)} samples/s."
        )
    if best.is_baseline:
        others = summary.executed_count - 1
        if not others:
            return "Your own configuration has been measured; nothing else has run yet."
        return f"Nothing beat your own configuration in {units.count(others, 'trial')}."
    return f"Trial {best.number} beats your configuration{_not_in(best)}: {gain(best)}."


def gain(trial: Trial) -> str:
    """Return a trial's ratios in words: '1.62x the throughput and 1.30x the convergence speed (R = 1.460)'."""
    parts = [f"{units.times(trial.throughput_ratio)} the throughput"]
    if trial.convergence_ratio is not None:
        parts.append(f"{units.times(trial.convergence_ratio)} the convergence speed")
    return f"{units.listed(parts)} (R = {units.score(trial.score)})"


def _not_in(trial: Trial) -> str:
    """Return in which part of R a trial that beats the start falls behind it: ' in R, not in throughput', or ''."""
    behind, slow = (
        ratio is not None and round(ratio, 2) < 1 for ratio in (trial.throughput_ratio, trial.convergence_ratio)
    )
    if not behind and not slow:
        return ""
    return f" in R, not in {'throughput' if behind else 'convergence speed'}"


def tally(summary: StudySummary) -> str:
    """Return how many trials were executed, how many were pruned, and how many failed and why."""
    executed, budget = summary.executed_count, summary.trial_budget
    text = f"{f'{executed} of ' if executed <= budget else ''}{units.count(max(executed, budget), 'trial')} executed"
    kinds = Counter(trial.failure.kind for trial in summary.failed if trial.failure is not None)
    if summary.pruned:
        text += f"; {len(summary.pruned)} pruned"
    if not kinds:
        return f"{text}; none failed."
    why = units.listed([f"{amount} {FAILURES_IN_WORDS[kind]}" for kind, amount in kinds.most_common()])
    return f"{text}; {kinds.total()} failed ({why})."


def _refused(refusals: Refusals) -> str:
    needs = units.memory(refusals.least_bytes)
    if refusals.count > 1:
        needs = f"{needs} to {units.memory(refusals.most_bytes)}"
    return (
        f"The memory filter refused {units.count(refusals.count, 'configuration')} without a trial: by the calibrated "
        f"model {'it needs' if refusals.count == 1 else 'they need'} {needs} or more of a device, and there are "
        f"{units.memory(refusals.capacity_bytes)} (memory_filter: off runs what it refuses)."
    )


def r_of(trial: Trial) -> str:
    """Return a trial's R: '1.414', of a pruned trial the estimate '~0.614'."""
    return f"{'~' if trial.state is TrialState.PRUNED else ''}{units.score(trial.score)}"


def length(measurement: Measurement) -> str:
    """Return how long it was measured, and how precisely: '12 steps, within 2.1 %', and what ended it before that."""
    steps = units.count(measurement.timed_steps, "step")
    if measurement.step_time_interval is None:
        return steps
    precision = units.percent(measurement.step_time_interval)
    ended = {EndedBy.BUDGET: " when the budget ended", EndedBy.SCRIPT: " when the script ended"}
    return f"{steps}, within {precision}{ended.get(measurement.ended_by, '') if measurement.ended_by else ''}"


def cautions(summary: StudySummary, validation: ValidationLike | None = None) -> list[str]:
    """Return what a reader must know before believing the figures, most important first."""
    cautions = []
    if summary.evaluator == "simulated":
        cautions.append(SIMULATED)
    if summary.evaluator == "recorded":
        cautions.append(
            "Recorded: the figures replay trials that were measured earlier, matched to the same "
            "configuration, or else to the nearest one (recorded.missing). They have no noise, so there are no finals."
        )
    if summary.is_running:
        cautions.append("The study is still running: this is its state at the moment of writing.")
    reference = summary.reference
    if reference is not None and not reference.is_baseline:
        cautions.append(
            f"R is relative to trial {reference.number}, the first that could be measured, because your own "
            "configuration could not."
        )
    if reference is not None and summary.objective.beta > 0 and reference.convergence_ratio is None:
        cautions.append(
            "The reference did not learn in the time of a trial (its loss did not fall), so convergence "
            "counts 0 for every trial. A longer budget, or a better starting learning rate, makes R whole."
        )
    if summary.refusals is not None:
        cautions.append(_refused(summary.refusals))
    drift = steadiness.caution(summary)
    if drift is not None:
        cautions.append(drift)
    otherwise = agreement.caution(summary)
    if otherwise is not None:
        cautions.append(otherwise)
    best, finals = summary.best, summary.finals
    if finals is not None and finals.winner is None:
        cautions.append(finalists.headline(summary))
    if summary.finals_are_due and not summary.is_running:
        if finals is None:
            cautions.append(
                "The winner is not named yet: the leaders are to be run again in turns with yours: "
                f"{command('resume', summary.name, url=summary.storage_url)}"
            )
    elif (
        validation is None
        and not summary.is_running
        and (finals is None or finals.winner is None)
        and best is not None
        and not best.is_baseline
        and summary.evaluator == "deepspeed"
    ):
        cautions.append(
            f"The best is the highest of {len(summary.completed)} noisy figures, so it is flattered by luck. Measure "
            f"it again beside your own: {command('validate', summary.name, url=summary.storage_url)}"
        )
    return cautions
