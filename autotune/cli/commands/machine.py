"""Commands about this machine and what can be searched on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.options import CampaignFile, Format, Output, Overrides, Storage


def space(campaign: CampaignFile, overrides: Overrides = None, output: Output = Format.TABLE) -> int:
    """List what a campaign searches on this machine.

    Every dimension with its levels, and what is left out and why.
    """
    from autotune.cli.spaces import print_space

    return print_space(campaign, overrides=overrides or (), form=output)


def doctor(
    campaign: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CAMPAIGN.yaml]", help="Check this campaign too, by one short trial.", show_default=False
        ),
    ] = None,
    overrides: Overrides = None,
    fix: Annotated[bool, typer.Option("--fix", help="Remove locks that killed builds of ops left behind.")] = False,
    start_ray: Annotated[bool, typer.Option("--start-ray", help="Start Ray for a moment too (some seconds).")] = False,
    output: Output = Format.TABLE,
    storage: Storage = None,
) -> int:
    """Check whether trials can run on this machine.

    Versions, hardware, GPUs in use, compiler, op cache and stale locks, storage, disk, ports, Ray; each with what to
    do about it. With a campaign, its own configuration runs for two steps, and nothing of that is kept.
    """
    from autotune.cli.doctor import examine

    return examine(campaign, overrides=overrides or (), url=storage, start_ray=start_ray, fix=fix, form=output)


COMMANDS = (space, doctor)
