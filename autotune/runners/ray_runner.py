"""The Ray runner: trials on a machine or a cluster, each in a placement group of its own.

Long on purpose: the import contract keeps every use of Ray behind this one door.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import psutil
import ray
from ray.exceptions import (
    ActorPlacementGroupRemoved,
    ActorUnschedulableError,
    GetTimeoutError,
    NodeDiedError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from autotune.errors import ResourceError
from autotune.evaluators.protocol import Evaluator, RankCommand, RankReport
from autotune.runners.attempt import ignore_stage, prune_none
from autotune.runners.bundles import Bundles, PlacementStrategy
from autotune.runners.cluster import Cluster, Node
from autotune.runners.process_state import own_signals, quiet, ray_variables, restore_ray_variables
from autotune.runners.protocol import Finished, Judge, StageListener
from autotune.runners.rank_process import RankProcess
from autotune.runners.reaper import Reaper
from autotune.runners.slot import SlotPool
from autotune.trials import TrialRequest

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 80 * 1024 * 1024
"""Of a cluster started here: trials pass configurations and results, kilobytes. Ray's own default is 30 % of the
memory; it refuses less than 75 MiB (`OBJECT_STORE_MINIMUM_MEMORY_BYTES` in ray/_private/ray_constants.py)."""
CONNECT_TIMEOUT_S = 5.0
"""For the first sign of life of an address; Ray itself tries for more than a minute, then ends the process."""
PLACEMENT_TIMEOUT_S = 60.0
"""For placement groups that the cluster could hold: another's trial may be about to end."""
ACTOR_START_TIMEOUT_S = 60.0
"""For an actor's process: it imports autotune and psutil, 1 to 3 s on a quiet machine."""
CALL_TIMEOUT_S = 30.0
"""For a call to a live actor: 1 ms on a quiet machine; a node without an answer for this long is lost. The longest call
is `stop`, with its patience for SIGTERM and SIGKILL."""
_LOST = (
    RayActorError,
    GetTimeoutError,
    NodeDiedError,
    OutOfMemoryError,
    ActorPlacementGroupRemoved,
    ActorUnschedulableError,
)
"""What a call raises when the actor, not the code in it, is at fault."""


def describe_cluster(address: str | None = None) -> Cluster:
    """Look at what Ray has: at `address`, or on this machine, by starting Ray here and ending it again.

    Raises:
        ResourceError: when Ray can't be started or reached.
    """
    session = RaySession(address)
    try:
        session.open()
        return session.cluster()
    finally:
        session.close()


class RaySession:
    """This process's connection to Ray: a cluster started here, one joined at an address, or one it already had.

    Open and close it in one thread that lives as long as the session: a cluster started here is tied by the kernel to
    the life of that thread, so that it ends with this process however that dies.

    Args:
        address: 'host:port' of a running cluster, or 'auto' for the one that runs on this machine; None starts one
            here, whatever RAY_ADDRESS says.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._connect_s = 0.0
        self._ours = False
        self._environment: dict[str, str] = {}
        self._reaper = Reaper()

    def open(self) -> None:
        """Connect.

        Raises:
            ResourceError: when that fails.
        """
        started = time.monotonic()
        if ray.is_initialized():
            self._share()
        else:
            self._environment = ray_variables()
            self._ours = True  # also when it fails or is interrupted half-way
            try:
                with own_signals(), quiet():
                    self._connect()
            except (RayError, OSError, RuntimeError, ValueError) as error:
                self.close()
                where = f"reached at {self._address}" if self._address else "started on this machine"
                raise ResourceError(f"ray: it can't be {where}: {_cause(error)}{_token_advice(error)}") from error
        self._connect_s = time.monotonic() - started

    def cluster(self) -> Cluster:
        """Return the nodes that are alive now."""
        nodes = [
            Node(
                node_id=node["NodeID"],
                address=node["NodeManagerAddress"],
                cpu_count=node["Resources"].get("CPU", 0.0),
                gpu_count=node["Resources"].get("GPU", 0.0),
                memory_bytes=int(node["Resources"].get("memory", 0)),
                object_store_bytes=int(node["Resources"].get("object_store_memory", 0)),
            )
            for node in ray.nodes()  # type: ignore[no-untyped-call]
            if node["Alive"]
        ]
        return Cluster(
            nodes=tuple(sorted(nodes, key=lambda node: node.address)),
            ray_version=ray.__version__,
            address=ray.get_runtime_context().gcs_address,
            connect_s=self._connect_s,
        )

    def close(self) -> None:
        """Disconnect, and end the cluster if it was started here; idempotent."""
        if self._ours:
            ray.shutdown()
            self._reaper.close()
            restore_ray_variables(self._environment)
            self._ours = False

    def _share(self) -> None:
        address = ray.get_runtime_context().gcs_address
        if self._address not in (None, "auto", address):
            raise ResourceError(
                f"ray: asked for the cluster at {self._address}, but this process is connected to {address}; "
                "call ray.shutdown() first, or give that address"
            )
        logger.info("using the Ray cluster that this process is connected to, at %s", address)

    def _connect(self) -> None:
        if self._address is None:
            ray.init(
                address="local",
                num_cpus=_restricted_cpu_count(),
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                configure_logging=False,
                log_to_driver=False,
            )
            self._reaper.start(psutil.Process().children(recursive=True))
        else:
            _check_reachable(self._address)
            ray.init(address=self._address, configure_logging=False, log_to_driver=False)


class RayHost:
    """A `RankHost` in an actor on one bundle; serves trial after trial, on a new actor when one is lost.

    Args:
        group: the placement group.
        bundle: index of the rank's bundle in it.
        resources: what the bundle holds.
        loopback: whether ranks meet on 127.0.0.1 (all on one machine) or on their nodes' addresses.
    """

    def __init__(self, *, group: PlacementGroup, bundle: int, resources: Mapping[str, float], loopback: bool) -> None:
        self._group = group
        self._bundle = bundle
        self._loopback = loopback
        self._options = {
            "num_cpus": resources.get("CPU", 0),
            "num_gpus": resources.get("GPU", 0),
            "max_restarts": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=bundle
            ),
        }
        self._actor: Any = None
        self._last = RankReport(running=False)

    def begin(self) -> None:
        """Ask for the actor; `reserve_address` and `start` wait for it."""
        self._actor = ray.remote(_RankActor).options(**self._options).remote(loopback=self._loopback)

    def end(self) -> None:
        """Kill the actor; a process that it still runs dies with it. Idempotent."""
        actor, self._actor = self._actor, None
        if actor is not None:
            ray.kill(actor)

    def reserve_address(self) -> tuple[str, int]:
        address, port = self._call_alive("reserve_address")
        return address, port

    def start(self, command: RankCommand) -> None:
        self._last = RankReport(running=False)
        self._call_alive("start", command)
        self._last = RankReport(running=True)

    def poll(self, wait_s: float = 0.0) -> RankReport:
        return self._report("poll", wait_s)

    def stop(self) -> RankReport:
        return self._report("stop")

    def _report(self, method: str, *arguments: object) -> RankReport:
        actor = self._actor
        if actor is not None:
            try:
                self._last = ray.get(getattr(actor, method).remote(*arguments), timeout=CALL_TIMEOUT_S)
            except _LOST as error:
                self._lose(error)
        return self._last

    def _lose(self, error: RayError) -> None:
        """Give the actor up: its process is gone, or will be as soon as the actor is."""
        logger.warning("rank %d: its host is lost: %s", self._bundle, error)
        self.end()
        killed = isinstance(error, OutOfMemoryError)  # by Ray's memory monitor
        self._last = replace(
            self._last,
            running=False,
            exit_code=-signal.SIGKILL.value if killed else None,
            log_tail=(*self._last.log_tail, f"[autotune] the host of rank {self._bundle} is lost: {_cause(error)}"),
        )

    def _call_alive(self, method: str, *arguments: object) -> Any:
        """Call a live actor, a new one if the last was lost between trials."""
        for _ in range(2):
            if self._actor is None:
                self.begin()
            try:
                return ray.get(getattr(self._actor, method).remote(*arguments), timeout=ACTOR_START_TIMEOUT_S)
            except _LOST as error:
                self._lose(error)
                loss = error
            except RayTaskError as error:
                if isinstance(error.cause, OSError):
                    raise error.cause from error  # as a host on this machine says it
                raise
        raise ResourceError(
            f"rank {self._bundle}: no host for it within {ACTOR_START_TIMEOUT_S:g} s, tried twice ({_cause(loss)}); "
            "`ray status` shows whether its node is gone"
        ) from loss


class RayRunner:
    """Runs trials in placement groups: one group per slot, one bundle per rank, one actor per bundle.

    Implements `autotune.runners.TrialRunner`. Actors live as long as the runner; each trial's ranks are fresh
    subprocesses of them. Call `open` and `close` from one thread that lives as long as the runner (see `RaySession`).

    Args:
        evaluator: what measures a trial.
        address: 'host:port' of a running cluster, or 'auto' for the one on this machine; None starts one here.
        slots: how many trials run at once.
        cpus_per_rank: processors that Ray reserves for a rank, and its number of OpenMP threads.
        gpus_per_rank: GPUs that Ray reserves for a rank; it sees no others.
        strategy: how Ray spreads a trial's ranks over nodes.
        on_stage: called with (trial number, stage) as trials enter their stages, from the trials' threads.
        judge: says which running trials are to be pruned.

    Raises:
        ResourceError: when there is nothing to reserve, or the strategy is unknown.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        *,
        address: str | None = None,
        slots: int = 1,
        cpus_per_rank: float = 1,
        gpus_per_rank: float = 0,
        strategy: str = PlacementStrategy.PACK,
        on_stage: StageListener = ignore_stage,
        judge: Judge = prune_none,
    ) -> None:
        if strategy not in list(PlacementStrategy):
            raise ResourceError(f"strategy: got {strategy!r}; it must be one of {', '.join(PlacementStrategy)}")
        self.slots = slots
        self._bundles = Bundles(
            ranks=evaluator.ranks,
            slots=slots,
            cpus_per_rank=cpus_per_rank,
            gpus_per_rank=gpus_per_rank,
            strategy=PlacementStrategy(strategy),
        )
        self._evaluator = evaluator
        self._session = RaySession(address)
        self._started_here = address is None
        self._pool = SlotPool(evaluator, on_stage=on_stage, judge=judge)
        self._groups: list[PlacementGroup] = []
        self._hosts: list[RayHost] = []

    def open(self, ds_configs: Sequence[Mapping[str, object]], progress: Callable[[str], None]) -> None:
        """Connect, reserve every slot, start its hosts, and prepare the evaluator (on every node that will run trials).

        Raises:
            ResourceError: when Ray can't be reached, or can't give what is asked for.
        """
        try:
            progress("starting Ray on this machine" if self._started_here else "connecting to the Ray cluster")
            self._session.open()
            cluster = self._session.cluster()
            progress(f"Ray {cluster.ray_version}: {cluster}; reserving {self._bundles}")
            self._bundles.check_fit(cluster)
            self._reserve(cluster)
            self._prepare(ds_configs, progress)
            self._start_hosts(loopback=len(cluster.nodes) == 1)
        except BaseException:
            self.close(cancel=True)
            raise

    def submit(self, request: TrialRequest) -> None:
        """Start a trial in a free slot.

        Raises:
            ResourceError: when none is free, or the runner is not open.
        """
        self._pool.submit(request)

    def collect(self, timeout_s: float) -> Finished | None:
        """Return a finished trial, waiting up to `timeout_s` for one."""
        return self._pool.collect(timeout_s)

    def close(self, *, cancel: bool) -> None:
        """End the trials under way (`cancel`) or wait for them; give back actors, groups and a Ray started here."""
        self._pool.close(cancel=cancel)
        for host in self._hosts:
            host.end()
        self._hosts.clear()
        for group in self._groups:
            remove_placement_group(group)
        self._groups.clear()
        self._session.close()

    def _reserve(self, cluster: Cluster) -> None:
        deadline = time.monotonic() + PLACEMENT_TIMEOUT_S
        for _ in range(self._bundles.slots):
            bundles = [dict(self._bundles.resources) for _ in range(self._bundles.ranks)]
            self._groups.append(placement_group(bundles, strategy=self._bundles.strategy.value))
        for number, group in enumerate(self._groups):
            if not group.wait(timeout_seconds=max(0.0, deadline - time.monotonic())):
                free = ray.available_resources()  # type: ignore[no-untyped-call]
                raise ResourceError(
                    f"ray: asked for {self._bundles}; the cluster has {cluster}, enough in all, but after "
                    f"{PLACEMENT_TIMEOUT_S:g} s {number} of {self._bundles.slots} group(s) were placed, with "
                    f"{free.get('CPU', 0):g} CPU and {free.get('GPU', 0):g} GPU left free. Others hold the rest: "
                    "wait for them (`ray status`), or ask for less"
                )

    def _prepare(self, ds_configs: Sequence[Mapping[str, object]], progress: Callable[[str], None]) -> None:
        if self._started_here:
            self._evaluator.prepare(ds_configs, progress)
            return
        addresses = {node.node_id: node.address for node in self._session.cluster().nodes}
        for node_id, group, bundle in self._nodes():
            node = addresses.get(node_id, node_id)
            progress(f"preparing node {node}")
            strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=bundle)
            task = ray.remote(_prepare_here).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)
            for line in ray.get(task.remote(self._evaluator, list(ds_configs))):
                progress(f"node {node}: {line}")

    def _nodes(self) -> Iterator[tuple[str, PlacementGroup, int]]:
        """Yield the id of each node on which bundles are, with one of them."""
        seen = set()
        for group in self._groups:
            for bundle, node_id in placement_group_table(group)["bundles_to_node_id"].items():
                if node_id not in seen:
                    seen.add(node_id)
                    yield node_id, group, int(bundle)

    def _start_hosts(self, *, loopback: bool) -> None:
        for group in self._groups:
            hosts = [
                RayHost(group=group, bundle=bundle, resources=self._bundles.resources, loopback=loopback)
                for bundle in range(self._bundles.ranks)
            ]
            for host in hosts:
                self._hosts.append(host)
                host.begin()
            self._pool.add(hosts)
        for host in self._hosts:
            host.reserve_address()


class _RankActor(RankProcess):
    """A rank's process under a Ray actor."""

    def __init__(self, *, loopback: bool) -> None:
        here = "127.0.0.1" if loopback else ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        super().__init__(address=here)


def _prepare_here(evaluator: Evaluator, ds_configs: Sequence[Mapping[str, object]]) -> list[str]:
    told: list[str] = []
    evaluator.prepare(ds_configs, told.append)
    return told


def _token_advice(error: BaseException) -> str:
    """Return what to do where a cluster wants a token: Ray says so deep in a chain of errors, as text."""
    chain: BaseException | None = error
    while chain is not None:
        if "AuthenticationError" in f"{type(chain).__name__}: {chain}":
            return (
                ". The cluster wants a token: set RAY_AUTH_MODE=token in the environment, with the cluster's token in "
                "~/.ray/auth_token or RAY_AUTH_TOKEN"
            )
        chain = chain.__cause__
    return ""


def _cause(error: Exception) -> str:
    """Return an error's words on one line; Ray's are paragraphs."""
    return " ".join(str(error).split())[:500] or type(error).__name__


def _restricted_cpu_count() -> int | None:
    """Return how many processors this process may use; None where that is all, and Ray's own count is as good."""
    usable = len(os.sched_getaffinity(0))
    return usable if usable < (os.cpu_count() or usable) else None


def _check_reachable(address: str) -> None:
    """Fail at once for an address where nothing listens.

    Raises:
        ResourceError: when that is so, or the address is of a kind that autotune does not use.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        raise ResourceError(
            f"ray address: got {address!r}; give 'host:port' as `ray start` prints it (6379 by default) on a machine "
            "of the cluster, or 'auto'"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ResourceError(
            f"ray address: nothing answers at {address} ({error}); `ray status` on the cluster shows whether it runs, "
            "`ray start --head` starts one, and no address at all uses this machine alone"
        ) from error
