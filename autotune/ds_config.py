"""DeepSpeed configuration files: read one, say what it sets, lay a trial's settings over it, write it.

Keys that are not searched come out exactly as they went in; only dotted keys in `settings` are touched.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hjson

from autotune import whole_file
from autotune.errors import ConfigError
from autotune.space import ACCUMULATION, MICRO_BATCH
from autotune.trials import Value

PRECISION = "precision"
OFFLOAD = "zero_optimization.offload"
ACTIVATION_CHECKPOINTING = "activation_checkpointing"
STAGE = "zero_optimization.stage"
LEARNING_RATE = "optimizer.params.lr"

_OFFLOADED = {"none": (), "optimizer": ("optimizer",), "optimizer_and_parameters": ("optimizer", "param")}
_DEFAULTS: Mapping[str, Value] = {STAGE: 0, MICRO_BATCH: 1, ACCUMULATION: 1}
"""DeepSpeed's defaults: deepspeed/runtime/zero/config.py, deepspeed/runtime/constants.py."""


def read(path: Path) -> dict[str, Any]:
    """Read a DeepSpeed configuration: JSON, or hjson (comments, missing commas).

    Raises:
        ConfigError: when the file can't be read or doesn't hold one mapping.
    """
    if path.suffix in (".yaml", ".yml"):  # hjson would take it, and read nonsense
        raise ConfigError(f"ds_config: {path} is YAML; give DeepSpeed's own JSON file, or its keys in the campaign")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(f"ds_config: can't read {path}: {error}") from error
    return parse(text, source=str(path))


def parse(text: str, *, source: str) -> dict[str, Any]:
    """Read the text of a DeepSpeed configuration.

    Args:
        text: JSON or hjson.
        source: where it comes from, for messages.

    Raises:
        ConfigError: when it is neither, doesn't hold one mapping, or has a key twice (DeepSpeed refuses that too).
    """
    try:
        data = json.loads(text, object_pairs_hook=_mapping)
    except (ValueError, RecursionError):
        try:
            data = hjson.loads(text, object_pairs_hook=_mapping)
        except (ValueError, RecursionError, IndexError, OverflowError) as error:
            # hjson raises IndexError at a comment that never ends, and OverflowError at 1e400.
            raise ConfigError(f"ds_config: {source} is neither JSON nor hjson: {error}") from error
    if not isinstance(data, dict):
        kind = type(data).__name__
        raise ConfigError(f"ds_config: {source} holds a {kind}; it must hold one mapping of DeepSpeed keys")
    return data


def get(config: Mapping[str, Any], dotted: str) -> Any:
    """Return the value of a dotted key, or None where it (or a block above it) is missing."""
    value: Any = config
    for part in dotted.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def settings_of(config: Mapping[str, Any]) -> dict[str, Value]:
    """Return what a configuration says, by the search space's names: what it sets, and DeepSpeed's defaults that count.

    A micro-batch or accumulation that is not given follows from `train_batch_size` only once the number of ranks is
    known: see `complete`. Values "auto" are not settings and are left out.
    """
    settings: dict[str, Value] = dict(_DEFAULTS)
    for dotted, value in _leaves(config):
        if isinstance(value, bool | int | float | str) and value != "auto":
            settings[dotted] = int(value) if isinstance(value, float) and _is_count(dotted, value) else value
    # DeepSpeed's default depends on the stage: `overlap_comm_valid` in deepspeed/runtime/zero/config.py.
    settings.setdefault("zero_optimization.overlap_comm", settings[STAGE] == 3)
    settings[PRECISION] = precision_of(config)
    settings[OFFLOAD] = _offload_of(config)
    settings[ACTIVATION_CHECKPOINTING] = False
    return settings


def precision_of(config: Mapping[str, Any]) -> str:
    """Return 'fp16', 'bf16' or 'fp32' as the configuration enables it ("auto" counts as not enabled)."""
    for name, blocks in (("fp16", ("fp16",)), ("bf16", ("bf16", "bfloat16"))):
        if any(get(config, f"{block}.enabled") is True for block in blocks):
            return name
    return "fp32"


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
    if MICRO_BATCH in settings or ACCUMULATION in settings:
        built.pop("train_batch_size", None)
    return complete(built, world_size=world_size)


def complete(config: Mapping[str, Any], *, world_size: int) -> dict[str, Any]:
    """Return the configuration with all of the batch triple: `train = micro x accumulation x ranks`.

    Raises:
        ConfigError: when two or three given values don't go together; the message has the equation.
    """
    names = ("train_batch_size", MICRO_BATCH, ACCUMULATION)
    train, micro, accumulation = (_batch_number(config, name) for name in names)
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
            f"change one of them, or leave out train_batch_size"
        )
    completed = dict(config)
    completed[MICRO_BATCH], completed[ACCUMULATION] = micro, accumulation
    completed["train_batch_size"] = micro * accumulation * world_size
    return completed


def check_stage(config: Mapping[str, Any]) -> None:
    """Refuse a ZeRO stage that there is not.

    Raises:
        ConfigError: with the value got.
    """
    stage = get(config, STAGE)
    if stage is not None and (isinstance(stage, bool) or stage not in (0, 1, 2, 3) or not isinstance(stage, int)):
        raise ConfigError(f"{STAGE}: got {stage!r}; it must be 0, 1, 2 or 3")


def without_auto(config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the configuration without its "auto" values, and their dotted keys.

    "auto" is filled in by Hugging Face's Trainer, not by DeepSpeed: without it DeepSpeed's default applies.
    """
    gone: list[str] = []

    def strip(block: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for key, value in block.items():
            if value == "auto":
                gone.append(prefix + key)
            else:
                kept[key] = strip(value, f"{prefix}{key}.") if isinstance(value, Mapping) else copy.deepcopy(value)
        return kept

    return strip(config, ""), tuple(gone)


def write(config: Mapping[str, Any], path: Path) -> None:
    """Write a configuration as JSON, whole or not at all.

    Raises:
        ConfigError: when the file can't be written.
    """
    try:
        whole_file.write(json.dumps(config, indent=2) + "\n", path)
    except OSError as error:
        raise ConfigError(f"can't write {path}: {error}") from error


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """As DeepSpeed reads a block: `dict_raise_error_on_duplicate_keys` in deepspeed/runtime/config_utils.py."""
    block: dict[str, Any] = {}
    for key, value in pairs:
        if key in block:
            raise ConfigError(f"ds_config: {key} stands twice in one block, as {block[key]!r} and {value!r}; keep one")
        block[key] = value
    return block


def _leaves(block: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in block.items():
        if isinstance(value, Mapping):
            found += _leaves(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", value))
    return found


def _is_count(dotted: str, value: float) -> bool:
    """Whether a float is a count in scientific notation (5e8), as DeepSpeed reads it."""
    return dotted.startswith("zero_optimization.") and value.is_integer()


def _offload_of(config: Mapping[str, Any]) -> str:
    def offloaded(what: str) -> bool:
        return get(config, f"zero_optimization.offload_{what}.device") in ("cpu", "nvme")

    if offloaded("param"):
        return "optimizer_and_parameters"
    return "optimizer" if offloaded("optimizer") else "none"


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
    """The optimizer's rate, and the peak of a warm-up schedule that would otherwise override it."""
    if not isinstance(config.get("optimizer"), dict):
        raise ConfigError(
            f"{LEARNING_RATE}: the configuration has no optimizer block to set it in; "
            f"add one, or remove {LEARNING_RATE} from the space"
        )
    _set(config, LEARNING_RATE, value)
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
