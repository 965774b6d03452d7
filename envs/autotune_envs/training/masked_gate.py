"""The pre-trained policy's network: copy gates, and logits of levels that may not be proposed masked."""

from __future__ import annotations

from typing import Any

import gymnasium
import torch
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from autotune_envs.policy_network import LARGEST_SQUASHED, STRETCH, stretched_positions
from autotune_envs.simulation import policy_observation_size
from autotune_envs.training.copy_gate import CopyGateHead, CopyGatePolicy, WithIncumbent

MASKED = -1e9
"""Added to the logit of a masked level: its probability is 0 in float32."""


class MaskedCopyGatePolicy(CopyGatePolicy):
    """`CopyGatePolicy` over observations that end with a mask of levels (see `SimulatedStudies.observations`)."""

    def _build_mlp_extractor(self) -> None:
        self.mlp_extractor = _WithMask(
            self.features_dim, self.net_arch, self.activation_fn, device=self.device, levels=sum(self._sizes())
        )

    def _head(self) -> nn.Module:
        hidden = self.mlp_extractor.latent_dim_pi - 2 * sum(self._sizes())
        return _MaskedHead(hidden, self._sizes(), gate_init=self.gate_init)

    def logits(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the masked logits, shape (batch, levels), of observations, shape (batch, size)."""
        features = self.pi_features_extractor(observations)
        found: torch.Tensor = self.action_net(self.mlp_extractor.forward_actor(features))
        return found


class StretchedScores(BaseFeaturesExtractor):
    """The features are the observation with its squashed ratios as logarithms; see `autotune_envs.policy_network`."""

    positions: torch.Tensor

    def __init__(self, observation_space: gymnasium.Space[Any]) -> None:
        super().__init__(observation_space, features_dim=policy_observation_size())
        self.register_buffer("positions", torch.as_tensor(stretched_positions()), persistent=False)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the features, shape (batch, size), of observations, shape (batch, size)."""
        ratios = observations[:, self.positions]
        logarithms = torch.log1p(-ratios.abs().clamp(max=LARGEST_SQUASHED))
        return observations.index_copy(1, self.positions, -STRETCH * ratios.sign() * logarithms)


class _MaskedHead(nn.Module):
    """A `CopyGateHead` whose input ends with the mask."""

    def __init__(self, hidden: int, sizes: list[int], *, gate_init: float) -> None:
        super().__init__()
        self._levels = sum(sizes)
        self.head = CopyGateHead(hidden, sizes, gate_init=gate_init)

    def forward(self, latent: torch.Tensor) -> torch.Tensor:
        """Return the logits, shape (batch, levels), of `latent`, shape (batch, hidden + 2 levels)."""
        mask = latent[:, -self._levels :]
        logits: torch.Tensor = self.head(latent[:, : -self._levels]) + (1.0 - mask) * MASKED
        return logits


class _WithMask(WithIncumbent):
    """Appends the mask, the last features, behind the incumbent's levels."""

    def __init__(self, *arguments: Any, levels: int, **keywords: Any) -> None:
        super().__init__(*arguments, levels=levels, **keywords)
        self.latent_dim_pi += levels

    def forward_actor(self, features: torch.Tensor) -> torch.Tensor:
        return torch.cat([super().forward_actor(features), features[:, -self._levels :]], dim=1)
