"""Cases drawn by seeds: simulated workloads on GPUs and on CPUs, and configurations that users might start from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from autotune.errors import WorkloadError
from autotune.evaluators.simulated_workload import (
    CRITICAL_BATCH_TOKENS,
    CURVE_SECONDS,
    LEARNING_RATE,
    LIKELY_DIVERGENCE,
    SimulatedWorkload,
    drawn,
)
from autotune.hardware import Hardware
from autotune.performance import Configurations, ModelShape, estimate
from autotune.performance.calibration.parameters import Parameters, calibration_priors
from autotune.performance.learning_curve import useful_tokens
from autotune.performance.machines import cluster_of
from autotune.trials import Value
from autotune_envs.features import WorkloadFeatures
from autotune_envs.policy_space import policy_space
from autotune_envs.simulation.cases import Cases
from autotune_envs.simulation.grid import Rows, canonical

TRAINING = (*range(1000), *range(2000, 10_000))
"""Seeds that policies are trained on; those between are the workloads that docs/searchers.md compares searchers on."""
HELD_OUT = range(10_000, 10_064)
"""Seeds that a training's learning curve is measured on."""
RANKS = (2, 4, 8, 8, 16, 32, 64)
CPU_SHARE = 0.2
"""Of the training workloads, that are small models on CPU machines."""
STARTS = 4
"""Cases of one workload: the usual start, and random ones."""
USUAL_START: Mapping[str, Value] = {
    "zero_optimization.stage": 3,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 4,
    "optimizer.params.lr": 1e-4,
}
"""As one copies it from somewhere: all that ZeRO has, and small batches."""
TRIAL_SECONDS = (3.0, 30.0)
CPU_STEP_TIMES_S = (0.005, 1.0)
_COMPUTE_CAPABILITY = {
    "V100-SXM2-16GB": 7.0,
    "V100-SXM2/3-32GB": 7.0,
    "A100-SXM-40GB": 8.0,
    "A10G": 8.6,
    "L40S": 8.9,
    "RTX-3090": 8.6,
    "RTX-4090": 8.9,
    "H100-SXM-80GB": 9.0,
}
"""NVIDIA's table (developer.nvidia.com/cuda-gpus), of the devices that workloads are drawn with."""
_RANDOM_STARTS = 48
_RANKS_OF_STARTS = (2, 8, 18)
"""By R among so many random points: a user's start is not the best, and hardly the worst."""
_CPU_DRAWS = 64


def draw_cases(seeds: Sequence[int], *, climbs: int = 3) -> Cases:
    """Return `STARTS` cases for each seed, with their optima; the usual start's is the first of each.

    Args:
        seeds: of workloads; a seed gives the same workload and starts whatever the others are.
        climbs: coordinate ascents towards each optimum; eight find a better one than three in one case of eight.
    """
    workloads: list[SimulatedWorkload] = []
    features: list[WorkloadFeatures] = []
    seconds: list[float] = []
    for seed in seeds:
        generator = np.random.default_rng((seed, 1))
        on_cpu = generator.uniform() < CPU_SHARE
        workload = drawn_on_cpu(seed) if on_cpu else drawn(seed, int(generator.choice(RANKS)))
        workloads.append(workload)
        features.append(features_of(workload))
        low, high = TRIAL_SECONDS
        seconds += [math.exp(generator.uniform(math.log(low), math.log(high))) for _ in range(STARTS)]
    usual = policy_space().encode({**_defaults(), **USUAL_START})
    begun = Cases.of(workloads, features, np.tile(usual, (len(seeds), 1)), np.full(len(seeds), 1.0))
    starts = _starts(begun, seeds)
    cases = Cases.of(
        [workload for workload in workloads for _ in range(STARTS)],
        [known for known in features for _ in range(STARTS)],
        starts.reshape(-1, starts.shape[-1]),
        np.array(seconds),
    )
    return cases.with_optimum(np.random.default_rng((len(seeds), *seeds[:1], 2)), climbs=climbs)


def features_of(workload: SimulatedWorkload) -> WorkloadFeatures:
    """Return what a study of a workload knows of it when its baseline has run."""
    machines, shape = workload.cluster, workload.shape
    on_cpu = float(np.asarray(machines.device.is_cpu)) > 0
    memory_bytes = machines.host_memory_bytes if on_cpu else machines.device.memory_bytes
    return WorkloadFeatures(
        cuda=not on_cpu,
        ranks=round(float(np.asarray(machines.devices))),
        device_count=1 if on_cpu else round(float(np.asarray(machines.devices_per_node))),
        device_memory_bytes=round(float(np.asarray(memory_bytes))),
        compute_capability=_COMPUTE_CAPABILITY.get(machines.device.name),
        parameter_count=round(float(np.asarray(shape.parameters))),
        tokens_per_sample=round(float(np.asarray(shape.sequence))),
    )


def drawn_on_cpu(seed: int) -> SimulatedWorkload:
    """Return a small language model on a CPU machine: memory is no limit there, and batches need not be large.

    Coefficients and rates come from the priors that calibration has for CPUs.

    Raises:
        WorkloadError: when no draw trains; the priors would have to change for that.
    """
    generator = np.random.default_rng((seed, 3))
    for _ in range(_CPU_DRAWS):
        found = _on_cpu(generator)
        if found is not None:
            return found
    raise WorkloadError(f"simulated: got seed {seed}, for which no workload on a CPU can be drawn; take another")


def _on_cpu(generator: np.random.Generator) -> SimulatedWorkload | None:
    def log_uniform(low: float, high: float) -> float:
        return math.exp(generator.uniform(math.log(low), math.log(high)))

    ranks = int(generator.choice((2, 2, 4, 8)))
    cores, memory_bytes = round(ranks * log_uniform(1, 16)), round(log_uniform(8e9, 256e9))
    machine = Hardware(
        accelerator="cpu",
        device_name="CPU",
        device_count=1,
        device_memory_bytes=memory_bytes,
        host_memory_bytes=memory_bytes,
        cpu_count=cores,
        ranks=ranks,
    )
    known = calibration_priors(is_cpu=True)
    shown = generator.standard_normal(len(known)) * [prior.spread for prior in known.values()]
    logarithms = np.log([prior.mean for prior in known.values()]) + shown
    parameters = Parameters.from_logarithms(logarithms, names=list(known))
    shape = ModelShape.from_numbers(
        parameters=log_uniform(2e5, 3e7),
        sequence=float(generator.choice((32, 64, 128, 256))),
        vocabulary=float(generator.choice((256, 2_000, 8_000))),
    )
    coefficients = replace(
        parameters.coefficients,
        critical_batch_tokens=log_uniform(*CRITICAL_BATCH_TOKENS),
        learning_rate=float(np.asarray(parameters.coefficients.learning_rate)) * log_uniform(*LEARNING_RATE),
    )
    machines = parameters.on(cluster_of(machine))
    flash, curve_s = float(generator.integers(2)), log_uniform(*CURVE_SECONDS)
    start = Configurations(
        stage=3.0, micro_batch=4.0, accumulation=4.0, learning_rate=1e-4, overlap_comm=0.0, flash_attention=flash
    )
    found = estimate(shape, machines, start, coefficients)
    step_s = float(found.time.step_time_s)
    fastest, slowest = CPU_STEP_TIMES_S
    if bool(found.memory.out_of_memory) or not fastest <= step_s <= slowest:
        return None
    if float(found.convergence.divergence_probability) > LIKELY_DIVERGENCE:
        return None
    return SimulatedWorkload(
        shape=shape,
        cluster=machines,
        coefficients=coefficients,
        flash_attention=flash,
        first_loss=math.log(float(np.asarray(shape.vocabulary))) * 1.01,
        curve_reach=float(generator.uniform(0.35, 0.6)),
        curve_tokens=float(useful_tokens(shape, found.convergence, curve_s / step_s)),
        curve_power=float(generator.uniform(0.3, 0.8)),
    )


def _defaults() -> dict[str, Value]:
    return {dimension.name: dimension.default for dimension in policy_space().dimensions}


def _starts(cases: Cases, seeds: Sequence[int]) -> Rows:
    """Return starting configurations that train, shape (cases, STARTS, dimensions), the usual one first."""
    sizes = np.array(policy_space().sizes)
    random = np.stack(
        [np.random.default_rng((seed, 4)).integers(sizes, size=(_RANDOM_STARTS, len(sizes))) for seed in seeds]
    )
    tried = canonical(random.reshape(-1, len(sizes)))
    rows = np.repeat(np.arange(len(cases)), _RANDOM_STARTS)
    values = cases.values(rows, tried).reshape(len(cases), _RANDOM_STARTS)
    tried = tried.reshape(len(cases), _RANDOM_STARTS, len(sizes))
    order = np.argsort(-values, axis=1, kind="stable")[:, _RANKS_OF_STARTS]
    chosen = np.take_along_axis(tried, order[:, :, None], axis=1)
    trains = np.take_along_axis(values, order, axis=1) > 0
    usual = cases.baseline[:, None, :]
    return np.concatenate([usual, np.where(trains[:, :, None], chosen, usual)], axis=1)
