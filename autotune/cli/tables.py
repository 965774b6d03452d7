"""The report's tables on the console."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rich.console import Console

from autotune.cli.console import write
from autotune.cli.formats import COLUMN_GAP, Column, print_table
from autotune.cli.settings import folded
from autotune.report import tables
from autotune.report.summary import StudySummary
from autotune.report.tables import Table

_FINALS_FROM_WIDTH = {"Changes": 90, "R in search": 105, "R by round": 130}
_STANDINGS_FROM_WIDTH = {
    "Mean best R so far": 90,
    "Time in failures": 140,
    "Pruned": 120,
    "Repeated": 120,
    "Searcher, per trial": 140,
    "Wall time": 120,
}
"""By title: terminals narrower than this leave the column out."""


def print_against_baseline(console: Console, summary: StudySummary) -> None:
    """Print the user's own configuration beside the best: figures, then the settings that differ."""
    figures, settings = tables.against_baseline(summary), tables.changed_settings(summary)
    if figures is not None:
        print_report_table(console, figures)
    if settings is not None and settings.rows:
        write(console, "")
        rows = tuple((folded(name, width=console.width), *values) for name, *values in settings.rows)
        print_report_table(console, replace(settings, rows=rows))


def print_finals(console: Console, summary: StudySummary) -> None:
    """Print the finalists, on a narrow terminal without the columns that matter least; nothing without finals."""
    table = tables.finals(summary)
    if table is not None:
        write(console, "")
        print_fitting(console, table, _FINALS_FROM_WIDTH)


def print_standings(console: Console, table: Table) -> None:
    """Print the contenders of a comparison, on a narrow terminal without the columns that matter least."""
    print_fitting(console, table, _STANDINGS_FROM_WIDTH)


def fits(console: Console, table: Table) -> bool:
    """Say whether no cell of a table needs to be cut or folded."""
    widths = (max(map(len, cells)) for cells in zip(table.columns, *table.rows, strict=True))
    return sum(widths) + COLUMN_GAP * (len(table.columns) - 1) <= console.width


def print_report_table(console: Console, table: Table) -> None:
    """Print a table of a report."""
    columns = [_column(title, position, table) for position, title in enumerate(table.columns)]
    print_table(console, columns, table.rows)


def print_fitting(console: Console, table: Table, from_width: Mapping[str, int], *, wraps: str | None = None) -> None:
    """Print a table whose columns don't wrap, but for one, on a narrow terminal without those that matter least."""
    columns = [
        replace(_column(title, position, table), wraps=title == wraps, from_width=from_width.get(title, 0))
        for position, title in enumerate(table.columns)
    ]
    print_table(console, columns, table.rows)


def _column(title: str, position: int, table: Table) -> Column[tuple[str, ...]]:
    is_figure = position in table.figures
    return Column(title=title, cell=lambda row: row[position], right=is_figure, wraps=not is_figure)
