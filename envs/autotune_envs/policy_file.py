"""The policy file: weights as numpy arrays, and a card beside them that says what they are; loading runs no code."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from autotune import whole_file
from autotune.errors import SearcherError
from autotune_envs.policy_network import PolicyNetwork
from autotune_envs.policy_space import policy_space

SHIPPED = Path(__file__).with_name("pretrained")
"""The folder of the policy that comes with autotune."""
WEIGHTS, CARD = "policy.npz", "card.json"
LARGEST_BYTES = 4_000_000
"""A file that is larger is none of ours."""


def save(network: PolicyNetwork, folder: Path, card: Mapping[str, Any]) -> None:
    """Write the weights, and the card with their hash, sizes and the space.

    Args:
        network: the policy.
        folder: made where it does not exist.
        card: what else is to be said: data, seeds, scores, limits, versions.
    """
    buffer = io.BytesIO()
    np.savez(buffer, **network.arrays())  # type: ignore[arg-type]
    data = buffer.getvalue()
    told = {
        **card,
        "weights": {
            "file": WEIGHTS,
            "sha256": hashlib.sha256(data).hexdigest(),
            "bytes": len(data),
            "shapes": {name: list(array.shape) for name, array in network.arrays().items()},
        },
        "space": _levels(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    neighbour = folder / f"{WEIGHTS}.new"
    neighbour.write_bytes(data)
    neighbour.replace(folder / WEIGHTS)
    whole_file.write(json.dumps(told, indent=2) + "\n", folder / CARD)


def read_card(folder: Path = SHIPPED) -> dict[str, Any]:
    """Return the card.

    Raises:
        SearcherError: when there is none, or it can't be read.
    """
    path = folder / CARD
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
        card["weights"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise SearcherError(f"{path}: no card of a policy: {problem}; write one with `autotune pretrain`") from problem
    return dict(card)


def load(folder: Path = SHIPPED) -> PolicyNetwork:
    """Return the policy of a folder that `save` wrote.

    Raises:
        SearcherError: when it is damaged, of another space, or no policy.
    """
    card, path = read_card(folder), folder / WEIGHTS
    if card.get("space") != _levels():
        raise SearcherError(
            f"{folder / CARD}: its policy is of another search space; make one with `autotune pretrain`"
        )
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise SearcherError(f"{path}: got {path.stat().st_size} bytes; a policy has at most {LARGEST_BYTES}")
        data = path.read_bytes()
    except OSError as problem:
        raise SearcherError(f"{path}: can't be read: {problem}; install autotune again") from problem
    found = hashlib.sha256(data).hexdigest()
    if found != card["weights"]["sha256"]:
        raise SearcherError(
            f"{path}: got the SHA-256 {found[:16]}..., and its card says {card['weights']['sha256'][:16]}...; "
            f"it is damaged or not the card's; install autotune again, or make one with `autotune pretrain`"
        )
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, zipfile.BadZipFile) as problem:
        raise SearcherError(f"{path}: no arrays that can be read: {problem}") from problem
    return PolicyNetwork.from_arrays(arrays)


def _levels() -> dict[str, list[Any]]:
    return {dimension.name: list(dimension.levels) for dimension in policy_space().dimensions}
