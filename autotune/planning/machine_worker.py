"""One rank of the measurement of this machine's rates; all ranks measure at once, as they would train.

Run as `python -m autotune.planning.machine_worker RANK RANKS FOLDER RESULT.json`; rank 0 writes the means.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

SIDE = 1024
COPIED = 2**24
"""Values of 4 bytes: more than caches hold."""
REDUCED = 2**22
UPDATED = 2**22
SPENT_S = 0.5
"""Per rate; the best of the repeats counts, as with other benchmarks of rates (McCalpin 1995, STREAM)."""


def main() -> None:
    """Measure; rank 0 writes the result."""
    rank, ranks = int(sys.argv[1]), int(sys.argv[2])
    meeting = (Path(sys.argv[3]) / "meeting").as_uri()
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    rates = torch.tensor([*measured(ranks)], dtype=torch.float64)
    dist.all_reduce(rates)
    if rank == 0:
        names = ("matmul_flops", "half_flops", "memory_bandwidth", "link_bandwidth", "adam_per_second")
        means = (rates / ranks).tolist()
        Path(sys.argv[4]).write_text(json.dumps(dict(zip(names, means, strict=True))), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def measured(ranks: int) -> tuple[float, float, float, float, float]:
    """Return this rank's flops/s in fp32 and bf16, copying and all-reduce in bytes/s, and Adam's parameters/s."""
    square = torch.randn(SIDE, SIDE)
    half = square.bfloat16()
    source, target = torch.randn(COPIED), torch.empty(COPIED)
    sent = torch.randn(REDUCED)
    weight = torch.nn.Parameter(torch.randn(UPDATED))
    weight.grad = torch.randn(UPDATED)
    optimizer = torch.optim.AdamW([weight], lr=1e-4)
    flops = 2.0 * SIDE**3
    ring_bytes = 2.0 * (ranks - 1) / ranks * 4.0 * REDUCED
    fp32, bf16 = flops / _best_s(lambda: square @ square), flops / _best_s(lambda: half @ half)
    copied = 2.0 * 4.0 * COPIED / _best_s(lambda: target.copy_(source))
    link = ring_bytes / _best_s(lambda: dist.all_reduce(sent), repeats=6) if ranks > 1 else copied
    return fp32, bf16, copied, link, UPDATED / _best_s(optimizer.step)


def _best_s(work: Callable[[], object], *, repeats: int | None = None) -> float:
    """Return the shortest time; a collective takes a fixed number of repeats, or ranks would disagree on it."""
    work()
    best_s, begun_s, done = float("inf"), time.perf_counter(), 0
    while done < repeats if repeats else time.perf_counter() - begun_s < SPENT_S:
        started_s = time.perf_counter()
        work()
        best_s = min(best_s, time.perf_counter() - started_s)
        done += 1
    return best_s


if __name__ == "__main__":
    main()
