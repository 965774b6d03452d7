"""The application: every command by its name."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune import __version__
from autotune.cli.commands import checking, comparing, looking, machine, planning, results, running, starting, training
from autotune.cli.exit_codes import epilog

app = typer.Typer(
    name="autotune",
    help="Find the DeepSpeed configuration that trains your model fastest and learns fastest, by short real trials.",
    epilog=epilog(),
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autotune {__version__}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    _debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks and debug messages; may stand after the command too.")
    ] = False,
) -> None:
    """Declare what `--help` shows; `autotune.cli.border` has taken `--debug` away before."""


for group in (starting, checking, planning, running, looking, results, comparing, training, machine):
    for command in group.COMMANDS:
        app.command()(command)
