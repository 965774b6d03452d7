"""The local runner: one trial at a time on this machine, without Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from autotune import hardware
from autotune.errors import ResourceError
from autotune.evaluators.protocol import Evaluator
from autotune.runners.attempt import ignore_stage
from autotune.runners.protocol import Finished, StageListener
from autotune.runners.rank_process import RankProcess
from autotune.runners.slot import SlotPool
from autotune.trials import TrialRequest


class LocalRunner:
    """Runs each rank as a subprocess of this process; the blocking evaluation is in a thread of its own.

    Implements `autotune.runners.TrialRunner` with one slot.

    Args:
        evaluator: what measures a trial.
        gpus_per_rank: 1 gives each rank a GPU of its own, 0 leaves the ranks what this process sees.
        on_stage: called with (trial number, stage) as trials enter their stages, from the trial's thread.

    Raises:
        ResourceError: when `gpus_per_rank` is neither.
    """

    slots = 1

    def __init__(self, evaluator: Evaluator, *, gpus_per_rank: int = 0, on_stage: StageListener = ignore_stage) -> None:
        if gpus_per_rank not in (0, 1):
            raise ResourceError(f"gpus_per_rank: got {gpus_per_rank}; the runner local gives a rank 0 or 1 GPU")
        self._evaluator = evaluator
        self._gpus_per_rank = gpus_per_rank
        self._pool = SlotPool(evaluator, on_stage=on_stage)

    def open(self, ds_configs: Sequence[Mapping[str, object]], progress: Callable[[str], None]) -> None:
        """Prepare the evaluator and make the hosts of its ranks; nothing is reserved.

        Raises:
            ResourceError: when there are fewer GPUs than ranks that want one.
        """
        gpus = _gpus(self._evaluator.ranks) if self._gpus_per_rank else [None] * self._evaluator.ranks
        self._evaluator.prepare(ds_configs, progress)
        self._pool.add([RankProcess(gpu=gpu) for gpu in gpus])

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


def _gpus(ranks: int) -> list[str | None]:
    count = hardware.detect(accelerator="cuda").device_count
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [str(index) for index in range(count)] if visible is None else [name for name in visible.split(",") if name]
    if len(gpus) < ranks:
        raise ResourceError(
            f"gpus_per_rank: got 1 for {ranks} ranks, and this machine shows {len(gpus)} GPU(s) "
            f"(CUDA_VISIBLE_DEVICES={visible!r}, {count} built in); use at most {len(gpus)} rank(s)"
        )
    return list(gpus[:ranks])
