"""The time of one optimizer step and of its phases, on a CPU's clock or by CUDA events."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch


class StepTimer:
    """Times one step: `start`, `lap` at the end of each phase (a phase may come several times), `stop`.

    On CUDA the phases are read from events after the step's end, so that measuring them waits for nothing.
    """

    def __init__(self, device: str) -> None:
        self.is_cuda = device != "cpu"
        self._started_s = 0.0
        self._marks: list[tuple[str, Any]] = []

    def start(self) -> None:
        self._marks = [("", self._now())]
        if self.is_cuda:
            torch.cuda.synchronize()
        self._started_s = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Say that what was done since the last mark belongs to `phase`."""
        self._marks.append((phase, self._now()))

    def stop(self) -> tuple[float, Mapping[str, float]]:
        """Return the seconds of the whole step and of each phase."""
        if self.is_cuda:
            torch.cuda.synchronize()
        whole_s = time.perf_counter() - self._started_s
        phases: dict[str, float] = defaultdict(float)
        for (_, begin), (phase, end) in zip(self._marks, self._marks[1:], strict=False):
            phases[phase] += begin.elapsed_time(end) / 1000 if self.is_cuda else end - begin
        return whole_s, phases

    def _now(self) -> Any:
        if not self.is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event
