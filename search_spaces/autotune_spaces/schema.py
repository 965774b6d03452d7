"""The YAML form of a search space: dimensions as data, and a user's changes to a ready-made space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from autotune.space import Categorical, Condition, Dimension, Float, Integer
from autotune.trials import Value

Level = StrictBool | StrictInt | StrictFloat | StrictStr
Rule = dict[str, list[Level]]


class Strict(BaseModel):
    """Unknown keys are refused: a typo must not be silent."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Need(Strict):
    """What hardware a level needs."""

    accelerator: Literal["cpu", "cuda"] | None = None
    compute_capability: float | None = None
    """Least compute capability; holds on a CPU, which has none."""
    reason: str


class DimensionFile(Strict):
    """One dimension as written in a file."""

    name: str
    type: Literal["categorical", "integer", "float"]
    levels: list[Level] = Field(min_length=1)
    default: Level | None = None
    """The first level, when not given."""
    log: bool = False
    unit: str = ""
    description: str = ""
    source: str = ""
    when: Rule = Field(default_factory=dict)
    level_when: dict[Level, Rule] = Field(default_factory=dict)
    needs: dict[Level, Need] = Field(default_factory=dict)

    def dimension(self) -> Dimension:
        """Return the dimension with every level, hardware aside.

        Raises:
            SpaceError: when it is not well formed.
        """
        kinds: dict[str, Callable[..., Dimension]] = {"categorical": Categorical, "integer": Integer, "float": Float}
        scale = {} if self.type == "categorical" else {"log": self.log}
        return kinds[self.type](
            name=self.name,
            levels=tuple(self.levels),
            default=self.levels[0] if self.default is None else self.default,
            conditions=_conditions(self.when),
            level_conditions={level: _conditions(rule) for level, rule in self.level_when.items()},
            unit=self.unit,
            description=self.description,
            source=self.source,
            **scale,
        )


class SpaceFile(Strict):
    """A ready-made space."""

    dimensions: list[DimensionFile]


class Range(Strict):
    """Keep the levels between two bounds (both included)."""

    low: float | None = None
    high: float | None = None


class SpaceChanges(Strict):
    """The `space` section of a campaign: a ready-made space and what to change in it."""

    base: str = "deepspeed"
    """Name of a ready-made space (`autotune_spaces.READY_MADE`), or 'empty'."""
    global_batch_size: int | None = Field(default=None, gt=0)
    """Samples per optimizer step over all ranks; accumulation is then derived, and no dimension."""
    fix: dict[str, Level] = Field(default_factory=dict)
    """Dimensions set to one value in every trial but the baseline; any other DeepSpeed key may be fixed too."""
    remove: list[str] = Field(default_factory=list)
    """Dimensions left as the starting configuration has them."""
    narrow: dict[str, list[Level] | Range] = Field(default_factory=dict)
    """Dimensions with these levels only, or with those of theirs in a range."""
    add: list[DimensionFile] = Field(default_factory=list)
    """Further dimensions, by DeepSpeed's dotted keys."""


def _conditions(rule: Mapping[str, list[Value]]) -> tuple[Condition, ...]:
    return tuple(Condition(dimension=name, allowed=tuple(allowed)) for name, allowed in rule.items())
