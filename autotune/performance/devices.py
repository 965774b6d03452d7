"""Devices and the links between them: the published table, and clusters of one kind of device."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

import numpy as np

from autotune.errors import ResourceError
from autotune.performance.arrays import Array, Numbers

GIGA = 1e9
TERA = 1e12
USABLE_MEMORY = 0.99
"""Of a card's nominal GiB: 32480 of 32768 MiB on a V100, 40536 of 40960 on an A100 (nvidia-smi, hardware.csv)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU, or one rank's share of a CPU machine. Rates are in flops/s and bytes/s; 0 means "not able to".

    Each field is one number, or an array with one entry per configuration.
    """

    name: str = ""
    memory_bytes: Numbers
    memory_bandwidth: Numbers
    fp32_flops: Numbers
    """Peak of a dense product of matrices in fp32, without TF32 (PyTorch's default)."""
    half_flops: Numbers
    """Peak in fp16 or bf16 with fp32 accumulation."""
    fp8_flops: Numbers
    measured_fraction: Numbers
    """Measured product of matrices over peak ("MAMF"); NaN where nobody measured, then a coefficient stands in."""
    pcie_bandwidth: Numbers
    """Between device and host, one direction."""
    is_cpu: Numbers = 0.0
    """1 where the device is the host's own processor: launches don't overlap with computing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal devices in equal nodes. Bandwidths are bytes/s in one direction."""

    device: Device
    devices: Numbers
    """All ranks together (the world size)."""
    devices_per_node: Numbers
    intra_bandwidth: Numbers
    """Of one device to others of its node."""
    inter_bandwidth: Numbers
    """Of a whole node to other nodes."""
    host_memory_bytes: Numbers
    """Of one node."""
    cpu_adam_per_second: Numbers
    """Parameters that one node's CPU-Adam updates per second; spans 6e7 to 1e10 in hardware.csv: measure yours."""
    nvme_bandwidth: Numbers = 3e9
    """Of one node's drives, reading (3.25e9 each on Azure NC96ads A100 v4, hardware.csv)."""

    @property
    def nodes(self) -> Array:
        return np.maximum(np.asarray(self.devices) / self.devices_per_node, 1.0)


DEFAULT_HOST_MEMORY_BYTES = 1e12
DEFAULT_CPU_ADAM_PER_SECOND = 1.7e9
"""A DGX-2's 48 cores: 10.3e9 parameters in 6.2 to 6.5 s (hardware.csv); ZenFlow's and issue #6834's hosts the same."""


@cache
def table() -> Mapping[str, Mapping[str, str]]:
    """Return `hardware.csv` by device name, as text."""
    text = files("autotune.performance").joinpath("hardware.csv").read_text(encoding="utf-8")
    return {row["name"]: row for row in csv.DictReader(text.splitlines())}


def device(name: str) -> Device:
    """Return a device of the table.

    Raises:
        ResourceError: when there is none of that name, or the table doesn't know its rates.
    """
    row = _row(name)
    half = _number(row["peak_bf16_dense_tflops"]) or _number(row["peak_fp16_dense_tflops"])
    fp32 = _number(row["peak_fp32_tflops"])
    if not half and not fp32:
        raise ResourceError(f"device: {name!r} has no peak rate in the table; make a Device with its measured rates")
    measured = _number(row["measured_matmul_tflops"])
    memory = _number(row["mem_gb"])
    return Device(
        name=name,
        memory_bytes=memory * 2**30 * USABLE_MEMORY,
        memory_bandwidth=_number(row["mem_bw_gbs"]) * GIGA,
        fp32_flops=fp32 * TERA,
        half_flops=(half or fp32) * TERA,
        fp8_flops=_number(row["peak_fp8_dense_tflops"]) * TERA,
        measured_fraction=measured / half if measured and half else float("nan"),
        pcie_bandwidth=_number(row["pcie_unidir_gbs"]) * GIGA,
        is_cpu=float(name.startswith("CPU")),
    )


def cluster(
    name: str,
    *,
    devices: int,
    devices_per_node: int | None = None,
    inter_node_gbps: float | None = None,
    host_memory_bytes: float = DEFAULT_HOST_MEMORY_BYTES,
    cpu_adam_per_second: float = DEFAULT_CPU_ADAM_PER_SECOND,
    nvme_bandwidth: float = 3e9,
) -> Cluster:
    """Return a cluster of a device of the table; what is not given is what is typical for it there.

    Args:
        name: as in `table()`.
        devices: all of them.
        devices_per_node: by default the table's, at most `devices`.
        inter_node_gbps: gigabits per second of one node's network.
        host_memory_bytes: of one node.
        cpu_adam_per_second: parameters per second of one node.
        nvme_bandwidth: bytes per second of one node's drives.

    Raises:
        ResourceError: when there is no device of that name, or a count is below 1.
    """
    if devices < 1 or (devices_per_node is not None and devices_per_node < 1):
        raise ResourceError(f"cluster: got {devices} devices, {devices_per_node} a node; both must be at least 1")
    row = _row(name)
    per_node = devices_per_node or min(devices, int(_number(row["typical_gpus_per_node"])) or 1)
    gbps = inter_node_gbps if inter_node_gbps is not None else _number(row["typical_inter_node_gbps_per_node"])
    return Cluster(
        device=device(name),
        devices=float(devices),
        devices_per_node=float(per_node),
        intra_bandwidth=(_number(row["intra_bw_unidir_gbs_per_gpu"]) or _number(row["pcie_unidir_gbs"]) or 10.0) * GIGA,
        inter_bandwidth=gbps * GIGA / 8,
        host_memory_bytes=host_memory_bytes,
        cpu_adam_per_second=cpu_adam_per_second,
        nvme_bandwidth=nvme_bandwidth,
    )


def cpu_cluster(
    *,
    ranks: int,
    matmul_flops: float,
    half_flops: float,
    memory_bandwidth: float,
    memory_bytes: float,
    link_bandwidth: float,
    cpu_adam_per_second: float,
) -> Cluster:
    """Return one CPU machine as a cluster of ranks that talk through gloo.

    Args:
        ranks: processes on the machine.
        matmul_flops: measured fp32 product of matrices of one rank while the others compute too, flops/s.
        half_flops: the same in bf16.
        memory_bandwidth: one rank's share, bytes/s.
        memory_bytes: one rank's share.
        link_bandwidth: of one rank's all-reduce through gloo, bytes/s.
        cpu_adam_per_second: parameters per second of the machine.
    """
    share = Device(
        name="CPU",
        memory_bytes=memory_bytes,
        memory_bandwidth=memory_bandwidth,
        fp32_flops=matmul_flops,
        half_flops=half_flops,
        fp8_flops=0.0,
        measured_fraction=1.0,
        pcie_bandwidth=memory_bandwidth,
        is_cpu=1.0,
    )
    return Cluster(
        device=share,
        devices=float(ranks),
        devices_per_node=float(ranks),
        intra_bandwidth=link_bandwidth,
        inter_bandwidth=link_bandwidth,
        host_memory_bytes=memory_bytes * ranks,
        cpu_adam_per_second=cpu_adam_per_second,
    )


def with_measured_matmul(known: Device, flops: float) -> Device:
    """Return a device whose half-precision product of matrices was measured at so many flops/s."""
    return replace(known, measured_fraction=flops / known.half_flops)


def _row(name: str) -> Mapping[str, str]:
    if name not in table():
        near = difflib.get_close_matches(name, table(), n=3, cutoff=0.3)
        hint = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(table())}"
        raise ResourceError(f"device: got {name!r}; it must be one of the hardware table's; {hint}")
    return table()[name]


def _number(text: str) -> float:
    """Return a number of the table; 0 where it says nothing."""
    return 0.0 if text in ("", "n/a") else float(text)
