"""A watch over nodes: Ray itself takes a quarter of a minute to say that one is gone."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from autotune.runners.cluster import Node

PATIENCE = 3
"""A node that can't be reached so many looks in a row is lost: one look may meet a moment of trouble in the network."""
CONNECT_TIMEOUT_S = 2.0
"""A machine without an answer by then was not reached; where only the raylet is gone, the connection is refused at
once."""
_PROBES_AT_ONCE = 32


def answers(address: str, port: int) -> bool:
    """Say whether something listens there."""
    try:
        socket.create_connection((address, port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


class NodeWatch:
    """Finds nodes whose raylet doesn't answer any more, whatever Ray says of them.

    Args:
        is_there: from address and port to whether something listens there.
    """

    def __init__(self, is_there: Callable[[str, int], bool] = answers) -> None:
        self._is_there = is_there
        self._missed: dict[str, int] = {}

    def reachable(self, nodes: Sequence[Node]) -> list[Node]:
        """Return those of the nodes that answer now."""
        if not nodes:
            return []
        with ThreadPoolExecutor(max_workers=min(len(nodes), _PROBES_AT_ONCE)) as pool:
            there = list(pool.map(lambda node: self._is_there(node.address, node.port), nodes))
        return [node for node, is_there in zip(nodes, there, strict=True) if is_there]

    def look(self, nodes: Sequence[Node]) -> frozenset[str]:
        """Probe the nodes once more; return the ids of those that were missed `PATIENCE` times in a row."""
        there = {node.node_id for node in self.reachable(nodes)}
        missed = [node.node_id for node in nodes if node.node_id not in there]
        self._missed = {node_id: self._missed.get(node_id, 0) + 1 for node_id in missed}
        return frozenset(node_id for node_id, times in self._missed.items() if times >= PATIENCE)
