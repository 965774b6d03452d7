"""The phases of a step: how long forward, backward and optimizer took, by the host's clock or by CUDA events."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"


class Phases:
    """Sums what the phases of one optimizer step take, micro-step by micro-step."""

    def __init__(self, *, is_cuda: bool) -> None:
        self._is_cuda = is_cuda
        self._spans: list[tuple[str, Any, Any]] = []

    @contextmanager
    def of(self, phase: str) -> Iterator[None]:
        """Time what is done inside."""
        begin = self._now()
        try:
            yield
        finally:
            self._spans.append((phase, begin, self._now()))

    def take(self) -> Mapping[str, float]:
        """Return the seconds by phase since the last call; on CUDA after a synchronization."""
        seconds: dict[str, float] = defaultdict(float)
        for phase, begin, end in self._spans:
            seconds[phase] += begin.elapsed_time(end) / 1000 if self._is_cuda else end - begin
        self._spans = []
        return seconds

    def _now(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event
