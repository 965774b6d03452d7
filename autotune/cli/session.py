"""One session with a study: build it, run it to its end or to a stop, and say how it went."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from autotune import campaign as campaigns
from autotune.cli import searchers
from autotune.cli.border import Interrupted
from autotune.cli.displays import display_for
from autotune.cli.progress import Progress
from autotune.cli.stopping import StopSignals
from autotune.report.summary import StudySummary
from autotune.searchers.knowledge import StudyKnowledge
from autotune.storage import StoredStudy
from autotune.study import StopRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a session ended."""

    reason: str
    was_stopped: bool
    summary: StudySummary


def run(stored: StoredStudy, *, console: Console, quiet: bool, go_on: str, title: str = "") -> Ended:
    """Run what a study lacks of its budget, with the searcher that it was made with, then its finals.

    Args:
        stored: the study; its attributes and campaign say everything.
        console: where progress is shown.
        quiet: show none.
        go_on: what the user types to go on after an interruption.
        title: goes before every line of progress.

    Raises:
        AutotuneError: when it can't begin, or the searcher breaks its protocol.
        Interrupted: at Ctrl-C during preparation, or at the third one; it says how to go on.
    """
    from autotune.campaign.filtering import filtered  # it loads scipy

    campaign, summary = campaigns.campaign_of(stored), campaigns.summary(stored)
    stop = StopRequest()
    progress = Progress(summary, stop=stop, title=title)
    display = display_for(console, progress, quiet=quiet)
    study = campaigns.study(
        stored, listener=display, on_stage=display.stage_entered, stop=stop, trials=summary.trial_budget
    )
    searcher = searchers.create(
        summary.searcher,
        study.space,
        seed=campaign.seed,
        trial_budget=summary.trial_budget,
        hardware=summary.hardware,
        warm_start=campaign.warm_start,
        knowledge=lambda: _knowledge(stored),
    )
    searcher = filtered(searcher, stored, study)
    try:
        with StopSignals(stop) as signals, display, study:
            signals.trials_run()
            reason = study.run(searcher, between=campaigns.watch(stored, study, display))
            if not stop.wanted:
                campaigns.hold_finals(stored, study, display)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; to go on: {go_on}") from None
    return Ended(reason=reason, was_stopped=stop.wanted, summary=campaigns.summary(stored))


def _knowledge(stored: StoredStudy) -> StudyKnowledge:
    """Return what a searcher may know; scipy loads for it."""
    from autotune.campaign.calibrating import knowledge_of

    return knowledge_of(stored)
