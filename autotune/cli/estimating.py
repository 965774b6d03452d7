"""Estimates and plans of the performance model on the console."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status as Spinner
from rich.text import Text

from autotune.cli.console import is_animated, make_console, write
from autotune.cli.exit_codes import ExitCode
from autotune.cli.formats import print_csv, print_json
from autotune.cli.options import Format
from autotune.cli.tables import print_fitting
from autotune.errors import WorkloadError
from autotune.planning import (
    Estimates,
    Options,
    Plan,
    count,
    documents,
    estimates,
    make_plan,
    named_hardware,
    named_model,
    settings,
    tables,
    wording,
)

_TIME_FROM_WIDTH = {"Rest": 90, "Samples/s": 100, "Largest micro-batch": 120}
_PLAN_FROM_WIDTH = {"From-to": 100, "Device-days": 110, "Tokens/s": 140, "GiB": 130}
"""By title: terminals narrower than this leave the column out."""


def print_estimate(
    model: str,
    hardware: str,
    *,
    config: Path | None,
    sequence: int | None,
    options: Options,
    devices_per_node: int | None,
    network_gbps: float | None,
    host_memory_gib: float | None,
    path: Path | None,
    form: Format,
) -> int:
    """Print memory and step time by stage and offload; return the exit code: 1 where nothing fits."""
    console = make_console()
    asked = named_model(model, sequence=sequence)
    spinner = Spinner("measuring this machine", console=console) if is_animated(console) else None
    if spinner is not None and form is Format.TABLE and hardware.startswith("cpu"):
        spinner.start()
    try:
        place = named_hardware(
            hardware,
            devices_per_node=devices_per_node,
            network_gbps=network_gbps,
            host_memory_gib=host_memory_gib,
        )
    finally:
        if spinner is not None:
            spinner.stop()
    found = estimates(asked, place, settings(asked, place, config=config, options=options))
    if path is not None:
        documents.write_estimate(found, path)
    if form is Format.TABLE:
        _print_estimate(console, found)
    return _conclude(
        form,
        data=tables.estimate_document(found),
        records=tables.estimate_records(found),
        path=path,
        has_result=bool(found.fitting),
    )


def print_plan(
    model: str,
    *,
    tokens: str,
    days: float,
    hardware: str | None,
    global_batch: str | None,
    sequence: int | None,
    devices_per_node: int | None,
    network_gbps: float | None,
    host_memory_gib: float | None,
    path: Path | None,
    form: Format,
) -> int:
    """Print clusters, or ways to train on one; return the exit code: 1 where nothing makes it."""
    found = make_plan(
        named_model(model, sequence=sequence),
        tokens=_amount("tokens", tokens),
        days=days,
        hardware=hardware,
        batch_tokens=None if global_batch is None else _amount("global-batch", global_batch),
        devices_per_node=devices_per_node,
        network_gbps=network_gbps,
        host_memory_gib=host_memory_gib,
    )
    if path is not None:
        documents.write_plan(found, path)
    if form is Format.TABLE:
        _print_plan(make_console(), found)
    records = tables.plan_records(found)
    return _conclude(form, data=records, records=records, path=path, has_result=bool(found.offers))


def _print_estimate(console: Console, found: Estimates) -> None:
    unit, size = tables.memory_unit(found)
    write(console, Text(wording.title(found), style="name"))
    write(console, wording.same_in_all_rows(found))
    capacity = f"{found.rows[0].capacity_bytes / size:,.1f}"
    write(console, Text(f"\nMemory of a device at the peak, {unit} of {capacity}", style="muted"))
    print_fitting(console, tables.memory(found), {})
    steps = tables.time(found)
    if steps.rows:
        write(console, Text("\nOne optimizer step, and the share of each part that nothing hides", style="muted"))
        print_fitting(console, steps, _TIME_FROM_WIDTH)
    write(console, "")
    write(console, Text(wording.headline(found), style="good" if found.fitting else "bad"))
    where = wording.where_time_goes(found)
    if where is not None:
        write(console, where)
    if found.own is not None:
        write(console, Text(f"* your configuration, {found.settings.source}", style="muted"))
    _print_notes(console, [*wording.notes(found), wording.ERROR])


def _print_plan(console: Console, found: Plan) -> None:
    write(console, Text(wording.plan_title(found), style="name"))
    write(console, Text(wording.plan_headline(found), style="good" if found.offers else "bad"))
    if found.offers:
        write(console, "")
        from_width = {} if found.is_one_cluster else _PLAN_FROM_WIDTH
        print_fitting(console, tables.offers(found), from_width, wraps="Configuration")
        write(console, "")
    _print_notes(console, [*wording.plan_notes(found), wording.ERROR])


def _print_notes(console: Console, notes: list[str]) -> None:
    for note in notes:
        write(console, Text(note, style="muted"))


def _conclude(form: Format, *, data: Any, records: list[dict[str, Any]], path: Path | None, has_result: bool) -> int:
    """Print what a program reads, or, below tables, what was written; return the exit code."""
    if form is Format.JSON:
        print_json(data)
    elif form is Format.CSV:
        print_csv(records)
    elif path is not None:
        write(make_console(), f"\nwritten  {path}")
    return ExitCode.OK if has_result else ExitCode.NO_RESULT


def _amount(name: str, text: str) -> float:
    """Return a count of tokens.

    Raises:
        WorkloadError: when it isn't one.
    """
    try:
        return count(text) or float(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise WorkloadError(f"{name}: got {text!r}; give a number, or one with M, B or T: 300B") from None
