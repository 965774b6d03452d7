"""A trial: what is asked for (`TrialRequest`), what came of it (`Outcome`), and the record of both (`Trial`)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any, TypeAlias

from autotune.errors import CampaignError

Value: TypeAlias = bool | int | float | str
Point: TypeAlias = Mapping[str, Value]


class TrialState(StrEnum):
    """Optuna's trial states (`optuna.trial.TrialState`), by name."""

    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    FAIL = "FAIL"


class FailureKind(StrEnum):
    """Why a trial gave no measurement. Values reach the storage: add, never rename."""

    INVALID_CONFIG = "INVALID_CONFIG"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    TIMEOUT = "TIMEOUT"
    CRASH = "CRASH"
    DIVERGED = "DIVERGED"
    CANCELLED = "CANCELLED"
    """Stopped by the user or by the end of the controller; not counted against the budget."""


class Stage(StrEnum):
    """The stages of a real trial, in order; each has a deadline of its own."""

    LAUNCH = "launch"
    RENDEZVOUS = "rendezvous"
    INITIALIZE = "initialize"
    FIRST_STEP = "first_step"
    RUN = "run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How long one trial trains: exactly one of `seconds`, `steps` or `samples`, after `warmup_steps`.

    Raises:
        CampaignError: when not exactly one is given, or one is not positive.
    """

    seconds: float | None = None
    """Training time, summed over ranks' slowest: waiting for start-up or held-out evaluation is not counted."""
    steps: int | None = None
    """Optimizer steps (not micro-steps) after warm-up."""
    samples: int | None = None
    """Samples over all ranks after warm-up."""
    warmup_steps: int = 2
    """Optimizer steps dropped from the timing (they still train)."""

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in ("seconds", "steps", "samples")}
        chosen = {name: value for name, value in given.items() if value is not None}
        if len(chosen) != 1:
            raise CampaignError(f"budget: got {chosen or 'nothing'}; give exactly one of seconds, steps or samples")
        for name, value in chosen.items():
            if not 0 < value < math.inf:
                raise CampaignError(f"budget.{name}: got {value}; it must be above 0 and finite")
        if self.warmup_steps < 0:
            raise CampaignError(f"budget.warmup_steps: got {self.warmup_steps}; it must be 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """Everything an evaluator needs to measure one configuration."""

    number: int
    point: Point
    """Canonical parameters, by DeepSpeed's dotted keys (empty for a configuration outside the space)."""
    ds_config: Mapping[str, Any]
    """The whole DeepSpeed configuration, concrete: what is measured is what is exported."""
    activation_checkpointing: bool = False
    """Whether the workload recomputes activations; DeepSpeed's file has no key that switches it."""
    budget: Budget
    convergence_at_s: float | None = None
    """Training time at which the held-out loss is compared between trials; None: at the end of the budget."""
    seed: int = 0
    repeat: int = 0
    """0 for the trial itself; 1, 2, ... where its configuration is measured again (its logs go to a folder of their
    own then)."""

    @property
    def config_hash(self) -> str:
        """SHA-256 (first 16 hex digits) of the effective configuration: equal hashes are one trial."""
        effective = {"ds_config": self.ds_config, "activation_checkpointing": self.activation_checkpointing}
        return hashlib.sha256(json.dumps(effective, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one trial measured. All times are seconds; a step is an optimizer step."""

    samples_per_second: float
    """Samples of all ranks in one step over the median step time (per step: the slowest rank's)."""
    samples_per_second_spread: float
    """Half the interquartile range of the step time over its median; 0.05 reads 'within about 5 %'."""
    step_time_s: float
    """Median over timed steps of the slowest rank's time."""
    timed_steps: int
    warmup_steps: int
    samples_per_step: int
    training_time_s: float
    """Time in training steps, warm-up steps charged at the median of the timed ones."""
    held_out_loss_before: float
    held_out_loss_after: float
    """Held-out loss, averaged over ranks, interpolated at `convergence_time_s` of training."""
    convergence_time_s: float
    training_loss_last: float
    tokens_per_second: float | None = None
    peak_memory_bytes: tuple[int, ...] = ()
    """Per rank."""
    memory_kind: str = "resident"
    """'resident' (CPU: peak resident set) or 'allocated' (GPU: peak of torch's allocator)."""
    forward_s: float | None = None
    """Per step, mean of the timed steps on rank 0: all micro-steps together."""
    backward_s: float | None = None
    optimizer_s: float | None = None
    communication_s: float | None = None
    """Per step, time during which a collective was under way, from profiled steps outside the timed ones."""
    skipped_steps: int = 0
    """Optimizer steps that an overflowing loss scale skipped."""
    effective_config: Mapping[str, Any] = field(default_factory=dict)
    """What the engine runs, as it reports it."""
    versions: Mapping[str, str] = field(default_factory=dict)
    loss_source: str = "held-out"
    """'training' where the losses before and after are a script's own training losses, each taken before the step that
    trains on its samples."""
    trained_parameters: int | None = None
    """Parameters that require a gradient; None where they were not counted."""
    total_parameters: int | None = None
    remarks: tuple[str, ...] = ()
    """What the user should know about how it was measured."""

    @property
    def convergence_per_second(self) -> float:
        """Drop of held-out loss per second of training, at `convergence_time_s`."""
        return (self.held_out_loss_before - self.held_out_loss_after) / self.convergence_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a trial gave no measurement."""

    kind: FailureKind
    reason: str
    """One sentence for the user."""
    stage: Stage | None = None
    rank: int | None = None
    exit_code: int | None = None
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a trial: a measurement or a failure, never both, never neither.

    Raises:
        ValueError: when both or neither are given.
    """

    measurement: Measurement | None = None
    failure: Failure | None = None
    duration_s: float = 0.0
    """Wall time from launch until the last process was gone."""
    stage_s: Mapping[str, float] = field(default_factory=dict)
    """Wall time by stage (`Stage` values, and 'cleanup'); one that began and ended between two polls (a tenth of a
    second) counts to the stage before it."""
    logs: Mapping[str, str] = field(default_factory=dict)
    """Path of each rank's whole log ('rank0', ...), on the node where it ran."""

    def __post_init__(self) -> None:
        if (self.measurement is None) == (self.failure is None):
            raise ValueError("an Outcome holds a measurement or a failure, exactly one of them")

    @property
    def state(self) -> TrialState:
        return TrialState.COMPLETE if self.measurement is not None else TrialState.FAIL

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data; `Outcome.from_json` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        """Read what `to_json` wrote; keys of a newer version are ignored."""
        known = _known(cls, data)
        measurement, failure = known.get("measurement"), known.get("failure")
        known["measurement"] = _measurement(measurement) if measurement else None
        known["failure"] = _failure(failure) if failure else None
        return cls(**known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The record of one trial in a study."""

    number: int
    state: TrialState
    is_baseline: bool
    point: Point
    ds_config: Mapping[str, Any]
    activation_checkpointing: bool
    config_hash: str
    outcome: Outcome | None
    """None while it runs."""
    throughput_ratio: float | None = None
    convergence_ratio: float | None = None
    score: float | None = None
    """R of `autotune.objective`; None for a failed trial."""
    started_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def measurement(self) -> Measurement | None:
        return self.outcome.measurement if self.outcome else None

    @property
    def failure(self) -> Failure | None:
        return self.outcome.failure if self.outcome else None

    @property
    def counts(self) -> bool:
        """Whether it was executed to an end, so that it counts against the budget."""
        return self.outcome is not None and not (
            self.outcome.failure and self.outcome.failure.kind is FailureKind.CANCELLED
        )


@cache
def _names(cls: type) -> frozenset[str]:
    return frozenset(f.name for f in fields(cls))


def _known(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    names = _names(cls)
    if names.issuperset(data):
        return dict(data)
    return {name: value for name, value in data.items() if name in names}


def _measurement(data: Mapping[str, Any]) -> Measurement:
    known = _known(Measurement, data)
    for name in ("peak_memory_bytes", "remarks"):
        known[name] = tuple(known.get(name, ()))
    return Measurement(**known)


def _failure(data: Mapping[str, Any]) -> Failure:
    known = _known(Failure, data)
    known["kind"] = FailureKind(known["kind"])
    known["stage"] = Stage(known["stage"]) if known.get("stage") else None
    known["log_tail"] = tuple(known.get("log_tail", ()))
    return Failure(**known)
