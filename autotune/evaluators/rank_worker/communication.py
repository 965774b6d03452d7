"""Communication time of a step: how long a collective was under way, from torch's profiler."""

from __future__ import annotations

import bisect
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.autograd.profiler import profile

PROFILED_STEPS = 3
CPU_PREFIX = "gloo:"
CUDA_MARK = "nccl"
NANOSECONDS = 1e-9


def seconds_per_step(step: Callable[[], None], device: str) -> float:
    """Train a few more steps under the profiler; return the time of a step in which at least one collective ran.

    On a CPU the events are the gloo operations' own, from enqueueing to completion, so waiting for a slower rank is
    communication. On CUDA they are the NCCL kernels. The median over the steps, as one delay makes a step untypical.
    """
    ends_ns = []
    # Not torch.profiler.profile: when it starts, it imports torch._inductor, which takes a second.
    with profile(use_device=None if device == "cpu" else "cuda") as profiler:
        for _ in range(PROFILED_STEPS):
            step()
            if device != "cpu":
                torch.cuda.synchronize()
            ends_ns.append(time.time_ns())
    # The raw events: `profiler.events()` builds a tree of all operators first, which takes longer than the steps.
    spans: list[list[tuple[int, int]]] = [[] for _ in ends_ns]
    for begin_ns, end_ns in _spans(profiler.kineto_results.events(), device):
        spans[min(bisect.bisect(ends_ns, begin_ns), PROFILED_STEPS - 1)].append((begin_ns, end_ns))
    return statistics.median(covered(of_step) for of_step in spans) * NANOSECONDS


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of the spans (overlapping parts count once)."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _spans(events: Iterable[Any], device: str) -> Iterator[tuple[int, int]]:
    for event in events:
        name = event.name()
        if name.startswith(CPU_PREFIX) if device == "cpu" else _is_on_device(event) and CUDA_MARK in name:
            yield event.start_ns(), event.end_ns()


def _is_on_device(event: Any) -> bool:
    return str(event.device_type()) == "DeviceType.CUDA"
