"""What searchers may know of a study beside its space."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.objective import Objective
from autotune.trials import Trial

if TYPE_CHECKING:
    from autotune.performance import Prior
    from autotune.performance.subject import Subject

ADVICE = "search without the performance model (--searcher tpe)"
"""What to do where the model can't speak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyKnowledge:
    """Of one study, for searchers that go by a performance model; light to make, nothing is computed."""

    ds_config: Mapping[str, Any]
    """The starting configuration, whole and concrete; a trial's settings are laid over it."""
    activation_checkpointing: bool
    """Whether the training recomputes activations at the start."""
    world_size: int
    """Data-parallel ranks of one trial."""
    objective: Objective
    training_s: float | None
    """Training time of a trial, where the campaign gives it in seconds."""
    subject: Callable[[Sequence[Trial]], Subject]
    """Returns what is known of workload and machines, given the finished trials by number.

    Raises a `StudyError` when they don't tell enough yet, and a `ResourceError` when the machines aren't known.
    """
    prior: Mapping[str, Prior] | None = None
    """What an earlier study on the same hardware found (`Calibration.as_prior`); None: the model's own priors."""
