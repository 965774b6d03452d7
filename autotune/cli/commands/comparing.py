"""The command that compares searchers at equal budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.options import Alpha, Beta, Format, Output, Overrides, Quiet, Storage, Trials

_SEARCHERS = "ppo,tpe,random"
_SEEDS = 3


def compare(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="CAMPAIGN.yaml | STUDY STUDY...", help="A campaign to run, or studies that have run."),
    ],
    searchers: Annotated[str, typer.Option(metavar="NAMES", help="Of a campaign: which, with commas.")] = _SEARCHERS,
    trials: Trials = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="K", help="Of a campaign: studies by each searcher.")] = _SEEDS,
    overrides: Overrides = None,
    path: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Report to write, .html or .md; comparison.html by default for a campaign.",
            show_default=False,
        ),
    ] = None,
    output: Output = Format.TABLE,
    alpha: Alpha = None,
    beta: Beta = None,
    storage: Storage = None,
    quiet: Quiet = False,
) -> int:
    """Compare searchers at an equal budget of trials.

    From a campaign, searchers x seeds studies are run, called NAME-SEARCHER-seedK. Run the same command again to go
    on after a stop: finished studies are taken as they are, and unfinished ones are resumed.
    """
    from autotune.cli.comparing import Presentation, compare_campaign, compare_studies, is_campaign

    of_campaign = is_campaign(targets)
    if of_campaign and path is None:
        path = Path("comparison.html")
    presentation = Presentation(path=path, form=output, alpha=alpha, beta=beta)
    if not of_campaign:
        return compare_studies(targets, url=storage, presentation=presentation)
    return compare_campaign(
        Path(targets[0]),
        searchers=searchers.split(","),
        trials=trials,
        seeds=seeds,
        overrides=overrides or (),
        url=storage,
        presentation=presentation,
        quiet=quiet,
    )


COMMANDS = (compare,)
