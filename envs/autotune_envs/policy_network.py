"""A pre-trained policy's network without torch: logits of observations, in numpy."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.errors import SearcherError
from autotune_envs.observation import FAILURE_KINDS, RECENT_TRIALS, Vector, layout
from autotune_envs.policy_space import policy_space
from autotune_envs.simulation.grid import offsets
from autotune_envs.simulation.studies import policy_observation_size

Floats = NDArray[np.float32]
_MASKED = -1e9
_PARTS = ("weight", "bias")


LARGEST_SQUASHED = 0.9999
STRETCH = 1 / 3
"""Brings log(1 + R) of what is usual, R up to 20, to about 1."""


@functools.cache
def stretched_positions() -> NDArray[np.int64]:
    """Return where the observation holds squashed ratios, x / (1 + |x|), which a policy sees as logarithms.

    Between R = 10 and R = 12 there is 0.014 when squashed, and 0.17 in log(1 + R).
    """
    fields = layout(policy_space().sizes)
    recent, width = fields["recent_trials"], len(policy_space().sizes) + 4 + len(FAILURE_KINDS)
    first = 1 + len(policy_space().sizes)
    positions = [fields["best_score"].start]
    for trial in range(RECENT_TRIALS):
        positions += [recent.start + trial * width + first + ratio for ratio in range(3)]
    for name in ("level_mean_scores", "level_best_scores"):
        positions += range(fields[name].start, fields[name].stop)
    return np.array(positions, dtype=np.int64)


def stretched(observations: Vector) -> Vector:
    """Return observations, shape (rows, size), with each squashed ratio r as sign(r) log(1 + |r|) times `STRETCH`."""
    found, at = observations.copy(), stretched_positions()
    ratios = observations[:, at]
    found[:, at] = -STRETCH * np.sign(ratios) * np.log1p(-np.minimum(np.abs(ratios), LARGEST_SQUASHED))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyNetwork:
    """ReLU layers, a head of logits and one of copy gates: the actor of `MaskedCopyGatePolicy`."""

    hidden: tuple[tuple[Floats, Floats], ...]
    """Weights, shape (outputs, inputs), and biases, by layer."""
    logits: tuple[Floats, Floats]
    gates: tuple[Floats, Floats]

    def __call__(self, observations: Vector) -> Floats:
        """Return the logits, shape (rows, levels); masked levels have none to speak of.

        Args:
            observations: shape (rows, size), as `SimulatedStudies.observations`.
        """
        levels = sum(policy_space().sizes)
        latent = stretched(observations)
        for weight, bias in self.hidden:
            latent = np.maximum(latent @ weight.T + bias, 0.0)
        weight, bias = self.gates
        gates = np.logaddexp(0.0, latent @ weight.T + bias)  # softplus
        weight, bias = self.logits
        own = latent @ weight.T + bias
        pull = np.repeat(gates, policy_space().sizes, axis=1) * observations[:, :levels]
        return np.asarray(own + pull + (1.0 - observations[:, -levels:]) * _MASKED, dtype=np.float32)

    def arrays(self) -> dict[str, Floats]:
        """Return every array by name; `from_arrays` reads them back."""
        layers = {f"hidden.{place}": layer for place, layer in enumerate(self.hidden)}
        named = {**layers, "logits": self.logits, "gates": self.gates}
        return {
            f"{name}.{part}": array for name, layer in named.items() for part, array in zip(_PARTS, layer, strict=True)
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Floats]) -> PolicyNetwork:
        """Make a network.

        Raises:
            SearcherError: when an array is missing, too many, of another shape or not finite.
        """
        depth = sum(name.startswith("hidden.") for name in arrays) // len(_PARTS)
        names = [*(f"hidden.{place}" for place in range(depth)), "logits", "gates"]
        if set(arrays) != {f"{name}.{part}" for name in names for part in _PARTS}:
            raise SearcherError(f"policy: got the arrays {', '.join(sorted(arrays))}; they are of no such network")
        width = policy_observation_size()
        layers = []
        for name in names:
            weight, bias = (np.asarray(arrays[f"{name}.{part}"]) for part in _PARTS)
            outputs = {"logits": sum(policy_space().sizes), "gates": len(policy_space().sizes)}.get(name, len(bias))
            if weight.shape != (outputs, width) or bias.shape != (outputs,):
                raise SearcherError(f"policy: {name} has the shape {weight.shape}; it must be ({outputs}, {width})")
            if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
                raise SearcherError(f"policy: {name} holds numbers that are not finite")
            layers.append((weight.astype(np.float32), bias.astype(np.float32)))
            width = width if name == "logits" else outputs
        return cls(hidden=tuple(layers[:-2]), logits=layers[-2], gates=layers[-1])


def mode(logits: Floats) -> NDArray[np.int64]:
    """Return the most probable level of each dimension, shape (rows, dimensions)."""
    parts = [logits[:, at : at + size] for size, at in zip(policy_space().sizes, offsets(), strict=True)]
    return np.stack([part.argmax(axis=1) for part in parts], axis=1)


def draws(logits: Floats, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return a level of each dimension drawn by its probability, shape (rows, dimensions), by the Gumbel trick."""
    return mode(logits + generator.gumbel(size=logits.shape).astype(np.float32))
