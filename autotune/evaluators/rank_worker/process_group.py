"""The process group of a trial: the rendezvous, and the few numbers that ranks tell one another between steps."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from datetime import timedelta

import deepspeed
import torch
import torch.distributed as dist

_STORE_POLL_S = 0.002


class ProcessGroup:
    """All ranks of the trial."""

    def __init__(self, *, rank: int, world_size: int, device: str) -> None:
        self.rank = rank
        self.world_size = world_size
        self.device = device

    def join(self, timeout_s: float) -> None:
        """Meet the other ranks at MASTER_ADDR and MASTER_PORT."""
        if self.rank > 0:
            wait_for_store(timeout_s)
        timeout = timedelta(seconds=timeout_s)
        # Subgroups take torch's default of 30 minutes, not the group's own; it is read when a group is made.
        dist.distributed_c10d.default_pg_timeout = timeout
        dist.distributed_c10d.default_pg_nccl_timeout = timeout  # type: ignore[attr-defined]
        backend = "gloo" if self.device == "cpu" else "nccl"
        deepspeed.init_distributed(dist_backend=backend, timeout=timeout, verbose=False)

    def maximum(self, values: Sequence[float]) -> list[float]:
        """Return each value's maximum over the ranks."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def total(self, values: Sequence[float]) -> list[float]:
        """Return each value's sum over the ranks."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def from_each_rank(self, value: float) -> list[float]:
        """Return every rank's value, by rank."""
        return self.total([value if rank == self.rank else 0.0 for rank in range(self.world_size)])

    def _reduce(self, values: Sequence[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=operation)
        reduced: list[float] = tensor.tolist()
        return reduced


def wait_for_store(timeout_s: float) -> None:
    """Wait until rank 0 listens: torch's store tries again only after a quarter to three quarters of a second.

    Source: torch/csrc/distributed/c10d/Backoff.hpp. Where nobody listens in time, torch's own complaint is to come.
    """
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        try:
            socket.create_connection(address, timeout=timeout_s).close()
        except OSError:
            time.sleep(_STORE_POLL_S)
        else:
            return
