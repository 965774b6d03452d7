"""A rank's failure: from the exception that ended it to a `RankResult`, by class and place, in the rank itself."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

from autotune.evaluators.rank_files import RankResult
from autotune.trials import Failure, FailureKind, Outcome, Stage

CPU_ALLOCATOR_PREFIX = "[enforce fail at alloc_cpu.cpp"
"""c10's CPU allocator throws a plain RuntimeError; this is how its text begins (`c10/core/impl/alloc_cpu.cpp`)."""
GLOO_MARK = "gloo/transport"
"""Gloo throws a plain RuntimeError that names its own source file when the connection to a peer breaks."""
CUDA_OUT_OF_MEMORY = 2
"""`cudaErrorMemoryAllocation`, the error code of a `torch.AcceleratorError`."""
CONFIG_ERRORS = (ValueError, TypeError, AssertionError, NotImplementedError, AttributeError, KeyError)
"""What DeepSpeed raises for a configuration it can't run, beside its own classes (pydantic's is a ValueError)."""
DEEPSPEED_CONFIG_ERRORS = frozenset({"DeepSpeedConfigError", "ZeRORuntimeException"})
CONFIG_READERS = ("transformers/integrations/deepspeed.py", "accelerate/utils/dataclasses.py")
"""Who reads a script's configuration before DeepSpeed does, and raises a ValueError where it contradicts the script's
arguments ("Please correct the following DeepSpeed config values that mismatch ...")."""
DTYPE_MARKS = ("have the same dtype", "expected scalar type", "should be the same", "Found dtype")
"""How torch's operators complain of inputs whose number format isn't the parameters' (a plain RuntimeError)."""
HALF_NAMES = ("BFloat16", "Half")
CAST_HINT = (
    "; with bf16 or fp16 the parameters are too: cast floating-point inputs to next(model.parameters()).dtype in the "
    "workload's loss, or fix the precision (space.fix: {precision: fp32})"
)
SHOWN_CHARACTERS = 600


class TrialFailed(Exception):  # noqa: N818 - an outcome, found by every rank alike, rather than an error
    """The trial can't give a measurement, for a reason this worker found itself."""

    def __init__(self, kind: FailureKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def result_of(error: BaseException, *, stage: Stage, initializing: bool) -> RankResult:
    """Return what to deliver for the exception that ended this rank.

    Args:
        error: The exception.
        stage: The stage this rank was in.
        initializing: Whether `deepspeed.initialize` raised it.
    """
    if isinstance(error, TrialFailed):
        return _result(error.kind, str(error), stage)
    if _is_out_of_memory(error):
        return _result(FailureKind.OUT_OF_MEMORY, f"out of memory: {_words(error)}", stage)
    if _is_exhausted_loss_scale(error):
        reason = f"the loss scaler found no scale without overflow: {_words(error)}"
        return _result(FailureKind.DIVERGED, reason, stage)
    if _is_address_in_use(error):
        return _result(FailureKind.CRASH, f"the rendezvous port was taken: {_words(error)}", stage, address_in_use=True)
    if _is_broken_connection(error):
        reason = f"the connection to another rank broke or timed out: {_words(error)}"
        return _result(FailureKind.CRASH, reason, stage, follows_a_peer=True)
    if initializing and _is_config_error(error):
        return _result(FailureKind.INVALID_CONFIG, f"DeepSpeed refuses this configuration: {_words(error)}", stage)
    if _is_refused_by_a_reader(error):
        reason = f"the script's arguments and this configuration don't go together: {_words(error)}"
        return _result(FailureKind.INVALID_CONFIG, reason, stage)
    hint = CAST_HINT if _is_uncast_input(error) else ""
    return _result(FailureKind.CRASH, _words(error) + hint, stage)


def _result(
    kind: FailureKind, reason: str, stage: Stage, *, follows_a_peer: bool = False, address_in_use: bool = False
) -> RankResult:
    outcome = Outcome(failure=Failure(kind=kind, reason=reason, stage=stage))
    return RankResult(outcome=outcome, follows_a_peer=follows_a_peer, address_in_use=address_in_use)


def _words(error: BaseException) -> str:
    text = " ".join(_printable(str(error)).split())
    shown = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + " ..."
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


def _printable(text: str) -> str:
    """Return text that any file and terminal takes: no control characters, no lone surrogates."""
    return "".join(character if character.isprintable() else " " if character.isspace() else "?" for character in text)


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, _torch_class("OutOfMemoryError"))):
        return True
    if isinstance(error, _torch_class("AcceleratorError")):
        return getattr(error, "error_code", None) == CUDA_OUT_OF_MEMORY
    thrown_by_torch = type(error) is RuntimeError and not _raised_in_python(error)
    return thrown_by_torch and str(error).startswith(CPU_ALLOCATOR_PREFIX)


def _is_exhausted_loss_scale(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    place = Path(frames[-1].filename).name if frames else ""
    return place == "loss_scaler.py" and "loss scale already at minimum" in str(error)


def _is_address_in_use(error: BaseException) -> bool:
    return isinstance(error, _distributed_class("DistNetworkError")) and "EADDRINUSE" in str(error)


def _is_broken_connection(error: BaseException) -> bool:
    if isinstance(error, _distributed_class("DistError")):
        return True
    return type(error) is RuntimeError and not _raised_in_python(error) and GLOO_MARK in str(error)


def _is_uncast_input(error: BaseException) -> bool:
    text = str(error)
    marked = any(mark in text for mark in DTYPE_MARKS) and any(name in text for name in HALF_NAMES)
    return type(error) is RuntimeError and not _raised_in_python(error) and marked


def _is_config_error(error: BaseException) -> bool:
    return isinstance(error, CONFIG_ERRORS) or type(error).__name__ in DEEPSPEED_CONFIG_ERRORS


def _is_refused_by_a_reader(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, ValueError) and bool(frames) and frames[-1].filename.endswith(CONFIG_READERS)


def _raised_in_python(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and (frames[-1].line or "").startswith("raise ")


def _torch_class(name: str) -> type[BaseException] | tuple[()]:
    return _class_of(sys.modules.get("torch"), name)


def _distributed_class(name: str) -> type[BaseException] | tuple[()]:
    return _class_of(sys.modules.get("torch.distributed"), name)


def _class_of(module: Any, name: str) -> type[BaseException] | tuple[()]:
    """Return an exception class, or nothing that `isinstance` could match where this torch has no such class."""
    found: type[BaseException] | tuple[()] = getattr(module, name, ())
    return found
