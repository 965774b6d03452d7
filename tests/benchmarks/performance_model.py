"""How many configurations the performance model judges per CPU-second on one core, over the default search space."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from autotune.performance import Coefficients, Configurations, ModelShape, cluster, estimate, in_chunks

BATCHES = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
"""Configurations asked at once."""
MEMBERS = 32
CHUNK = 8192
"""Rows that stay in the processor's cache, as `in_chunks` has them."""
LEAST_S = 0.5
"""CPU-seconds that a figure is measured for."""
POINTS = 20_000


def drawn(rows: int, seed: int = 0) -> Configurations:
    """Return random points of the default search space's 12 dimensions."""
    generator = np.random.default_rng(seed)
    one_of = generator.choice
    offload = one_of([0.0, 1.0, 2.0], rows)
    return Configurations(
        stage=one_of([0.0, 1.0, 2.0, 3.0], rows),
        micro_batch=2.0 ** generator.integers(0, 7, rows),
        accumulation=2.0 ** generator.integers(0, 5, rows),
        learning_rate=10.0 ** generator.uniform(-5, -2, rows),
        precision=one_of([0.0, 1.0, 2.0], rows),
        checkpointing=one_of([0.0, 1.0], rows),
        offload_optimizer=(offload > 0) * 1.0,
        offload_parameters=(offload > 1) * 1.0,
        reduce_bucket_size=10.0 ** generator.uniform(6, 8.7, rows),
        allgather_bucket_size=10.0 ** generator.uniform(6, 8.7, rows),
        overlap_comm=one_of([0.0, 1.0], rows),
        persistence_threshold=one_of([0.0, 1e4, 1e5, 1e6, 1e7], rows),
        max_live_parameters=one_of([1e7, 1e8, 1e9, 3e9], rows),
    )


def per_second(calculate: Callable[[], object], configurations: int) -> float:
    """Return configurations per CPU-second, after one call that nobody counts."""
    calculate()
    calls, begun = 0, time.process_time()
    while time.process_time() - begun < LEAST_S:
        calculate()
        calls += 1
    return calls * configurations / (time.process_time() - begun)


def main() -> None:
    """Print configurations per CPU-second by how many are asked at once: one set of coefficients, and an ensemble."""
    shape = ModelShape.from_numbers(layers=24, hidden=2048, heads=16, sequence=2048, vocabulary=50257)
    machines = cluster("A100-SXM-80GB", devices=16)
    members = Coefficients.sample(np.random.default_rng(0), MEMBERS)
    configurations = drawn(max(BATCHES))

    def ask(batch: int, rows: int, coefficients: Coefficients | None) -> None:
        for part in in_chunks(configurations[:batch], rows):
            estimate(shape, machines, part, coefficients)

    print(f"configurations per CPU-second on one core\n{'asked at once':>14}{'1 member':>14}{f'{MEMBERS} members':>14}")
    for batch in BATCHES:
        one = per_second(lambda batch=batch: ask(batch, CHUNK, None), batch)
        several = per_second(lambda batch=batch: ask(batch, CHUNK // MEMBERS, members), batch)
        print(f"{batch:14,}{one:14,.0f}{several:14,.0f}")
    points = [{"zero_optimization.stage": place % 4, "train_micro_batch_size_per_gpu": 4} for place in range(POINTS)]
    read = per_second(lambda: Configurations.from_points(points), POINTS)
    print(f"points read into arrays (`Configurations.from_points`): {read:,.0f} per CPU-second")


if __name__ == "__main__":
    main()
