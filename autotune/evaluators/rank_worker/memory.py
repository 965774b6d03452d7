"""Peak memory of this rank, from a moment on."""

from __future__ import annotations

from pathlib import Path

import torch

KIB = 1024


class PeakMemory:
    """Peak resident set (CPU) or peak of torch's allocator (CUDA) since `start`."""

    def __init__(self, device: str) -> None:
        self.is_cuda = device != "cpu"

    @property
    def kind(self) -> str:
        return "allocated" if self.is_cuda else "resident"

    def start(self) -> None:
        """Forget the peak so far."""
        if self.is_cuda:
            torch.cuda.reset_peak_memory_stats()
            return
        try:
            # proc(5): writing 5 resets VmHWM to the present resident set size.
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            print("the peak of the resident set can't be reset here: it includes the start-up", flush=True)  # noqa: T201

    def peak_bytes(self) -> int:
        """Return the peak since `start`."""
        if self.is_cuda:
            return int(torch.cuda.max_memory_allocated())
        status = Path("/proc/self/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * KIB
