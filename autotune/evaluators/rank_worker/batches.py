"""The batches of one rank: its share of a dataset, shuffled by the seed, collated, on the device, without end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import default_collate

from autotune.errors import WorkloadError
from autotune.workload import TrainingWorkload

Collate = Callable[[list[Any]], Any]


def training_batches(
    workload: TrainingWorkload, *, batch_size: int, rank: int, world_size: int, seed: int, device: str
) -> Iterator[Any]:
    """Yield this rank's batches for ever, epoch after epoch, each epoch in an order of its own."""
    collate: Collate = workload.collate or default_collate
    indices = shuffled_indices(len(workload.data), rank=rank, world_size=world_size, seed=seed)
    while True:
        items = [workload.data[next(indices)] for _ in range(batch_size)]
        yield to_device(collate(items), device)


def shuffled_indices(length: int, *, rank: int, world_size: int, seed: int) -> Iterator[int]:
    """Yield dataset indices for ever; in each epoch the ranks' shares are equal and don't overlap.

    Raises:
        WorkloadError: when the dataset has fewer samples than there are ranks.
    """
    share = length // world_size
    if share == 0:
        raise WorkloadError(f"workload.data: got {length} samples; {world_size} ranks need at least one each")
    epoch = 0
    while True:
        generator = torch.Generator().manual_seed(seed + epoch)
        order = torch.randperm(length, generator=generator)
        yield from order[rank : share * world_size : world_size].tolist()
        epoch += 1


def held_out_batches(workload: TrainingWorkload, *, rank: int, world_size: int, device: str) -> list[tuple[Any, int]]:
    """Return this rank's held-out batches with the count of samples each stands for.

    Every rank gets equally many batches: with ZeRO-3 a forward pass is a collective operation. One that stands for
    no sample fills up a shorter share.

    Raises:
        WorkloadError: when the held-out set is empty, or its batch size is not above 0.
    """
    length, size = len(workload.held_out), workload.held_out_batch_size
    if length == 0:
        raise WorkloadError("workload.held_out: got no samples; convergence is measured on at least one")
    if size < 1:
        raise WorkloadError(f"workload.held_out_batch_size: got {size}; it must be at least 1")
    collate: Collate = workload.collate or default_collate
    longest_share = -(-length // world_size)
    share = list(range(rank, length, world_size))
    batches = []
    for start in range(0, longest_share, size):
        indices = share[start : start + size]
        items = [workload.held_out[index] for index in indices or [0]]
        batches.append((to_device(collate(items), device), len(indices)))
    return batches


def to_device(batch: Any, device: str) -> Any:
    """Move every tensor in nested mappings, sequences and objects with `.to` to the device."""
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
