"""A simulated evaluator: trials answered by the performance model, for testing searchers, resume and reports quickly.

Its figures say nothing about your hardware: model, machines and coefficients are drawn by a seed. They behave as
`autotune.performance` says: memory by part, phases of the step, communication, critical batch, divergence.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune import dotted, sizes
from autotune.evaluators.protocol import RankHost, ShouldPrune, never_prune
from autotune.evaluators.simulated_workload import LIKELY_DIVERGENCE, SimulatedWorkload, drawn
from autotune.performance import Cluster, Configurations, Estimate, ModelShape, estimate
from autotune.performance.learning_curve import loss_drop, useful_tokens
from autotune.space import ACCUMULATION, MICRO_BATCH
from autotune.trials import Failure, FailureKind, Measurement, Outcome, Stage, TrialRequest

SLOWEST = 1.0
"""An outlier takes up to so much longer: another job on the machine for a while."""
DOUBT = 0.5 - LIKELY_DIVERGENCE
"""Around 1/2: where the divergence probability lies in between, the seed of the trial decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedEvaluator:
    """Answers from the performance model, the same for the same request; `workload_seed` draws another workload."""

    workload_seed: int = 0
    noise: float = 0.02
    """Relative standard deviation of the step time; 0: exact, without outliers either."""
    outliers: float = 0.01
    """Share of trials that are slower than they should be, by up to `SLOWEST`."""
    memory_bytes: float | None = None
    """What one simulated device holds; None: as much as the device that was drawn."""
    shape: ModelShape | None = None
    """The model; None: drawn. Its fields must be single numbers."""
    cluster: Cluster | None = None
    """The machines; None: drawn, with as many ranks as a trial's configuration is for."""

    @property
    def ranks(self) -> int:
        return 0

    def prepare(self, ds_configs: Sequence[Mapping[str, object]], progress: Callable[[str], None]) -> None:
        """Nothing to prepare."""

    def evaluate(
        self,
        request: TrialRequest,
        *,
        hosts: Sequence[RankHost],
        progress: Callable[[Stage], None],
        cancelled: Callable[[], bool],
        should_prune: ShouldPrune = never_prune,
    ) -> Outcome:
        progress(Stage.RUN)
        workload = self._workload(request)
        found = self._estimate(request, workload)
        capacity, margin = float(found.memory.capacity_bytes), float(found.memory.margin_bytes)
        if found.memory.out_of_memory:
            reason = f"simulated: {sizes.text(capacity - margin)} are more than the {sizes.text(capacity)} of a device"
            if margin >= 0:
                short = sizes.text(-float(found.memory.host_margin_bytes))
                reason = f"simulated: the host's memory is short of {short}"
            return _failed(FailureKind.OUT_OF_MEMORY, reason)
        generator = self._generator(request)
        slow = self._slowness(generator)
        if found.convergence.divergence_probability > 0.5 + DOUBT * generator.uniform(-1.0, 1.0):
            reason = "simulated: the loss is not finite, the learning rate is too high"
            return _failed(FailureKind.DIVERGED, reason)
        return Outcome(measurement=self._measurement(request, workload, found, slow))

    def _workload(self, request: TrialRequest) -> SimulatedWorkload:
        config = request.ds_config
        ranks = int(config["train_batch_size"]) // (int(config[MICRO_BATCH]) * int(config[ACCUMULATION]))
        return drawn(self.workload_seed, ranks, self.shape, self.cluster)

    def _estimate(self, request: TrialRequest, workload: SimulatedWorkload) -> Estimate:
        point = {"activation_checkpointing": request.activation_checkpointing, **dotted.leaves(request.ds_config)}
        asked = Configurations.from_points([point], flash_attention=workload.flash_attention)
        machines = workload.cluster
        if self.memory_bytes is not None:
            machines = replace(machines, device=replace(machines.device, memory_bytes=self.memory_bytes))
        return estimate(workload.shape, machines, asked[np.array(0)], workload.coefficients)

    def _generator(self, request: TrialRequest) -> np.random.Generator:
        name = f"{self.workload_seed}/{request.seed}/{request.config_hash}/{request.repeat}"
        digest = hashlib.sha256(name.encode()).digest()
        return np.random.default_rng(int.from_bytes(digest[:8], "big"))

    def _slowness(self, generator: np.random.Generator) -> float:
        """Return the factor that noise puts on the step time: 1 without."""
        factor = math.exp(self.noise * generator.standard_normal())
        is_outlier, by = generator.uniform(size=2)
        return factor * (1.0 + SLOWEST * by) if self.noise > 0 and is_outlier < self.outliers else factor

    def _measurement(
        self, request: TrialRequest, workload: SimulatedWorkload, found: Estimate, slow: float
    ) -> Measurement:
        budget, samples = request.budget, int(request.ds_config["train_batch_size"])
        step_time_s = float(found.time.step_time_s) * slow
        steps = (
            budget.steps
            or math.ceil((budget.samples or 0) / samples)
            or max(1, int((budget.seconds or 0) / step_time_s))
        )
        time_s = request.convergence_at_s or budget.seconds or steps * step_time_s
        tokens = useful_tokens(workload.shape, found.convergence, time_s / step_time_s)
        curve = {"reach": workload.curve_reach, "scale": workload.curve_tokens, "power": workload.curve_power}
        loss = workload.first_loss * (1.0 - float(loss_drop(tokens, **curve)))
        time = found.time
        ranks = samples // (int(request.ds_config[MICRO_BATCH]) * int(request.ds_config[ACCUMULATION]))
        forward = float(time.forward_s)
        optimizer = float(time.optimizer_s + time.offload_s + time.updated_communication_s)
        return Measurement(
            samples_per_second=samples / step_time_s,
            samples_per_second_spread=self.noise,
            step_time_s=step_time_s,
            timed_steps=steps,
            warmup_steps=budget.warmup_steps,
            samples_per_step=samples,
            training_time_s=max(time_s, steps * step_time_s),
            held_out_loss_before=workload.first_loss,
            held_out_loss_after=loss,
            convergence_time_s=time_s,
            training_loss_last=loss,
            tokens_per_second=samples * float(workload.shape.sequence) / step_time_s,
            peak_memory_bytes=(int(found.memory.peak_allocated_bytes),) * ranks,
            memory_kind="simulated",
            forward_s=forward * slow,
            backward_s=step_time_s - (forward + optimizer) * slow,
            optimizer_s=optimizer * slow,
            communication_s=float(sum(part.seconds for part in found.communication.parts)) * slow,
            effective_config=dict(request.ds_config),
            versions={"evaluator": "simulated"},
            trained_parameters=int(workload.shape.trainable),
            total_parameters=int(workload.shape.parameters),
        )


def _failed(kind: FailureKind, reason: str) -> Outcome:
    return Outcome(failure=Failure(kind=kind, reason=reason, stage=Stage.RUN))
