"""A fast start: what torch and DeepSpeed would load for features that a trial doesn't use, loaded when they are used.

Measured with torch 2.13 and DeepSpeed 0.19.8, a second each in every rank: torch._dynamo, which any optimizer's
constructor imports to keep itself out of compiled graphs, and torch._inductor, which DeepSpeed's ZeRO imports to
compile Muon's kernels whatever the optimizer is. What runs stays the same, compiled models included.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch

Function = Callable[..., Any]
MUON_MODULE = "deepspeed.runtime.zero.muon.muon_optimizer"
OPTIMIZER_METHODS = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def defer_dynamo() -> None:
    """Let functions that torch keeps out of compiled graphs run plainly while nothing was ever compiled.

    Call it before DeepSpeed is imported: DeepSpeed marks functions of its own in the same way.
    """
    mark = getattr(torch, "_disable_dynamo", None)
    if mark is None:
        return

    def mark_lazily(function: Function | None = None, recursive: bool = True) -> Function:  # noqa: FBT001, FBT002
        if function is None:
            return functools.partial(mark_lazily, recursive=recursive)
        marked = mark(function, recursive)

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            chosen = marked if "torch._dynamo" in sys.modules else function
            return chosen(*arguments, **named)

        return call

    torch._disable_dynamo = mark_lazily  # type: ignore[assignment, attr-defined]  # noqa: SLF001
    for name in OPTIMIZER_METHODS:
        method = getattr(torch.optim.Optimizer, name)
        if hasattr(method, "__wrapped__"):
            setattr(torch.optim.Optimizer, name, mark_lazily(method.__wrapped__))


def defer_muon_kernels() -> None:
    """Import DeepSpeed's Muon with kernels that are compiled when they are first called."""
    compiler: Any = importlib.import_module("deepspeed.runtime.compiler")
    compile_now = compiler.compile

    def compile_on_first_call(*options: Any, **named_options: Any) -> Callable[[Function], Function]:
        def decorate(function: Function) -> Function:
            compiled = functools.cache(lambda: compile_now(*options, **named_options)(function))

            @functools.wraps(function)
            def call(*arguments: Any, **named: Any) -> Any:
                return compiled()(*arguments, **named)

            return call

        return decorate

    compiler.compile = compile_on_first_call
    try:
        importlib.import_module(MUON_MODULE)
    except ImportError:
        return  # a DeepSpeed without Muon
    finally:
        compiler.compile = compile_now
