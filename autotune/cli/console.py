"""The console: standard output with colour and width where there is a terminal, plain text where there is none."""

from __future__ import annotations

import os
import sys

from rich.console import Console, RenderableType
from rich.theme import Theme

_UNLIMITED_WIDTH = 100_000
"""Off a terminal nothing is cut or wrapped: the reader is a file or another program."""
THEME = Theme({"good": "green", "bad": "red", "muted": "dim", "name": "bold"})


def make_console() -> Console:
    """Return a console on the present standard output."""
    on_terminal = sys.stdout.isatty()
    width = None if on_terminal or "COLUMNS" in os.environ else _UNLIMITED_WIDTH
    return Console(highlight=False, markup=False, emoji=False, theme=THEME, width=width, soft_wrap=False)


def is_animated(console: Console) -> bool:
    """Whether a line may be redrawn."""
    return sys.stdout.isatty() and console.is_terminal and not console.is_dumb_terminal


def write(console: Console, renderable: RenderableType, *, wraps: bool = True) -> None:
    """Print; off a terminal without the blanks that fill lines up. What must be copied whole does not wrap."""
    if console.is_terminal:
        console.print(renderable, soft_wrap=not wraps)
        return
    with console.capture() as captured:
        console.print(renderable, soft_wrap=not wraps)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
