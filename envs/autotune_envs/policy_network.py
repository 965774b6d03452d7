"""A pre-trained policy's network without torch: logits of observations, in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.errors import SearcherError
from autotune_envs.observation import Vector
from autotune_envs.policy_space import policy_space
from autotune_envs.simulation.grid import offsets
from autotune_envs.simulation.studies import policy_observation_size

Floats = NDArray[np.float32]
_MASKED = -1e9
_PARTS = ("weight", "bias")


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
        latent = observations
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
