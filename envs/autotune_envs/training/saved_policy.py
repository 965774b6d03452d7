"""A saved policy: what `model.save("policy.zip")` of Stable-Baselines3 holds, read without running any code of it."""

from __future__ import annotations

import json
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

import torch
from stable_baselines3.common.save_util import load_from_zip_file

from autotune.errors import SearcherError
from autotune_envs.training.settings import ACTIVATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPolicy:
    """Weights and architecture of a policy that PPO trained on `DeepSpeedTuningEnv`.

    The file holds pickled objects beside its weights (SB3's `load` runs them); here the architecture is read off the
    weights and off the file's plain text. A policy that was trained behind `VecNormalize` saw other observations than
    the searcher gives it; the environment's are bounded and need none.
    """

    path: Path
    sizes: tuple[int, ...]
    """Number of levels by dimension of the space it was trained on."""
    weights: dict[str, torch.Tensor]
    copy_gate: bool
    """`CopyGatePolicy`; else 'MlpPolicy'."""
    pi_arch: tuple[int, ...]
    vf_arch: tuple[int, ...]
    activation: str

    @classmethod
    def read(cls, path: Path) -> SavedPolicy:
        """Read a file.

        Raises:
            SearcherError: when it is no such file, or its policy is of a kind that can't be rebuilt.
        """
        try:
            _, parameters, _ = load_from_zip_file(path, load_data=False, device="cpu")
            with zipfile.ZipFile(path) as archive:
                data = json.loads(archive.read("data"))
            weights = dict(parameters["policy"])
            sizes = tuple(int(size) for size in re.findall(r"\d+", data["action_space"]["nvec"]))
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise SearcherError(
                f"{path}: no policy of Stable-Baselines3's PPO for this environment: {problem}"
            ) from problem
        written = data["policy_kwargs"].get("activation_fn")
        activation = next((name for name, kind in ACTIVATIONS.items() if str(kind) == written), None)
        if written is not None and activation is None:
            raise SearcherError(f"{path}: got the activation {written}; it must be one of {', '.join(ACTIVATIONS)}")
        return cls(
            path=path,
            sizes=sizes,
            weights=weights,
            copy_gate="action_net.gates.weight" in weights,
            pi_arch=_layers(weights, "policy_net"),
            vf_arch=_layers(weights, "value_net"),
            activation=activation or "tanh",
        )

    def check(self, sizes: tuple[int, ...]) -> None:
        """Refuse a space of other sizes.

        Raises:
            SearcherError: with both.
        """
        if self.sizes != sizes:
            raise SearcherError(f"{self.path}: trained for levels {self.sizes}; the space has {sizes}")


def _layers(weights: dict[str, torch.Tensor], network: str) -> tuple[int, ...]:
    pattern = re.compile(rf"mlp_extractor\.{network}\.(\d+)\.weight")
    found = {int(match[1]): len(weights[name]) for name in weights if (match := pattern.fullmatch(name))}
    return tuple(found[position] for position in sorted(found))
