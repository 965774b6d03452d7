"""The built-in workload 'module-mlp': a wide MLP that tells which module of the standard library a piece of text is of.

It is of another character than 'byte-gpt': no attention and no sequence; a sample costs little beside the parameters
that it updates, so that the optimizer and communication weigh more.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from autotune.errors import WorkloadError
from autotune.evaluators.workloads.byte_gpt import HELD_OUT_EVERY, standard_library
from autotune.workload import TrainingWorkload, WorkloadContext

PAIR_FACTOR = 257
"""A pair of bytes (a, b) is feature (257 a + b) modulo the number of features: 257 is prime, so pairs spread."""
MOST_COUNTED = 255
"""Counts are kept in a byte."""


def workload(context: WorkloadContext) -> TrainingWorkload:
    """Build the workload from `workload.arguments`; see `module_mlp` for their names and defaults."""
    return module_mlp(**context.arguments)


def module_mlp(
    *,
    modules: int = 64,
    window: int = 256,
    windows_per_module: int = 200,
    features: int = 1024,
    width: int = 1024,
    layers: int = 3,
    held_out_batch_size: int = 128,
) -> TrainingWorkload:
    """Return an MLP on counts of byte pairs, over the largest modules of the standard library.

    Args:
        modules: Classes.
        window: Bytes per sample.
        windows_per_module: Samples of a module at most, every tenth of them held out.
        features: Counts per sample, into which byte pairs are hashed.
        width: Of the hidden layers.
        layers: Hidden layers.
        held_out_batch_size: Samples per held-out batch.

    Raises:
        WorkloadError: when the standard library's source has fewer modules than that with ten windows or more.
    """
    counts, labels = samples(_largest(modules, window), window=window, most=windows_per_module, features=features)
    # Modules come one after another, each with its windows in order: every tenth window is held out.
    held_out = torch.arange(len(labels)) % HELD_OUT_EVERY == 0
    return TrainingWorkload(
        model=ModuleMLP(features=features, width=width, layers=layers, modules=modules),
        data=TensorDataset(counts[~held_out], labels[~held_out]),
        held_out=TensorDataset(counts[held_out], labels[held_out]),
        held_out_batch_size=held_out_batch_size,
        loss=module_loss,
    )


def samples(files: list[Path], *, window: int, most: int, features: int) -> tuple[Tensor, Tensor]:
    """Return counts, uint8 (samples, features), and labels, int64 (samples,): the position of the file."""
    counts, labels = [], []
    for label, path in enumerate(files):
        for text in _windows(path, window, most):
            pairs = (PAIR_FACTOR * text[:-1].long() + text[1:].long()) % features
            counts.append(torch.bincount(pairs, minlength=features).clamp(max=MOST_COUNTED).to(torch.uint8))
            labels.append(label)
    return torch.stack(counts), torch.tensor(labels)


def _windows(path: Path, window: int, most: int) -> Iterator[Tensor]:
    text = path.read_bytes()
    for begin in range(0, min(len(text) - window + 1, most * window), window):
        yield torch.frombuffer(bytearray(text[begin : begin + window]), dtype=torch.uint8)


def _largest(modules: int, window: int) -> list[Path]:
    files = [path for path in standard_library() if path.stat().st_size >= HELD_OUT_EVERY * window]
    if len(files) < modules:
        raise WorkloadError(
            f"workload.arguments.modules: got {modules}; the standard library has {len(files)} modules of "
            f"{HELD_OUT_EVERY} windows of {window} bytes or more"
        )
    return sorted(files, key=lambda path: (-path.stat().st_size, path.name))[:modules]


def module_loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy of the module, in nats."""
    counts, labels = batch
    inputs = torch.log1p(counts.float()).to(next(model.parameters()).dtype)
    return F.cross_entropy(model(inputs).float(), labels)


class ModuleMLP(nn.Module):
    """Residual hidden layers, each on the normalised stream."""

    def __init__(self, *, features: int, width: int, layers: int, modules: int) -> None:
        super().__init__()
        self.entry = nn.Linear(features, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, modules)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits (batch, modules) of inputs (batch, features)."""
        x = self.entry(inputs)
        for layer in self.layers:
            x = x + layer(x)
        logits: Tensor = self.head(self.norm(x))
        return logits
