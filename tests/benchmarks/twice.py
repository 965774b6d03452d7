"""The same campaign run twice, as a user runs it: both winners, and whether they are one, a declared tie, or differ.

Where the two searches came to different winners, these run against each other in finals of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autotune import campaign as campaigns
from autotune import storage as storages
from autotune.drift import noise_ratio
from autotune.finals import Entrant, Finals, Record, hold
from autotune.report import StudySummary, changed, finalists, headline, tables
from autotune.report.changes import change_count
from autotune.report.markdown import table
from autotune.storage import StoredStudy
from autotune.trials import Trial

CAMPAIGN = Path(__file__).parents[2] / "experiments" / "quickstart" / "campaign.yaml"
NAMES = ("first", "second")


def main() -> None:
    """Run both, print what each named, and how they compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("campaign", nargs="?", type=Path, default=CAMPAIGN, help="the quickstart's by default")
    parser.add_argument("--folder", type=Path, help="keep the studies here, and go on with those that are there")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as `autotune launch --set`")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        campaign = options.campaign.absolute()
        with contextlib.chdir(folder):  # where the logs go
            run_twice(campaign, options.set)


def run_twice(campaign: Path, overrides: Sequence[str]) -> None:
    """Run the campaign's studies in the current folder, and print."""
    url = "sqlite:///autotune.db"
    storage = storages.connect(url)
    try:
        for name in NAMES:
            changes = [word for override in overrides for word in ("--set", override)]
            known = name in storage.names()
            verb = ["resume", name] if known else ["launch", str(campaign), "--study", name, *changes]
            command = [sys.executable, "-m", "autotune", *verb, "--storage", url, "--quiet"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(done.stdout + done.stderr)
            _print(campaigns.summary(storage.open(name)))
        print(verdict(*(storage.open(name) for name in NAMES)))
    finally:
        storage.close()


def verdict(first: StoredStudy, second: StoredStudy) -> str:
    """Say whether two studies of one campaign named the same winner."""
    one, other = campaigns.summary(first), campaigns.summary(second)
    if one.best is None or other.best is None:
        return "No winner: no trial completed."
    if one.best.config_hash == other.best.config_hash:
        return f"The same winner: {_described(one, one.best)}."
    if _tied(one) & _tied(other):
        return "A declared tie: among those that each could not tell from its winner there is one and the same."
    standing = against_each_other(first, one, one.best, other.best)
    names = {
        one.best.number: f"trial {one.best.number} of the first",
        _GUEST: f"trial {other.best.number} of the second",
    }
    lines = [
        f"{names.get(each.number, 'the start')}: R {finalists.score(each.score)}, {finalists.verdict(standing, each)}"
        for each in standing.finalists
    ]
    is_tie = {*names} <= {*standing.tied}
    told = "a tie." if is_tie else "no tie: the two searches found configurations that differ beyond noise."
    lines += [
        f"the {name} search {'tried' if of in {trial.config_hash for trial in summary.trials} else 'never tried'} "
        f"the other's winner"
        for name, summary, of in zip(NAMES, (one, other), (other.best.config_hash, one.best.config_hash), strict=True)
    ]
    return "\n".join([f"The winners differ. Run against each other, {told}", *lines])


_GUEST = 10**6
"""Number of the second study's winner in the first: no trial has it."""


def against_each_other(stored: StoredStudy, summary: StudySummary, one: Trial, other: Trial) -> Finals:
    """Hold finals of two winners in the first's study, keeping nothing."""
    guest = replace(other, number=_GUEST)
    reference = summary.reference
    assert reference is not None
    start = summary.baseline or reference
    record = Record(
        entrants=tuple(
            Entrant(number=trial.number, changes=change_count(start, trial, summary.space), score=1.0)
            for trial in (one, guest)
            if trial.number != reference.number
        ),
        reference=Entrant(number=reference.number, changes=0, score=1.0),
        reference_is_baseline=reference.is_baseline,
        executed_trials=summary.executed_count,
        rules=summary.rules,
        reach=noise_ratio(summary.rules.noise_floor),
    )
    trials = {trial.number: trial for trial in (reference, one, guest)}
    with campaigns.study(stored) as study:
        return hold(
            study,
            record,
            trials=trials,
            objective=summary.objective,
            keep=lambda _: None,
            before_run=lambda _: None,
            after_run=lambda _: None,
        )


def _print(summary: StudySummary) -> None:
    print(f"\n{summary.name}: {headline(summary)}", flush=True)
    for note in finalists.notes(summary):
        print(note)
    held = tables.finals(summary)
    print(table(held) if held is not None else "no finals", flush=True)
    if summary.best is not None:
        print(f"taken: {_described(summary, summary.best)}\n", flush=True)


def _described(summary: StudySummary, trial: Trial) -> str:
    start = summary.baseline or trial
    return ", ".join(f"{change.name}={change.after}" for change in changed(start, trial, summary.space)) or "the start"


def _tied(summary: StudySummary) -> set[str]:
    """Return the configurations that a study's winner is tied with, its own among them."""
    tied = summary.finals.tied if summary.finals is not None else ()
    return {trial.config_hash for trial in summary.trials if trial.number in tied}


if __name__ == "__main__":
    main()
