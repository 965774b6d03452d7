"""Commands about configuration files."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.options import Format, Output


class Reader(StrEnum):
    """Who reads a configuration first; the values are those of `autotune.ds_config.Target`."""

    HF = "hf"
    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"


def lint(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="JSON, hjson, accelerate's YAML, or DeepSpeed's base64 argument.",
            show_default=False,
        ),
    ],
    ranks: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Data-parallel ranks, to check the batch sizes for.", show_default=False),
    ] = None,
    reader: Annotated[
        Reader | None,
        typer.Option("--for", help="Who reads it first, and fills in values auto; by default any.", show_default=False),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Write a mended copy, FILE.fixed.json, where it needs one.")
    ] = False,
    destination: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="PATH", help="Where the mended copy goes.", show_default=False),
    ] = None,
    output: Output = Format.TABLE,
) -> int:
    """Check DeepSpeed configuration files.

    For each problem the key, the line, the value, the rule and the fix.
    """
    from autotune.cli.linting import print_lint

    return print_lint(
        files, ranks=ranks, reader=reader, fix=fix or destination is not None, to=destination, form=output
    )


COMMANDS = (lint,)
