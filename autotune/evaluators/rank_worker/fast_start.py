"""A fast start: what torch and DeepSpeed would load for features that a trial doesn't use, loaded when they are used.

Measured with torch 2.13 and DeepSpeed 0.19.8, a second and 100 MB each in every rank: torch._dynamo, imported by
functions that only want to stay out of compiled graphs (an optimizer's constructor, ZeRO-3's hooks), and
torch._inductor, which DeepSpeed's ZeRO imports to compile Muon's kernels whatever the optimizer is. What runs stays the
same, compiled models included.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch

Function = Callable[..., Any]
DYNAMO = "torch._dynamo"
MUON_MODULE = "deepspeed.runtime.zero.muon.muon_optimizer"
OPTIMIZER_METHODS = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def defer_dynamo() -> None:
    """Let functions that are kept out of compiled graphs run plainly while nothing was ever compiled.

    Call it before DeepSpeed is imported: DeepSpeed marks functions of its own.
    """
    torch.compiler.disable = _deferred(torch.compiler.disable)
    mark = getattr(torch, "_disable_dynamo", None)
    if mark is None:
        return
    torch._disable_dynamo = _deferred(mark)  # type: ignore[attr-defined]  # noqa: SLF001
    for name in OPTIMIZER_METHODS:
        function = getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None)
        if function is not None:
            setattr(torch.optim.Optimizer, name, _marked_when_loaded(function, mark))


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


def _deferred(mark: Function) -> Function:
    """Return the marking decorator `mark`, made to wait for torch._dynamo; used bare or with options, as it is."""

    def decorator(function: Any = None, *options: Any, **named_options: Any) -> Any:
        if function is None:
            return lambda function: decorator(function, *options, **named_options)
        if not inspect.isfunction(function):
            return mark(function, *options, **named_options)
        return _marked_when_loaded(function, lambda plain: mark(plain, *options, **named_options))

    return decorator


def _marked_when_loaded(function: Function, mark: Function) -> Function:
    marked = functools.cache(lambda: mark(function))

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return (marked() if DYNAMO in sys.modules else function)(*arguments, **named)

    return call
