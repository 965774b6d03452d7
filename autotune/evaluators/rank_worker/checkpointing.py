"""Activation checkpointing: recompute activations in the backward pass instead of keeping them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autotune.evaluators.rank_worker.failures import TrialFailed
from autotune.trials import FailureKind
from autotune.workload import TrainingWorkload


class Recomputed(nn.Module):
    """A module whose activations are recomputed. Calls the module itself, so that ZeRO-3's hooks fire again."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *arguments: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.module(*arguments, **named)
        return checkpoint(self.module, *arguments, use_reentrant=False, **named)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def switch_on(workload: TrainingWorkload) -> None:
    """Switch activation checkpointing on, as `TrainingWorkload.checkpoint` documents.

    Raises:
        TrialFailed: INVALID_CONFIG, when the model offers no way to do it.
    """
    model = workload.model
    if workload.checkpoint is not None:
        workload.checkpoint(model)
    elif hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable()
    elif not _wrap_module_lists(model):
        raise TrialFailed(
            FailureKind.INVALID_CONFIG,
            f"activation checkpointing was asked for, but {type(model).__name__} has neither "
            "gradient_checkpointing_enable() nor an nn.ModuleList whose members could be wrapped: "
            "give TrainingWorkload.checkpoint, or take it out of the search space",
        )


def _wrap_module_lists(model: nn.Module) -> int:
    """Wrap the members of each outermost ModuleList; return how many."""
    wrapped = 0
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            for index, member in enumerate(child):
                child[index] = Recomputed(member)
            wrapped += len(child)
        else:
            wrapped += _wrap_module_lists(child)
    return wrapped
