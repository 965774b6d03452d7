"""The command that comes first: it writes a campaign file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def init(
    training: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND...]",
            help="Your training command, as you type it: init -- torchrun train.py --deepspeed ds_config.json.",
            show_default=False,
        ),
    ] = None,
    given: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="DS_CONFIG.json",
            help="Your DeepSpeed configuration; by default the one that the command names, or the only one here.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="What to write.")] = Path(
        "campaign.yaml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace the file where it exists.")] = False,
) -> int:
    """Write a commented campaign file from your training command.

    Launcher, ranks, configuration and batch arguments are read from it; what can't be told is marked QUESTION.
    Without a command the campaign is for a function of yours.
    """
    from autotune.cli.initializing import initialize

    return initialize(training or (), given=given, output=output, force=force)


COMMANDS = (init,)
