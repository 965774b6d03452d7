"""Seats: on which nodes the next trial may be placed, so that trials disturb one another least."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from autotune.runners.bundles import Bundles
from autotune.runners.cluster import Cluster


def nodes_for_next(
    bundles: Bundles, cluster: Cluster, *, placed: Sequence[Sequence[str]], one_per_node: bool
) -> tuple[str, ...]:
    """Return the ids of the nodes that a further placement group may use; none where it has no room.

    They are the nodes with the fewest trials that hold it: a machine is shared only where no other is left.

    Args:
        bundles: what a group holds; its `slots` don't matter.
        cluster: the nodes to choose from.
        placed: of each group that there is, the id of the node of each of its bundles.
        one_per_node: whether a node serves one trial at a time, however much room it has.
    """
    trials = Counter(node_id for group in placed for node_id in set(group))
    taken = Counter(node_id for group in placed for node_id in group)
    one = replace(bundles, slots=1)
    free = [
        replace(
            node,
            cpu_count=max(0.0, node.cpu_count - taken[node.node_id] * bundles.cpus_per_rank),
            gpu_count=max(0.0, node.gpu_count - taken[node.node_id] * bundles.gpus_per_rank),
        )
        for node in cluster.nodes
    ]
    for most in [0] if one_per_node else sorted({trials[node.node_id] for node in free}):
        nodes = tuple(node for node in free if trials[node.node_id] <= most)
        if one.fit(replace(cluster, nodes=nodes)):
            return tuple(node.node_id for node in nodes)
    return ()


def shape(nodes: Sequence[str]) -> tuple[int, ...]:
    """Return how many ranks of a trial are on each of its nodes: figures of unlike shapes don't compare."""
    return tuple(sorted(Counter(nodes).values(), reverse=True))
