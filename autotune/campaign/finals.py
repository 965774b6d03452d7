"""A study's finals and the watch over its baseline, as its campaign wants them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from autotune.campaign.plan import has_noise, runs_warm
from autotune.campaign.studies import campaign_of, recorded_hardware, summary
from autotune.cold_checks import CUDA_TOLERANCE, ColdCheckWatch
from autotune.drift import BaselineWatch, Reading, widest_ratio
from autotune.finals import Entrant, Finals, Record, hold
from autotune.report import agreement, finalists, steadiness
from autotune.report.changes import change_count
from autotune.report.summary import StudySummary
from autotune.storage import StoredStudy
from autotune.study import Study
from autotune.trials import Trial


class RemeasuringListener(Protocol):
    """Hears of runs that are no trials."""

    def remeasuring(self, number: int, text: str) -> None:
        """The configuration of a trial is about to run again."""
        ...

    def remeasured(self, number: int, text: str) -> None:
        """It has run, and what came of it."""
        ...


def watch(stored: StoredStudy, study: Study, listener: RemeasuringListener) -> Callable[[], None]:
    """Return what runs configurations again during the search, as often as the campaign says."""
    watches = (_baseline_watch(stored, study, listener), _cold_check_watch(stored, study, listener))

    def between() -> None:
        for each in watches:
            each()

    return between


def _cold_check_watch(stored: StoredStudy, study: Study, listener: RemeasuringListener) -> ColdCheckWatch:
    campaign, hardware = campaign_of(stored), recorded_hardware(stored)
    return ColdCheckWatch(
        study,
        stored,
        every=campaign.cold_check_every if runs_warm(campaign) else 0,
        tolerance=CUDA_TOLERANCE if hardware.accelerator == "cuda" else 0.0,
        before=lambda number: listener.remeasuring(number, "the same, cold"),
        after=lambda check: listener.remeasured(check.trial, agreement.line(check)),
    )


def _baseline_watch(stored: StoredStudy, study: Study, listener: RemeasuringListener) -> BaselineWatch:
    campaign = campaign_of(stored)

    def before() -> None:
        if study.baseline is not None:
            listener.remeasuring(study.baseline.number, "your configuration again")

    def after(reading: Reading) -> None:
        if study.baseline is not None:
            listener.remeasured(study.baseline.number, steadiness.line(reading, study.baseline))

    every = campaign.baseline_every if has_noise(campaign) else 0
    return BaselineWatch(study, stored, every=every, before=before, after=after)


def hold_finals(stored: StoredStudy, study: Study, listener: RemeasuringListener) -> None:
    """Run what the study's finals lack, if it is to have any.

    Args:
        stored: the study; every run is kept in it at once.
        study: the same, entered.
        listener: hears of every run.
    """
    state = summary(stored)
    records = [record.to_json() for record in state.past_finals]
    record = state.finals.record if state.finals is not None else _drawn_up(state)
    if record is None:
        return

    def keep(record: Record) -> None:
        stored.set_attribute("finals", [*records, record.to_json()])

    def before(standing: Finals) -> None:
        if standing.next_run is not None:
            listener.remeasuring(standing.next_run[1], finalists.next_run(standing))

    def after(standing: Finals) -> None:
        listener.remeasured(standing.record.runs[-1].number, finalists.last_run(standing))

    hold(
        study,
        record,
        trials={trial.number: trial for trial in state.trials},
        objective=state.objective,
        keep=keep,
        before_run=before,
        after_run=after,
    )


def _drawn_up(state: StudySummary) -> Record | None:
    """Return new finals; None where there is nothing to decide."""
    found = state.leaders
    if not found or state.reference is None or state.reference.measurement is None:
        return None
    return Record(
        entrants=tuple(_entrant(trial, state) for trial in found),
        reference=_entrant(state.reference, state),
        reference_is_baseline=state.reference.is_baseline,
        executed_trials=state.executed_count,
        rules=state.rules,
        reach=widest_ratio(
            state.readings,
            samples_per_second=state.reference.measurement.samples_per_second,
            noise_floor=state.rules.noise_floor,
        ),
    )


def _entrant(trial: Trial, state: StudySummary) -> Entrant:
    start = state.baseline or trial
    return Entrant(number=trial.number, changes=change_count(start, trial, state.space), score=trial.score or 0.0)
