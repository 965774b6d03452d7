"""Simulated workloads to compare searchers on.

They differ in what `autotune.evaluators.simulated` draws: model, GPUs and the links between them, coefficients, the
learning rate that suits.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune import ds_config as config_file
from autotune.evaluators.simulated import SimulatedEvaluator
from autotune.hardware import Hardware
from autotune.objective import Objective, Reference, Score
from autotune.space import SearchSpace
from autotune.study import Start
from autotune.trials import Budget, Outcome, Point, Trial, TrialRequest
from autotune_spaces import SpaceChanges, build

START = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 3},
}


HARDWARE = Hardware(
    accelerator="cuda",
    device_name="simulated",
    device_count=8,
    device_memory_bytes=16 * 10**9,
    host_memory_bytes=256 * 10**9,
    cpu_count=16,
    ranks=8,
    compute_capability=8.0,
)


TRIAL_SECONDS = 10.0


@functools.cache
def default_space() -> SearchSpace:
    """Return the default space on such hardware."""
    config = config_file.complete(START, world_size=HARDWARE.ranks)
    start = {**config_file.settings_of(config), config_file.ACTIVATION_CHECKPOINTING: False}
    return build(SpaceChanges(), HARDWARE, start=start)


@dataclass(frozen=True)
class SimulatedWorkload:
    """One of them; `score` answers without noise."""

    seed: int

    @property
    def space(self) -> SearchSpace:
        return default_space()

    @functools.cached_property
    def start(self) -> Start:
        config = config_file.complete(START, world_size=HARDWARE.ranks)
        return Start.of(config, self.space)

    @functools.cached_property
    def _evaluator(self) -> SimulatedEvaluator:
        return SimulatedEvaluator(workload_seed=self.seed, noise=0.0)

    @functools.cached_property
    def reference(self) -> Reference:
        outcome = self.measured(self.start.point)
        assert outcome.measurement is not None, "the start runs everywhere"
        return Reference.of(outcome.measurement)

    def measured(self, point: Point) -> Outcome:
        """Return what a trial of the point comes to."""
        request = self._request(point)
        return self._evaluator.evaluate(request, hosts=(), progress=lambda stage: None, cancelled=lambda: False)

    def configuration(self, point: Point) -> dict[str, Any]:
        """Return the point's whole configuration, as the performance model reads it."""
        request = self._request(point)
        return {config_file.ACTIVATION_CHECKPOINTING: request.activation_checkpointing, **request.ds_config}

    def trial(self, number: int, point: Point) -> Trial:
        """Return a finished trial of the point; number 0 is the baseline's."""
        outcome, request = self.measured(point), self._request(point)
        measurement = outcome.measurement
        return Trial(
            number=number,
            state=outcome.state,
            is_baseline=number == 0,
            point=point,
            ds_config=request.ds_config,
            activation_checkpointing=request.activation_checkpointing,
            config_hash=request.config_hash,
            outcome=outcome,
            score=Objective().score(measurement, self.reference).value if measurement else None,
        )

    def _request(self, point: Point) -> TrialRequest:
        settings = dict(self.space.settings(point))
        return TrialRequest(
            number=1,
            point=point,
            ds_config=config_file.build(self.start.ds_config, settings, world_size=HARDWARE.ranks),
            activation_checkpointing=bool(settings.get(config_file.ACTIVATION_CHECKPOINTING, False)),
            budget=Budget(seconds=TRIAL_SECONDS),
        )

    def score(self, point: Point) -> float | None:
        """Return R; None where the trial fails."""
        score = self.score_of(self.measured(point))
        return score.value if score else None

    def score_of(self, outcome: Outcome) -> Score | None:
        """Return R of what a trial came to, and its parts; None where it failed."""
        return Objective().score(outcome.measurement, self.reference) if outcome.measurement else None

    @functools.cached_property
    def optimum(self) -> tuple[Point, float]:
        """The best point that hill climbing over single levels finds from the start and three others, and its R."""
        generator = np.random.default_rng(self.seed)
        tops = [self._climb(self.space.encode(self.start.point))]
        tops += [self._climb(self.space.encode(self.space.sample(generator))) for _ in range(3)]
        best, score = max(tops, key=lambda top: top[1])
        return self.space.decode(best), score

    def _climb(self, code: tuple[int, ...]) -> tuple[tuple[int, ...], float]:
        best, score = code, self.score(self.space.decode(code)) or 0.0
        while True:
            top = max((self.score(self.space.decode(other)) or 0.0, other) for other in self._neighbours(best))
            if top[0] <= score:
                return best, score
            score, best = top

    def _neighbours(self, code: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        for position, size in enumerate(self.space.sizes):
            for index in range(size):
                if index != code[position]:
                    yield (*code[:position], index, *code[position + 1 :])
