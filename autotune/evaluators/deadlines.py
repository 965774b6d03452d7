"""Deadlines: how long each stage of a trial may take before the trial is a TIMEOUT."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.errors import CampaignError
from autotune.trials import Stage, TrialRequest

RUN_SLACK = 4.0
"""A run may take this many times what the first step lets expect: first steps are slow, machines are shared."""
RUN_FLOOR_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds that each stage may take, on every rank.

    Raises:
        CampaignError: when one is not above 0 and finite.
    """

    launch_s: float = 120.0
    """Start of the process, import of torch and DeepSpeed (a cold network disk takes a minute)."""
    rendezvous_s: float = 60.0
    initialize_s: float = 600.0
    """The workload is built and `deepspeed.initialize` runs."""
    first_step_s: float = 300.0
    """First held-out loss and first optimizer step."""
    run_s: float | None = None
    """All the other steps; None: derived from the budget and from how long the first step took."""

    def __post_init__(self) -> None:
        for name in ("launch_s", "rendezvous_s", "initialize_s", "first_step_s", "run_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise CampaignError(f"deadlines.{name}: got {value}; it must be above 0 seconds and finite")

    def limit_s(self, stage: Stage, *, request: TrialRequest, ranks: int, first_step_s: float) -> float:
        """Return the limit of one stage; `first_step_s` is how long the first step stage took in this trial."""
        if stage is Stage.RUN:
            return self.run_s if self.run_s is not None else derived_run_s(request, ranks, first_step_s)
        return float(getattr(self, name_of(stage)))

    @property
    def collective_timeout_s(self) -> float:
        """Return the time after which a collective raises: later than any deadline of the controller."""
        return max(self.rendezvous_s, self.initialize_s, self.first_step_s, self.run_s or 0.0) + 30.0


def name_of(stage: Stage) -> str:
    """Return the name of the deadline that a stage has."""
    return f"{Stage.INITIALIZE.value if stage is Stage.BUILD else stage.value}_s"


def derived_run_s(request: TrialRequest, ranks: int, first_step_s: float) -> float:
    """Return a run deadline from the budget and the time of the (slow) first step."""
    budget = request.budget
    steps = budget.steps or 0
    if budget.samples is not None:
        steps = math.ceil(budget.samples / samples_per_step(request.ds_config, ranks))
    seconds = max(budget.seconds or 0.0, request.convergence_at_s or 0.0)
    # A stage-3 trial has up to 4 warm-up steps, and the held-out loss is measured about 4 times.
    expected_s = seconds + (steps + budget.warmup_steps + 8) * first_step_s
    return RUN_FLOOR_S + RUN_SLACK * expected_s


def samples_per_step(ds_config: Mapping[str, Any], ranks: int) -> int:
    """Return the samples in one optimizer step, from whichever of DeepSpeed's batch keys are given."""
    whole = ds_config.get("train_batch_size")
    if isinstance(whole, int):
        return max(1, whole)
    micro = ds_config.get("train_micro_batch_size_per_gpu", 1)
    accumulation = ds_config.get("gradient_accumulation_steps", 1)
    return max(1, int(micro) * int(accumulation) * ranks)
