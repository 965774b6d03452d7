"""The built-in workload 'byte-gpt': a small GPT that learns the Python standard library's source, byte by byte."""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn
from torch.utils.data import Dataset

from autotune.errors import WorkloadError
from autotune.workload import TrainingWorkload, WorkloadContext

VOCABULARY = 256
FILE_ORDER_SEED = 0
"""The order of the files is a fixed shuffle: all trials, whatever their seed, learn from and are tested on the same."""
HELD_OUT_EVERY = 10
"""Every tenth file is held out."""
INITIAL_STD = 0.02
"""Standard deviation of the initial weights, as in GPT-2 (Radford et al. 2019, released code)."""


def workload(context: WorkloadContext) -> TrainingWorkload:
    """Build the workload from `workload.arguments`; see `byte_gpt` for their names and defaults."""
    return byte_gpt(**context.arguments)


def byte_gpt(
    *,
    layers: int = 4,
    width: int = 128,
    heads: int = 4,
    sequence: int = 64,
    text_bytes: int = 2_000_000,
    held_out_sequences: int = 128,
    held_out_batch_size: int = 64,
) -> TrainingWorkload:
    """Return a pre-norm decoder on byte sequences of the standard library.

    Args:
        layers: Transformer blocks.
        width: Size of the residual stream; a multiple of `heads`.
        heads: Attention heads per block.
        sequence: Bytes per sample; also the context length.
        text_bytes: How much text to train on.
        held_out_sequences: Samples for the held-out loss, from other files.
        held_out_batch_size: Samples per held-out batch.

    Raises:
        WorkloadError: when `width` is no multiple of `heads`, or the standard library's source isn't there.
    """
    if width % heads:
        raise WorkloadError(f"workload.arguments.width: got {width}; it must be a multiple of heads ({heads})")
    files = standard_library()
    train = [path for index, path in enumerate(files) if index % HELD_OUT_EVERY]
    held_out = files[::HELD_OUT_EVERY]
    return TrainingWorkload(
        model=ByteGPT(layers=layers, width=width, heads=heads, sequence=sequence),
        data=ByteSequences(read_bytes(train, text_bytes), sequence),
        held_out=ByteSequences(read_bytes(held_out, held_out_sequences * (sequence + 1)), sequence),
        held_out_batch_size=held_out_batch_size,
        loss=next_byte_loss,
        tokens_per_sample=sequence,
    )


def standard_library() -> list[Path]:
    """Return the standard library's top-level modules, in an order that is fixed and mixes subjects."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(folder.glob("*.py"))
    if not files:
        raise WorkloadError(f"workload: no Python source in {folder}; give a workload of your own ('module:function')")
    random.Random(FILE_ORDER_SEED).shuffle(files)  # noqa: S311 - an order, not a secret
    return files


def read_bytes(files: Iterable[Path], count: int) -> Tensor:
    """Return the first `count` bytes of the files, one after another (uint8)."""
    text = bytearray()
    for path in files:
        if len(text) >= count:
            break
        text += path.read_bytes()
    return torch.frombuffer(text[:count], dtype=torch.uint8)


class ByteSequences(Dataset[Tensor]):
    """Non-overlapping pieces of `sequence + 1` bytes, int64: the input and, shifted by one, the target."""

    def __init__(self, text: Tensor, sequence: int) -> None:
        count = len(text) // (sequence + 1)
        self._pieces = text[: count * (sequence + 1)].view(count, sequence + 1)

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, index: int) -> Tensor:
        return self._pieces[index].long()


def next_byte_loss(model: Any, batch: Tensor) -> Tensor:
    """Cross-entropy of the next byte, in nats."""
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each on the normalised residual stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._attend(self.attention_norm(x))
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out

    def _attend(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.attention_out(mixed.transpose(1, 2).flatten(2))
        return out


class ByteGPT(nn.Module):
    """A GPT over bytes with learned positions."""

    def __init__(self, *, layers: int, width: int, heads: int, sequence: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.apply(_initialize)

    def forward(self, text: Tensor) -> Tensor:
        """Return logits (batch, sequence, 256) for the byte after each byte of `text` (batch, sequence)."""
        x = self.bytes(text) + self.positions(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
