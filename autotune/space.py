"""A search space: named dimensions with finite levels, conditions between them, and one canonical form of a point.

Two configurations that DeepSpeed would run alike are one point: a dimension that has no effect is left out of the
point, and a level that has no effect is replaced by the one that DeepSpeed falls back to.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from autotune.errors import SpaceError
from autotune.trials import Point, Value

MICRO_BATCH = "train_micro_batch_size_per_gpu"
ACCUMULATION = "gradient_accumulation_steps"
LARGEST_WHOLE = 2**53
"""Whole numbers up to here are floats too, as samplers and Optuna's distributions need them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Holds when another, earlier dimension has one of the `allowed` values."""

    dimension: str
    allowed: tuple[Value, ...]

    def holds(self, settings: Point) -> bool:
        return self.dimension in settings and settings[self.dimension] in self.allowed


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """One named dimension with finite levels; use `Categorical`, `Integer` or `Float`.

    Raises:
        SpaceError: when levels are missing, repeated or of the wrong type, or `default` is not one of them.
    """

    name: str
    """DeepSpeed's dotted key, or one of the composite names that `autotune.ds_config` writes."""
    levels: tuple[Value, ...]
    default: Value
    """DeepSpeed's own default (see `source`); stands in for the dimension where it has no effect."""
    conditions: tuple[Condition, ...] = ()
    """The dimension has an effect only where all hold."""
    level_conditions: Mapping[Value, tuple[Condition, ...]] = field(default_factory=dict)
    """A level has an effect only where all of its conditions hold; else the last earlier level that has one does."""
    unit: str = ""
    description: str = ""
    source: str = ""
    """Where the default comes from: a DeepSpeed file."""

    def __post_init__(self) -> None:
        if not self.levels:
            raise SpaceError(f"{self.name}: no levels; give at least one value")
        for level in self.levels:
            self._check_type(level)
        if len({(type(level), level) for level in self.levels}) != len(self.levels):
            raise SpaceError(f"{self.name}: got levels {list(self.levels)}; every level may appear once")
        if self.default not in self.levels:
            raise SpaceError(f"{self.name}: default {self.default!r} is not one of its levels {list(self.levels)}")

    @property
    def is_ordered(self) -> bool:
        """Whether neighbouring levels are alike."""
        return False

    def _check_type(self, level: Value) -> None:
        if not isinstance(level, bool | int | float | str):
            raise SpaceError(f"{self.name}: got level {level!r}; levels are numbers, texts or booleans")

    def index(self, value: Value) -> int:
        """Return the position of a level.

        Raises:
            SpaceError: when `value` is not a level.
        """
        for position, level in enumerate(self.levels):
            if level == value and isinstance(level, bool) == isinstance(value, bool):
                return position
        raise SpaceError(f"{self.name}: got {value!r}; it must be one of {list(self.levels)}")

    def restrict(self, levels: Sequence[Value]) -> Dimension:
        """Return this dimension with these levels; the default moves to the nearest one left (first, if unordered)."""
        kept = tuple(levels)
        default = self.default if self.default in kept else self._nearest(kept)
        level_conditions = {level: rule for level, rule in self.level_conditions.items() if level in kept}
        return replace(self, levels=kept, default=default, level_conditions=level_conditions)

    def _nearest(self, levels: Sequence[Value]) -> Value:
        return levels[0] if levels else self.default


@dataclass(frozen=True, kw_only=True)
class Categorical(Dimension):
    """Levels without an order: texts or booleans."""


@dataclass(frozen=True, kw_only=True)
class _Numeric(Dimension):
    log: bool = False
    """Whether equal ratios, rather than equal differences, are alike."""

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers = [float(level) for level in self.levels]
        if numbers != sorted(numbers):
            raise SpaceError(f"{self.name}: got levels {list(self.levels)}; numbers must rise")
        if self.log and numbers[0] <= 0:
            raise SpaceError(f"{self.name}: got level {self.levels[0]}; on a logarithmic scale levels must be above 0")

    @property
    def is_ordered(self) -> bool:
        return True

    def _nearest(self, levels: Sequence[Value]) -> Value:
        def distance(level: Value) -> float:
            if self.log:
                return abs(math.log(float(level) / float(self.default)))
            return abs(float(level) - float(self.default))

        return min(levels, key=distance) if levels else self.default

    def _check_size(self, level: int) -> None:
        if abs(level) > LARGEST_WHOLE:
            raise SpaceError(
                f"{self.name}: got level {level}; whole numbers may go up to {LARGEST_WHOLE} (2 to the 53)"
            )

    def extended(self, value: Value) -> Dimension:
        """Return this dimension with `value` among its levels."""
        return replace(self, levels=tuple(sorted({*self.levels, value}, key=float)))


@dataclass(frozen=True, kw_only=True)
class Integer(_Numeric):
    """Whole numbers in rising order."""

    def _check_type(self, level: Value) -> None:
        if isinstance(level, bool) or not isinstance(level, int):
            raise SpaceError(f"{self.name}: got level {level!r}; it must be a whole number")
        self._check_size(level)


@dataclass(frozen=True, kw_only=True)
class Float(_Numeric):
    """Real numbers in rising order."""

    def _check_type(self, level: Value) -> None:
        if isinstance(level, bool) or not isinstance(level, int | float):
            raise SpaceError(f"{self.name}: got level {level!r}; it must be a finite number")
        if isinstance(level, int):
            self._check_size(level)
        elif not math.isfinite(level):
            raise SpaceError(f"{self.name}: got level {level!r}; it must be a finite number")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something that the space would hold but for the hardware or the user, with the reason for the user to read."""

    name: str
    level: Value | None
    """None: the whole dimension."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalBatch:
    """A fixed global batch: accumulation is derived as `samples / (micro-batch x data-parallel ranks)`."""

    samples: int
    data_parallel_size: int

    def accumulation(self, micro_batch: int) -> int:
        """Return the accumulation for a micro-batch.

        Raises:
            SpaceError: when it is not a whole number.
        """
        steps, rest = divmod(self.samples, micro_batch * self.data_parallel_size)
        if rest or steps < 1:
            raise SpaceError(
                f"global_batch_size: {self.samples} = micro-batch {micro_batch} x accumulation x "
                f"{self.data_parallel_size} ranks has no whole solution; choose a micro-batch that divides "
                f"{self.samples // self.data_parallel_size}"
            )
        return steps


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """Dimensions in order; a condition refers to earlier dimensions (or fixed settings) only.

    A *point* is a mapping from dimension name to level that holds exactly the dimensions that have an effect.
    An *encoding* is one level index per dimension (`MultiDiscrete`), inactive ones at their default:
    `decode(encode(point)) == point` for every canonical point, and `encode(decode(e))` is canonical for every `e`.

    Raises:
        SpaceError: when names repeat, a condition looks ahead, or the global batch has no valid micro-batch.
    """

    dimensions: tuple[Dimension, ...]
    fixed: Point = field(default_factory=dict)
    """Settings laid over the user's configuration in every trial but the baseline."""
    given: Point = field(default_factory=dict)
    """What the starting configuration says of keys that are not searched: conditions refer to it."""
    global_batch: GlobalBatch | None = None
    left_out: tuple[LeftOut, ...] = ()

    def __post_init__(self) -> None:
        known = {*self.fixed, *self.given}
        for dimension in self.dimensions:
            if dimension.name in known:
                raise SpaceError(f"{dimension.name}: appears twice among dimensions, fixed and given settings")
            rules = itertools.chain(dimension.conditions, *dimension.level_conditions.values())
            for condition in rules:
                if condition.dimension not in known:
                    raise SpaceError(
                        f"{dimension.name}: its condition names {condition.dimension!r}, "
                        f"which is neither fixed nor an earlier dimension; put that dimension first, or fix it"
                    )
            known.add(dimension.name)
        if self.global_batch is not None:
            if ACCUMULATION in self.names or ACCUMULATION in self.fixed:
                raise SpaceError(f"{ACCUMULATION}: it is derived from the global batch; remove it from the space")
            for micro_batch in self._micro_batches():
                self.global_batch.accumulation(int(micro_batch))

    def _micro_batches(self) -> tuple[Value, ...]:
        for dimension in self.dimensions:
            if dimension.name == MICRO_BATCH:
                return dimension.levels
        settings = {**self.given, **self.fixed}
        return (settings[MICRO_BATCH],) if MICRO_BATCH in settings else ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(dimension.name for dimension in self.dimensions)

    @cached_property
    def decided(self) -> tuple[str, ...]:
        """Names of all that is laid over the user's configuration: dimensions, fixed settings, derived accumulation."""
        derived = (ACCUMULATION,) if self.global_batch is not None else ()
        return (*self.names, *(name for name in self.fixed if name not in self.names), *derived)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of levels by dimension: `nvec` of the `MultiDiscrete` space."""
        return tuple(len(dimension.levels) for dimension in self.dimensions)

    def __getitem__(self, name: str) -> Dimension:
        for dimension in self.dimensions:
            if dimension.name == name:
                return dimension
        raise SpaceError(f"{name}: no such dimension; there are {', '.join(self.names)}")

    def canonical(self, values: Point) -> dict[str, Value]:
        """Return the one point that stands for everything DeepSpeed runs like `values`.

        Args:
            values: a level for every dimension that has an effect; others may be there and are dropped.

        Raises:
            SpaceError: for a name that is no dimension, a value that is no level, or a dimension that is missing.
        """
        unknown = set(values) - set(self.names)
        if unknown:
            raise SpaceError(f"{min(unknown)}: no such dimension; there are {', '.join(self.names)}")
        settings = {**self.given, **self.fixed}
        point: dict[str, Value] = {}
        for dimension in self.dimensions:
            if not all(condition.holds(settings) for condition in dimension.conditions):
                continue
            if dimension.name not in values:
                raise SpaceError(f"{dimension.name}: missing; it has an effect here, so give one of its levels")
            position = dimension.index(values[dimension.name])
            while position > 0 and not _level_holds(dimension, dimension.levels[position], settings):
                position -= 1
            settings[dimension.name] = point[dimension.name] = dimension.levels[position]
        return point

    def check(self, point: Point) -> None:
        """Refuse a point that is outside the space or not canonical.

        Raises:
            SpaceError: saying which dimension and why.
        """
        canonical = self.canonical(point)
        if canonical != dict(point):
            wrong = sorted(name for name in set(canonical) | set(point) if canonical.get(name) != point.get(name))
            raise SpaceError(
                f"{wrong[0]}: got {point.get(wrong[0])!r}; here it has no effect, so the point isn't canonical"
            )

    def encode(self, point: Point) -> tuple[int, ...]:
        """Return one level index per dimension, shape (len(dimensions),), inactive dimensions at their default."""
        return tuple(dimension.index(point.get(dimension.name, dimension.default)) for dimension in self.dimensions)

    def decode(self, indices: Sequence[int]) -> dict[str, Value]:
        """Return the canonical point of level indices, shape (len(dimensions),).

        Raises:
            SpaceError: when the length or an index is out of range.
        """
        if len(indices) != len(self.dimensions):
            raise SpaceError(f"got {len(indices)} indices; the space has {len(self.dimensions)} dimensions")
        values: dict[str, Value] = {}
        for dimension, index in zip(self.dimensions, indices, strict=True):
            if not 0 <= index < len(dimension.levels):
                raise SpaceError(f"{dimension.name}: got index {index}; it has levels 0 to {len(dimension.levels) - 1}")
            values[dimension.name] = dimension.levels[int(index)]
        return self.canonical(values)

    def settings(self, point: Point) -> dict[str, Value]:
        """Return everything to lay over the user's configuration: the point, fixed settings, derived accumulation."""
        settings = {**self.fixed, **point}
        micro_batch = settings.get(MICRO_BATCH, self.given.get(MICRO_BATCH))
        if self.global_batch is not None and micro_batch is not None:
            settings[ACCUMULATION] = self.global_batch.accumulation(int(micro_batch))
        return settings

    def sample(self, generator: np.random.Generator) -> dict[str, Value]:
        """Draw level indices uniformly and return their canonical point."""
        return self.decode([int(generator.integers(size)) for size in self.sizes])

    def points(self) -> Iterator[dict[str, Value]]:
        """Yield every canonical point once, in order of its encoding; meant for small spaces."""
        for indices in itertools.product(*(range(size) for size in self.sizes)):
            point = self.decode(indices)
            if self.encode(point) == indices:
                yield point

    @cached_property
    def count(self) -> int:
        """Number of canonical points (exact, computed dimension by dimension)."""
        return _count(self.dimensions, {**self.given, **self.fixed}, frozenset(self._referenced()))

    def _referenced(self) -> Iterator[str]:
        for dimension in self.dimensions:
            for condition in itertools.chain(dimension.conditions, *dimension.level_conditions.values()):
                yield condition.dimension

    def with_level(self, name: str, value: Value) -> SearchSpace:
        """Return the space with `value` among the levels of a numeric dimension (so that a start is a point of it)."""
        dimension = self[name]
        if not isinstance(dimension, _Numeric) or value in dimension.levels:
            return self
        wider = dimension.extended(value)
        return replace(self, dimensions=tuple(wider if d.name == name else d for d in self.dimensions))


def _level_holds(dimension: Dimension, level: Value, settings: Point) -> bool:
    return all(condition.holds(settings) for condition in dimension.level_conditions.get(level, ()))


def _count(dimensions: tuple[Dimension, ...], settings: dict[str, Value], referenced: frozenset[str]) -> int:
    if not dimensions:
        return 1
    head, rest = dimensions[0], dimensions[1:]
    if not all(condition.holds(settings) for condition in head.conditions):
        return _count(rest, settings, referenced)
    levels = [level for n, level in enumerate(head.levels) if n == 0 or _level_holds(head, level, settings)]
    if head.name not in referenced:
        return len(levels) * _count(rest, settings, referenced)
    return sum(_count(rest, {**settings, head.name: level}, referenced) for level in levels)
