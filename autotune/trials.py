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
    BUILD = "build"
    """A fork server builds the workload, before its first trial only (elsewhere that is part of INITIALIZE)."""
    RENDEZVOUS = "rendezvous"
    INITIALIZE = "initialize"
    FIRST_STEP = "first_step"
    RUN = "run"


class EndedBy(StrEnum):
    """What ended the training of a trial that was measured. Values reach the storage: add, never rename."""

    PRECISION = "precision"
    """The interval of the median step time was narrow enough."""
    BUDGET = "budget"
    SCRIPT = "script"
    """The user's script ended by itself."""


KEPT_STEPS = 64
"""Steps of a trial whose times and losses are kept one by one: enough to compare runs, small in a storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How long one trial trains: exactly one of `seconds`, `steps` or `samples`, after `warmup_steps`.

    With `precision` that is the most, and a trial ends as soon as its step time is known so precisely (and the loss at
    the time at which trials are compared, `TrialRequest.convergence_at_s`).

    Raises:
        CampaignError: when not exactly one is given, one is not positive, or the precision is none.
    """

    seconds: float | None = None
    """Training time, summed over ranks' slowest: waiting for start-up or held-out evaluation is not counted."""
    steps: int | None = None
    """Optimizer steps (not micro-steps) after warm-up."""
    samples: int | None = None
    """Samples over all ranks after warm-up."""
    warmup_steps: int = 2
    """Optimizer steps dropped from the timing (they still train)."""
    precision: float | None = None
    """Half width of the interval of the median step time, over the median, at which a trial may end (0.03: 3 %; see
    `autotune.evaluators.step_times`); None: every trial uses up its budget."""

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
        if self.precision is not None and not 0 < self.precision < 1:
            raise CampaignError(
                f"budget.precision: got {self.precision}; it must be above 0 and below 1, such as 0.03 for 3 %"
            )


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
    """Training time at which the held-out loss is compared between trials; None: at the end of this one's training
    (with a precision: after half of the budget at the earliest), and its time is the others'."""
    seed: int = 0
    repeat: int = 0
    """0 for the trial itself; 1, 2, ... where its configuration is measured again (its logs go to a folder of their
    own then)."""

    cold: bool = False
    """Whether it is to run in processes that start from nothing, also where trials run warm."""

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
    """Half the interquartile range of the step time over its median: how much single steps differ."""
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
    measuring_s: float = 0.0
    """What measuring took beside training, on rank 0: the held-out losses and the profiled steps."""
    steps_s: float | None = None
    """What all steps took as they were, the untimed ones included (`training_time_s` charges these at the median)."""
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
    step_time_interval: float | None = None
    """Half width of the 95 % interval of the median step time, over the median: 0.02 reads 'known within 2 %'. None
    with fewer than 6 timed steps."""
    ended_by: EndedBy | None = None
    """None in records of older versions, which always used up their budget."""
    step_times_s: tuple[float, ...] = ()
    """Of the timed steps in order, the slowest rank's; the first `KEPT_STEPS`."""
    training_losses: tuple[float, ...] = ()
    """Of each step from the first, warm-up included: mean over micro-steps and ranks, before the step trains on its
    samples; the first `KEPT_STEPS`."""

    @property
    def convergence_per_second(self) -> float:
        """Drop of held-out loss per second of training, at `convergence_time_s`."""
        return (self.held_out_loss_before - self.held_out_loss_after) / self.convergence_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Intermediate:
    """What a running trial has measured so far, at one of a few moments (Optuna's intermediate values come of it)."""

    training_time_s: float
    """As `Measurement.training_time_s`, so far."""
    timed_steps: int
    samples_per_second: float
    loss_before: float
    """Before the first step: held-out loss, or a script's first training loss."""
    training_loss: float
    """Mean over ranks (of a script: rank 0's) and over the steps since the moment before."""


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
    host_lost: bool = False
    """Where a rank ran is gone, through no fault of the configuration. Runners measure such a trial again; one that is
    recorded so lost its hosts again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a trial: a measurement, a failure, or the reason why it was pruned; exactly one of them.

    Raises:
        ValueError: when none or several are given.
    """

    measurement: Measurement | None = None
    failure: Failure | None = None
    pruned: str | None = None
    """Why it was ended early, in words, though nothing was wrong with it; `intermediates` has its figures so far."""
    intermediates: tuple[Intermediate, ...] = ()
    """What it had measured on the way, in order."""
    duration_s: float = 0.0
    """Wall time from launch until the last process was gone."""
    stage_s: Mapping[str, float] = field(default_factory=dict)
    """Wall time by stage (`Stage` values, and 'cleanup'); one that began and ended between two polls (a tenth of a
    second) counts to the stage before it."""
    logs: Mapping[str, str] = field(default_factory=dict)
    """Path of each rank's whole log ('rank0', ...), on the node where it ran."""
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Address of the node of each of these logs; none where all are on the controller's machine."""

    def __post_init__(self) -> None:
        if [self.measurement, self.failure, self.pruned].count(None) != 2:
            raise ValueError("an Outcome holds a measurement, a failure or why it was pruned, exactly one of them")

    @property
    def state(self) -> TrialState:
        if self.pruned is not None:
            return TrialState.PRUNED
        return TrialState.COMPLETE if self.measurement is not None else TrialState.FAIL

    @property
    def taken_s(self) -> float:
        """How long it took: `duration_s`, or the training time where nothing was launched (a simulated trial)."""
        return self.duration_s or (self.measurement.training_time_s if self.measurement else 0.0)

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
        known["intermediates"] = tuple(
            Intermediate(**_known(Intermediate, each)) for each in known.get("intermediates") or ()
        )
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
    """R of `autotune.objective`; of a pruned trial the estimate that searchers learn from; None for a failed one."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    searcher_s: float | None = None
    """Seconds that the searcher took to propose it: asking, and telling what had ended since the trial before; None
    where no searcher did (the baseline), and in records of older versions."""

    @property
    def measurement(self) -> Measurement | None:
        return self.outcome.measurement if self.outcome else None

    @property
    def failure(self) -> Failure | None:
        return self.outcome.failure if self.outcome else None

    @property
    def intermediates(self) -> tuple[Intermediate, ...]:
        return self.outcome.intermediates if self.outcome else ()

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
    for name in ("peak_memory_bytes", "remarks", "step_times_s", "training_losses"):
        known[name] = tuple(known.get(name, ()))
    known["ended_by"] = EndedBy(known["ended_by"]) if known.get("ended_by") else None
    return Measurement(**known)


def _failure(data: Mapping[str, Any]) -> Failure:
    known = _known(Failure, data)
    known["kind"] = FailureKind(known["kind"])
    known["stage"] = Stage(known["stage"]) if known.get("stage") else None
    known["log_tail"] = tuple(known.get("log_tail", ()))
    return Failure(**known)
