"""What a campaign file may say: one pydantic model for each of its sections."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from autotune.command import words_of
from autotune.errors import CampaignError
from autotune.evaluators.deadlines import Deadlines
from autotune.remeasuring import LEAST_REPEATS
from autotune.report import units
from autotune.storage import DEFAULT_URL
from autotune_spaces import SpaceChanges


class _Section(BaseModel):
    """Unknown keys are refused: a typo must not be silent."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class WorkloadSection(_Section):
    """What is trained."""

    function: str = "byte-gpt"
    """`module:function` that returns a TrainingWorkload, or the name of a built-in workload."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Handed to the function as `context.arguments`."""
    command: tuple[str, ...] | None = None
    """Your own training command, instead of a function: a text or a list of words, with placeholders in it
    (see `autotune.command`)."""
    directory: str = "."
    """Where the command runs."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables that the command gets beside its own."""
    batch_dimension: Literal["first", "unknown"] = "first"
    """Whether the first dimension of the model's first tensor input counts samples. Where it does, the micro-batches
    that the script really feeds are compared with the configuration."""
    activation_checkpointing: bool = False
    """Whether your training recomputes activations today; the baseline is measured so."""

    @property
    def name(self) -> str:
        """How it is called in listings."""
        return self.function if self.command is None else shlex.join(self.command)

    @field_validator("command", mode="before")
    @classmethod
    def _split(cls, command: Any) -> Any:
        return words_of(command) if isinstance(command, str) else command

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.command is None:
            return self
        for name in ("function", "arguments"):
            if name in self.model_fields_set and getattr(self, name) != WorkloadSection.model_fields[name].get_default(
                call_default_factory=True
            ):
                raise CampaignError(f"workload: got a command and {name}; give a command, or a function")
        return self


class HardwareSection(_Section):
    """Where one trial runs."""

    ranks: int | None = Field(default=None, ge=1)
    """Data-parallel ranks of one trial; by default one per GPU, or one on a machine without."""
    accelerator: Literal["cpu", "cuda"] | None = None
    """By default 'cuda' where there is a GPU."""
    cpus_per_rank: float = Field(default=1.0, gt=0)
    """Processors that Ray reserves for a rank."""
    memory_limit_bytes: int | None = Field(default=None, gt=0)
    """Resident size of one rank's process above which its trial ends as OUT_OF_MEMORY."""


class PlacementSection(_Section):
    """Where in a Ray cluster trials run, and how many at once."""

    slots: int | None = Field(default=None, ge=1)
    """Trials that run at once. By default as many as there are GPUs for, or one on each node where ranks use none:
    trials on one machine disturb each other."""
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """How Ray spreads a trial's ranks over nodes."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Conditions on the labels of nodes (`ray start --labels`): a value, !value, in(a, b) or !in(a, b)."""
    ship_code: bool = False
    """Send the campaign file's folder (of a command: the folder that it runs in) to the nodes of the cluster, instead
    of reading it there by the same path. Without what .gitignore and .rayignore say; at most 512 MiB, zipped."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the ranks' processes, on every node."""
    node_wait_s: float = Field(default=300.0, ge=0)
    """Seconds to wait for a node to join where none is left."""

    @field_validator("strategy", mode="before")
    @classmethod
    def _in_capitals(cls, strategy: Any) -> Any:
        return strategy.upper() if isinstance(strategy, str) else strategy


class BudgetSection(_Section):
    """How long one trial trains: exactly one of seconds, steps or samples.

    It ends before when its step time is precise, and later only where it has not yet trained as long as the start did,
    at which time their losses are compared.
    """

    seconds: float | None = None
    """Training time after start-up."""
    steps: int | None = None
    """Optimizer steps."""
    samples: int | None = None
    """Samples over all ranks."""
    warmup_steps: int = 2
    """First steps, left out of the timing."""
    precision: float | None = Field(default=0.03, ge=0, lt=1)
    """How precisely the step time must be known for a trial to end before its budget: half the 95 % interval of its
    median, over the median. 0 or null: every trial uses up its budget."""

    @field_validator("precision")
    @classmethod
    def _switched_off(cls, precision: float | None) -> float | None:
        return precision or None


class ObjectiveSection(_Section):
    """The weights of R."""

    alpha: float = 0.5
    """Weight of throughput."""
    beta: float = 0.5
    """Weight of convergence speed."""


class FinalsSection(_Section):
    """How the leaders of the search are run again before a winner is named; see `autotune.finals`."""

    candidates: int = Field(default=4, ge=0)
    """Leaders of the search that are run again; 0 switches finals off."""
    rounds: int = Field(default=3, ge=LEAST_REPEATS)
    """Runs of each, in turns with your configuration, before the slower ones drop out; those that are far behind in
    the search and again in their first run don't get more."""
    runs: int = Field(default=20, ge=1)
    """At most, your configuration's among them. They are no trials, and don't count against `trials`."""

    @model_validator(mode="after")
    def _affordable(self) -> Self:
        if self.runs < 2 * self.rounds:
            raise CampaignError(
                f"finals.runs: got {self.runs}; {units.count(self.rounds, 'round')} of one leader and your "
                f"configuration take {2 * self.rounds}: give that many or more, or candidates: 0"
            )
        return self


class DeadlinesSection(_Section):
    """Seconds that each stage of a trial may take."""

    launch_s: float | None = None
    """Until the ranks meet; by default 120 for a function, and 600 for a command: scripts often load data first."""
    rendezvous_s: float = Deadlines().rendezvous_s
    initialize_s: float = Deadlines().initialize_s
    first_step_s: float = Deadlines().first_step_s
    run_s: float | None = None
    """By default derived from the budget."""


class SimulatedSection(_Section):
    """The workload of the simulated evaluator: drawn by a seed, never measured."""

    workload_seed: int = Field(default=0, ge=0)
    noise: float = Field(default=0.02, ge=0, le=1)
    outliers: float = Field(default=0.01, ge=0, le=1)
    """Share of trials that are slower than they should be, as where a machine is busy with something else."""


class RecordedSection(_Section):
    """What the recorded evaluator replays."""

    path: str | None = None
    """A file written by `autotune trials STUDY --format json`, or by `make record`."""
    missing: Literal["nearest", "surrogate", "refuse"] = "nearest"
    """What answers for a configuration that was never recorded: the nearest one, a Gaussian process fitted to all of
    them, or a failure."""


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$"
"""Of a study: it is a folder of logs too, and a word on the command line."""


class Campaign(_Section):
    """One campaign file. Relative paths count from the file's own folder."""

    name: str = Field(pattern=NAME_PATTERN)
    """Name of the study in the storage."""
    ds_config: str | dict[str, Any]
    """Your DeepSpeed configuration: a path, or the mapping itself. Trial 0 measures it."""
    ds_config_notation: dict[str, str] = Field(default_factory=dict)
    """How numbers are written in it, by JSON pointer: autotune's own note, read from its file."""
    workload: WorkloadSection = WorkloadSection()
    hardware: HardwareSection = HardwareSection()
    space: SpaceChanges = SpaceChanges()
    """What is searched: the default space and your changes to it."""
    budget: BudgetSection = BudgetSection(seconds=10.0)
    objective: ObjectiveSection = ObjectiveSection()
    finals: FinalsSection = FinalsSection()
    noise_floor: float | None = Field(default=None, ge=0, le=1)
    """Relative difference in R under which two configurations are a tie. By default twice the coefficient of variation
    of one configuration's runs, rounded: 0.05 for one rank and 0.08 for more (15 runs each on two processors had 1.9 %
    and 4.5 %), and twice the noise of simulated trials."""
    baseline_every: int = Field(default=8, ge=0)
    """Trials after which your configuration is run again, to see whether the machine drifts; 0: never. At 8 it costs
    one run in nine; finals run in turns, so a drift does not decide who wins."""
    searcher: str = "tpe"
    """What proposes configurations; see `autotune launch --help`."""
    warm_start: Literal["none", "portfolio"] = "none"
    """What is tried before the searcher's own proposals, whichever it is: 'portfolio', a few points that are good
    across workloads (`autotune.searchers.portfolio`)."""
    memory_filter: bool = True
    """Refuse, without a trial, what can't fit in a device's memory by the performance model, calibrated to the study's
    own trials (`autotune.searchers.memory_filtered`)."""
    calibrate_from: str | None = Field(default=None, pattern=NAME_PATTERN)
    """An earlier study of the same storage and hardware: what the performance model learnt of the machine there is
    where its calibration starts here."""
    pruner: Literal["none", "percentile"] = "percentile"
    """What ends trials that are clearly dominated before their time (`autotune.searchers.pruning`)."""
    trials: int = Field(default=32, ge=1)
    """Trials executed in all, the baseline included."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of the searcher and of the trials; NumPy's generators take no larger one."""
    evaluator: Literal["deepspeed", "simulated", "recorded"] = "deepspeed"
    """How a trial is measured: real DeepSpeed training, a performance model's word, or a replay of recorded trials."""
    execution: Literal["warm", "cold"] | None = None
    """How a function's trials start: 'warm', the default, as forks of a process that has loaded torch, DeepSpeed and
    the data already; 'cold' as processes of their own. A command's are always cold."""
    cold_check_every: int = Field(default=0, ge=0)
    """Trials after which one that ran warm runs again cold, to compare its losses; 0: never."""
    runner: Literal["ray", "local", "inline"] | None = None
    """Where trials run. By default Ray for real trials, inline for the others."""
    ray_address: str | None = None
    """A Ray cluster to run on; by default one is started on this machine."""
    placement: PlacementSection = PlacementSection()
    deadlines: DeadlinesSection = DeadlinesSection()
    simulated: SimulatedSection = SimulatedSection()
    recorded: RecordedSection = RecordedSection()
    storage: str = DEFAULT_URL
    """Where studies are kept: any URL that Optuna takes."""
    run_directory: str = "autotune_runs"
    """Where the logs of trials go."""
    folder: str = "."
    """Folder that relative paths count from, and that workload modules are found in; the file's own by default."""

    @model_validator(mode="after")
    def _commands_start_cold(self) -> Self:
        if self.execution == "warm" and self.workload.command is not None:
            raise CampaignError(
                "execution: got warm with workload.command; a command starts its own processes, so leave execution out"
            )
        return self

    @model_validator(mode="after")
    def _warm_trials_are_checked_cold(self) -> Self:
        starts_cold = self.execution == "cold" or self.workload.command is not None
        if self.cold_check_every and (starts_cold or self.evaluator != "deepspeed"):
            raise CampaignError(
                f"cold_check_every: got {self.cold_check_every}; it runs trials again cold that ran warm, and none of "
                "this campaign's do (real trials of a function, execution: warm); leave it out"
            )
        return self


def parse(data: Mapping[str, Any], *, where: str) -> Campaign:
    """Check a campaign that is already a mapping.

    Raises:
        CampaignError: naming the key, the value got, and the rule.
    """
    try:
        return Campaign.model_validate(data)
    except ValidationError as error:
        raise CampaignError("\n".join(f"{where}: {_complaint(detail)}" for detail in error.errors())) from error


def _complaint(detail: Any) -> str:
    """Say one of pydantic's findings the way the rest of autotune speaks."""
    location = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        known = _keys_beside(detail["loc"])
        near = difflib.get_close_matches(str(detail["loc"][-1]), known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
        return f"{location}: unknown key{hint}"
    if detail["type"] == "missing":
        return f"{location}: missing; it is required"
    if detail["type"] == "model_type":
        return f"{location}: got {detail['input']!r}; it must be a mapping, or left out"
    return f"{location}: got {detail['input']!r}; {detail['msg'][0].lower()}{detail['msg'][1:]}"


def _keys_beside(location: Sequence[Any]) -> list[str]:
    model: Any = Campaign
    for part in location[:-1]:
        field = model.model_fields.get(part) if hasattr(model, "model_fields") else None
        model = field.annotation if field is not None else None
    return list(model.model_fields) if hasattr(model, "model_fields") else []
