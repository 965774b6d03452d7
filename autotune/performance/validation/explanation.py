"""What the model says of single published runs, part by part, to see where it goes wrong."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from autotune.errors import ConfigError
from autotune.performance.coefficients import Coefficients
from autotune.performance.configurations import PRECISIONS, Configurations
from autotune.performance.model import Estimate
from autotune.performance.validation.report import short
from autotune.performance.validation.rows import Measure, Row, read, runs, table
from autotune.performance.validation.scores import predicted

GIB = 2.0**30
WIDTH = 100
LEAST = 0.02
"""Of the step: what takes less is not worth a word."""
NAMED = ("stage", "micro_batch", "accumulation", "tensor_parallel", "pipeline_parallel", "sequence_parallel")
"""Fields of a configuration that are always said; of the others those that differ from `Configurations()`."""


def explained(folder: Path, identifiers: Sequence[str]) -> str:
    """Return a paragraph for each of some rows of a folder's `runs.csv`: measured, predicted, and of what.

    Raises:
        ConfigError: when there is no such file, or no row of that name.
    """
    records = {record["id"]: record for record in read(folder / "runs.csv")}
    parts = []
    for identifier in identifiers:
        if identifier not in records:
            raise ConfigError(f"--rows: {identifier} is no row of {folder / 'runs.csv'}; give names of its column id")
        found, left = runs([records[identifier]])
        if found:
            parts.append(_row(found[0]))
        else:
            parts.append(f"{identifier}  {short(left[0].source)}\n  stays out: {left[0].reason}")
    return "\n\n".join(parts)


def _row(row: Row) -> str:
    asked = table([row])
    said = predicted(asked, Coefficients.prior())
    machines = row.cluster
    parameters, layers, hidden, sequence = (
        float(np.ravel(getattr(asked.shape, name))[0]) for name in ("parameters", "layers", "hidden", "sequence")
    )
    size = f"{parameters / 1e9:.3g}B parameters, {layers:g} layers, hidden {hidden:,.0f}"
    count = f"{machines.devices:,.0f} x {machines.device.name}, {machines.devices_per_node:g} a node"
    lines = [
        f"{row.identifier}  {short(row.group)}",
        f"  model      {size}, {sequence:,.0f} tokens a sample",
        f"  machines   {count}, {machines.inter_bandwidth * 8e-9:,.0f} Gbit/s between nodes",
        f"  asked      {_configuration(row)}",
        f"  assumed    {', '.join(row.assumed) or 'nothing'}",
        f"  step       {_step(row, said)}",
        f"  of which   {_parts(said)}",
        f"  memory     {_memory(row, said)}",
    ]
    return "\n".join(textwrap.fill(line, WIDTH, subsequent_indent=" " * 13) for line in lines)


def _configuration(row: Row) -> str:
    defaults = Configurations()
    told = []
    for name, value in row.configuration.items():
        if name == "precision":
            told.append(PRECISIONS[int(value)])
        elif name in NAMED or value != float(getattr(defaults, name)):
            told.append(f"{name} {value:g}")
    return ", ".join(told)


def _step(row: Row, said: Estimate) -> str:
    if not np.isfinite(row.step_time_s):
        return "none: it ran out of memory"
    predicted_s = float(said.time.step_time_s[0])
    line = f"measured {row.step_time_s:.4g} s, predicted {predicted_s:.4g} s: {predicted_s / row.step_time_s:.2f} times"
    if row.measure is Measure.RELATIVE:
        line += " (TFLOPS of an unspecified convention: within its source only)"
    return line


def _parts(said: Estimate) -> str:
    whole = float(said.time.step_time_s[0])
    shares = {
        field.name.removesuffix("_s").replace("_", " "): float(getattr(said.time, field.name)[0]) / whole
        for field in fields(said.time)
        if field.name != "step_time_s"
    }
    largest = sorted(((share, name) for name, share in shares.items() if share >= LEAST), reverse=True)
    return ", ".join(f"{name} {100.0 * share:.0f} %" for share, name in largest)


def _memory(row: Row, said: Estimate) -> str:
    found = said.memory
    capacity, margin = float(found.capacity_bytes[0]), float(found.margin_bytes[0])
    happened = {None: "not judged", True: "it ran out", False: "it ran"}[row.out_of_memory]
    verdict = "runs out" if bool(found.out_of_memory[0]) else "fits"
    return f"{(capacity - margin) / GIB:.4g} of {capacity / GIB:.4g} GiB, so it {verdict}; {happened}"
