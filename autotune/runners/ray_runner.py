"""The Ray runner: trials on a machine or a cluster, each in a placement group of its own."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from autotune.errors import ResourceError
from autotune.evaluators.protocol import Evaluator
from autotune.runners.attempt import cancelled_outcome, ignore_stage, prune_none
from autotune.runners.bundles import Bundles, PlacementStrategy
from autotune.runners.protocol import Finished, Judge, StageListener
from autotune.runners.ray_session import RaySession, describe_cluster
from autotune.runners.ray_slots import RaySlot, RaySlots, Wanted
from autotune.runners.slot import Slot, SlotPool
from autotune.trials import TrialRequest

__all__ = ["NODE_WAIT_S", "RayRunner", "RaySession", "describe_cluster"]

NODE_WAIT_S = 300.0
"""For a node to join where none is left: a machine that starts anew takes minutes."""
RERUNS = 2
"""So often a trial whose host was lost is measured again; then the configuration is suspected of taking nodes down."""
REOPENING_S = 10.0
"""A slot that is opened anew on a node that is there takes less, so that nobody needs to be told."""
TEND_INTERVAL_S = 0.2


class RayRunner:
    """Runs trials in placement groups: one group per slot, one bundle per rank, one actor per bundle.

    Implements `autotune.runners.TrialRunner`. Actors live as long as the runner; each trial's ranks are fresh
    subprocesses of them. Call `open` and `close` from one thread that lives as long as the runner (see `RaySession`).

    A trial whose host is lost (its node died, or the actor did) is measured again on another, `RERUNS` times. A node
    that dies takes its slots with it, and they are opened elsewhere where there is room; a node that joins gets slots
    so far as `slots` allows. Without any slot the runner waits for a node.

    Args:
        evaluator: what measures a trial.
        address: 'host:port' of a running cluster, or 'auto' for the one on this machine; None starts one here.
        slots: how many trials run at once. None: as many as there are GPUs for, or one on each node where ranks
            use none; the attribute says how many there are now.
        most_slots: where `slots` is None, no more than these.
        cpus_per_rank: processors that Ray reserves for a rank, and its number of OpenMP threads. Where several trials
            may share a node without GPUs, the rank is bound to so many of its own.
        gpus_per_rank: GPUs that Ray reserves for a rank; it sees no others.
        strategy: how Ray spreads a trial's ranks over nodes.
        labels: conditions on the labels of nodes, in Ray's notation.
        code: a folder that is sent to the nodes of a cluster at `address`; processes there run in a copy.
        excluded: what is not sent of it, in the notation of .gitignore.
        environment: environment variables of the ranks' processes.
        node_wait_s: how long to wait for a node where none is left.
        on_stage: called with (trial number, stage) as trials enter their stages, from the trials' threads.
        judge: says which running trials are to be pruned.

    Raises:
        ResourceError: when there is nothing to reserve, or the strategy or a label's condition is none.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        *,
        address: str | None = None,
        slots: int | None = None,
        most_slots: int | None = None,
        cpus_per_rank: float = 1,
        gpus_per_rank: float = 0,
        strategy: str = PlacementStrategy.PACK,
        labels: Mapping[str, str] | None = None,
        code: str | None = None,
        excluded: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        node_wait_s: float = NODE_WAIT_S,
        on_stage: StageListener = ignore_stage,
        judge: Judge = prune_none,
    ) -> None:
        if strategy not in list(PlacementStrategy):
            raise ResourceError(f"strategy: got {strategy!r}; it must be one of {', '.join(PlacementStrategy)}")
        bundles = Bundles(
            ranks=evaluator.ranks,
            slots=1 if slots is None else slots,
            cpus_per_rank=cpus_per_rank,
            gpus_per_rank=gpus_per_rank,
            strategy=PlacementStrategy(strategy),
        )
        self.slots = bundles.slots
        self._started_here = address is None
        self._session = RaySession(
            address, code=None if address is None else code, excluded=excluded, environment=environment
        )
        wanted = Wanted(bundles=bundles, slots=slots, most=most_slots, labels=labels or {})
        self._new_ray_slots = partial(RaySlots, self._session, evaluator, wanted, prepares_here=self._started_here)
        self._ray_slots = self._new_ray_slots()
        self._pool = SlotPool(evaluator, on_stage=on_stage, judge=judge)
        self._slots: dict[Slot, RaySlot] = {}
        self._waiting: deque[TrialRequest] = deque()
        self._losses: dict[int, list[str]] = {}
        self._node_wait_s = node_wait_s
        self._without_node_since_s: float | None = None
        self._has_told_of_wait = False
        self._progress: Callable[[str], None] = _ignore
        self._is_open = False

    def open(self, ds_configs: Sequence[Mapping[str, object]], progress: Callable[[str], None]) -> None:
        """Connect, reserve the slots, prepare the evaluator on every node that will run trials, start their hosts.

        Raises:
            ResourceError: when Ray can't be reached, or can't give what is asked for.
        """
        self._progress = progress
        self._ray_slots = self._new_ray_slots()  # those that were closed stay closed
        try:
            progress("starting Ray on this machine" if self._started_here else "connecting to the Ray cluster")
            self._session.open()
            for slot in self._ray_slots.open_first(ds_configs, progress):
                self._add(slot)
            self._is_open = True
        except BaseException:
            self.close(cancel=True)
            raise

    def submit(self, request: TrialRequest) -> None:
        """Start a trial in a free slot, or as soon as there is one again where a node was lost.

        Raises:
            ResourceError: when `slots` trials are under way, or the runner is not open.
        """
        if not self._is_open:
            raise ResourceError(f"trial {request.number}: the runner has no slots; open it first")
        busy = [slot.request.number for slot in self._slots if slot.request is not None]
        under_way = [*busy, *(waiting.number for waiting in self._waiting)]
        if len(under_way) >= self.slots:
            trials = ", ".join(map(str, under_way))
            raise ResourceError(
                f"trial {request.number}: {len(under_way)} of {self.slots} slots are busy (trials {trials}); "
                "collect one first"
            )
        self._waiting.append(request)
        self._start_waiting()

    def collect(self, timeout_s: float) -> Finished | None:
        """Return a finished trial, waiting up to `timeout_s` for one.

        Raises:
            ResourceError: when trials wait for a node, and none came in time, or the cluster is gone.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            if self._is_open:
                self._tend()
            left_s = deadline_s - time.monotonic()
            finished = self._pool.collect(max(0.0, min(TEND_INTERVAL_S, left_s)))
            if finished is not None:
                finished = self._settled(finished)
                if finished is not None:
                    return finished
            elif left_s <= 0:
                return None

    def close(self, *, cancel: bool) -> None:
        """End the trials under way (`cancel`) or wait for them; give back actors, groups and a Ray started here."""
        if not cancel:
            self._let_waiting_begin()
        self._is_open = False
        self._pool.close(cancel=cancel)
        for request in self._waiting:
            self._pool.put(Finished(request, cancelled_outcome("the runner was closed while the trial had no node")))
        self._waiting.clear()
        self._ray_slots.close()
        self._slots.clear()
        self._session.close()

    def _add(self, slot: RaySlot) -> None:
        self._slots[self._pool.add(slot.hosts)] = slot
        self.slots = max(1, len(self._slots))

    def _tend(self) -> None:
        """Take in what became of nodes and slots, and start what waits for one.

        Raises:
            ResourceError: when there is nothing left to wait for.
        """
        while not self._ray_slots.notes.empty():
            self._progress(self._ray_slots.notes.get())
        for slot, ray_slot in list(self._slots.items()):
            if ray_slot.lost is not None and slot.request is None:
                self._drop(slot)
        while not self._ray_slots.opened.empty():
            ray_slot = self._ray_slots.opened.get()
            self._add(ray_slot)
            where = ", ".join(dict.fromkeys(node.address for node in ray_slot.nodes))
            self._progress(f"a slot was opened on {where}; {_at_once(len(self._slots))} now")
        self._start_waiting()
        if self._ray_slots.gone is not None:
            raise ResourceError(
                f"ray: {self._ray_slots.gone}. Start it again (`ray start --head`, then the other nodes), and resume "
                "the study; what was measured is kept"
            )
        self._wait_for_node()

    def _drop(self, slot: Slot) -> None:
        """Give up a slot that is lost and has no trial."""
        self._pool.remove(slot)
        ray_slot = self._slots.pop(slot)
        ray_slot.is_released = True
        self.slots = max(1, len(self._slots))
        self._progress(f"a slot is gone, {ray_slot.lost}; {_at_once(len(self._slots))} now")

    def _start_waiting(self) -> None:
        """Start what waits in the slots that are free, as long as their nodes are there."""
        for slot, ray_slot in list(self._slots.items()):
            if self._waiting and slot.request is None:
                ray_slot.look_at_nodes()
                if ray_slot.lost is None:
                    slot.start(self._waiting.popleft())
                else:
                    self._drop(slot)

    def _wait_for_node(self) -> None:
        now_s = time.monotonic()
        if self._slots or not self._waiting:
            self._without_node_since_s = None
            self._has_told_of_wait = False
            return
        if self._without_node_since_s is None:
            self._without_node_since_s = now_s
        waited_s = now_s - self._without_node_since_s
        if waited_s > REOPENING_S and not self._has_told_of_wait:
            self._has_told_of_wait = True
            self._progress(f"no node is left that holds a trial; waiting up to {self._node_wait_s:g} s for one to join")
        if waited_s > self._node_wait_s:
            raise ResourceError(
                f"ray: no node is left that holds a trial, and within {self._node_wait_s:g} s none joined "
                "(placement.node_wait_s; `ray status` shows the nodes). Start one (`ray start --address HOST:PORT`), "
                "and resume the study; what was measured is kept"
            )

    def _settled(self, finished: Finished) -> Finished | None:
        """Return what came of a trial; None where its host was lost, and it is to be measured again."""
        request, outcome = finished.request, finished.outcome
        losses = self._losses.setdefault(request.number, [])
        if outcome.failure is None or not outcome.failure.host_lost:
            del self._losses[request.number]
            if losses and outcome.measurement is not None:
                remark = f"measured anew after its host was lost ({'; '.join(losses)})"
                measurement = replace(outcome.measurement, remarks=(*outcome.measurement.remarks, remark))
                return Finished(request, replace(outcome, measurement=measurement))
            return finished
        losses.append(outcome.failure.reason)
        if not self._is_open:
            return Finished(request, cancelled_outcome(f"the runner was closed, and {outcome.failure.reason}"))
        if len(losses) <= RERUNS:
            self._waiting.append(request)
            self._progress(f"trial {request.number}: {outcome.failure.reason}; it is measured again")
            return None
        reason = (
            f"its host was lost each of {len(losses)} times that it ran, so this configuration may take nodes down, by "
            f"their memory for instance: {'; '.join(losses)}"
        )
        del self._losses[request.number]
        return Finished(request, replace(outcome, failure=replace(outcome.failure, reason=reason)))

    def _let_waiting_begin(self) -> None:
        while self._is_open and self._waiting:
            finished = self.collect(TEND_INTERVAL_S)
            if finished is not None:
                self._pool.put(finished)


def _at_once(count: int) -> str:
    return f"{count} trial{'' if count == 1 else 's'} at once"


def _ignore(_line: str) -> None:
    """Be the listener of a runner that is not open."""
