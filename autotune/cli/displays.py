"""What is seen while trials run: a live line on a terminal, a line per trial elsewhere, or nothing."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from autotune.cli.console import is_animated
from autotune.cli.progress import Progress
from autotune.cli.settings import changes_in_short
from autotune.report import units
from autotune.report.findings import r_of
from autotune.study import StudyListener
from autotune.trials import Stage, Trial

_REFRESH_PER_SECOND = 5
_SEPARATOR = "  "
_MINUTE_S = 60


class Display(StudyListener, AbstractContextManager["Display"], Protocol):
    """A study's listener that is shown between `__enter__` and `__exit__`."""

    def stage_entered(self, number: int, stage: Stage) -> None:
        """Hear of a trial that enters a stage, from any thread."""
        ...

    def remeasuring(self, number: int, text: str) -> None:
        """Hear of a run that is no trial, about to begin."""
        ...

    def remeasured(self, number: int, text: str) -> None:
        """Hear what came of it."""
        ...


def display_for(console: Console, progress: Progress, *, quiet: bool) -> Display:
    """Return the display that suits where the output goes."""
    if quiet:
        return QuietDisplay()
    return LiveDisplay(console, progress) if is_animated(console) else LineDisplay(progress)


class QuietDisplay:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing to take away."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def trial_started(self, trial: Trial) -> None:
        """Show nothing."""

    def trial_finished(self, trial: Trial) -> None:
        """Show nothing."""

    def waiting(self) -> None:
        """Show nothing."""

    def stage_entered(self, number: int, stage: Stage) -> None:
        """Show nothing."""

    def remeasuring(self, number: int, text: str) -> None:
        """Show nothing."""

    def remeasured(self, number: int, text: str) -> None:
        """Show nothing."""


class LineDisplay(QuietDisplay):
    """Prints one plain line for each finished trial; for files, pipes and dumb terminals."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._told = 0

    def note(self, text: str) -> None:
        _plain(f"{self._progress.title}{text}")

    def trial_started(self, trial: Trial) -> None:
        self._progress.started(trial)

    def trial_finished(self, trial: Trial) -> None:
        self._progress.finished(trial)
        _plain(f"{self._progress.title}{finished_line(trial, self._progress)}")
        self.waiting()

    def waiting(self) -> None:
        told = stop_text(self._progress)
        if told and self._progress.stop.count > self._told:
            self._told = self._progress.stop.count
            _plain(told)

    def stage_entered(self, number: int, stage: Stage) -> None:
        self._progress.entered(number, stage)

    def remeasured(self, number: int, text: str) -> None:
        for line in text.splitlines():
            _plain(f"{self._progress.title}{line}")
        self.waiting()


class LiveDisplay(QuietDisplay):
    """Redraws one line; the baseline, each new best and each failure stay above it."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._progress = progress
        self._live = Live(
            console=console, get_renderable=self._line, refresh_per_second=_REFRESH_PER_SECOND, transient=True
        )

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        if self._progress.running:  # the line is theirs
            self._console.print(Text(text, style="yellow"))
            return
        first, *more = text.splitlines()
        if self._progress.running:  # about a trial or a node, and no stage of a preparation
            self._console.print(Text(text, style="muted"))
            return
        self._progress.preparing = first
        if more:
            self._console.print(Text(text, style="muted"))

    def trial_started(self, trial: Trial) -> None:
        self._progress.started(trial)

    def trial_finished(self, trial: Trial) -> None:
        is_best = self._progress.finished(trial)
        if is_best or trial.is_baseline or trial.failure is not None:
            style = "bad" if trial.failure is not None else "good" if not trial.is_baseline else ""
            line = Text(f"{self._progress.title}{finished_line(trial, self._progress)}", style=style)
            line.truncate(self._console.width, overflow="ellipsis")
            self._console.print(line)

    def stage_entered(self, number: int, stage: Stage) -> None:
        self._progress.entered(number, stage)

    def remeasuring(self, number: int, text: str) -> None:
        self._progress.remeasuring(number, text)

    def remeasured(self, number: int, text: str) -> None:
        self._progress.remeasured(number)
        for line in text.splitlines():
            self._console.print(Text(f"{self._progress.title}{line}", style="muted", overflow="ellipsis", no_wrap=True))

    def _line(self) -> Text:
        line = live_line(self._progress, width=self._console.width)
        stopping = self._progress.stop.wanted
        return Text(line, style="yellow" if stopping else "", no_wrap=True, overflow="ellipsis")


def live_line(progress: Progress, *, width: int) -> str:
    """Return the live line; on a narrow terminal what matters least is left out."""
    stage = stop_text(progress) or progress.stage
    if progress.trial_elapsed_s is not None:
        stage += f" {clock(progress.trial_elapsed_s)}"
    last = progress.last.score if progress.last is not None else None
    if progress.preparing:
        return f"{progress.title}{stage}"
    parts = [
        (0, f"{progress.title}trial {progress.number}/{progress.trial_budget}"),
        (1, stage),
        (2, f"best R {units.score(progress.best.score)}" if progress.best is not None else ""),
        (5, f"last R {units.score(last)}" if last is not None else ""),
        (4, units.count(progress.failures, "failure") if progress.failures else ""),
        (6, f"elapsed {clock(progress.elapsed_s)}"),
        (3, f"left {clock(progress.left_s)}" if progress.left_s is not None else ""),
    ]
    shown = [part for part in parts if part[1]]
    while len(shown) > 2 and len(_SEPARATOR.join(text for _, text in shown)) >= width:
        shown.remove(max(shown))
    return _SEPARATOR.join(text for _, text in shown)


def finished_line(trial: Trial, progress: Progress) -> str:
    """Return a finished trial on one line."""
    head = f"trial {trial.number:>3}  {trial.state.value:<8}"
    if trial.failure is not None:
        return f"{head}  {trial.failure.kind}: {trial.failure.reason}"
    changed = changes_in_short(trial, progress.baseline, progress.space)
    return (
        f"{head}  R {r_of(trial)}  throughput {units.times(trial.throughput_ratio)}"
        f"  convergence {units.times(trial.convergence_ratio)}  {changed}"
    )


def stop_text(progress: Progress) -> str:
    """Return what a wish to stop does; nothing where there is none."""
    trials, them = ("trials", "them") if len(progress.running) > 1 else ("trial", "it")
    if progress.stop.at_once:
        return f"cancelling the running {trials}"
    return f"stopping after the running {trials}; Ctrl-C again cancels {them}" if progress.stop.wanted else ""


def clock(seconds: float) -> str:
    """Return a time of steady width: 7 s, 3:05, 1:02:45."""
    whole = int(seconds)
    if whole < _MINUTE_S:
        return f"{whole} s"
    minutes, rest_s = divmod(whole, _MINUTE_S)
    hours, minutes = divmod(minutes, _MINUTE_S)
    return f"{hours}:{minutes:02d}:{rest_s:02d}" if hours else f"{minutes}:{rest_s:02d}"


def _plain(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
