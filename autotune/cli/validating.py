"""Measuring a study's best again beside the user's own configuration."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.status import Status
from rich.text import Text

from autotune import campaign as campaigns
from autotune.cli.console import is_animated, make_console, write
from autotune.cli.displays import QuietDisplay
from autotune.cli.exit_codes import ExitCode
from autotune.cli.stopping import StopSignals
from autotune.cli.studies import opened
from autotune.cli.tables import print_report_table
from autotune.errors import StudyError
from autotune.remeasuring import Remeasured
from autotune.report import tables, units
from autotune.report.summary import StudySummary
from autotune.storage import StoredStudy
from autotune.study import StopRequest
from autotune.trials import Stage, Trial
from autotune.validation import Pair, Validation, Verdict, validate

_ATTRIBUTE = "validation"


def run_validation(name: str, *, repeats: int, url: str | None, quiet: bool) -> int:
    """Measure best and baseline again, keep the result with the study, print it; return the exit code."""
    with opened(url) as storage:
        stored = storage.open(name)
        summary = campaigns.summary(stored)
        best, baseline = _claim(summary)
        console, stop = make_console(), StopRequest()
        display = _PairDisplay(console, repeats, quiet=quiet)
        study = campaigns.study(stored, listener=display, on_stage=display.stage_entered, stop=stop)
        with StopSignals(stop) as signals, display.shown(), study:
            signals.trials_run()
            result = validate(
                study,
                best=best,
                baseline=baseline,
                repeats=repeats,
                objective=summary.objective,
                on_pair=display.pair_done,
            )
            if result.pairs:
                stored.set_attribute(_ATTRIBUTE, result.to_json())
    _print(console, result)
    if stop.wanted:
        return ExitCode.STOPPED
    return ExitCode.OK if result.verdict is Verdict.HOLDS else ExitCode.NO_RESULT


def kept_validation(stored: StoredStudy, summary: StudySummary) -> Validation | None:
    """Return the validation of the study's best; None when that has not been measured again."""
    data = stored.attribute(_ATTRIBUTE)
    if data is None:
        return None
    validation = Validation.from_json(data)
    return validation if summary.best is not None and summary.best.number == validation.best_number else None


def _claim(summary: StudySummary) -> tuple[Trial, Trial]:
    """Return what is claimed to be best, and what it is compared with."""
    if summary.best is None or summary.reference is None:
        raise StudyError(f"study {summary.name!r}: no trial has completed, so there is no gain to validate")
    return summary.best, summary.reference


class _PairDisplay(QuietDisplay):
    """A line for each pair; on a terminal the stage of the present run too."""

    def __init__(self, console: Console, repeats: int, *, quiet: bool) -> None:
        self._console = console
        self._repeats = repeats
        self._quiet = quiet
        self._done = 0
        self._status = Status("preparing", console=console) if is_animated(console) and not quiet else None

    def shown(self) -> AbstractContextManager[object]:
        """Return what shows it while entered."""
        return self._status or nullcontext()

    def note(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text.splitlines()[0])
        elif not self._quiet:
            write(self._console, text)

    def stage_entered(self, number: int, stage: Stage) -> None:
        if self._status is not None:
            self._status.update(f"pair {self._done + 1}/{self._repeats}  trial {number}  {stage.replace('_', ' ')}")

    def pair_done(self, done: int, wanted: int, pair: Pair) -> None:
        """Hear of a pair."""
        self._done = done
        if not self._quiet:
            write(self._console, f"pair {done}/{wanted}  yours {_run(pair.baseline)}  best {_run(pair.best)}")


def _run(run: Remeasured) -> str:
    return run.failure or f"{units.number(run.samples_per_second)} samples/s"


def _print(console: Console, result: Validation) -> None:
    style = {Verdict.HOLDS: "good", Verdict.DOES_NOT_HOLD: "bad"}.get(result.verdict, "yellow")
    write(console, Text(result.headline, style=style))
    for note in result.notes:
        write(console, Text(note, style="muted"))
    if any(ratio.value is not None for ratio in result.ratios):
        write(console, "")
        print_report_table(console, tables.validated(result))
