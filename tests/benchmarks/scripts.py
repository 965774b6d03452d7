"""What tuning gains on each script of experiments/scripts: one campaign each, as a user runs it, and a table."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from autotune import campaign as campaigns
from autotune import launchers, storage
from autotune.report.summary import StudySummary

CAMPAIGNS = Path(__file__).parents[2] / "experiments" / "scripts"
COLUMNS = (
    "script",
    "launcher",
    "searched",
    "own samples/s",
    "best samples/s",
    "throughput",
    "convergence",
    "R",
    "failed trials",
)


def main() -> None:
    """Tune each script and print its row as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="campaigns of experiments/scripts; all by default")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as `autotune launch --set`")
    options = parser.parse_args()
    names = options.names or sorted(path.stem for path in CAMPAIGNS.glob("*.yaml"))
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            print(row(name, trials=options.trials, overrides=options.set, folder=folder), flush=True)


def row(name: str, *, trials: int, overrides: Sequence[str], folder: str) -> str:
    """Tune one script; return its row of the table."""
    path, url = CAMPAIGNS / f"{name}.yaml", f"sqlite:///{folder}/autotune.db"
    changes = [word for override in overrides for word in ("--set", override)]
    launch = ["launch", str(path), "--trials", str(trials), "--storage", url, "--study", name, "--quiet", *changes]
    done = subprocess.run([sys.executable, "-m", "autotune", *launch], cwd=folder, capture_output=True, text=True)
    opened = storage.connect(url)
    try:
        stored = opened.open(name)
        cells = _cells(campaigns.summary(stored), campaigns.campaign_of(stored))
    finally:
        opened.close()
    if done.returncode != 0:
        print(done.stdout + done.stderr, file=sys.stderr)
    return f"| {' | '.join(cells)} |"


def _cells(summary: StudySummary, campaign: campaigns.Campaign) -> list[str]:
    command = campaign.workload.command or ()
    launch = launchers.recognise(command)
    searched = ", ".join(each.name.rpartition(".")[2] for each in summary.space.dimensions if len(each.levels) > 1)
    start = [f"{summary.name}.py", launch.kind.value, searched]
    failed = [trial for trial in summary.trials if trial.failure is not None]
    failures = f"{len(failed)} of {len(summary.trials)}"
    baseline, best = summary.baseline, summary.best
    if baseline is None or baseline.measurement is None or best is None or best.measurement is None:
        return [*start, *["-"] * 5, failures]
    figures = (best.throughput_ratio, best.convergence_ratio, best.score)
    return [
        *start,
        f"{baseline.measurement.samples_per_second:.1f}",
        f"{best.measurement.samples_per_second:.1f}",
        *(f"{figure:.2f}" if figure is not None else "-" for figure in figures),
        failures,
    ]


if __name__ == "__main__":
    main()
