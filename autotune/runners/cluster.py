"""A cluster: the nodes that trials can run on, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine, with what it has in all (in use or not)."""

    node_id: str
    """Ray's."""
    address: str
    cpu_count: float
    gpu_count: float
    memory_bytes: int
    """What Ray hands out: the machine's memory less the object store."""
    object_store_bytes: int
    port: int = 0
    """Where its raylet listens."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Ray's own (`ray.io/...`) and those of `ray start --labels`."""

    def __str__(self) -> str:
        return f"{self.address} with {self.cpu_count:g} CPU, {self.gpu_count:g} GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The nodes that are alive."""

    nodes: tuple[Node, ...]
    ray_version: str
    address: str
    """Where the cluster is reached, 'host:port'."""
    connect_s: float
    """How long starting or joining it took."""

    @property
    def cpu_count(self) -> float:
        return sum(node.cpu_count for node in self.nodes)

    @property
    def gpu_count(self) -> float:
        return sum(node.gpu_count for node in self.nodes)

    def __str__(self) -> str:
        nodes = "; ".join(str(node) for node in self.nodes) or "none"
        return f"{len(self.nodes)} node{'' if len(self.nodes) == 1 else 's'} ({nodes})"
