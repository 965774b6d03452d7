"""The workloads that simulated trials train: drawn by a seed, from plausible models, machines and coefficients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autotune.errors import WorkloadError
from autotune.performance import Cluster, Coefficients, Configurations, ModelShape, cluster, device, estimate

DEVICES = (
    "V100-SXM2-16GB",
    "V100-SXM2/3-32GB",
    "A100-SXM-40GB",
    "A10G",
    "L40S",
    "RTX-3090",
    "RTX-4090",
    "H100-SXM-80GB",
)
"""Of the hardware table: from a gaming card to a data centre's."""
NETWORKS_GBPS = (10.0, 25.0, 100.0, 200.0, 400.0)
"""Between nodes: Ethernet of clouds up to InfiniBand."""
SEQUENCES = (128.0, 256.0, 512.0, 1024.0)
VOCABULARIES = (8_000.0, 16_000.0, 32_000.0, 50_257.0)
STATES_SHARE = (0.25, 0.95)
"""Of a device's memory, taken by the 16 bytes per parameter of training in fp32 with Adam: partitioning and offloading
must have something to win."""
LARGEST_MICRO_BATCH = (9.0, 40.0)
"""What fits on a device in fp32 at stage 0; workloads with more or less are not drawn."""
START = Configurations(micro_batch=8.0, learning_rate=1e-3)
"""As a tutorial would begin; it must fit and learn, or there would be nothing to compare with."""
START_RANKS = 2
LIKELY_DIVERGENCE = 0.35
"""The start's divergence probability must be below, also at `SMALL_START`; a trial below it never diverges."""
SMALL_START = 4.0
"""Samples per rank: smaller batches bear smaller learning rates."""
STEP_TIMES_S = (0.02, 1.0)
"""Of the start, so that a few seconds hold a good many steps, as in a real trial."""
CURVE_SECONDS = (4.0, 100.0)
"""After so much training at the start's configuration the learning curve bends."""
CRITICAL_BATCH_TOKENS = (1e3, 3e5)
"""Trials see the first seconds of a training, where it is smaller than the prior's: the recorded trials of the tests
fit 250 and 1,400 tokens."""
LEARNING_RATE = (1.0, 6.0)
"""Factor on the prior's: those trials fit 2.6 and 2.9 times Kaplan's rate."""
CANDIDATES = 256
DRAWS = 8
"""Times that so many candidates are drawn; for the sets above, the first or second has one that suits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedWorkload:
    """What a seed stands for; searchers don't see it."""

    shape: ModelShape
    cluster: Cluster
    """Of so many ranks as the trial's configuration is for."""
    coefficients: Coefficients
    flash_attention: float
    first_loss: float
    """An untrained model's: ln V and a little, in nats."""
    curve_reach: float
    curve_tokens: float
    curve_power: float


@lru_cache(maxsize=256)
def drawn(seed: int, ranks: int, shape: ModelShape | None = None, machines: Cluster | None = None) -> SimulatedWorkload:
    """Return the workload of a seed on so many ranks; what is given is not drawn.

    Coefficients come from the priors of `autotune.performance`, model and machines from the sets above. Of the draws
    the first is taken that makes a tuning problem: the start fits and learns, and memory is scarce.

    Raises:
        WorkloadError: when no draw does, for a shape or machines that were given.
    """
    generator = np.random.default_rng(seed)
    for _ in range(DRAWS):
        found = _first(generator, ranks, shape, machines)
        if found is not None:
            return found
    raise WorkloadError(
        f"simulated: got {shape} on {machines}, for which no simulated workload can be made: "
        "a micro-batch of 9 to 40 samples must fill a device; choose another shape or other machines"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draw:
    """One draw of everything but the machines' number."""

    device: str
    nodes: int
    network_gbps: float
    shape: ModelShape
    flash_attention: float


def _first(
    generator: np.random.Generator, ranks: int, shape: ModelShape | None, machines: Cluster | None
) -> SimulatedWorkload | None:
    draws = [_draw(generator, shape) for _ in range(CANDIDATES)]
    coefficients = Coefficients.sample(generator, CANDIDATES)
    coefficients = replace(
        coefficients,
        critical_batch_tokens=_log_uniform(generator, CRITICAL_BATCH_TOKENS, (CANDIDATES, 1)),
        learning_rate=coefficients.learning_rate * _log_uniform(generator, LEARNING_RATE, (CANDIDATES, 1)),
    )
    reach, power = generator.uniform(0.35, 0.6, CANDIDATES), generator.uniform(0.3, 0.8, CANDIDATES)
    curve_s = _log_uniform(generator, CURVE_SECONDS, (CANDIDATES,))
    for place, draw in enumerate(draws):
        own = _member(coefficients, place)
        there = machines or _machines(draw, START_RANKS)
        tokens = _suits(draw, there, own)
        if tokens is not None:
            return SimulatedWorkload(
                shape=draw.shape,
                cluster=machines or _machines(draw, ranks),
                coefficients=own,
                flash_attention=draw.flash_attention,
                first_loss=math.log(float(draw.shape.vocabulary)) * 1.01,
                curve_reach=float(reach[place]),
                curve_tokens=float(tokens * curve_s[place]),
                curve_power=float(power[place]),
            )
    return None


def _draw(generator: np.random.Generator, shape: ModelShape | None) -> _Draw:
    name = str(generator.choice(DEVICES))
    share = float(_log_uniform(generator, STATES_SHARE, ()))
    return _Draw(
        device=name,
        nodes=int(generator.choice((1, 1, 2, 4))),
        network_gbps=float(generator.choice(NETWORKS_GBPS)),
        shape=shape
        or ModelShape.from_numbers(
            parameters=share * float(device(name).memory_bytes) / 16.0,
            sequence=float(generator.choice(SEQUENCES)),
            vocabulary=float(generator.choice(VOCABULARIES)),
        ),
        flash_attention=float(generator.integers(2)),
    )


def _log_uniform(
    generator: np.random.Generator, bounds: tuple[float, float], size: tuple[int, ...]
) -> NDArray[np.float64]:
    low, high = (math.log(bound) for bound in bounds)
    return np.exp(generator.uniform(low, high, size))


def _machines(draw: _Draw, ranks: int) -> Cluster:
    nodes = min(draw.nodes, ranks)
    return cluster(
        draw.device, devices=ranks, devices_per_node=math.ceil(ranks / nodes), inter_node_gbps=draw.network_gbps
    )


def _member(coefficients: Coefficients, place: int) -> Coefficients:
    names = Coefficients.__slots__
    return Coefficients(**{name: float(np.asarray(getattr(coefficients, name))[place, 0]) for name in names})


def _suits(draw: _Draw, machines: Cluster, coefficients: Coefficients) -> float | None:
    """Return the useful tokens per second of the start; None where the draw makes no tuning problem."""
    flash = draw.flash_attention
    smallest, largest = LARGEST_MICRO_BATCH
    sizes = Configurations(
        micro_batch=np.array([START.micro_batch, smallest, largest, SMALL_START]),
        learning_rate=START.learning_rate,
        flash_attention=flash,
    )
    found = estimate(draw.shape, machines, sizes, coefficients)
    step_s, learns = float(found.time.step_time_s[0]), found.convergence
    if list(found.memory.out_of_memory[:3]) != [False, False, True]:
        return None
    if learns.divergence_probability[3] > LIKELY_DIVERGENCE or not STEP_TIMES_S[0] <= step_s <= STEP_TIMES_S[1]:
        return None
    return float(learns.progress_per_sample[0] * learns.batch_samples[0] / step_s * draw.shape.sequence)
