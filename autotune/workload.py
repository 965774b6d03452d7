"""A workload: what is trained. Named in a campaign by `module:function`, built inside each rank's process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.errors import WorkloadError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadContext:
    """What a workload function is called with, on every rank of every trial."""

    seed: int
    rank: int
    world_size: int
    device: str
    """A torch device string: 'cpu' or 'cuda:0'."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """`workload.arguments` of the campaign, as written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWorkload:
    """What a workload function returns.

    Example (`my_project/tuning.py`, named `my_project.tuning:workload` in the campaign):

        def workload(context: WorkloadContext) -> TrainingWorkload:
            return TrainingWorkload(model=Net(), data=train_set, held_out=validation_set,
                                    loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
    """

    model: Any
    """A `torch.nn.Module`, not yet on a device."""
    data: Any
    """A map-style dataset (`__len__`, `__getitem__`): one item is one sample. autotune shards and batches it."""
    loss: Callable[[Any, Any], Any]
    """`loss(engine, batch)` -> scalar tensor; `batch` is collated and on the device."""
    held_out: Any
    """A map-style dataset that is never trained on; small (it is evaluated a few times per trial)."""
    held_out_batch_size: int = 32
    collate: Callable[[Sequence[Any]], Any] | None = None
    """As `collate_fn` of `torch.utils.data.DataLoader`."""
    tokens_per_sample: int | None = None
    checkpoint: Callable[[Any], None] | None = None
    """Switches activation checkpointing on in the model (called before `deepspeed.initialize`). None: autotune
    uses `model.gradient_checkpointing_enable()` where there is one, else wraps the members of each ModuleList."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadReference:
    """A workload as a campaign names it: importable text, nothing loaded.

    Raises:
        WorkloadError: when `function` is neither a built-in name nor of the form `module:function`.
    """

    function: str
    """A built-in name (see `BUILT_IN`) or `module:function`."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    python_path: tuple[str, ...] = ()
    """Folders put in front of `sys.path` in the rank processes (the campaign file's own folder, at least)."""

    def __post_init__(self) -> None:
        module, _, attribute = self.import_path.partition(":")
        if not (module and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))):
            raise WorkloadError(
                f"workload.function: got {self.function!r}; give 'module:function', "
                f"or one of the built-in workloads: {', '.join(sorted(BUILT_IN))}"
            )

    @property
    def import_path(self) -> str:
        """`module:function`, with built-in names resolved."""
        return BUILT_IN.get(self.function, self.function)


BUILT_IN: Mapping[str, str] = {
    "byte-gpt": "autotune.evaluators.workloads.byte_gpt:workload",
    "module-mlp": "autotune.evaluators.workloads.module_mlp:workload",
}
"""Workloads that come with autotune, by name."""
