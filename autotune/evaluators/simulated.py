"""A simulated evaluator: a simple, made-up workload, for testing searchers, resume and reports in milliseconds.

Its figures mean nothing for real hardware: the shape is plausible (saturating micro-batch, stages that trade
communication for memory, an optimum of the learning rate that moves with the batch), the constants are chosen.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune import ds_config as config_file
from autotune.evaluators.protocol import RankHost, ShouldPrune, never_prune
from autotune.space import ACCUMULATION, MICRO_BATCH
from autotune.trials import Failure, FailureKind, Measurement, Outcome, Stage, TrialRequest

_STAGE_SLOWDOWN = (1.0, 1.04, 1.10, 1.45)
_PRECISION_SPEED = {"fp32": 1.0, "bf16": 1.6, "fp16": 1.7}
_LOSS_START = 5.5
_LOSS_FLOOR = 1.4


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedEvaluator:
    """Answers from a closed formula, the same for the same request; `workload_seed` draws another workload."""

    workload_seed: int = 0
    noise: float = 0.02
    """Relative standard deviation of the step time."""
    memory_bytes: float = 16e9
    """What one simulated device holds."""
    parameters: float = 4e8

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
        config = request.ds_config
        memory = self._peak_memory_bytes(config, checkpointing=request.activation_checkpointing)
        if memory > self.memory_bytes:
            reason = f"simulated: {memory / 1e9:.1f} GB are more than the {self.memory_bytes / 1e9:.1f} GB of a device"
            return _failed(FailureKind.OUT_OF_MEMORY, reason)
        step_time_s = self._step_time_s(config, checkpointing=request.activation_checkpointing)
        generator = self._generator(request)
        step_time_s *= math.exp(self.noise * generator.standard_normal())
        samples = int(config["train_batch_size"])
        budget = request.budget
        steps = (
            budget.steps
            or math.ceil((budget.samples or 0) / samples)
            or max(1, int((budget.seconds or 0) / step_time_s))
        )
        time_s = request.convergence_at_s or budget.seconds or steps * step_time_s
        loss = self._loss(config, updates=time_s / step_time_s)
        if loss is None:
            return _failed(FailureKind.DIVERGED, "simulated: the loss is not finite, the learning rate is too high")
        return Outcome(
            measurement=Measurement(
                samples_per_second=samples / step_time_s,
                samples_per_second_spread=self.noise,
                step_time_s=step_time_s,
                timed_steps=steps,
                warmup_steps=budget.warmup_steps,
                samples_per_step=samples,
                training_time_s=max(time_s, steps * step_time_s),
                held_out_loss_before=_LOSS_START,
                held_out_loss_after=loss,
                convergence_time_s=time_s,
                training_loss_last=loss,
                peak_memory_bytes=(int(memory),),
                memory_kind="simulated",
                effective_config=dict(config),
                versions={"evaluator": "simulated"},
            )
        )

    def _generator(self, request: TrialRequest) -> np.random.Generator:
        name = f"{self.workload_seed}/{request.seed}/{request.config_hash}/{request.repeat}"
        digest = hashlib.sha256(name.encode()).digest()
        return np.random.default_rng(int.from_bytes(digest[:8], "big"))

    def _character(self) -> np.ndarray:
        """Return what this workload is like, shape (3,): saturation batch, critical batch, best rate (log2 factors)."""
        return np.random.default_rng(self.workload_seed).uniform(-1.5, 1.5, size=3)

    def _step_time_s(self, config: Mapping[str, object], *, checkpointing: bool) -> float:
        micro, accumulation = int(str(config[MICRO_BATCH])), int(str(config[ACCUMULATION]))
        stage = int(config_file.get(config, config_file.STAGE) or 0)
        saturation = 8 * 2 ** float(self._character()[0])
        micro_step_s = 0.004 * (micro + saturation) / _PRECISION_SPEED[config_file.precision_of(config)]
        micro_step_s *= _STAGE_SLOWDOWN[stage] * (1.3 if checkpointing else 1.0)
        bucket = float(config_file.get(config, "zero_optimization.reduce_bucket_size") or 5e8)
        communication_s = 0.03 * (1 + 1e6 / bucket) * (accumulation if stage >= 2 else 1)
        if config_file.get(config, "zero_optimization.overlap_comm"):
            communication_s *= 0.4
        if stage == 3:
            threshold = float(config_file.get(config, "zero_optimization.stage3_param_persistence_threshold") or 0)
            communication_s *= 1.5 - 0.05 * math.log10(1 + threshold)
        if config_file.get(config, "zero_optimization.offload_optimizer.device") == "cpu":
            communication_s += 0.05
        return micro_step_s * accumulation + communication_s

    def _peak_memory_bytes(self, config: Mapping[str, object], *, checkpointing: bool) -> float:
        micro, stage = int(str(config[MICRO_BATCH])), int(config_file.get(config, config_file.STAGE) or 0)
        ranks = int(str(config["train_batch_size"])) // (micro * int(str(config[ACCUMULATION])))
        offloaded = config_file.get(config, "zero_optimization.offload_optimizer.device") == "cpu"
        optimizer = 0 if offloaded else 12 * self.parameters / (ranks if stage >= 1 else 1)
        gradients = 2 * self.parameters / (ranks if stage >= 2 else 1)
        weights = 2 * self.parameters / (ranks if stage >= 3 else 1)
        per_sample = 2.5e8 * (0.3 if checkpointing else 1.0) / _PRECISION_SPEED[config_file.precision_of(config)]
        return float(optimizer + gradients + weights + micro * per_sample)

    def _loss(self, config: Mapping[str, object], *, updates: float) -> float | None:
        """Return the held-out loss after so many updates; None when training diverges."""
        _, critical, best = (float(factor) for factor in self._character())
        samples = int(str(config["train_batch_size"]))
        rate = float(config_file.get(config, config_file.LEARNING_RATE) or 1e-3)
        critical_batch = 64 * 2**critical
        best_rate = 1e-3 * 2**best * math.sqrt(samples / (samples + critical_batch))
        distance = math.log(rate / best_rate)
        if distance > math.log(12):
            return None
        progress = updates * samples / (samples + critical_batch) * math.exp(-0.5 * distance**2)
        return _LOSS_FLOOR + (_LOSS_START - _LOSS_FLOOR) / math.sqrt(1 + 0.1 * progress)


def _failed(kind: FailureKind, reason: str) -> Outcome:
    return Outcome(failure=Failure(kind=kind, reason=reason, stage=Stage.RUN))
