"""Commands about this machine and what can be searched on it."""

from __future__ import annotations

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
    start_ray: Annotated[bool, typer.Option("--start-ray", help="Start Ray for a moment too (some seconds).")] = False,
    output: Output = Format.TABLE,
    storage: Storage = None,
) -> int:
    """Check whether trials can run on this machine.

    Versions, hardware, compiler, op cache, storage, disk, ports, Ray; each with what to do about it.
    """
    from autotune.cli.doctor import examine

    return examine(url=storage, start_ray=start_ray, form=output)


COMMANDS = (space, doctor)
