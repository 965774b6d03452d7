"""The bundles that trials reserve: one per rank, one placement group per slot; whether a cluster can hold them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from autotune.errors import ResourceError
from autotune.runners.cluster import Cluster, Node

_CPU_STEP = 0.05
"""Suggested shares of a processor are multiples of this."""


class PlacementStrategy(StrEnum):
    """Ray's placement strategies, by name."""

    PACK = "PACK"
    SPREAD = "SPREAD"
    STRICT_PACK = "STRICT_PACK"
    STRICT_SPREAD = "STRICT_SPREAD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundles:
    """What the slots of a runner reserve.

    Raises:
        ResourceError: when there is nothing to reserve.
    """

    ranks: int
    """Bundles in each placement group."""
    slots: int
    """Placement groups."""
    cpus_per_rank: float
    gpus_per_rank: float
    strategy: PlacementStrategy

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ResourceError(
                f"ranks: got {self.ranks}; the runner ray reserves a bundle for each rank, so it needs 1 or more "
                "(for an evaluator without ranks take the runner inline)"
            )
        if self.slots < 1:
            raise ResourceError(f"slots: got {self.slots}; it must be 1 or more")
        for name in ("cpus_per_rank", "gpus_per_rank"):
            if getattr(self, name) < 0:
                raise ResourceError(f"{name}: got {getattr(self, name):g}; it must be 0 or more")
        if self.cpus_per_rank == 0 and self.gpus_per_rank == 0:
            raise ResourceError("cpus_per_rank and gpus_per_rank: got 0 for both; a rank must reserve something")
        if self.gpus_per_rank > 1 and self.gpus_per_rank != int(self.gpus_per_rank):
            raise ResourceError(f"gpus_per_rank: got {self.gpus_per_rank:g}; above 1 Ray takes whole numbers only")

    @property
    def resources(self) -> dict[str, float]:
        """One bundle, as Ray wants it."""
        wanted = {"CPU": self.cpus_per_rank, "GPU": self.gpus_per_rank}
        return {name: amount for name, amount in wanted.items() if amount}

    def __str__(self) -> str:
        one = " and ".join(f"{amount:g} {name}" for name, amount in self.resources.items())
        groups = f"{self.slots} placement groups of " if self.slots > 1 else ""
        plural = "" if self.ranks == 1 else "s"
        return f"{groups}{self.ranks} bundle{plural} of {one} ({self.strategy})"

    def fit(self, cluster: Cluster) -> bool:
        """Say whether the cluster could hold all of them if nothing else ran."""
        rooms = [self._room(node) for node in cluster.nodes]
        if self.strategy is PlacementStrategy.STRICT_PACK:
            return sum(room // self.ranks for room in rooms) >= self.slots
        if self.strategy is PlacementStrategy.STRICT_SPREAD:
            enough_nodes = sum(room > 0 for room in rooms) >= self.ranks
            return enough_nodes and sum(min(room, self.slots) for room in rooms) >= self.ranks * self.slots
        return sum(rooms) >= self.ranks * self.slots

    def check_fit(self, cluster: Cluster) -> None:
        """Refuse what the cluster can never hold; Ray would wait for it without end.

        Raises:
            ResourceError: with what was asked for, what there is, and the nearest thing that fits.
        """
        if not self.fit(cluster):
            raise ResourceError(f"ray: asked for {self}; the cluster has {cluster}. {self._advice(cluster)}")

    def _room(self, node: Node) -> int:
        rooms = []
        if self.cpus_per_rank:
            rooms.append(int(node.cpu_count / self.cpus_per_rank + 1e-9))
        if self.gpus_per_rank:
            rooms.append(int(node.gpu_count / self.gpus_per_rank + 1e-9))
        return min(rooms)

    def _advice(self, cluster: Cluster) -> str:
        for words, smaller in self._smaller():
            if smaller.fit(cluster):
                return f"Set {words}, or give the address of a larger cluster"
        return "Give the address of a larger cluster"

    def _smaller(self) -> Iterator[tuple[str, Bundles]]:
        """Yield lesser demands with their words, those that change the trials least first."""
        for slots in range(self.slots - 1, 0, -1):
            yield f"slots: {slots}", replace(self, slots=slots)
        for smaller in _with_less_cpu(self):
            yield f"cpus_per_rank: {smaller.cpus_per_rank:g}", smaller
        if self.strategy in (PlacementStrategy.STRICT_PACK, PlacementStrategy.STRICT_SPREAD):
            yield f"strategy: {PlacementStrategy.PACK}", replace(self, strategy=PlacementStrategy.PACK)
        for ranks in range(self.ranks - 1, 0, -1):
            yield f"ranks: {ranks} and slots: 1", replace(self, slots=1, ranks=ranks)
        if self.gpus_per_rank:
            on_cpus = replace(self, gpus_per_rank=0, cpus_per_rank=self.cpus_per_rank or 1)
            for smaller in (on_cpus, *_with_less_cpu(on_cpus)):
                yield f"gpus_per_rank: 0 and cpus_per_rank: {smaller.cpus_per_rank:g} to train on CPUs", smaller


def _with_less_cpu(bundles: Bundles) -> Iterator[Bundles]:
    for steps in range(int(bundles.cpus_per_rank / _CPU_STEP), 0, -1):
        cpus = round(steps * _CPU_STEP, 2)
        if cpus < bundles.cpus_per_rank:
            yield replace(bundles, cpus_per_rank=cpus)
