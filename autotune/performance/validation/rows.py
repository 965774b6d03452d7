"""Published measurements as rows that the model can be asked about, or the reason why it can't.

A row stays out where its configuration or its quantity isn't determined, and is counted by that reason.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from autotune.errors import ConfigError
from autotune.performance.arrays import Array
from autotune.performance.configurations import Configurations
from autotune.performance.devices import Cluster, Device
from autotune.performance.shape import ModelShape
from autotune.performance.validation.conversions import CONVERSIONS, RELATIVE_METRICS
from autotune.performance.validation.settings import UNSURE_MEMORY, number, setting


class Measure(StrEnum):
    """How a row's value compares with the model."""

    ABSOLUTE = "absolute"
    """A step time, or what converts to one."""
    RELATIVE = "relative"
    """TFLOPS of an unspecified convention: comparable within its source only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published run, determined enough to be asked about. Numbers are those of the table or of the rules."""

    identifier: str
    group: str
    """The source, and what must not be mixed within it (the autotuner's own metric, FSDP)."""
    measure: Measure
    step_time_s: float
    out_of_memory: bool | None
    """What happened; None where the card, the recomputation or the layers are not known."""
    assumed: tuple[str, ...]
    shape: Mapping[str, float | None]
    cluster: Cluster
    configuration: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows as arrays, ready for `estimate`."""

    rows: tuple[Row, ...]
    shape: ModelShape
    cluster: Cluster
    configurations: Configurations
    groups: Array
    """Names, shape (rows,)."""
    step_time_s: Array

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A row that stays out."""

    identifier: str
    source: str
    reason: str


def read(path: Path) -> list[dict[str, str]]:
    """Read one of the published tables.

    Raises:
        ConfigError: when it is not there.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise ConfigError(
            f"published measurements: {path} can't be read ({error.strerror}); give its folder"
        ) from error


def runs(records: Sequence[Mapping[str, str]]) -> tuple[list[Row], list[Left]]:
    """Return the runs that the model can be asked about, and those that stay out."""
    rows: list[Row] = []
    left: list[Left] = []
    for record in records:
        found = _run(record)
        if isinstance(found, Row):
            rows.append(found)
        else:
            left.append(Left(identifier=record["id"], source=record["source"], reason=found))
    return rows, left


READINGS: Mapping[str, str] = {
    "alloc_after_step": "steady_bytes",
    "peak_alloc": "peak_allocated_bytes",
    "peak_reserved": "peak_reserved_bytes",
    "nvidia_smi_used": "device_used_bytes",
    "max_gpu_mem": "device_used_bytes",
    "host_ram": "host_bytes",
}
"""From a published quantity to the field of `Memory` that it reads."""
UNITS: Mapping[str, float] = {
    "GB": 2.0**30,
    "GiB": 2.0**30,
    "GB (GiB?)": 2.0**30,
    "G": 2.0**30,
    "MB": 2.0**20,
    "MiB": 2.0**20,
    "MB (log)": 2.0**20,
}
"""Tools print powers of two and call them GB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One published measurement of memory."""

    row: Row
    quantity: str
    field: str
    measured_bytes: float


def readings(records: Sequence[Mapping[str, str]]) -> tuple[list[Reading], list[Left]]:
    """Return measurements of memory that the model can be asked about, and those that stay out."""
    found: list[Reading] = []
    left: list[Left] = []
    for record in records:
        one = _reading(record)
        if isinstance(one, Reading):
            found.append(one)
        else:
            left.append(Left(identifier=record["id"], source=record["source"], reason=one))
    return found, left


def _reading(record: Mapping[str, str]) -> Reading | str:
    if record["kind"] != "measured":
        return f"not measured: {record['kind']}"
    if "caching allocator fills the card" in record["note"] or "upper bound" in record["note"]:
        return "an upper bound: the allocator had filled the card"
    if record["quantity"] == "peak_gpu_mem":
        return "peak of an unstated kind (allocated, reserved or nvidia-smi)"
    if record["quantity"] not in READINGS:
        return f"quantity {record['quantity']}"
    settled = setting(record, need_batch=False)
    if isinstance(settled, str):
        return settled
    configuration = dict(settled.configuration)
    configuration["accumulation"] = max(configuration["accumulation"], configuration["pipeline_parallel"])
    row = Row(
        identifier=record["id"],
        group=record["source"],
        measure=Measure.ABSOLUTE,
        step_time_s=float("nan"),
        out_of_memory=False,
        assumed=settled.assumed,
        shape=settled.shape,
        cluster=settled.cluster,
        configuration=configuration,
    )
    return Reading(
        row=row,
        quantity=record["quantity"],
        field=READINGS[record["quantity"]],
        measured_bytes=float(record["value"]) * UNITS[record["unit"]],
    )


def table(rows: Sequence[Row]) -> Table:
    """Return rows as arrays."""
    shapes = [ModelShape.from_numbers(**row.shape) for row in rows]  # type: ignore[arg-type]
    columns = {name: _column([getattr(shape, name) for shape in shapes]) for name in ModelShape.__slots__}
    devices = [row.cluster.device for row in rows]
    parts = [name for name in Device.__slots__ if name != "name"]
    fields_of_device = {name: _column([getattr(one, name) for one in devices]) for name in parts}
    together = Device(name="", **fields_of_device)
    others = [name for name in Cluster.__slots__ if name != "device"]
    machines = {name: _column([getattr(row.cluster, name) for row in rows]) for name in others}
    keys = {key for row in rows for key in row.configuration}
    defaults = Configurations()
    fields = {
        key: _column([row.configuration.get(key, float(getattr(defaults, key))) for row in rows])
        for key in sorted(keys)
    }
    return Table(
        rows=tuple(rows),
        shape=ModelShape(**columns),
        cluster=Cluster(device=together, **machines),
        configurations=Configurations(**fields),
        groups=np.array([row.group for row in rows]),
        step_time_s=_column([row.step_time_s for row in rows]),
    )


def _column(values: Sequence[float]) -> Array:
    return np.array([float(value) for value in values])


def _run(record: Mapping[str, str]) -> Row | str:
    """Return a run, or why it stays out."""
    metric = record["metric"]
    if metric not in CONVERSIONS and metric not in ("oom", "failed_or_oom"):
        return f"the metric {metric} gives no step time of a whole step"
    if metric == "failed_or_oom":
        return "failed, but not said of what"
    if "FPDT+" in record["note"]:
        return "FPDT works through a sample in chunks, which no field says"
    if "DeepCompile" in record["note"]:
        return "DeepCompile changes what is gathered and offloaded"
    if "inter bw not stated" in record["note"]:
        return "network between nodes not stated"
    if not (number(record["value"]) or 0.0) > 0:
        return f"value {record['value'] or '(none)'} is no number above 0"
    settled = setting(record)
    if isinstance(settled, str):
        return settled
    group = record["source"]
    note = record["note"]
    if "AUTOTUNER metric" in note:
        group += " [autotuner's own metric]"
    if re.search(r"\bFSDP\b(?!=)", note):
        group += " [FSDP]"
    judged = record["gpu"] not in UNSURE_MEMORY and record["act_ckpt"] != "" and settled.shape["layers"] is not None
    if metric == "oom":
        step, measure = float("nan"), Measure.ABSOLUTE
    else:
        step = CONVERSIONS[metric](record, settled)
        measure = Measure.RELATIVE if metric in RELATIVE_METRICS else Measure.ABSOLUTE
    return Row(
        identifier=record["id"],
        group=group,
        measure=measure,
        step_time_s=step,
        out_of_memory=(metric == "oom") if judged else None,
        assumed=settled.assumed,
        shape=settled.shape,
        cluster=settled.cluster,
        configuration=settled.configuration,
    )
