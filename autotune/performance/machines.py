"""The cluster of `autotune.performance` that a study's `Hardware` is, by published rates: a start for calibration."""

from __future__ import annotations

import re

from autotune.errors import ResourceError
from autotune.hardware import Hardware
from autotune.performance.devices import USABLE_MEMORY, Cluster, cluster, cpu_cluster, table

CORE_FLOPS = 3.0e12 / 48
"""fp32 of one core: 2x Xeon 8168 of hardware.csv, as the Xeon 4210R's 0.6e12 / 10."""
CORE_MEMORY_BANDWIDTH = 200e9 / 48
"""Of the same row; a machine with few cores has more for each, which calibration finds."""
CORE_ADAM_PER_SECOND = 1.6e9 / 48
"""CPU-Adam's parameters per second and core: 10.3e9 in 6.2 to 6.5 s on the same machine."""
GLOO_BANDWIDTH = 1e9
"""Bytes per second of one rank through loopback: gloo copies through TCP, on the core that computes too."""


def cluster_of(hardware: Hardware) -> Cluster:
    """Return what trials of a study run on, crudely: nothing is measured, and torch isn't loaded.

    A CPU machine's cores are shared out to its ranks. bf16 counts as fast as fp32 there: few CPUs have units for it.

    Args:
        hardware: as a study keeps it; the memory of its devices is taken from it.

    Raises:
        ResourceError: when its GPU is none of the hardware table's.
    """
    if hardware.accelerator == "cpu":
        share = hardware.cpu_count / hardware.ranks
        return cpu_cluster(
            ranks=hardware.ranks,
            matmul_flops=CORE_FLOPS * share,
            half_flops=CORE_FLOPS * share,
            memory_bandwidth=CORE_MEMORY_BANDWIDTH * share,
            memory_bytes=hardware.host_memory_bytes / hardware.ranks,
            link_bandwidth=GLOO_BANDWIDTH,
            cpu_adam_per_second=CORE_ADAM_PER_SECOND * hardware.cpu_count,
        )
    return cluster(
        table_name(hardware.device_name, memory_bytes=hardware.device_memory_bytes),
        devices=hardware.ranks,
        devices_per_node=min(hardware.ranks, hardware.device_count),
        host_memory_bytes=float(hardware.host_memory_bytes),
    )


def table_name(device_name: str, *, memory_bytes: float) -> str:
    """Return the hardware table's name of a GPU that nvidia-smi calls so: most words in common, then nearest memory.

    Raises:
        ResourceError: when no GPU of the table has its model (A100, H200, ...) in its name.
    """
    words = _words(device_name)
    found = []
    for place, (name, row) in enumerate(table().items()):
        common = words & _words(name)
        if any(re.fullmatch(r"[A-Z]+\d+[A-Z]*|\d{4}", word) for word in common) and row["mem_gb"] not in ("", "n/a"):
            size = float(row["mem_gb"]) * 2**30 * USABLE_MEMORY
            found.append((-len(common), abs(size - memory_bytes), place, name))
    if not found:
        raise ResourceError(
            f"device: got {device_name!r}, which is like none of the hardware table's; make a Cluster with its rates"
        )
    return min(found)[-1]


def _words(name: str) -> set[str]:
    """Return a name's words; nvidia-smi numbers the socket (SXM4), the table does not always."""
    return set(re.split(r"[^A-Z0-9]+", re.sub(r"SXM\d", "SXM", name.upper()))) - {"", "NVIDIA", "TESLA", "CPU"}
