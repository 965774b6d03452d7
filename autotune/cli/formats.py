"""Listings in three formats: a table for people, JSON and CSV for programs."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.cli.console import write

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[Row]):
    """One column of a table."""

    title: str
    cell: Callable[[Row], str | Text]
    right: bool = False
    wraps: bool = False
    """Whether it gives way on a narrow terminal."""
    from_width: int = 0
    """Terminals narrower than this don't show it."""


COLUMN_GAP = 2
"""Blanks between the columns of a table."""


def print_table(console: Console, columns: Sequence[Column[Row]], rows: Sequence[Row]) -> None:
    """Print rows as an aligned table without lines."""
    table = Table(box=None, pad_edge=False, padding=(0, COLUMN_GAP, 0, 0), header_style="muted", collapse_padding=True)
    shown = [column for column in columns if console.width >= column.from_width]
    for column in shown:
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.wraps,
            overflow="fold" if column.wraps else "ellipsis",
        )
    for row in rows:
        table.add_row(*(column.cell(row) for column in shown))
    write(console, table)


def print_pairs(console: Console, pairs: Sequence[tuple[str, str | Text]]) -> None:
    """Print names and values, one pair a line; lines of a long value stay under it."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="muted", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, value)
    write(console, table)


def print_json(data: Any) -> None:
    """Print JSON."""
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print CSV; the columns are the keys of all rows, in the order in which they first appear."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(sys.stdout, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _plain(value) for name, value in row.items()} for row in rows)


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, dict | list | tuple) else value
