"""One rank's part in one trial, from the rendezvous to the measurement. Importing this loads torch and DeepSpeed."""

from __future__ import annotations

import importlib
import platform
import random
import time
from typing import Any

import deepspeed
import numpy as np
import torch

from autotune.errors import WorkloadError
from autotune.evaluators.rank_files import RankAssignment
from autotune.evaluators.rank_worker import batches, checkpointing, communication, engine
from autotune.evaluators.rank_worker.failures import TrialFailed
from autotune.evaluators.rank_worker.memory import PeakMemory
from autotune.evaluators.rank_worker.process_group import ProcessGroup
from autotune.evaluators.rank_worker.reporter import Reporter
from autotune.evaluators.rank_worker.schedule import Schedule
from autotune.evaluators.rank_worker.training import BACKWARD, FORWARD, OPTIMIZER, Training
from autotune.evaluators.step_times import STAGE_3_WARMUP_STEPS
from autotune.trials import FailureKind, Intermediate, Measurement, Outcome, Stage
from autotune.workload import TrainingWorkload, WorkloadContext

SETTLING_STEPS = 1
STAGE_3_SETTLING_STEPS = 2
SEED_STRIDE = 1_000_003
"""Keeps the random streams of ranks (dropout) apart from one another and from those of neighbouring seeds."""


def run_trial(
    assignment: RankAssignment, reporter: Reporter, workload: TrainingWorkload | None = None
) -> Outcome | None:
    """Run this rank's part; return the measurement on rank 0, None on the others.

    Args:
        assignment: what to do.
        reporter: hears the stages.
        workload: what `build_workload` returned just before, in this process or in the one it was forked from.
    """
    request = assignment.request
    device = "cpu" if assignment.device == "cpu" else f"cuda:{torch.cuda.current_device()}"
    group = ProcessGroup(rank=assignment.rank, world_size=assignment.world_size, device=device)
    reporter.enter(Stage.RENDEZVOUS)
    group.join(assignment.collective_timeout_s)
    reporter.enter(Stage.INITIALIZE)
    training = _training(assignment, group, reporter, workload or build_workload(assignment, device))
    effective = engine.effective_config(training.engine, assignment.world_size)
    engine.check_as_sent(request.ds_config, effective)
    reporter.enter(Stage.FIRST_STEP)
    stage_3 = effective["zero_optimization.stage"] == 3
    schedule = Schedule(
        budget=request.budget,
        convergence_at_s=request.convergence_at_s,
        warmup_steps=max(request.budget.warmup_steps, STAGE_3_WARMUP_STEPS if stage_3 else 0),
        settling_steps=STAGE_3_SETTLING_STEPS if stage_3 else SETTLING_STEPS,
        samples_per_step=effective["train_batch_size"],
    )
    memory = PeakMemory(device)
    _train(training, schedule, memory, reporter)
    return _measured(training, schedule, memory, effective)


def _training(
    assignment: RankAssignment, group: ProcessGroup, reporter: Reporter, workload: TrainingWorkload
) -> Training:
    request = assignment.request
    if request.activation_checkpointing:
        checkpointing.switch_on(workload)
    built = engine.build(workload.model, request.ds_config, reporter)
    _seed(request.seed * SEED_STRIDE + assignment.rank)
    share = {"rank": assignment.rank, "world_size": assignment.world_size}
    stream = batches.training_batches(
        workload,
        batch_size=built.train_micro_batch_size_per_gpu(),
        seed=request.seed,
        device=group.device,
        **share,
    )
    held_out = batches.held_out_batches(workload, device=group.device, **share)
    return Training(engine=built, workload=workload, batches=stream, held_out=held_out, group=group)


def _train(training: Training, schedule: Schedule, memory: PeakMemory, reporter: Reporter) -> None:
    training.measure_held_out(schedule)
    memory.start()
    course: list[Intermediate] = []
    while not schedule.is_over:
        training.step(schedule)
        if schedule.steps == 1:
            reporter.enter(Stage.RUN)
        if schedule.report_is_due:
            course.append(training.report(schedule))
            reporter.report(course)
        if schedule.evaluation_is_due:
            training.measure_held_out(schedule)
    (skipped,) = training.group.maximum([training.engine.skipped_steps])
    if skipped >= schedule.steps:
        raise TrialFailed(
            FailureKind.DIVERGED,
            f"the loss scaler skipped every one of {schedule.steps} optimizer steps: nothing was learned; "
            "a lower fp16.initial_scale_power, bf16 or a longer budget may help",
        )


def _measured(training: Training, schedule: Schedule, memory: PeakMemory, effective: dict[str, Any]) -> Outcome | None:
    group = training.group
    peaks = group.from_each_rank(memory.peak_bytes())
    (loss_sum,) = group.total([training.losses[-1]])
    training_losses = training.mean_losses()
    skipped_steps = training.engine.skipped_steps
    profiled_from_s = time.perf_counter()
    communication_s = communication.seconds_per_step(training.unrecorded_step, group.device)
    measuring_s = training.measuring_s + time.perf_counter() - profiled_from_s
    if group.rank != 0:
        return None
    samples_per_second = schedule.samples_per_step / schedule.step_time_s
    tokens = training.workload.tokens_per_sample
    trained_parameters, total_parameters = engine.parameter_counts(training.engine)
    phase_s = {phase: training.phase_s[phase] / schedule.timed_steps for phase in (FORWARD, BACKWARD, OPTIMIZER)}
    measurement = Measurement(
        samples_per_second=samples_per_second,
        samples_per_second_spread=schedule.spread,
        step_time_s=schedule.step_time_s,
        timed_steps=schedule.timed_steps,
        warmup_steps=schedule.warmup_steps,
        samples_per_step=schedule.samples_per_step,
        training_time_s=schedule.training_time_s,
        held_out_loss_before=schedule.loss_before,
        held_out_loss_after=schedule.loss_at_convergence_time,
        convergence_time_s=schedule.convergence_time_s,
        training_loss_last=loss_sum / group.world_size,
        tokens_per_second=samples_per_second * tokens if tokens else None,
        peak_memory_bytes=tuple(int(peak) for peak in peaks),
        memory_kind=memory.kind,
        forward_s=phase_s[FORWARD],
        backward_s=phase_s[BACKWARD],
        optimizer_s=phase_s[OPTIMIZER],
        communication_s=communication_s,
        measuring_s=measuring_s,
        steps_s=schedule.steps_s,
        skipped_steps=skipped_steps,
        trained_parameters=trained_parameters,
        total_parameters=total_parameters,
        effective_config=effective,
        versions={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "deepspeed": deepspeed.__version__,
        },
        step_time_interval=schedule.interval,
        ended_by=schedule.ended_by,
        step_times_s=schedule.step_times_s,
        training_losses=training_losses,
    )
    return Outcome(measurement=measurement)


def build_workload(assignment: RankAssignment, device: str) -> TrainingWorkload:
    """Seed the random generators and build the workload.

    Raises:
        WorkloadError: when its function returns something else, or a model that can't be trained.
    """
    _seed(assignment.request.seed)
    reference = assignment.workload
    module, _, name = reference.import_path.partition(":")
    function = getattr(importlib.import_module(module), name)
    context = WorkloadContext(
        seed=assignment.request.seed,
        rank=assignment.rank,
        world_size=assignment.world_size,
        device=device,
        arguments=reference.arguments,
    )
    workload = function(context)
    if not isinstance(workload, TrainingWorkload):
        raise WorkloadError(
            f"{reference.function}: returned a {type(workload).__name__}; it must return an "
            "autotune.workload.TrainingWorkload"
        )
    _check_model(workload.model, reference.function)
    return workload


def _check_model(model: Any, function: str) -> None:
    if not isinstance(model, torch.nn.Module):
        raise WorkloadError(f"{function}: model is a {type(model).__name__}; it must be a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise WorkloadError(f"{function}: no parameter of the model requires a gradient, so there is nothing to train")


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - workloads may draw from the global generators
    torch.manual_seed(seed)
