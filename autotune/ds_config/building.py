"""A configuration with a trial's settings laid over it, and its batch triple made whole."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

from autotune.dotted import get, leaves
from autotune.ds_config.notation import ordered_like
from autotune.ds_config.rules.batch import nearest
from autotune.ds_config.settings import (
    ACTIVATION_CHECKPOINTING,
    AUTO,
    OFFLOAD,
    PRECISION,
)
from autotune.errors import ConfigError
from autotune.space import ACCUMULATION, LEARNING_RATE, MICRO_BATCH
from autotune.trials import Value

AUTOTUNING = "autotuning.enabled"
"""DeepSpeed's own autotuner: where it is on, the engine profiles itself and ends the run (`_autotuning_exit` in
deepspeed/runtime/engine.py)."""
BATCH_TRIPLE = ("train_batch_size", MICRO_BATCH, ACCUMULATION)
_OFFLOADED = {
    "none": (),
    "optimizer": ("optimizer",),
    "parameters": ("param",),
    "optimizer_and_parameters": ("optimizer", "param"),
}


def build(config: Mapping[str, Any], settings: Mapping[str, Value], *, world_size: int) -> dict[str, Any]:
    """Return `config` with `settings` laid over it and the batch triple made whole.

    Args:
        config: the user's configuration; not changed.
        settings: dotted DeepSpeed keys, and the composite names of this module. `activation_checkpointing` is
            switched in the model, so it writes nothing here.
        world_size: data-parallel ranks.

    Raises:
        ConfigError: when a setting has no place in the configuration.
    """
    built = overlay(config, settings)
    if MICRO_BATCH in settings or ACCUMULATION in settings:
        built.pop("train_batch_size", None)
    return complete(built, world_size=world_size)


def overlay(config: Mapping[str, Any], settings: Mapping[str, Value]) -> dict[str, Any]:
    """Return `config` with `settings` laid over it, as `build` does, the batch triple left as it comes.

    Raises:
        ConfigError: when a setting has no place in the configuration.
    """
    built: dict[str, Any] = copy.deepcopy(dict(config))
    for name, value in settings.items():
        if name == PRECISION:
            _set_precision(built, str(value))
        elif name == OFFLOAD:
            _set_offload(built, str(value))
        elif name == LEARNING_RATE:
            _set_learning_rate(built, value)
        elif name != ACTIVATION_CHECKPOINTING:
            _set(built, name, value)
    return built


def as_sent(
    concrete: Mapping[str, Any], own: Mapping[str, Any], *, searched: Collection[str], passed: Collection[str]
) -> dict[str, Any]:
    """Return a trial's configuration as a user's script is to read it.

    What the user's file leaves to the script ("auto", which Hugging Face's Trainer and accelerate fill in) stays so,
    but for searched keys that the trial sets and the command doesn't pass: they get their number. Of the batch triple
    only what the user's file has, or what is searched, is written. Keys come in the user's order, and DeepSpeed's own
    autotuner is switched off.

    Args:
        concrete: the whole configuration of the trial.
        own: the user's.
        searched: dotted keys that the search decides.
        passed: dotted keys that reach the script as arguments.
    """
    sent = _without_autotuning(concrete)
    for name in BATCH_TRIPLE:
        if name not in own and name not in searched:
            sent.pop(name, None)
    for key, value in leaves(own).items():
        block = key.rpartition(".")[0]
        has_place = not block or isinstance(get(sent, block), Mapping)
        is_number = key in searched and key not in passed and get(concrete, key) is not None
        if value == AUTO and has_place and not is_number:
            _set(sent, key, AUTO)
    return ordered_like(sent, own)


def _without_autotuning(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with DeepSpeed's own autotuner switched off, if it is on."""
    off = copy.deepcopy(dict(config))
    if get(off, AUTOTUNING):
        _set(off, AUTOTUNING, value=False)
    return off


def complete(config: Mapping[str, Any], *, world_size: int) -> dict[str, Any]:
    """Return the configuration with all of the batch triple: `train = micro x accumulation x ranks`.

    Raises:
        ConfigError: when two or three given values don't go together; the message has the equation.
    """
    train, micro, accumulation = (_batch_number(config, name) for name in BATCH_TRIPLE)
    if train is not None and micro is not None and accumulation is None:
        accumulation = train // (micro * world_size)
    elif train is not None and micro is None:
        accumulation = accumulation or 1
        micro = train // (accumulation * world_size)
    micro, accumulation = micro or 1, accumulation or 1
    if train is not None and train != micro * accumulation * world_size:
        raise ConfigError(
            f"train_batch_size: {train} is not {MICRO_BATCH} x {ACCUMULATION} x ranks = "
            f"{micro} x {accumulation} x {world_size} = {micro * accumulation * world_size}; "
            f"change one of them, or leave out train_batch_size; the nearest that hold: "
            + ", ".join(f"{triple} x {world_size}" for triple in nearest(train, micro, accumulation, world_size))
        )
    completed = dict(config)
    completed[MICRO_BATCH], completed[ACCUMULATION] = micro, accumulation
    completed["train_batch_size"] = micro * accumulation * world_size
    return completed


def _set(config: dict[str, Any], dotted: str, value: Value) -> None:
    *blocks, key = dotted.split(".")
    place = config
    for block in blocks:
        inner = place.setdefault(block, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{dotted}: {block} holds {inner!r} in the configuration; it must be a mapping")
        place = inner
    place[key] = value


def _set_precision(config: dict[str, Any], precision: str) -> None:
    config.pop("bfloat16", None)
    for block in ("fp16", "bf16"):
        if block in config or block == precision:
            _set(config, f"{block}.enabled", block == precision)


def _set_offload(config: dict[str, Any], offload: str) -> None:
    wanted = _OFFLOADED[offload]
    zero = config.setdefault("zero_optimization", {})
    for what in ("optimizer", "param"):
        if what not in wanted:
            zero.pop(f"offload_{what}", None)
        elif get(config, f"zero_optimization.offload_{what}.device") not in ("cpu", "nvme"):
            _set(config, f"zero_optimization.offload_{what}.device", "cpu")


def _set_learning_rate(config: dict[str, Any], value: Value) -> None:
    """The optimizer's rate, and the peak of a warm-up schedule that would otherwise override it.

    Where a WarmupDecayLR has no peak, DeepSpeed's default of 0.001 would; a WarmupLR follows the optimizer then
    (deepspeed/runtime/lr_schedules.py).
    """
    if not isinstance(config.get("optimizer"), dict):
        raise ConfigError(
            f"{LEARNING_RATE}: the configuration has no optimizer block to set it in; "
            f"add one, or remove {LEARNING_RATE} from the space"
        )
    _set(config, LEARNING_RATE, value)
    if get(config, "scheduler.type") == "WarmupDecayLR":
        _set(config, "scheduler.params.warmup_max_lr", value)
    for peak in ("scheduler.params.warmup_max_lr", "scheduler.params.cycle_max_lr"):
        if get(config, peak) is not None:
            _set(config, peak, value)


def _batch_number(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    if value is None:
        return None
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not is_whole or value < 1:
        raise ConfigError(f"{name}: got {value!r}; it must be a whole number, 1 or more")
    return int(value)
