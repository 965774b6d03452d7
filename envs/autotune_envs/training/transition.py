"""A transition: one proposal as the policy saw it, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.errors import SearcherError
from autotune_envs.observation import Vector
from autotune_envs.training.array_text import Arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One step of a rollout; the reward is added when its trial has finished."""

    observation: Vector
    """Shape (observation size,), float32: what the policy saw."""
    action: NDArray[np.int64]
    """Shape (dimensions,): the level indices that it drew."""
    value: float
    """The critic's estimate, in normalised reward."""
    log_prob: float
    """Of the action, under the policy that drew it."""
    ask: int = 0
    """Number of the ask it answered, from 0: the order of the decisions, whatever that of the results."""
    reward: float = 0.0


def stack(transitions: Sequence[Transition]) -> dict[str, NDArray[np.generic]]:
    """Return transitions as arrays; `unstack` reads them back, exactly."""
    return {
        "observations": np.array([transition.observation for transition in transitions], dtype=np.float32),
        "actions": np.array([transition.action for transition in transitions], dtype=np.int64),
        "asks": np.array([transition.ask for transition in transitions], dtype=np.int64),
        "numbers": np.array([(t.value, t.log_prob, t.reward) for t in transitions], dtype=np.float64),
    }


def unstack(arrays: Arrays) -> list[Transition]:
    """Read what `stack` wrote.

    Raises:
        SearcherError: when an earlier version wrote it.
    """
    if set(arrays) != set(stack([])):
        raise SearcherError(f"searcher state: got transitions of {', '.join(sorted(arrays))}; start a new study")
    return [
        Transition(
            observation=observation,
            action=action,
            value=float(value),
            log_prob=float(log_prob),
            ask=int(ask),
            reward=float(reward),
        )
        for observation, action, ask, (value, log_prob, reward) in zip(
            arrays["observations"], arrays["actions"], arrays["asks"], arrays["numbers"], strict=True
        )
    ]
