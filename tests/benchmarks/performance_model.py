"""How many configurations the performance model judges per CPU-second on one core, over the default search space."""

from __future__ import annotations

import time

import numpy as np

from autotune.performance import Coefficients, Configurations, ModelShape, cluster, estimate, in_chunks

ROWS = 1_000_000
MEMBERS = 32


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


def main() -> None:
    """Print configurations per CPU-second: one set of coefficients, and an ensemble of them."""
    shape = ModelShape.from_numbers(layers=24, hidden=2048, heads=16, sequence=2048, vocabulary=50257)
    machines = cluster("A100-SXM-80GB", devices=16)
    configurations = drawn(ROWS)
    begun = time.process_time()
    for part in in_chunks(configurations):
        estimate(shape, machines, part)
    seconds = time.process_time() - begun
    print(f"performance model: {ROWS / seconds:12,.0f} configurations per CPU-second ({ROWS:,} rows)")
    members = Coefficients.sample(np.random.default_rng(0), MEMBERS)
    some = configurations[: ROWS // MEMBERS]
    begun = time.process_time()
    for part in in_chunks(some, 8192 // MEMBERS):
        estimate(shape, machines, part, members)
    seconds = time.process_time() - begun
    print(f"performance model: {len(some) / seconds:12,.0f} configurations per CPU-second, each by {MEMBERS} members")


if __name__ == "__main__":
    main()
