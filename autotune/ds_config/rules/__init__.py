"""The rules of `autotune lint`, each a function from a subject to its findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from autotune.ds_config.findings import Finding
from autotune.ds_config.rules import (
    accelerates,
    autos,
    batch,
    legacy,
    offload,
    optimizers,
    stages,
    texts,
    unknown,
    values,
)
from autotune.ds_config.rules import precision as precisions
from autotune.ds_config.subject import Subject

Rule: TypeAlias = Callable[[Subject], Iterator[Finding]]

ALWAYS: tuple[Rule, ...] = (
    texts.not_json,
    texts.duplicates,
    texts.placeholders,
    unknown.unknown_keys,
    unknown.spaces_in_keys,
    values.wrong_values,
    values.not_finite,
)
"""For whatever can be read."""
ACCELERATE: tuple[Rule, ...] = (accelerates.config_file, accelerates.no_effect, stages.name_that_lies)
"""For accelerate's own file."""
DEEPSPEED: tuple[Rule, ...] = (
    legacy.removed,
    legacy.gone,
    legacy.moved,
    legacy.offload_flags,
    legacy.other_names,
    autos.auto_values,
    batch.batch_triple,
    precisions.both_precisions,
    precisions.low_precision_states,
    precisions.without_effect,
    optimizers.optimizer_type,
    optimizers.max_grad_norm,
    optimizers.untested_with_zero,
    optimizers.lamb_with_static_scale,
    optimizers.scheduler_type,
    optimizers.scheduler_params,
    offload.optimizer_offload,
    offload.parameter_offload,
    offload.paths,
    offload.clients_optimizer,
    stages.without_effect,
    stages.stage_only,
    stages.missing_block,
    stages.name_that_lies,
)
"""For a DeepSpeed configuration."""

__all__ = ["ACCELERATE", "ALWAYS", "DEEPSPEED", "Rule"]
