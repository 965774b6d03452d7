"""The doctor's probe: one short trial of a campaign, in a storage of its own that is gone afterwards."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.status import Status as Spinner

from autotune import campaign as campaigns
from autotune import storage as storages
from autotune.campaign import BudgetSection, Campaign, PlacementSection
from autotune.cli.checks import place
from autotune.cli.checks.finding import Finding, Status
from autotune.cli.console import is_animated, make_console
from autotune.cli.displays import QuietDisplay
from autotune.cli.stopping import StopSignals
from autotune.errors import AutotuneError
from autotune.report import units
from autotune.storage import command
from autotune.study import StopRequest
from autotune.trials import Failure, Measurement, Stage, Trial

_CAMPAIGN, _PROBE = "campaign", "probe"
_BUDGET = BudgetSection(steps=2, warmup_steps=1)
_TAIL_LINES = 15


def probe(path: Path, *, overrides: Sequence[str], url: str | None, shows_stages: bool) -> Iterator[Finding]:
    """Check a campaign file, and run its own configuration for two steps.

    Args:
        path: of the campaign.
        overrides: `a.b=c` texts laid over it.
        url: storage that the command line gives; None: the campaign's.
        shows_stages: say on a terminal what is under way.
    """
    try:
        campaign = campaigns.load(path, overrides)
        hardware = campaigns.hardware_of(campaign)
        space = campaigns.space_of(campaign, hardware)
    except AutotuneError as error:
        yield Finding(check=_CAMPAIGN, status=Status.FAIL, detail=str(error), advice="correct it; nothing was run")
        return
    size = f"{units.count(len(space.dimensions), 'dimension')}, {units.count(space.count, 'configuration')}"
    detail = f"{campaign.name}: {campaign.workload.name}, {units.count(hardware.ranks, 'rank')}, {size}"
    yield Finding(check=_CAMPAIGN, status=Status.OK, detail=detail)
    if campaign.evaluator == "deepspeed":
        yield from place.logs(Path(os.path.abspath(campaign.run_directory)))
    try:
        with tempfile.TemporaryDirectory(prefix="autotune-doctor-") as folder:
            yield from _findings(
                _measured(campaign, folder, shows_stages=shows_stages),
                launch=command("launch", str(path), *(word for text in overrides for word in ("--set", text)), url=url),
            )
    except AutotuneError as error:
        yield Finding(check=_PROBE, status=Status.FAIL, detail=str(error), advice="correct it, and run doctor again")


def _measured(campaign: Campaign, folder: str, *, shows_stages: bool) -> Trial | None:
    """Run the campaign's own configuration; None when a stop came first."""
    is_real = campaign.evaluator == "deepspeed"
    changes = {
        "budget": _BUDGET,
        "runner": "local" if is_real else "inline",
        "ray_address": None,
        "placement": PlacementSection(),
        "run_directory": folder,
        "trials": 1,
    }
    storage = storages.connect(f"sqlite:///{folder}/probe.db")
    try:
        stored = campaigns.create(campaign.model_copy(update=changes), storage, name="probe")
        display, stop = _Display(shows_stages=shows_stages), StopRequest()
        study = campaigns.study(stored, listener=display, on_stage=display.stage_entered, stop=stop)
        with StopSignals(stop) as signals, display.shown, study:
            signals.trials_run()
            return study.measure_baseline()
    finally:
        storage.close()


class _Display(QuietDisplay):
    """One line on a terminal: what is being prepared, or the trial's stage."""

    def __init__(self, *, shows_stages: bool) -> None:
        console = make_console()
        shows = shows_stages and is_animated(console)
        self._spinner = Spinner("probe: preparing", console=console) if shows else None
        self.shown = self._spinner or nullcontext()

    def note(self, text: str) -> None:
        if self._spinner is not None:
            self._spinner.update(f"probe: {text.splitlines()[0]}")

    def stage_entered(self, number: int, stage: Stage) -> None:
        if self._spinner is not None:
            self._spinner.update(f"probe: {stage.replace('_', ' ')}")


def _findings(trial: Trial | None, *, launch: str) -> Iterator[Finding]:
    if trial is None or trial.outcome is None:
        yield Finding(check=_PROBE, status=Status.WARN, detail="stopped before it ended")
        return
    stages = [f"{stage.replace('_', ' ')} {units.seconds(took_s)}" for stage, took_s in trial.outcome.stage_s.items()]
    told = ", ".join(stages) or "no stages"
    yield Finding(check=_PROBE, status=Status.OK, detail=f"{told}; {units.seconds(trial.outcome.duration_s)} in all")
    if trial.measurement is not None:
        yield Finding(
            check=_PROBE,
            status=Status.OK,
            detail=_figures(trial.measurement),
            advice=launch,
        )
    if trial.failure is not None:
        yield _failed(trial.failure)


def _figures(measurement: Measurement) -> str:
    step = units.seconds(measurement.step_time_s)
    fall = f"{measurement.held_out_loss_before:.4g} to {measurement.held_out_loss_after:.4g}"
    loss = f"{measurement.loss_source} loss {fall}"
    return f"it trains: {measurement.samples_per_step} samples a step, {step} each, {loss}"


def _failed(failure: Failure) -> Finding:
    where = f" at {failure.stage.replace('_', ' ')}" if failure.stage else ""
    rank = f", rank {failure.rank}" if failure.rank is not None else ""
    return Finding(
        check=_PROBE,
        status=Status.FAIL,
        detail=f"{failure.kind}{where}{rank}: {failure.reason}",
        advice="your own configuration must run before others are tried; see the log below",
        lines=failure.log_tail[-_TAIL_LINES:],
    )
