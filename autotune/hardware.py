"""The hardware that trials run on, as far as a search space and a report need to know it; found without torch."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.errors import ResourceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One kind of node, and how many ranks train on it.

    Raises:
        ResourceError: when `ranks` is not at least 1 or `accelerator` is unknown.
    """

    accelerator: str
    """'cpu' or 'cuda'."""
    device_name: str
    device_count: int
    """Devices on this node (1 where the accelerator is the CPU)."""
    device_memory_bytes: int
    """Of one device; of the host where the accelerator is the CPU."""
    host_memory_bytes: int
    cpu_count: int
    ranks: int
    compute_capability: float | None = None
    """NVIDIA's, such as 8.0 for an A100."""

    def __post_init__(self) -> None:
        if self.accelerator not in ("cpu", "cuda"):
            raise ResourceError(f"hardware.accelerator: got {self.accelerator!r}; it must be 'cpu' or 'cuda'")
        if self.ranks < 1:
            raise ResourceError(f"hardware.ranks: got {self.ranks}; it must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU and who uses it at the moment."""

    index: int
    name: str
    memory_bytes: int
    free_bytes: int
    pids: tuple[int, ...] = ()
    """Processes that compute on it; in a container those outside are not seen."""


def gpus() -> list[Gpu]:
    """Return every NVIDIA GPU with its free memory, by `nvidia-smi`."""
    users: dict[str, list[int]] = {}
    for uuid, pid in _query("--query-compute-apps=gpu_uuid,pid", columns=2):
        if pid.isdecimal():
            users.setdefault(uuid, []).append(int(pid))
    found = []
    query = "--query-gpu=uuid,index,memory.total,memory.free,name"
    for uuid, index, total_mib, free_mib, name in _query(query, columns=5):
        if total_mib.isdecimal() and free_mib.isdecimal():
            gpu = Gpu(
                index=int(index),
                name=name,
                memory_bytes=int(total_mib) * 2**20,
                free_bytes=int(free_mib) * 2**20,
                pids=tuple(users.get(uuid, ())),
            )
            found.append(gpu)
    return found


def detect(*, ranks: int | None = None, accelerator: str | None = None) -> Hardware:
    """Look at this machine: GPUs by `nvidia-smi`, the host by psutil.

    Args:
        ranks: how many ranks train; by default one per GPU, or one on a machine without.
        accelerator: 'cpu' or 'cuda'; by default 'cuda' where there is a GPU.

    Raises:
        ResourceError: when 'cuda' is asked for and there is no GPU.
    """
    gpus = _gpus()
    host_memory_bytes = psutil.virtual_memory().total
    cpu_count = psutil.cpu_count(logical=True) or 1
    if accelerator is None:
        accelerator = "cuda" if gpus else "cpu"
    if accelerator == "cuda":
        if not gpus:
            raise ResourceError(
                "hardware.accelerator: got 'cuda', but nvidia-smi finds no GPU here; "
                "set it to cpu, or run on a machine with a GPU"
            )
        name, memory_bytes, capability = gpus[0]
        return Hardware(
            accelerator="cuda",
            device_name=name,
            device_count=len(gpus),
            device_memory_bytes=memory_bytes,
            host_memory_bytes=host_memory_bytes,
            cpu_count=cpu_count,
            ranks=ranks or len(gpus),
            compute_capability=capability,
        )
    return Hardware(
        accelerator=accelerator,
        device_name=_processor_name(),
        device_count=1,
        device_memory_bytes=host_memory_bytes,
        host_memory_bytes=host_memory_bytes,
        cpu_count=cpu_count,
        ranks=ranks or 1,
    )


def _gpus() -> list[tuple[str, int, float]]:
    """Return (name, memory in bytes, compute capability) of every NVIDIA GPU."""
    rows = _query("--query-gpu=memory.total,compute_cap,name", columns=3)
    return [(name, int(memory_mib) * 2**20, float(capability)) for memory_mib, capability, name in rows]


def _query(query: str, *, columns: int) -> list[list[str]]:
    """Ask `nvidia-smi`; the last column may hold commas."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (subprocess.SubprocessError, OSError):
        return []
    rows = [[part.strip() for part in line.split(",", columns - 1)] for line in answer.stdout.splitlines()]
    return [row for row in rows if len(row) == columns]


def _processor_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
