"""The command that compares searchers at equal budgets."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.options import Alpha, Beta, Format, Output, Overrides, Quiet, Storage, Trials

_SEARCHERS = "ppo,tpe,random"
_SEEDS = 3


class Evaluator(StrEnum):
    """How a trial is measured: a campaign's `evaluator`."""

    DEEPSPEED = "deepspeed"
    SIMULATED = "simulated"
    RECORDED = "recorded"


def compare(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="CAMPAIGN.yaml... | STUDY STUDY...",
            help="Campaigns to run (a workload each), or studies that have run.",
        ),
    ],
    searchers: Annotated[str, typer.Option(metavar="NAMES", help="Of a campaign: which, with commas.")] = _SEARCHERS,
    trials: Trials = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="K", help="Of a campaign: studies by each searcher.")] = _SEEDS,
    workloads: Annotated[
        int, typer.Option(min=1, metavar="K", help="Of a simulated campaign: workloads, by their seeds.")
    ] = 1,
    evaluator: Annotated[
        Evaluator | None,
        typer.Option(help="How trials are measured, instead of the campaign's.", show_default=False),
    ] = None,
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
    raw: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a row for each trial, .csv or .parquet.", show_default=False),
    ] = None,
    output: Output = Format.TABLE,
    alpha: Alpha = None,
    beta: Beta = None,
    storage: Storage = None,
    quiet: Quiet = False,
) -> int:
    """Compare searchers at equal budgets of trials and of wall time.

    From a campaign, searchers x seeds studies are run, called NAME-SEARCHER-seedK. Run the same command again to go
    on after a stop: finished studies are taken as they are, and unfinished ones are resumed.
    """
    from autotune.cli.comparing import Presentation, are_campaigns, compare_campaigns, compare_studies

    of_campaigns = are_campaigns(targets)
    if of_campaigns and path is None:
        path = Path("comparison.html")
    presentation = Presentation(path=path, raw=raw, form=output, alpha=alpha, beta=beta)
    if not of_campaigns:
        return compare_studies(targets, url=storage, presentation=presentation)
    return compare_campaigns(
        [Path(target) for target in targets],
        searchers=searchers.split(","),
        trials=trials,
        seeds=seeds,
        workloads=workloads,
        overrides=[*(overrides or ()), *([f"evaluator={evaluator.value}"] if evaluator else [])],
        url=storage,
        presentation=presentation,
        quiet=quiet,
    )


COMMANDS = (compare,)
