"""From a space as data to the space that one study searches: hardware limits and the user's changes applied."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from importlib.resources import files

import yaml

from autotune.errors import SpaceError
from autotune.hardware import Hardware
from autotune.space import ACCUMULATION, MICRO_BATCH, Dimension, GlobalBatch, LeftOut, SearchSpace
from autotune.trials import Point, Value
from autotune_spaces.schema import DimensionFile, Need, Range, SpaceChanges, SpaceFile

READY_MADE: tuple[str, ...] = ("deepspeed",)
"""Names of the spaces that come with autotune; each is a YAML file of this package."""


TRAIN_BATCH = "train_batch_size"


def ready_made(name: str) -> SpaceFile:
    """Read a ready-made space.

    Raises:
        SpaceError: when there is none of that name.
    """
    if name == "empty":
        return SpaceFile(dimensions=[])
    if name not in READY_MADE:
        raise SpaceError(f"space.base: got {name!r}; it must be one of {', '.join((*READY_MADE, 'empty'))}")
    text = files("autotune_spaces").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return SpaceFile.model_validate(yaml.safe_load(text))


def build(
    changes: SpaceChanges, hardware: Hardware, *, start: Point, unavailable: Mapping[str, str] | None = None
) -> SearchSpace:
    """Return the search space of a study.

    Args:
        changes: the `space` section of a campaign; `SpaceChanges()` is the default space.
        hardware: levels that it can't run are left out, with the reason in `SearchSpace.left_out`.
        start: what the starting configuration says, by dimension name (`autotune.ds_config.settings_of`); a start
            that is no level of its numeric dimension becomes one, so that the search can keep it.
        unavailable: dimensions that this training can't be searched in, each with the reason.

    Raises:
        SpaceError: naming the dimension, the value got and the rule.
    """
    if TRAIN_BATCH in changes.fix or any(added.name == TRAIN_BATCH for added in changes.add):
        raise SpaceError(
            f"space: {TRAIN_BATCH} follows from micro-batch, accumulation and ranks; "
            f"to fix it, give space.global_batch_size"
        )
    _refuse_unavailable(changes, unavailable or {})
    described = {dimension.name: dimension for dimension in ready_made(changes.base).dimensions}
    for added in changes.add:
        if added.name in described:
            raise SpaceError(f"space.add: {added.name} is in the base space already; use space.narrow to change it")
        described[added.name] = added
    left_out: list[LeftOut] = []
    dimensions: dict[str, Dimension] = {}
    for name, description in described.items():
        dimensions[name] = _runnable(description, hardware, left_out)
    _remove(changes, dimensions, left_out)
    for name, reason in (unavailable or {}).items():
        if dimensions.pop(name, None) is not None:
            left_out.append(LeftOut(name=name, level=None, reason=reason))
    _narrow(changes, described, dimensions, hardware)
    for name, value in changes.fix.items():
        if name in described:
            described[name].dimension().index(value)
            _refuse_unrunnable(described[name], [value], hardware, "space.fix")
        dimensions.pop(name, None)
    global_batch = _global_batch(changes, dimensions, hardware, left_out)
    _drop_without_effect(dimensions, {**start, **changes.fix}, left_out)
    given = {name: value for name, value in start.items() if name not in dimensions and name not in changes.fix}
    space = SearchSpace(
        dimensions=tuple(dimensions.values()),
        fixed=dict(changes.fix),
        given=given,
        global_batch=global_batch,
        left_out=_each_once(left_out, changes.fix),
    )
    for name, value in start.items():
        if name in dimensions and name not in changes.narrow and not (global_batch and name == MICRO_BATCH):
            space = space.with_level(name, value)
    return space


def _each_once(left_out: Sequence[LeftOut], fixed: Mapping[str, Value]) -> tuple[LeftOut, ...]:
    """Return what is left out, without levels of dimensions that aren't searched at all."""
    whole = {out.name for out in left_out if out.level is None} | set(fixed)
    return tuple(out for out in left_out if out.level is None or out.name not in whole)


def _runnable(description: DimensionFile, hardware: Hardware, left_out: list[LeftOut]) -> Dimension:
    dimension = description.dimension()
    kept = []
    for level in dimension.levels:
        need = description.needs.get(level)
        if need is None or _meets(hardware, need):
            kept.append(level)
        else:
            left_out.append(LeftOut(name=dimension.name, level=level, reason=need.reason))
    if not kept:
        raise SpaceError(f"{dimension.name}: this hardware can run none of its levels; remove the dimension")
    return dimension.restrict(kept)


def _meets(hardware: Hardware, need: Need) -> bool:
    if need.accelerator is not None and hardware.accelerator != need.accelerator:
        return False
    if need.compute_capability is None or hardware.compute_capability is None:
        return True
    return hardware.compute_capability >= need.compute_capability


def _refuse_unavailable(changes: SpaceChanges, unavailable: Mapping[str, str]) -> None:
    """Refuse a change to what never reaches the training: trials would be filed under a value that they didn't have."""
    for name, reason in unavailable.items():
        for where, names in (("fix", changes.fix), ("narrow", changes.narrow)):
            if name in names:
                raise SpaceError(f"space.{where}.{name}: {reason}")
        if changes.global_batch_size is not None and name in (MICRO_BATCH, ACCUMULATION):
            raise SpaceError(f"space.global_batch_size: {reason}")


def _remove(changes: SpaceChanges, dimensions: dict[str, Dimension], left_out: list[LeftOut]) -> None:
    for name in changes.remove:
        _known(name, dimensions, "space.remove")
        del dimensions[name]
        left_out.append(LeftOut(name=name, level=None, reason="removed by the campaign (space.remove)"))


def _narrow(
    changes: SpaceChanges,
    described: dict[str, DimensionFile],
    dimensions: dict[str, Dimension],
    hardware: Hardware,
) -> None:
    for name, wanted in changes.narrow.items():
        _known(name, dimensions, "space.narrow")
        dimension = dimensions[name]
        if isinstance(wanted, Range):
            levels = [level for level in dimension.levels if _within(wanted, level, name)]
            if not levels:
                raise SpaceError(
                    f"space.narrow.{name}: no level of {list(dimension.levels)} lies from {wanted.low} to {wanted.high}"
                )
        else:
            _refuse_unrunnable(described[name], wanted, hardware, "space.narrow")
            levels = _typed(dimension, wanted)
        dimensions[name] = dimension.restrict(levels)


def _within(wanted: Range, level: Value, name: str) -> bool:
    if isinstance(level, bool | str):
        raise SpaceError(f"space.narrow.{name}: a range needs numbers; give the list of levels to keep")
    return (wanted.low is None or level >= wanted.low) and (wanted.high is None or level <= wanted.high)


def _typed(dimension: Dimension, levels: list[bool | int | float | str]) -> list[Value]:
    if not dimension.is_ordered:
        for level in levels:
            dimension.index(level)
        return list(levels)
    if any(isinstance(level, bool | str) for level in levels):
        raise SpaceError(f"space.narrow.{dimension.name}: got {levels}; it takes numbers")
    return sorted(levels, key=float)


def _refuse_unrunnable(description: DimensionFile, levels: Sequence[Value], hardware: Hardware, where: str) -> None:
    for level in levels:
        need = description.needs.get(level)
        if need is not None and not _meets(hardware, need):
            raise SpaceError(f"{where}.{description.name}: {level!r} can't run here: {need.reason}")


def _global_batch(
    changes: SpaceChanges, dimensions: dict[str, Dimension], hardware: Hardware, left_out: list[LeftOut]
) -> GlobalBatch | None:
    if changes.global_batch_size is None:
        return None
    batch = GlobalBatch(samples=changes.global_batch_size, data_parallel_size=hardware.ranks)
    reason = f"derived from the fixed global batch of {batch.samples} samples"
    if dimensions.pop(ACCUMULATION, None) is not None:
        left_out.append(LeftOut(name=ACCUMULATION, level=None, reason=reason))
    if MICRO_BATCH in dimensions:
        dimension = dimensions[MICRO_BATCH]
        fitting = [level for level in dimension.levels if batch.samples % (int(level) * batch.data_parallel_size) == 0]
        if not fitting:
            raise SpaceError(
                f"space.global_batch_size: got {batch.samples}; with {batch.data_parallel_size} ranks none of the "
                f"micro-batches {list(dimension.levels)} divides it; choose a multiple of {batch.data_parallel_size}"
            )
        for level in dimension.levels:
            if level not in fitting:
                why = f"{level} x {batch.data_parallel_size} ranks does not divide the global batch of {batch.samples}"
                left_out.append(LeftOut(name=MICRO_BATCH, level=level, reason=why))
        dimensions[MICRO_BATCH] = dimension.restrict(fitting)
    return batch


def _drop_without_effect(dimensions: dict[str, Dimension], settings: Point, left_out: list[LeftOut]) -> None:
    """Leave out dimensions that a setting which is not searched makes void (stage-3 knobs at a fixed stage 2)."""
    for name in list(dimensions):
        for condition in dimensions[name].conditions:
            other = condition.dimension
            if other in dimensions or condition.holds(settings):
                continue
            del dimensions[name]
            reason = f"has an effect only where {other} is one of {list(condition.allowed)}; here it is"
            left_out.append(LeftOut(name=name, level=None, reason=f"{reason} {settings.get(other, 'not set')}"))
            break


def _known(name: str, dimensions: dict[str, Dimension], where: str) -> None:
    if name not in dimensions:
        near = difflib.get_close_matches(name, dimensions, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(dimensions)}"
        raise SpaceError(f"{where}: {name} is no dimension of the space; {hint}")
