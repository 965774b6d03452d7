"""The local runner: one trial at a time on this machine, without Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from autotune import hardware
from autotune.errors import ResourceError
from autotune.evaluators.protocol import Evaluator
from autotune.runners.attempt import ignore_stage, prune_none
from autotune.runners.protocol import Finished, Judge, StageListener
from autotune.runners.rank_process import RankProcess
from autotune.runners.slot import SlotPool
from autotune.trials import TrialRequest


class LocalRunner:
    """Runs each rank as a subprocess of this process; the blocking evaluation is in a thread of its own.

    Implements `autotune.runners.TrialRunner` with one slot.

    Args:
        evaluator: what measures a trial.
        gpus_per_rank: each rank gets so many GPUs of its own; 0 leaves the ranks what this process sees.
        on_stage: called with (trial number, stage) as trials enter their stages, from the trial's thread.
        judge: says which running trials are to be pruned.

    Raises:
        ResourceError: when `gpus_per_rank` is below 0.
    """

    slots = 1

    def __init__(
        self,
        evaluator: Evaluator,
        *,
        gpus_per_rank: int = 0,
        on_stage: StageListener = ignore_stage,
        judge: Judge = prune_none,
    ) -> None:
        if gpus_per_rank < 0:
            raise ResourceError(f"gpus_per_rank: got {gpus_per_rank}; it must be 0 or more")
        self._evaluator = evaluator
        self._gpus_per_rank = gpus_per_rank
        self._pool = SlotPool(evaluator, on_stage=on_stage, judge=judge)
        self._hosts: list[RankProcess] = []

    def open(self, ds_configs: Sequence[Mapping[str, object]], progress: Callable[[str], None]) -> None:
        """Prepare the evaluator and make the hosts of its ranks; nothing is reserved.

        Raises:
            ResourceError: when there are fewer GPUs than ranks that want one.
        """
        each, ranks = self._gpus_per_rank, self._evaluator.ranks
        gpus = _gpus(ranks * each)
        self._evaluator.prepare(ds_configs, progress)
        shares = [",".join(gpus[rank * each : (rank + 1) * each]) for rank in range(ranks)]
        self._hosts = [RankProcess(gpu=share or None) for share in shares]
        self._pool.add(self._hosts)

    def submit(self, request: TrialRequest) -> None:
        """Start a trial.

        Raises:
            ResourceError: when one is under way, or the runner is not open.
        """
        self._pool.submit(request)

    def collect(self, timeout_s: float) -> Finished | None:
        """Return the finished trial, waiting up to `timeout_s` for it."""
        return self._pool.collect(timeout_s)

    def close(self, *, cancel: bool) -> None:
        """End the trial under way (`cancel`), or wait for it."""
        self._pool.close(cancel=cancel)
        for host in self._hosts:
            host.close()
        self._hosts.clear()


def _gpus(wanted: int) -> list[str]:
    if wanted == 0:
        return []
    count = hardware.detect(accelerator="cuda").device_count
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [str(index) for index in range(count)] if visible is None else [name for name in visible.split(",") if name]
    if len(gpus) < wanted:
        raise ResourceError(
            f"gpus_per_rank: {wanted} GPUs are wanted, and this machine shows {len(gpus)} "
            f"(CUDA_VISIBLE_DEVICES={visible!r}, {count} built in); use fewer ranks"
        )
    return gpus[:wanted]
