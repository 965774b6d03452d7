"""The memory filter on simulated studies: what it would have refused, and whether rightly."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune import campaign as campaigns
from autotune.campaign.calibrating import subject_of
from autotune.evaluators.simulated import SimulatedEvaluator
from autotune.evaluators.simulated_workload import drawn
from autotune.hardware import Hardware
from autotune.objective import Objective
from autotune.performance import ModelShape
from autotune.performance.calibration import calibrate
from autotune.performance.memory_filter import MemoryFilter, MemoryVerdicts
from autotune.searchers.memory_filtered import MemoryFiltered
from autotune.searchers.optuna import OptunaSearcher
from autotune.searchers.protocol import Searcher
from autotune.searchers.refusals import Refusal
from autotune.storage import StoredStudy, connect
from autotune.study import Start, Study
from autotune.trials import Budget, FailureKind, Trial
from tests.benchmarks.simulated_workloads import SimulatedWorkload

RANKS = 8
HARDWARE = Hardware(
    accelerator="cuda",
    device_name="drawn",
    device_count=RANKS,
    device_memory_bytes=80 * 2**30,
    host_memory_bytes=10**12,
    cpu_count=64,
    ranks=RANKS,
    compute_capability=9.0,
)
CAMPAIGN = {
    "name": "filtered",
    "evaluator": "simulated",
    "hardware": {"ranks": RANKS, "accelerator": "cpu"},
    "ds_config": {"train_batch_size": 8 * RANKS, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}},
}


@functools.cache
def ran(seed: int, points: int, *, noise: float = 0.02) -> tuple[Trial, ...]:
    """Return the trials of random points of the whole default space, the start first."""
    evaluator, requests = SimulatedEvaluator(workload_seed=seed, noise=noise), _requests(points)
    trials = []
    for number, request in enumerate(requests):
        outcome = evaluator.evaluate(request, hosts=(), progress=lambda _: None, cancelled=lambda: False)
        trials.append(
            Trial(
                number=number,
                state=outcome.state,
                is_baseline=number == 0,
                point=request.point,
                ds_config=request.ds_config,
                activation_checkpointing=request.activation_checkpointing,
                config_hash=request.config_hash,
                outcome=outcome,
            )
        )
    return tuple(trials)


def is_out(trial: Trial) -> bool:
    """Whether a trial ran out of memory."""
    return trial.failure is not None and trial.failure.kind is FailureKind.OUT_OF_MEMORY


def filter_of(seed: int, trials: Sequence[Trial]) -> MemoryFilter:
    """Return the filter that is calibrated to some trials of a workload; to none, the priors'."""
    workload = drawn(seed, RANKS)
    fixed = {"flash_attention": workload.flash_attention}
    if not trials:
        return MemoryFilter.uncalibrated(workload.shape, workload.cluster, **fixed)
    found = calibrate(trials, workload.shape, workload.cluster, **fixed)
    return MemoryFilter.of(workload.shape, found, **fixed)


def counted(seed: int, *, calibrated_to: int, points: int) -> tuple[int, int, int, int]:
    """Return how many trials were judged, how many of them ran out of memory, and were refused, rightly and wrongly."""
    trials = ran(seed, points)
    judged = trials[calibrated_to:]
    verdicts = filter_of(seed, trials[:calibrated_to]).judge(
        [{"activation_checkpointing": each.activation_checkpointing, **each.ds_config} for each in judged]
    )
    out = [is_out(trial) for trial in judged]
    caught = sum(bool(refused) for refused, lacks in zip(verdicts.refused, out, strict=True) if lacks)
    wrong = sum(bool(refused) for refused, lacks in zip(verdicts.refused, out, strict=True) if not lacks)
    return len(judged), sum(out), caught, wrong


@functools.cache
def _requests(points: int) -> list:
    campaign = campaigns.parse(CAMPAIGN, where="test")
    space = campaigns.space_of(campaign, HARDWARE)
    config, _ = campaigns.start_config(campaign, HARDWARE)
    storage = connect("sqlite:///:memory:")
    study = Study(
        stored=storage.create("requests", {}),
        space=space,
        start=Start.of(config, space),
        objective=Objective(),
        runner=None,
        budget=Budget(seconds=10),
        trial_budget=1,
        world_size=RANKS,
    )
    searcher = OptunaSearcher(space, sampler="random", seed=1)
    requests = [study.request({}, is_baseline=True), *(study.request(searcher.ask()) for _ in range(points - 1))]
    storage.close()
    return requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """One simulated campaign, with or without the memory filter in front of its searcher."""

    scores: tuple[float | None, ...]
    """R of each trial, None where it failed; the start's first."""
    out: int
    """Trials that ran out of memory."""
    refused: int
    wrong: int
    """Of those refused, how many fit after all, as the simulator says."""


def searched(seed: int, *, sampler: str, trials: int, with_filter: bool, knows_shape: bool = True) -> Searched:
    """Let a searcher propose trials of a simulated workload.

    Args:
        seed: of the workload and of the searcher.
        sampler: Optuna's.
        trials: after the start's.
        with_filter: whether the memory filter is in front.
        knows_shape: whether the filter is given the shape and the attention, or has to guess them from the number of
            parameters, as of a training script (`autotune.campaign.calibrating.subject_of`).
    """
    simulated = SimulatedWorkload(seed)
    refusals: list[Refusal] = []
    searcher: Searcher = OptunaSearcher(simulated.space, sampler=sampler, seed=seed)
    if with_filter:
        searcher = MemoryFiltered(
            searcher,
            simulated.space,
            configured=simulated.configuration,
            calibrated=functools.partial(_calibrated, seed, knows_shape),
            refused=lambda every: refusals.__setitem__(slice(None), every),
        )
    told = [simulated.trial(0, simulated.start.point)]
    searcher.restore({}, told)
    for number in range(1, trials + 1):
        told.append(simulated.trial(number, searcher.ask()))
        searcher.tell(told[-1])
    wrong = [each for each in refusals if not is_out(simulated.trial(0, each.point))]
    return Searched(
        scores=tuple(trial.score for trial in told), out=sum(map(is_out, told)), refused=len(refusals), wrong=len(wrong)
    )


def _calibrated(seed: int, knows_shape: bool, trials: Sequence[Trial]) -> MemoryFilter | None:
    workload = drawn(seed, RANKS)
    shape, fixed = workload.shape, {"flash_attention": workload.flash_attention}
    if not knows_shape:
        numbers = {"parameters": float(shape.parameters), "sequence": float(shape.sequence), "vocabulary": 32_000.0}
        shape, fixed = ModelShape.from_numbers(**numbers), {}
    judge = MemoryFilter.of(shape, calibrate(trials, shape, workload.cluster, **fixed), **fixed)
    return None if judge.is_contradicted(trials) else judge


def hindsight(stored: StoredStudy) -> list[tuple[Trial, MemoryVerdicts]]:
    """Return what the filter would have said of each trial of a real study but the first, before it ran.

    It is calibrated to all trials before, at each: no later than a campaign would be.
    """
    campaign, hardware, trials = campaigns.campaign_of(stored), campaigns.recorded_hardware(stored), stored.trials()
    judged = []
    for place, trial in enumerate(trials[1:], 1):
        subject = subject_of(campaign, hardware, trials[:place])
        found = calibrate(trials[:place], subject.shape, subject.cluster, **subject.fixed)
        point = {"activation_checkpointing": trial.activation_checkpointing, **trial.ds_config}
        judge = MemoryFilter.of(subject.shape, found, **subject.fixed)
        verdict = judge.judge([point])
        if judge.is_contradicted(trials[:place]):
            verdict = replace(verdict, refused=np.array([False]))
        judged.append((trial, verdict))
    return judged
