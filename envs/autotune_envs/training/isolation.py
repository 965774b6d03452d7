"""Isolation: run Stable-Baselines3, which draws from global generators, without a trace in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def isolated(*entropy: int) -> Iterator[np.random.Generator]:
    """Seed numpy's and torch's global generators and use one torch thread; afterwards all is as it was before.

    What runs inside depends on `entropy` alone, so that a count of past calls is all the state randomness needs.

    Args:
        entropy: numbers, 0 or more, that name this run.

    Yields:
        A generator of the same entropy, for draws of the caller's own.
    """
    generator = np.random.default_rng(np.random.SeedSequence(entropy))
    before = np.random.get_state()  # noqa: NPY002 (RolloutBuffer.get permutes by the global generator)
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(generator.integers(2**63)))
            np.random.seed(int(generator.integers(2**32)))  # noqa: NPY002 (the same)
            torch.set_num_threads(1)  # the networks are tiny
            yield generator
    finally:
        torch.set_num_threads(threads)
        np.random.set_state(before)  # noqa: NPY002 (the same)
