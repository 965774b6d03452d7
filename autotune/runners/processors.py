"""The processors of a node, handed out so that trials which run at once don't share any."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology"
"""See Documentation/ABI/stable/sysfs-devices-system-cpu of the Linux kernel."""

Cores: TypeAlias = tuple[tuple[int, ...], ...]
"""Logical processors, those of one physical core together."""


def usable_cores() -> Cores:
    """Return the processors that this process may use; neighbours are near each other (package, then core)."""
    cores: dict[tuple[int, int], list[int]] = {}
    for processor in sorted(os.sched_getaffinity(0)):
        folder = Path(TOPOLOGY.format(processor))
        place = (_number(folder / "physical_package_id"), _number(folder / "core_id", default=processor))
        cores.setdefault(place, []).append(processor)
    return tuple(tuple(cores[place]) for place in sorted(cores))


class Processors:
    """What is free of one node's processors. Whole cores go first, so that hyper-threads are shared last."""

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        self._taken: set[int] = set()

    @property
    def count(self) -> int:
        return sum(len(core) for core in self._cores)

    def take(self, count: int) -> tuple[int, ...] | None:
        """Take `count` processors; None where fewer are free."""
        free = [[each for each in core if each not in self._taken] for core in self._cores]
        whole = [core for core, all_of in zip(free, self._cores, strict=True) if len(core) == len(all_of)]
        parts = [core for core, all_of in zip(free, self._cores, strict=True) if len(core) < len(all_of)]
        order = [processor for core in (*whole, *parts) for processor in core]
        if len(order) < count:
            return None
        taken = tuple(sorted(order[:count]))
        self._taken |= set(taken)
        return taken

    def give_back(self, processors: Iterable[int]) -> None:
        """Free what was taken."""
        self._taken -= set(processors)


def shares(processors: Sequence[int], *, ranks: int, per_rank: float) -> list[tuple[int, ...]]:
    """Return each rank's processors: its own where they are whole numbers, else all share all."""
    each = int(per_rank)
    if each < 1 or each != per_rank:
        return [tuple(processors)] * ranks
    return [tuple(processors[rank * each : (rank + 1) * each]) for rank in range(ranks)]


def _number(path: Path, default: int = 0) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return default
