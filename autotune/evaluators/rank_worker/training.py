"""The training of one rank: optimizer steps and held-out losses, agreed on by all ranks."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch

from autotune.errors import WorkloadError
from autotune.evaluators.rank_worker.failures import TrialFailed
from autotune.evaluators.rank_worker.process_group import ProcessGroup
from autotune.evaluators.rank_worker.schedule import Schedule
from autotune.evaluators.rank_worker.step_timer import StepTimer
from autotune.trials import KEPT_STEPS, FailureKind, Intermediate
from autotune.workload import TrainingWorkload

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"


class Training:
    """Trains an engine, times it, and measures the held-out loss."""

    def __init__(
        self,
        *,
        engine: Any,
        workload: TrainingWorkload,
        batches: Iterator[Any],
        held_out: list[tuple[Any, int]],
        group: ProcessGroup,
    ) -> None:
        self.engine = engine
        self.workload = workload
        self.batches = batches
        self.held_out = held_out
        self.group = group
        self.measuring_s = 0.0
        """Seconds that held-out losses took."""
        self.phase_s: dict[str, float] = defaultdict(float)
        """Seconds by phase, summed over the timed steps of this rank."""
        self.losses: list[float] = []
        """Training loss of each step so far, mean over its micro-steps, on this rank."""
        self._reported_steps = 0

    def step(self, schedule: Schedule) -> None:
        """Train one optimizer step and record it.

        Raises:
            TrialFailed: DIVERGED, on every rank alike, when the loss of any rank is not finite.
        """
        timer = StepTimer(self.group.device)
        timer.start()
        loss = self._train(timer)
        time_s, phases = timer.stop()
        own_loss = loss.item()
        self.losses.append(own_loss)
        slowest_s, diverged = self.group.maximum([time_s, 0.0 if math.isfinite(own_loss) else 1.0])
        if diverged:
            raise TrialFailed(
                FailureKind.DIVERGED,
                f"the training loss was not finite in step {schedule.steps + 1} ({own_loss} on this rank); "
                "a lower learning rate, a warm-up or gradient clipping may help",
            )
        if schedule.next_step_is_timed:
            for phase, seconds in phases.items():
                self.phase_s[phase] += seconds
        schedule.record_step(slowest_s)

    def report(self, schedule: Schedule) -> Intermediate:
        """Return what was measured so far, and record that it was reported; every rank takes part."""
        since = self.losses[self._reported_steps :]
        (loss_sum,) = self.group.total([math.fsum(since)])
        self._reported_steps = len(self.losses)
        schedule.record_report()
        return Intermediate(
            training_time_s=schedule.training_time_s,
            timed_steps=schedule.timed_steps,
            samples_per_second=schedule.samples_per_step / schedule.step_time_s,
            loss_before=schedule.loss_before,
            training_loss=loss_sum / len(since) / self.group.world_size,
        )

    def mean_losses(self) -> tuple[float, ...]:
        """Return the training loss of each of the first `KEPT_STEPS` steps, mean over ranks; every rank takes part."""
        sums = self.group.total(self.losses[:KEPT_STEPS])
        return tuple(loss_sum / self.group.world_size for loss_sum in sums)

    def unrecorded_step(self) -> None:
        """Train one optimizer step outside of the schedule."""
        self._train(StepTimer(self.group.device))

    def measure_held_out(self, schedule: Schedule) -> None:
        """Measure the held-out loss and record it.

        Raises:
            TrialFailed: DIVERGED, on every rank alike, when it is not finite.
        """
        began_s = time.perf_counter()
        self.engine.eval()
        total, count = 0.0, 0
        with torch.no_grad():
            for batch, samples in self.held_out:
                loss = float(self._loss(batch))
                total += loss * samples if samples else 0.0
                count += samples
        self.engine.train()
        loss_sum, samples_sum = self.group.total([total, float(count)])
        loss = loss_sum / samples_sum
        self.measuring_s += time.perf_counter() - began_s
        if not math.isfinite(loss):
            advice = "a lower learning rate, a warm-up or gradient clipping may help"
            if schedule.steps == 0:
                advice = "nothing was trained yet: look at the loss function, the held-out set and the precision"
            raise TrialFailed(
                FailureKind.DIVERGED,
                f"the held-out loss was not finite after {schedule.steps} steps ({loss}); {advice}",
            )
        schedule.record_held_out(loss)

    def _loss(self, batch: Any) -> torch.Tensor:
        loss = self.workload.loss(self.engine, batch)
        if not isinstance(loss, torch.Tensor):
            raise WorkloadError(
                f"workload.loss: returned a {type(loss).__name__}; it must return a tensor of one number"
            )
        if loss.numel() != 1:
            raise WorkloadError(
                f"workload.loss: returned a tensor of shape {tuple(loss.shape)}; it must be one number (take the mean)"
            )
        return loss

    def _train(self, timer: StepTimer) -> torch.Tensor:
        micro_steps: int = self.engine.gradient_accumulation_steps()
        total: torch.Tensor = torch.zeros((), device=self.group.device)
        for _ in range(micro_steps):
            loss = self._loss(next(self.batches))
            timer.lap(FORWARD)
            self.engine.backward(loss)
            timer.lap(BACKWARD)
            self.engine.step()
            timer.lap(OPTIMIZER)
            total = total + loss.detach().float()
        return total / micro_steps
