"""The slots of a Ray runner: reserved on nodes, watched, replaced when a node dies, added when one joins."""

from __future__ import annotations

import inspect
import logging
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from autotune.errors import AutotuneError, ResourceError
from autotune.evaluators.protocol import Evaluator
from autotune.runners import labels as node_labels
from autotune.runners.bundles import Bundles
from autotune.runners.cluster import Cluster, Node
from autotune.runners.node_watch import NodeWatch, answers
from autotune.runners.processors import Processors, shares, usable_cores
from autotune.runners.ray_host import RayHost
from autotune.runners.ray_session import RaySession, cause
from autotune.runners.seats import nodes_for_next, shape

logger = logging.getLogger(__name__)

PLACEMENT_TIMEOUT_S = 60.0
"""For placement groups that the cluster could hold: another's trial may be about to end."""
FURTHER_TIMEOUT_S = 10.0
"""For those that the runner can begin, or go on, without."""
RETRY_S = 10.0
"""How long to wait before what could not be placed is tried again."""
LOOK_INTERVAL_S = 1.0
HEAD_PATIENCE_S = 30.0
"""A head node that doesn't answer for so long is given up; after 60 s Ray ends every process that is connected to it
(`gcs_rpc_server_reconnect_timeout_s` in ray_config_def.h)."""
NODE_CALL_TIMEOUT_S = 60.0
"""For a first word from a node: Ray starts a worker's process there."""
NODE_ID = "ray.io/node-id"
"""The label that Ray gives to each node."""
SELECTS_NODES = "bundle_label_selector" in inspect.signature(placement_group).parameters
"""Whether this Ray can be told on which nodes a placement group may be (from 2.49 on)."""
_TROUBLE = (RayError, OSError, RuntimeError, ValueError, AutotuneError)
"""What reserving may raise when nodes come and go meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a runner asks for.

    Raises:
        ResourceError: when this Ray can't do it.
    """

    bundles: Bundles
    """Of one trial."""
    slots: int | None
    """None: as many trials as there is room for; on nodes without GPUs one for each node."""
    most: int | None = None
    """Where `slots` is None: no more than these."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What the nodes must have, in Ray's notation."""

    def __post_init__(self) -> None:
        node_labels.check(self.labels)
        if self.labels and not SELECTS_NODES:
            raise ResourceError(
                f"labels: got {dict(self.labels)}; Ray {ray.__version__} can't place trials by label, and 2.49 can: "
                "update it, or leave the labels out"
            )

    @property
    def one_per_node(self) -> bool:
        """Whether a node serves one trial at a time: on CPUs, trials disturb each other through caches and memory."""
        return self.slots is None and self.bundles.gpus_per_rank == 0

    @property
    def own_processors(self) -> bool:
        """Whether ranks are bound to processors of their own, since a node may serve several trials."""
        return self.slots is not None and self.slots > 1 and self.bundles.gpus_per_rank == 0

    @property
    def limit(self) -> float:
        """How many slots there may be at most."""
        if self.slots is not None:
            return self.slots
        # Without a choice of nodes two trials could land on one.
        most = 1 if self.one_per_node and not SELECTS_NODES else math.inf
        return min(most, self.most or math.inf)


@dataclass(eq=False, slots=True, kw_only=True)
class RaySlot:
    """One placement group and the hosts in it."""

    group: PlacementGroup
    nodes: tuple[Node, ...]
    """Of each bundle."""
    processors: Mapping[str, tuple[int, ...]]
    """Taken for it, by the id of the node."""
    hosts: tuple[RayHost, ...] = ()
    is_released: bool = False
    """Whether nobody uses it any more: its place can be given back."""

    @property
    def node_ids(self) -> tuple[str, ...]:
        return tuple(node.node_id for node in self.nodes)

    @property
    def lost(self) -> str | None:
        """Why it can't run a trial any more; None while it can."""
        return next((host.lost for host in self.hosts if host.lost), None)

    def look_at_nodes(self) -> None:
        """See whether the nodes are there, before a trial is sent."""
        for host, node in zip(self.hosts, self.nodes, strict=True):
            if not answers(node.address, node.port):
                host.node_died()


class RaySlots:
    """Keeps as many slots open as are wanted and as the cluster can hold.

    One thread calls `open_first`, then another, of its own, watches and mends; what it does comes out of `opened` and
    `notes`. Whoever uses a slot sets `is_released` on it when it is lost and not in use any more.

    Args:
        session: open.
        evaluator: prepared on each node, before trials run there.
        wanted: what to reserve.
        prepares_here: whether this machine is the cluster's only node.
    """

    def __init__(self, session: RaySession, evaluator: Evaluator, wanted: Wanted, *, prepares_here: bool) -> None:
        self.opened: queue.SimpleQueue[RaySlot] = queue.SimpleQueue()
        self.notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.gone: str | None = None
        """Why there is no cluster any more; None while there is."""
        self._session = session
        self._evaluator = evaluator
        self._wanted = wanted
        self._prepares_here = prepares_here
        self._ds_configs: list[Mapping[str, object]] = []
        self._slots: list[RaySlot] = []
        self._watch = NodeWatch()
        self._processors: dict[str, Processors] = {}
        self._prepared: set[str] = set()
        self._shape: tuple[int, ...] | None = None
        self._head: tuple[str, int] = ("", 0)
        self._head_missed_since_s: float | None = None
        self._retry_at_s = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._mend, name="ray-slots", daemon=True)

    def open_first(self, ds_configs: Sequence[Mapping[str, object]], progress: Callable[[str], None]) -> list[RaySlot]:
        """Open the slots that there is room for, and begin to watch them.

        Raises:
            ResourceError: when not even what is needed to begin can be had.
        """
        self._ds_configs = list(ds_configs)
        cluster = self._session.cluster()
        host, _, port = cluster.address.rpartition(":")
        self._head = (host.strip("[]"), int(port))
        there = self._matching(cluster)
        progress(f"Ray {cluster.ray_version}: {cluster}; reserving {self._bundles}")
        if not there.nodes:
            own = "; ".join(f"{node.address}: {_in_words(_own_labels(node)) or 'none'}" for node in cluster.nodes)
            raise ResourceError(
                f"labels: asked for nodes with {_in_words(self._wanted.labels)}, and there is none. The nodes' labels: "
                f"{own} (`ray start --labels`)"
            )
        # Ray takes a node for alive for a while after its death.
        reachable = self._watch.reachable(there.nodes)
        for node in there.nodes:
            if node not in reachable:
                progress(f"the node {node.address} doesn't answer; it is left out")
        self._ask_for_processors(reachable)
        there = self._counted(replace(there, nodes=tuple(reachable)))
        self._bundles.check_fit(there)
        deadline_s = time.monotonic() + PLACEMENT_TIMEOUT_S
        while len(self._slots) < self._wanted.limit:
            needed = self._wanted.slots is not None or not self._slots
            patience_s = deadline_s - time.monotonic() if needed else FURTHER_TIMEOUT_S
            slot = self._reserve(there, patience_s)
            if slot is None and needed:
                raise ResourceError(self._held_by_others(there))
            if slot is None:
                break
            self._slots.append(slot)
        self._furnish(self._slots, progress)
        progress(self._told())
        self._thread.start()
        return list(self._slots)

    def close(self) -> None:
        """Stop watching, and give everything back; idempotent."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        for slot in self._slots:
            self._give_back(slot)
        self._slots.clear()

    @property
    def _bundles(self) -> Bundles:
        return replace(self._wanted.bundles, slots=self._wanted.slots or 1)

    def _told(self) -> str:
        count = len(self._slots)
        many = f"{count} trial{'' if count == 1 else 's'} at once"
        if self._wanted.slots is not None:
            own = ", each rank on processors of its own" if self._wanted.own_processors else ""
            return f"{many}, as slots says{own}"
        if not self._wanted.one_per_node:
            return f"{many}: so many have GPUs of their own here"
        if not SELECTS_NODES:
            return f"{many}: Ray {ray.__version__} can't keep trials on nodes of their own, 2.49 can (slots overrides)"
        return f"{many}: one on each node, for trials on one machine share its caches and memory (slots overrides)"

    # What is reserved.

    def _matching(self, cluster: Cluster) -> Cluster:
        """Return the nodes that have the labels."""
        nodes = tuple(node for node in cluster.nodes if node_labels.match(self._wanted.labels, node.labels))
        return replace(cluster, nodes=nodes)

    def _counted(self, cluster: Cluster) -> Cluster:
        """Return the nodes with no more processors than they really have, so far as that matters and is known."""
        known = {node_id: processors.count for node_id, processors in self._processors.items()}
        nodes = (
            replace(node, cpu_count=min(node.cpu_count, known.get(node.node_id, node.cpu_count)))
            for node in cluster.nodes
        )
        return replace(cluster, nodes=tuple(nodes))

    def _ask_for_processors(self, nodes: Sequence[Node]) -> None:
        """Let nodes say which processors they have, where ranks get some of their own."""
        if self._wanted.own_processors:
            new = [node for node in nodes if node.node_id not in self._processors]
            calls = [self._call(node, usable_cores) for node in new]
            for node, call in zip(new, calls, strict=True):
                self._processors[node.node_id] = Processors(self._answer(node, call, NODE_CALL_TIMEOUT_S))

    def _reserve(self, cluster: Cluster, patience_s: float) -> RaySlot | None:
        """Place one more group; None where there is no room, or others hold it."""
        wanted = self._wanted
        placed = [slot.node_ids for slot in self._slots]
        allowed = nodes_for_next(wanted.bundles, cluster, placed=placed, one_per_node=wanted.one_per_node)
        if not allowed:
            return None
        bundles = [dict(wanted.bundles.resources) for _ in range(wanted.bundles.ranks)]
        selector: dict[str, Any] = {}
        if SELECTS_NODES:
            selector = {"bundle_label_selector": [{NODE_ID: f"in({','.join(allowed)})"}] * len(bundles)}
        group = placement_group(bundles, strategy=wanted.bundles.strategy.value, **selector)
        slot = None
        try:
            if self._is_placed(group, patience_s):
                slot = self._slot(group, cluster, allowed)
        finally:
            if slot is None:
                remove_placement_group(group)
        return slot

    def _is_placed(self, group: PlacementGroup, patience_s: float) -> bool:
        deadline_s = time.monotonic() + patience_s
        while not group.wait(timeout_seconds=min(LOOK_INTERVAL_S, max(0.0, deadline_s - time.monotonic()))):
            if time.monotonic() >= deadline_s or self._closing.is_set():
                return False
        return True

    def _slot(self, group: PlacementGroup, cluster: Cluster, allowed: Sequence[str]) -> RaySlot | None:
        """Look where a group landed; None where that is no place for a trial.

        Raises:
            ResourceError: when Ray didn't do as it was told.
        """
        by_id = {node.node_id: node for node in cluster.nodes}
        ids = placement_group_table(group)["bundles_to_node_id"]
        if SELECTS_NODES and not set(ids.values()) <= set(allowed):
            raise ResourceError(
                f"ray: Ray {ray.__version__} placed a trial on nodes that it was told to leave alone (before its "
                "mend of ray-project/ray#60170 it does so with STRICT_PACK): take a newer Ray, or strategy: PACK"
            )
        if any(node_id not in by_id for node_id in ids.values()):
            return None  # a node that joined, or died, this very moment
        nodes = tuple(by_id[ids[bundle]] for bundle in sorted(ids))
        its_shape = shape([node.node_id for node in nodes])
        if self._shape is not None and its_shape != self._shape:
            if self._wanted.slots is None:
                return None
            self.notes.put(
                f"a slot has its ranks on nodes as {its_shape}, another as {self._shape}: their figures don't compare; "
                "strategy: STRICT_PACK or STRICT_SPREAD keeps them alike"
            )
        processors = self._take_processors(nodes)
        if processors is None:
            return None
        self._shape = self._shape or its_shape
        return RaySlot(group=group, nodes=nodes, processors=processors)

    def _take_processors(self, nodes: Sequence[Node]) -> dict[str, tuple[int, ...]] | None:
        taken: dict[str, tuple[int, ...]] = {}
        if not self._wanted.own_processors:
            return taken
        for node_id, ranks in Counter(node.node_id for node in nodes).items():
            processors = self._processors[node_id].take(math.ceil(ranks * self._wanted.bundles.cpus_per_rank - 1e-9))
            if processors is None:
                for other, given in taken.items():
                    self._processors[other].give_back(given)
                return None
            taken[node_id] = processors
        return taken

    def _furnish(self, slots: Sequence[RaySlot], progress: Callable[[str], None]) -> None:
        """Prepare the nodes of slots, and start their hosts."""
        for slot in slots:
            for node in slot.nodes:
                if node.node_id not in self._prepared:
                    self._prepare(node, progress)
                    self._prepared.add(node.node_id)
        for slot in slots:
            slot.hosts = self._hosts(slot)
            for host in slot.hosts:
                host.begin()
        for slot in slots:
            for host in slot.hosts:
                host.reserve_address()

    def _hosts(self, slot: RaySlot) -> tuple[RayHost, ...]:
        bundles = self._wanted.bundles
        waiting: dict[str, list[tuple[int, ...]]] = {
            node_id: shares(processors, ranks=slot.node_ids.count(node_id), per_rank=bundles.cpus_per_rank)
            for node_id, processors in slot.processors.items()
        }
        return tuple(
            RayHost(
                rank=rank,
                group=slot.group,
                resources=bundles.resources,
                node=node.address,
                loopback=len(set(slot.node_ids)) == 1,
                processors=waiting[node.node_id].pop(0) if waiting else (),
                code=self._session.code,
            )
            for rank, node in enumerate(slot.nodes)
        )

    def _prepare(self, node: Node, progress: Callable[[str], None]) -> None:
        if self._prepares_here:
            self._evaluator.prepare(self._ds_configs, progress)
            return
        progress(f"preparing node {node.address}")
        evaluator, ds_configs = self._evaluator, self._ds_configs
        call = self._call(node, lambda: _prepare_here(evaluator, ds_configs))
        for line in self._answer(node, call, math.inf):
            progress(f"node {node.address}: {line}")

    def _call(self, node: Node, function: Callable[[], Any]) -> Any:
        """Call a function on a node; `_answer` waits for it."""
        strategy = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        task = ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)
        return task.remote()

    def _answer(self, node: Node, call: Any, timeout_s: float) -> Any:
        """Wait for what a function on a node returns.

        Raises:
            ResourceError: when the node is gone, gives no answer in time, or the runner closes meanwhile.
            RayTaskError: what the function raised; it is of that error's type too.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                return ray.get(call, timeout=LOOK_INTERVAL_S)
            except GetTimeoutError:
                if self._closing.is_set() or time.monotonic() > deadline_s or not answers(node.address, node.port):
                    ray.cancel(call, force=True)
                    raise ResourceError(f"ray: the node {node.address} gave no answer; `ray status` shows it") from None
            except RayTaskError:
                raise
            except RayError as error:
                raise ResourceError(f"ray: the node {node.address} can't be used: {cause(error)}") from error

    def _held_by_others(self, cluster: Cluster) -> str:
        free = ray.available_resources()  # type: ignore[no-untyped-call]
        return (
            f"ray: asked for {self._bundles}; the cluster has {cluster}, enough in all, but after "
            f"{PLACEMENT_TIMEOUT_S:g} s {len(self._slots)} of {self._bundles.slots} group(s) were placed, with "
            f"{free.get('CPU', 0):g} CPU and {free.get('GPU', 0):g} GPU left free. Others hold the rest: "
            "wait for them (`ray status`), or ask for less"
        )

    # What becomes of it.

    def _mend(self) -> None:
        while not self._closing.wait(LOOK_INTERVAL_S):
            if not self._head_is_there():
                continue
            try:
                self._look()
            except _TROUBLE:  # nodes come and go: the next look finds another state
                logger.warning("looking after the slots failed; it is tried again", exc_info=True)
                self._retry_at_s = time.monotonic() + RETRY_S

    def _head_is_there(self) -> bool:
        """Say whether Ray can be asked; without an answer of its head it would wait, and then end this process."""
        if answers(*self._head):
            self._head_missed_since_s = None
            return True
        now_s = time.monotonic()
        self._head_missed_since_s = self._head_missed_since_s or now_s
        if now_s - self._head_missed_since_s > HEAD_PATIENCE_S:
            host, port = self._head
            self.gone = f"nothing answers at the head of the Ray cluster, {host}:{port}, for {HEAD_PATIENCE_S:g} s"
        return False

    def _look(self) -> None:
        cluster = self._session.cluster()
        in_use = {node.node_id: node for slot in self._slots for node in slot.nodes}
        alive = {node.node_id for node in cluster.nodes}
        missed = self._watch.look([node for node_id, node in in_use.items() if node_id in alive])
        lost = missed | (in_use.keys() - alive)
        for slot in self._slots:
            for host, node in zip(slot.hosts, slot.nodes, strict=True):
                if node.node_id in lost and host.lost is None:
                    host.node_died()
        for slot in [slot for slot in self._slots if slot.is_released]:
            self._give_back(slot)
            self._slots.remove(slot)
        if time.monotonic() >= self._retry_at_s and sum(slot.lost is None for slot in self._slots) < self._wanted.limit:
            self._open_further(cluster)

    def _open_further(self, cluster: Cluster) -> None:
        there = self._counted(self._matching(cluster))
        candidates = nodes_for_next(
            self._wanted.bundles,
            there,
            placed=[slot.node_ids for slot in self._slots],
            one_per_node=self._wanted.one_per_node,
        )
        if not candidates:
            return
        self._retry_at_s = time.monotonic() + RETRY_S
        reachable = self._watch.reachable([node for node in there.nodes if node.node_id in candidates])
        self._ask_for_processors(reachable)
        slot = self._reserve(self._counted(replace(there, nodes=tuple(reachable))), FURTHER_TIMEOUT_S)
        if slot is None:
            return
        self._retry_at_s = 0.0
        self._slots.append(slot)
        try:
            self._furnish([slot], self.notes.put)
        except BaseException:
            slot.is_released = True
            raise
        self.opened.put(slot)

    def _give_back(self, slot: RaySlot) -> None:
        for host in slot.hosts:
            host.end()
        if self.gone is None:
            remove_placement_group(slot.group)
        for node_id, processors in slot.processors.items():
            self._processors[node_id].give_back(processors)


def _prepare_here(evaluator: Evaluator, ds_configs: Sequence[Mapping[str, object]]) -> list[str]:
    told: list[str] = []
    evaluator.prepare(ds_configs, told.append)
    return told


def _own_labels(node: Node) -> dict[str, str]:
    return {label: value for label, value in node.labels.items() if not label.startswith("ray.io/")}


def _in_words(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{label}={value}" for label, value in labels.items())
