"""A rank's host under Ray: an actor on one bundle of a placement group, as long as it lives."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Mapping
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
    RayTaskError,
)
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from autotune.errors import HostLostError
from autotune.evaluators import sent_code
from autotune.evaluators.protocol import RankCommand, RankReport
from autotune.runners.rank_process import RankProcess
from autotune.runners.ray_session import cause

logger = logging.getLogger(__name__)

ACTOR_START_TIMEOUT_S = 60.0
"""For an actor's process: it imports autotune and psutil, 1 to 3 s on a quiet machine."""
CALL_TIMEOUT_S = 30.0
"""For a call to a live actor: 1 ms on a quiet machine; a node without an answer for this long is lost. The longest call
is `stop`, with its patience for SIGTERM and SIGKILL."""
THREADS_VARIABLE = "OMP_NUM_THREADS"
_SLICE_S = 0.5
"""How soon a call notices that its node was found to be lost."""
_LOST = (RayActorError, NodeDiedError, OutOfMemoryError, ActorPlacementGroupRemoved, ActorUnschedulableError)
"""What a call raises when the actor, not the code in it, is at fault."""


class RayHost:
    """A `RankHost` in an actor on one bundle; serves trial after trial until it is lost.

    Args:
        rank: of the trial; also the index of the rank's bundle.
        group: the placement group.
        resources: what the bundle holds.
        node: address of the bundle's node.
        loopback: whether ranks meet on 127.0.0.1 (all on one machine) or on their nodes' addresses.
        processors: of the node, this rank's own; none: all that its node has.
        code: folder of this machine that was sent to the node.
    """

    def __init__(
        self,
        *,
        rank: int,
        group: PlacementGroup,
        resources: Mapping[str, float],
        node: str,
        loopback: bool,
        processors: tuple[int, ...] = (),
        code: str | None = None,
    ) -> None:
        self.node = node
        self._rank = rank
        self._arguments = {"address": "127.0.0.1" if loopback else node, "processors": processors, "code": code}
        self._options = {
            "num_cpus": resources.get("CPU", 0),
            "num_gpus": resources.get("GPU", 0),
            "max_restarts": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=rank
            ),
        }
        self._actor: Any = None
        self._last = RankReport(running=False, node=node)
        self._lost: str | None = None
        self._lock = threading.Lock()

    @property
    def lost(self) -> str | None:
        """Why nothing can run here any more; None while it can."""
        return self._lost

    def begin(self) -> None:
        """Ask for the actor; the first call waits for it."""
        self._actor = ray.remote(_RankActor).options(**self._options).remote(**self._arguments)

    def end(self) -> None:
        """Kill the actor; a process that it still runs dies with it. Idempotent."""
        actor, self._actor = self._actor, None
        if actor is not None:
            ray.kill(actor)

    def node_died(self) -> None:
        """Be told, from any thread, that the node is gone; a call under way ends."""
        self._lose(f"the node {self.node} died, or can't be reached any more")

    def reserve_address(self) -> tuple[str, int]:
        address, port = self._call("reserve_address", timeout_s=ACTOR_START_TIMEOUT_S)
        return address, port

    def start(self, command: RankCommand) -> None:
        self._last = RankReport(running=False, node=self.node)
        self._call("start", command, timeout_s=ACTOR_START_TIMEOUT_S)
        self._last = RankReport(running=True, node=self.node)

    def poll(self, wait_s: float = 0.0) -> RankReport:
        return self._report("poll", wait_s)

    def stop(self) -> RankReport:
        return self._report("stop")

    def _report(self, method: str, *arguments: object) -> RankReport:
        if self._actor is None and self._lost is None:
            return self._last
        try:
            report: RankReport = self._call(method, *arguments, timeout_s=CALL_TIMEOUT_S)
            self._last = replace(report, node=self.node)
        except HostLostError as error:
            if self._last.running:
                killed = isinstance(error.__cause__, OutOfMemoryError)  # by Ray's memory monitor
                self._last = replace(
                    self._last,
                    running=False,
                    exit_code=-signal.SIGKILL.value if killed else None,
                    host_lost=None if killed else str(error),
                    log_tail=(*self._last.log_tail, f"[autotune] {error}"),
                )
        return self._last

    def _call(self, method: str, *arguments: object, timeout_s: float) -> Any:
        """Call the actor.

        Raises:
            HostLostError: when it is gone, or gives no answer in time.
            OSError: as the code in it raised it.
        """
        deadline_s = time.monotonic() + timeout_s
        actor = self._actor
        if self._lost is not None or actor is None:
            raise HostLostError(self._told(self._lost or "it has ended"))
        reference = getattr(actor, method).remote(*arguments)
        while True:
            try:
                return ray.get(reference, timeout=_SLICE_S)
            except GetTimeoutError:
                if self._lost is None and time.monotonic() > deadline_s:
                    self._lose(f"its process on the node {self.node} gave no answer for {timeout_s:g} s")
                if self._lost is not None:
                    raise HostLostError(self._told(self._lost)) from None
            except RayTaskError as error:
                if isinstance(error.cause, OSError):
                    raise error.cause from error  # as a host on this machine says it
                raise
            except _LOST as error:
                self._lose(f"its process on the node {self.node} ended (Ray: {type(error).__name__})")
                logger.info("what Ray says of it: %s", cause(error))
                raise HostLostError(self._told(self._lost or "")) from error

    def _lose(self, why: str) -> None:
        """Give the actor up: its process is gone, or will be as soon as the actor is."""
        with self._lock:
            if self._lost is not None:
                return
            self._lost = why
        logger.info("%s", self._told(why))
        self.end()

    def _told(self, why: str) -> str:
        return f"the host of rank {self._rank} is lost: {why}"


class _RankActor(RankProcess):
    """A rank's process under a Ray actor."""

    def __init__(self, *, address: str, processors: tuple[int, ...], code: str | None) -> None:
        if code is not None:
            os.environ |= {sent_code.FROM_VARIABLE: code, sent_code.TO_VARIABLE: os.getcwd()}
        if processors:
            # Here, so that the rank's process begins with it, before it has any thread.
            os.sched_setaffinity(0, processors)
            if THREADS_VARIABLE not in ray.get_runtime_context().runtime_env.get("env_vars", {}):
                os.environ[THREADS_VARIABLE] = str(len(processors))
        interface = _interface_of(address)
        if interface is not None:
            # By themselves gloo and NCCL guess: by the host's name, which is often 127.0.1.1, or the first they find.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
        super().__init__(address=address)


def _interface_of(address: str) -> str | None:
    """Return the name of the network interface that has an address; None for a loopback one, or where none has it."""
    if address.startswith("127."):
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in addresses):
            return name
    return None
