"""The search space of a campaign as a listing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune import campaign as campaigns
from autotune import ds_config as config_file
from autotune.cli.console import make_console, write
from autotune.cli.exit_codes import ExitCode
from autotune.cli.formats import Column, print_csv, print_json, print_table
from autotune.cli.options import Format
from autotune.cli.settings import in_short
from autotune.report import units
from autotune.space import Condition, Dimension, SearchSpace
from autotune.trials import Value

_WIDE, _VERY_WIDE = 110, 150


def print_space(path: Path, *, overrides: Sequence[str], form: Format) -> int:
    """List the dimensions that a campaign searches, and what is left out and why; return the exit code."""
    campaign = campaigns.load(path, overrides)
    hardware = campaigns.hardware_of(campaign)
    space = campaigns.space_of(campaign, hardware)
    start = campaigns.start_of(campaign, hardware, space)
    settings = config_file.settings_of(start.ds_config)
    settings[config_file.ACTIVATION_CHECKPOINTING] = start.activation_checkpointing
    rows = [_row(dimension, settings) for dimension in space.dimensions]
    omitted = [{"name": out.name, "level": out.level, "reason": out.reason} for out in space.left_out]
    if form is Format.JSON:
        data = {"dimensions": rows, "left_out": omitted, "fixed": dict(space.fixed), "configurations": space.count}
        print_json({**data, "start": dict(start.point), "start_outside": start.outside})
    elif form is Format.CSV:
        print_csv(
            [*rows, *({"name": out["name"], "levels": [out["level"]], "left_out": out["reason"]} for out in omitted)]
        )
    else:
        _print_tables(space, rows)
        if start.remark is not None:
            write(make_console(), f"your configuration lies {start.remark}")
    return ExitCode.OK


def left_out(space: SearchSpace) -> list[tuple[str, str]]:
    """Return what is left out and why; levels of one dimension that are left out for one reason go together."""
    levels: dict[tuple[str, str], list[Value]] = defaultdict(list)
    for out in space.left_out:
        levels[out.name, out.reason] += [] if out.level is None else [out.level]
    return [
        (f"{name} = {' | '.join(in_short(level) for level in some)}" if some else name, reason)
        for (name, reason), some in levels.items()
    ]


def _row(dimension: Dimension, settings: dict[str, Value]) -> dict[str, Any]:
    return {
        "name": dimension.name,
        "levels": list(dimension.levels),
        "default": dimension.default,
        "start": settings.get(dimension.name),
        "condition": _conditions(dimension.conditions),
        "level_conditions": {
            in_short(level): _conditions(conditions) for level, conditions in dimension.level_conditions.items()
        },
        "unit": dimension.unit,
        "description": dimension.description,
    }


def _conditions(conditions: Sequence[Condition]) -> str:
    return " and ".join(
        f"{condition.dimension} in {', '.join(in_short(value) for value in condition.allowed)}"
        for condition in conditions
    )


def _print_tables(space: SearchSpace, rows: Sequence[dict[str, Any]]) -> None:
    console = make_console()
    columns: list[Column[dict[str, Any]]] = [
        Column(title="Dimension", cell=lambda row: str(row["name"])),
        Column(title="Levels", cell=lambda row: " ".join(in_short(level) for level in row["levels"]), wraps=True),
        Column(title="Yours", cell=lambda row: "" if row["start"] is None else in_short(row["start"]), right=True),
        Column(title="Default", cell=lambda row: in_short(row["default"]), right=True, from_width=_WIDE),
        Column(title="Only where", cell=lambda row: str(row["condition"]), wraps=True, from_width=_WIDE),
        Column(title="Unit", cell=lambda row: str(row["unit"]), from_width=_VERY_WIDE),
    ]
    print_table(console, columns, rows)
    write(console, "")
    dimensions, configurations = len(space.dimensions), space.count
    write(console, f"{units.count(dimensions, 'dimension')}, {units.count(configurations, 'configuration')}")
    for name, value in space.fixed.items():
        write(console, f"fixed: {name} = {in_short(value)}")
    for what, reason in left_out(space):
        write(console, f"left out: {what}: {reason}")
