"""A process that builds a torch module on the meta device, where parameters take no memory, and writes its widths.

Run as `python -m autotune.planning.module_worker MODULE:ATTRIBUTE RESULT.json`; the current folder can be imported.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autotune.workload import TrainingWorkload, WorkloadContext, WorkloadReference

HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "heads", "nhead")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "block_size", "seq_length")


def main() -> None:
    """Write the widths of the module that is named, or why there are none."""
    name, result = sys.argv[1:3]
    sys.path.insert(0, os.getcwd())
    try:
        found = widths(*built(name))
    except Exception as error:  # noqa: BLE001 - a user's code may raise anything; the caller says what
        found = {"error": f"{type(error).__name__}: {error}"}
    Path(result).write_text(json.dumps(found), encoding="utf-8")


def built(name: str) -> tuple[nn.Module, int | None]:
    """Return the module and, where a workload says so, its tokens per sample.

    What is named may be a module, its class, a function without arguments that returns one, or a campaign's workload
    function. The latter makes its data too, which not every code can do on the meta device: it is built as each rank
    would build it where that fails.
    """
    module, _, attribute = WorkloadReference(function=name).import_path.partition(":")
    named = getattr(importlib.import_module(module), attribute)
    if isinstance(named, nn.Module):
        return named, None
    if not _takes_context(named):
        with torch.device("meta"):
            made = named()
    else:
        context = WorkloadContext(seed=0, rank=0, world_size=1, device="cpu")
        try:
            with torch.device("meta"):
                made = named(context)
        except (NotImplementedError, RuntimeError):
            made = named(context)
    if isinstance(made, TrainingWorkload):
        return made.model, made.tokens_per_sample
    if not isinstance(made, nn.Module):
        raise TypeError(f"it returned {type(made).__name__}; it must return a torch.nn.Module or a TrainingWorkload")
    return made, None


def widths(model: nn.Module, tokens: int | None) -> dict[str, Any]:
    """Return what can be told of a module: parameters exactly, its layers, and the widths of one of them."""
    parameters = list(model.parameters())
    found: dict[str, Any] = {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "trainable": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        "sequence": tokens,
    }
    blocks = _blocks(model)
    if blocks is None:
        return found
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    matrices = [sorted(p.shape) for p in blocks[0].parameters() if p.dim() == 2]
    largest = max(embeddings, key=lambda e: e.num_embeddings, default=None)
    commonest = Counter(side for matrix in matrices for side in matrix).most_common(1)
    hidden = commonest[0][0] if commonest else None
    if largest is not None and any(largest.embedding_dim in matrix for matrix in matrices):
        hidden = largest.embedding_dim
    found |= {"layers": len(blocks), "hidden": hidden}
    if largest is not None:
        found["vocabulary"] = largest.num_embeddings
        whole = [p for p in parameters if p.dim() == 2 and p.shape[0] == largest.num_embeddings]
        found["tied"] = len(whole) < 2
        positions = [e.num_embeddings for e in embeddings if e is not largest and e.embedding_dim == hidden]
        found["sequence"] = tokens or _attribute(model, POSITIONS) or max(positions, default=None)
    found |= _feed_forward(matrices, hidden)
    found |= {"heads": _attribute(model, HEADS), "kv_heads": _attribute(model, KV_HEADS)}
    return found


def _takes_context(named: Callable[..., Any]) -> bool:
    if isinstance(named, type) and issubclass(named, nn.Module):
        return False
    needed = [p for p in inspect.signature(named).parameters.values() if p.default is inspect.Parameter.empty]
    return any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in needed)


def _blocks(model: nn.Module) -> list[nn.Module] | None:
    """Return the stack of equal layers that holds the most parameters."""
    stacks = [
        list(module)
        for module in model.modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
        and len(module) > 0
        and len({type(member) for member in module}) == 1
        and any(parameter.dim() == 2 for parameter in module[0].parameters())
    ]
    return max(stacks, key=lambda stack: sum(p.numel() for m in stack for p in m.parameters()), default=None)


def _feed_forward(matrices: list[list[int]], hidden: int | None) -> dict[str, Any]:
    """Return the feed-forward width: the widest that is gone into and out of; three such matrices are gated."""
    others = Counter(b if a == hidden else a for a, b in matrices if hidden in (a, b))
    wide = {side: count for side, count in others.items() if side > (hidden or 0)}
    both_ways = [side for side, count in wide.items() if count >= 2 or 2 * side in wide]
    if not both_ways:
        return {}
    ffn = max(side for side in both_ways)
    return {"ffn_hidden": ffn, "gated": wide[ffn] >= 3 or 2 * ffn in wide}


def _attribute(model: nn.Module, names: tuple[str, ...]) -> int | None:
    """Return a whole number that the model's configuration, or one of its modules, has under one of the names."""
    for owner in (getattr(model, "config", None), *model.modules()):
        for name in names:
            value = getattr(owner, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


if __name__ == "__main__":
    main()
