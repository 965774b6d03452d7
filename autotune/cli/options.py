"""Arguments and options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

STORAGE_VARIABLE = "AUTOTUNE_STORAGE"
"""Environment variable that stands in for --storage."""


class Format(StrEnum):
    """How a listing is written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


StudyName: TypeAlias = Annotated[str, typer.Argument(metavar="STUDY", help="Name of a study (autotune studies).")]
TrialNumber: TypeAlias = Annotated[int, typer.Argument(metavar="NUMBER", help="Number of a trial (autotune trials).")]
CampaignFile: TypeAlias = Annotated[Path, typer.Argument(metavar="CAMPAIGN.yaml", help="The campaign file.")]
Storage: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        envvar=STORAGE_VARIABLE,
        help="Optuna storage URL; sqlite:///autotune.db by default.",
        show_default=False,
    ),
]
RayAddress: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="HOST:PORT",
        help="A running Ray cluster to run trials on; by default the campaign's, or Ray started on this machine.",
        show_default=False,
    ),
]
Output: TypeAlias = Annotated[Format, typer.Option("--format", help="How to write it.")]
Alpha: TypeAlias = Annotated[
    float | None,
    typer.Option(help="See R with this weight of throughput; no trial runs again.", show_default=False),
]
Beta: TypeAlias = Annotated[
    float | None,
    typer.Option(help="See R with this weight of convergence speed; no trial runs again.", show_default=False),
]
Overrides: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the campaign, e.g. --set budget.seconds=5."),
]
Trials: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Trials in all, the baseline included.", show_default=False),
]
Quiet: TypeAlias = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only the result.")]
