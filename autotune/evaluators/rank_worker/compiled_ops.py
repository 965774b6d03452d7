"""Compiled ops of one rank: loaded straight from the op cache, without torch's build step and its lock.

For every op that a process loads, `torch.utils.cpp_extension.load` takes `<op>/lock` and runs ninja, also when there is
nothing to build. A rank that is killed in that moment leaves the lock, and every later load waits for it for ever.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from deepspeed.ops.op_builder.builder import OpBuilder

from autotune.evaluators import op_cache


def load_from(folder: Path) -> None:
    """Let DeepSpeed load each op that `folder` holds from there; build the others as ever.

    The folder belongs to one version of torch and of DeepSpeed and to one kind of processor
    (`op_cache.directory`), so what it holds is what a build would make.
    """
    build = OpBuilder.jit_load

    def load_or_build(builder: Any, verbose: bool = True) -> Any:  # noqa: FBT001, FBT002 - as DeepSpeed calls it
        if not op_cache.is_built(folder, builder.name):
            op_cache.clear_stale_locks(folder)
            return build(builder, verbose)
        return _import(builder.name, op_cache.library(folder, builder.name))

    OpBuilder.jit_load = load_or_build


def without_inference_collectives() -> None:
    """Let DeepSpeed start on CPU without its shared-memory collectives, which take 45 s or more to compile.

    `TorchBackend` in `deepspeed/comm/torch.py` builds them whatever runs, but only its `inference_all_reduce` (tensor
    parallel inference) calls them, and without them it takes the process group's own all_reduce.
    """
    # By its full name: the attribute `torch` of the package deepspeed.comm is torch itself, not this module.
    backend: Any = importlib.import_module("deepspeed.comm.torch")
    if hasattr(backend, "build_shm_op"):
        backend.build_shm_op = lambda: None


@functools.cache
def _import(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: not a Python extension; remove its folder, and DeepSpeed builds it again")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
