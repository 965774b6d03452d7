"""The op cache: the folder of compiled DeepSpeed ops, built before the first trial and never left locked."""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.errors import ResourceError
from autotune.evaluators.op_build import Build

logger = logging.getLogger(__name__)

ROOT_VARIABLE = "AUTOTUNE_OP_CACHE"
"""Environment variable that moves the cache; a folder per version is made below it."""

OP_NAMES: Mapping[str, str] = {
    "FusedAdamBuilder": "fused_adam",
    "CPUAdamBuilder": "cpu_adam",
    "CPUAdagradBuilder": "cpu_adagrad",
    "FusedLionBuilder": "fused_lion",
    "CPULionBuilder": "cpu_lion",
    "FusedLambBuilder": "fused_lamb",
    "AsyncIOBuilder": "async_io",
    "QuantizerBuilder": "quantizer",
}
"""DeepSpeed's builder classes and the names of their ops (`NAME` in `deepspeed/ops/op_builder/`)."""


def directory(device: str) -> Path:
    """Return the folder for ops compiled by these versions, for this device and this processor.

    Ops are compiled with `-march=native` or for the GPUs at hand, so different machines that share a home folder must
    not share them.
    """
    root = os.environ.get(ROOT_VARIABLE)
    base = Path(root) if root else Path.home() / ".cache" / "deepspeed-autotune" / "torch_extensions"
    versions = "-".join(f"{name}{importlib.metadata.version(name)}" for name in ("torch", "deepspeed"))
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    return base.expanduser().absolute() / f"{python}-{versions}-{device}-{hardware_fingerprint(device)}"


def hardware_fingerprint(device: str) -> str:
    """Return 8 hex digits that change with the processor's model or instruction set, and with the GPUs' model."""
    sources = [Path("/proc/cpuinfo")]
    if device != "cpu":
        sources += Path("/proc/driver/nvidia/gpus").glob("*/information")
    lines = [line for source in sources if source.exists() for line in source.read_text().splitlines()]
    telling = {line for line in lines if line.partition(":")[0].strip() in {"model name", "flags", "Features", "Model"}}
    text = "\n".join(sorted(telling)) or f"{platform.machine()} {platform.processor()}"
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def builders_for(ds_config: Mapping[str, Any]) -> set[str]:
    """Return the builders of the ops that DeepSpeed loads for a configuration.

    After `_configure_basic_optimizer` and `get_optimizer_configuration` in `deepspeed/runtime/engine.py`,
    and the swappers in `deepspeed/runtime/swap_tensor/`. (Not the collectives of `TorchBackend`: see
    `compiled_ops.without_inference_collectives`.)
    """
    builders = set()
    zero = _mapping(ds_config, "zero_optimization")
    optimizer = _mapping(ds_config, "optimizer")
    name = str(optimizer.get("type", "")).lower()
    offloads = [str(_mapping(zero, key).get("device", "none")) for key in ("offload_optimizer", "offload_param")]
    on_cpu = offloads[0] in {"cpu", "nvme"}
    if name in {"adam", "adamw", "muon"} and not _mapping(optimizer, "params").get("torch_adam", False):
        builders.add("CPUAdamBuilder" if on_cpu else "FusedAdamBuilder")
    elif name == "lion":
        builders.add("CPULionBuilder" if on_cpu else "FusedLionBuilder")
    elif name == "adagrad" and on_cpu:
        builders.add("CPUAdagradBuilder")
    elif name == "lamb":
        builders.add("FusedLambBuilder")
    if "nvme" in offloads:
        builders.add("AsyncIOBuilder")
    if zero.get("zero_quantized_weights") or zero.get("zero_quantized_gradients"):
        builders.add("QuantizerBuilder")
    return builders


def prepare(ds_configs: Sequence[Mapping[str, Any]], *, device: str, progress: Callable[[str], None]) -> None:
    """Compile what these configurations need and the cache lacks.

    An op that can't be compiled is told through `progress`; the trials that need it fail with DeepSpeed's own words.

    Raises:
        ResourceError: when the cache's folder can't be made.
    """
    folder = directory(device)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(
            f"op cache: the folder {folder} can't be made ({error.strerror}); compiled DeepSpeed ops go there: "
            f"set {ROOT_VARIABLE} to a folder that can be written"
        ) from error
    for lock in clear_stale_locks(folder):
        progress(f"removed {lock}: its builder is gone, and DeepSpeed would have waited for it for ever")
    needed = sorted(set().union(*(builders_for(ds_config) for ds_config in ds_configs)))
    for builder in needed:
        if not is_built(folder, OP_NAMES[builder]):
            Build(builder=builder, op=OP_NAMES[builder], folder=folder, device=device, progress=progress).run()


def library(folder: Path, op: str) -> Path:
    """Return where torch puts an op's shared library."""
    return folder / op / f"{op}.so"


def is_built(folder: Path, op: str) -> bool:
    """Say whether an op is there and nobody is building it."""
    path = library(folder, op)
    return path.exists() and not (path.parent / "lock").exists()


def clear_stale_locks(folder: Path) -> list[Path]:
    """Remove `<op>/lock` files that no process of this machine holds open; return those removed.

    torch's `FileBaton` keeps the lock file open for as long as its builder lives, and waits for ever on one that a
    killed builder left behind.
    """
    cleared = []
    for lock in folder.glob("*/lock"):
        if is_stale(lock):
            lock.unlink(missing_ok=True)
            logger.warning("removed the stale lock %s", lock)
            cleared.append(lock)
    return cleared


def is_stale(lock: Path) -> bool:
    """Say whether a lock file is there that no process of this machine holds open."""
    seen = _inode(lock)
    # Seen again after the look at who holds it: another builder may have taken the lock meanwhile.
    return not _is_open(lock) and seen is not None and _inode(lock) == seen


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _is_open(path: Path) -> bool:
    target = str(path.resolve())
    for descriptors in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(os.readlink(descriptor) == target for descriptor in descriptors.iterdir()):
                return True
        except OSError:
            continue  # gone meanwhile, or another user's, who can't hold a lock in our private folder
    return False


def _mapping(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, Mapping) else {}
