"""A slot: the hosts of one trial's ranks, and the thread that evaluates on them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence

from autotune.errors import ResourceError
from autotune.evaluators.protocol import Evaluator, RankHost
from autotune.runners.attempt import attempt, cancelled_outcome, prune_none, stop_all
from autotune.runners.protocol import Finished, Judge, StageListener
from autotune.trials import Stage, TrialRequest

CANCEL_GRACE_S = 60.0
"""How long a cancelled evaluator may take to stop its processes before the slot gives it up. Ending ranks takes
SIGTERM, a moment and SIGKILL, a few seconds in all; a minute is a machine that swaps."""


class Slot:
    """Runs one trial at a time on its hosts, and puts what came of it into `finished`.

    Args:
        evaluator: what measures.
        hosts: one for each rank.
        finished: where results go; shared by the slots of a runner.
        on_stage: called with (trial number, stage), from the slot's thread.
        judge: says whether the trial under way is to be pruned, from the slot's thread.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        hosts: Sequence[RankHost],
        *,
        finished: queue.SimpleQueue[Finished],
        on_stage: StageListener,
        judge: Judge,
    ) -> None:
        self._evaluator = evaluator
        self._hosts = tuple(hosts)
        self._finished = finished
        self._on_stage = on_stage
        self._judge = judge
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._request: TrialRequest | None = None
        self._thread: threading.Thread | None = None

    @property
    def request(self) -> TrialRequest | None:
        """The request under way; None when the slot is free."""
        return self._request

    def start(self, request: TrialRequest) -> None:
        """Begin a trial; the slot must be free."""
        self._request = request
        # A daemon: if the controller ends without closing, it must not wait for the trial; ranks die with it.
        self._thread = threading.Thread(target=self._run, args=(request,), name=f"trial-{request.number}", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Ask the trial under way to end; it comes back as CANCELLED, or as what it was if it was done."""
        self._cancelled.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the trial under way; return whether the slot is free."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._request is None

    def give_up(self, reason: str) -> None:
        """Report the trial under way as CANCELLED without its evaluator, and stop its processes."""
        with self._lock:
            request, self._request = self._request, None
        if request is not None:
            stop_all(self._hosts)
            self._finished.put(Finished(request, cancelled_outcome(reason)))

    def _run(self, request: TrialRequest) -> None:
        def progress(stage: Stage) -> None:
            self._on_stage(request.number, stage)

        outcome = attempt(
            self._evaluator,
            request,
            hosts=self._hosts,
            progress=progress,
            cancelled=self._cancelled.is_set,
            should_prune=lambda intermediates: self._judge(request, intermediates),
        )
        with self._lock:
            if self._request is not request:  # given up, and reported then
                return
            self._request = None  # before the result is seen, so that its collector finds the slot free
        self._finished.put(Finished(request, outcome))


class SlotPool:
    """The slots of one runner: finds a free one, gathers results, ends them all.

    Args:
        evaluator: what measures, in every slot.
        on_stage: called with (trial number, stage), from the slots' threads.
        judge: says which trials under way are to be pruned, from the slots' threads.
        cancel_grace_s: how long cancelled trials may take to end.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        *,
        on_stage: StageListener,
        judge: Judge = prune_none,
        cancel_grace_s: float = CANCEL_GRACE_S,
    ) -> None:
        self._evaluator = evaluator
        self._on_stage = on_stage
        self._judge = judge
        self._cancel_grace_s = cancel_grace_s
        self._finished: queue.SimpleQueue[Finished] = queue.SimpleQueue()
        self._slots: list[Slot] = []

    def add(self, hosts: Sequence[RankHost]) -> Slot:
        """Add a slot on these hosts, and return it."""
        slot = Slot(self._evaluator, hosts, finished=self._finished, on_stage=self._on_stage, judge=self._judge)
        self._slots.append(slot)
        return slot

    def remove(self, slot: Slot) -> None:
        """Drop a slot that has no trial."""
        self._slots.remove(slot)

    def put(self, finished: Finished) -> None:
        """Let a request be collected that is in no slot."""
        self._finished.put(finished)

    def submit(self, request: TrialRequest) -> None:
        """Start a trial in a free slot.

        Raises:
            ResourceError: when there is none.
        """
        for slot in self._slots:
            if slot.request is None:
                slot.start(request)
                return
        if not self._slots:
            raise ResourceError(f"trial {request.number}: the runner has no slots; open it first")
        busy = ", ".join(str(slot.request.number) for slot in self._slots if slot.request)
        raise ResourceError(
            f"trial {request.number}: {len(self._slots)} of {len(self._slots)} slots are busy (trials {busy}); "
            "collect one first"
        )

    def collect(self, timeout_s: float) -> Finished | None:
        """Return a finished trial, waiting up to `timeout_s` for one."""
        try:
            return self._finished.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def close(self, *, cancel: bool) -> None:
        """End the trials under way (`cancel`) or wait for them, and drop the slots; results stay to be collected."""
        if cancel:
            self._cancel()
        for slot in self._slots:
            slot.join()
        self._slots.clear()

    def _cancel(self) -> None:
        for slot in self._slots:
            slot.cancel()
        deadline = time.monotonic() + self._cancel_grace_s
        for slot in list(self._slots):
            if not slot.join(max(0.0, deadline - time.monotonic())):
                slot.give_up(f"cancelled; the evaluator did not return within {self._cancel_grace_s:g} s")
                self._slots.remove(slot)
