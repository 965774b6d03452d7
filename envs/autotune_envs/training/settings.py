"""The settings of PPO as a searcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

from autotune.errors import SearcherError
from autotune_envs.training.copy_gate import CopyGatePolicy

ACTIVATIONS: Mapping[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU}


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoSettings:
    """Stable-Baselines3's parameters of PPO by their own names, with defaults for one study of 12 to 64 trials.

    The defaults were chosen among about 30 variants on simulated workloads (`SimulatedEvaluator`, 12 dimensions). On 48
    others the best of 16, 32 and 64 trials reached .74, .87 and .95 of the best known R; without updates .72, .86 and
    .95; Optuna's TPE .70, .82 and .89; random points .66, .73 and .81. No real trial was part of it.

    Raises:
        SearcherError: when one is out of range.
    """

    n_steps: int = 8
    """Asked trials between two updates of the policy."""
    batch_size: int = 8
    n_epochs: int = 10
    learning_rate: float = 1e-3
    """At the first trial; falls in a straight line to `learning_rate_floor` times that at the end of the budget."""
    learning_rate_floor: float = 0.1
    gamma: float = 0.0
    """A trial is rewarded by its own outcome alone: a few dozen trials are too few to credit earlier ones as well."""
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    ent_coef: float = 0.0
    """No bonus is needed to go on exploring: a known point is never proposed again."""
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    copy_gate: bool = True
    """`CopyGatePolicy`; else SB3's 'MlpPolicy'."""
    gate_init: float = 2.0
    """Pull of the incumbent's levels before training (`CopyGatePolicy`): at 2, of 7 levels it has probability 0.55."""
    pi_arch: tuple[int, ...] = (32, 32)
    """Hidden layers of the policy network (SB3: `net_arch["pi"]`)."""
    vf_arch: tuple[int, ...] = (32, 32)
    """Hidden layers of the value network (SB3: `net_arch["vf"]`)."""
    activation: str = "tanh"
    """One of `ACTIVATIONS`."""
    candidates: int = 64
    """Actions drawn for one proposal, of which the first unknown one is taken; if none is, a random point is."""
    mode_first: bool = False
    """Whether the policy's most probable action is the first candidate."""
    learn: bool = True
    """Whether the policy is trained on the trials; without, it proposes as it was loaded."""

    def __post_init__(self) -> None:
        for name, least in (("n_steps", 2), ("batch_size", 2), ("n_epochs", 1), ("candidates", 1)):
            if getattr(self, name) < least:
                raise SearcherError(f"ppo.{name}: got {getattr(self, name)}; it must be at least {least}")
        if self.n_steps % self.batch_size:
            raise SearcherError(f"ppo.batch_size: got {self.batch_size}; it must divide n_steps, {self.n_steps}")
        if not self.gate_init > 0:
            raise SearcherError(f"ppo.gate_init: got {self.gate_init}; it must be above 0")
        if self.activation not in ACTIVATIONS:
            raise SearcherError(f"ppo.activation: got {self.activation!r}; it must be one of {', '.join(ACTIVATIONS)}")

    @property
    def policy_class(self) -> type[ActorCriticPolicy]:
        return CopyGatePolicy if self.copy_gate else ActorCriticPolicy

    @property
    def policy_kwargs(self) -> dict[str, Any]:
        """The keyword arguments of the policy class, as SB3 takes them."""
        keywords: dict[str, Any] = {
            "net_arch": {"pi": list(self.pi_arch), "vf": list(self.vf_arch)},
            "activation_fn": ACTIVATIONS[self.activation],
        }
        return {**keywords, "gate_init": self.gate_init} if self.copy_gate else keywords
