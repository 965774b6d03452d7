"""Where the time of a real cold trial goes: 1 and 2 ranks, stages 0, 2 and 3, by stage of the trial."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping

from autotune import ds_config
from autotune.evaluators.deepspeed import DeepSpeedEvaluator
from autotune.runners.rank_process import RankProcess
from autotune.trials import Budget, TrialRequest
from autotune.workload import WorkloadReference

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "steps_per_print": 1000000,
}


def main() -> None:
    """Print one row per number of ranks and ZeRO stage."""
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (1, 2):
            evaluator = DeepSpeedEvaluator(
                workload=WorkloadReference(function="byte-gpt"), ranks=ranks, run_directory=folder
            )
            for stage in (0, 2, 3):
                print(f"trial: {ranks} ranks, stage {stage}: {measured(evaluator, stage)}", flush=True)


def measured(evaluator: DeepSpeedEvaluator, stage: int) -> str:
    """Run one trial of 20 steps and return its times in words."""
    config = ds_config.build(CONFIG, {"zero_optimization.stage": stage}, world_size=evaluator.ranks)
    request = TrialRequest(number=stage, point={}, ds_config=config, budget=Budget(steps=20))
    hosts = [RankProcess() for _ in range(evaluator.ranks)]
    outcome = evaluator.evaluate(request, hosts=hosts, progress=lambda _: None, cancelled=lambda: False)
    if outcome.measurement is None:
        return str(outcome.failure)
    steps_s = outcome.measurement.step_time_s * (outcome.measurement.timed_steps + outcome.measurement.warmup_steps)
    return f"{outcome.duration_s:.1f} s in all, {steps_s:.1f} s of it steps; {_by_stage(outcome.stage_s)}"


def _by_stage(stage_s: Mapping[str, float]) -> str:
    return ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in stage_s.items())


if __name__ == "__main__":
    main()
