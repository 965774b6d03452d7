"""Playing a policy on simulated studies as the searcher would: the mode first, then draws, nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune_envs.policy_network import draws, mode
from autotune_envs.simulation.cases import Cases
from autotune_envs.simulation.grid import canonical
from autotune_envs.simulation.studies import SimulatedStudies

CANDIDATES = 64
"""Draws for one proposal; where all are known the last stands, and the proposal is spent."""

Logits = Callable[[NDArray[np.float32]], NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of it; arrays have shape (trials, cases)."""

    best_share: NDArray[np.float64]
    """Of the best known R, after each trial beside the baseline."""
    failed: NDArray[np.bool_]


def play(logits: Logits, cases: Cases, *, trials: int, generator: np.random.Generator) -> Played:
    """Run one study of each case.

    Args:
        logits: of observations, shape (rows, size) to (rows, levels).
        cases: to play, each once, over the whole space.
        trials: of each, beside the baseline.
        generator: of draws and noise.
    """
    count = len(cases)
    studies = SimulatedStudies(cases, count)
    every = np.arange(count)
    studies.begin(every, every, budget=np.full(count, trials + 1))
    shares, failed = [], []
    for _ in range(trials):
        found = logits(studies.observations)
        action = canonical(mode(found))
        for _ in range(CANDIDATES):
            again = np.flatnonzero(studies.known(action))
            if not len(again):
                break
            action[again] = canonical(draws(found[again], generator))
        done = studies.step(action, generator)
        shares.append(done.best_share)
        failed.append(done.failed)
    return Played(best_share=np.array(shares), failed=np.array(failed))
