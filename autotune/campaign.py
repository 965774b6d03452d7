"""A campaign: one YAML file that says what to tune, where, how long, and by what; and the studies made from it."""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from autotune import command as commands
from autotune import ds_config as config_file
from autotune import hardware as hardware_detection
from autotune import launchers, scripts
from autotune.command import CommandTemplate, words_of
from autotune.errors import CampaignError, ConfigError, StudyError
from autotune.evaluators.deadlines import Deadlines
from autotune.evaluators.deepspeed import DeepSpeedEvaluator
from autotune.evaluators.protocol import Evaluator
from autotune.evaluators.recorded import RecordedEvaluator
from autotune.evaluators.script import ScriptEvaluator
from autotune.evaluators.script import settings_of as script_settings_of
from autotune.evaluators.simulated import SimulatedEvaluator
from autotune.hardware import Hardware
from autotune.objective import Objective
from autotune.report.summary import StudySummary
from autotune.runners import InlineRunner, LocalRunner, TrialRunner
from autotune.runners.attempt import ignore_stage
from autotune.runners.protocol import StageListener
from autotune.space import SearchSpace
from autotune.storage import DEFAULT_URL, Storage, StoredStudy
from autotune.study import Start, StopRequest, Study, StudyListener, controller_is_alive
from autotune.trials import Budget
from autotune.workload import WorkloadReference
from autotune_spaces import SpaceChanges, build


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


class BudgetSection(_Section):
    """How long one trial trains: exactly one of seconds, steps or samples."""

    seconds: float | None = None
    """Training time after start-up."""
    steps: int | None = None
    """Optimizer steps."""
    samples: int | None = None
    """Samples over all ranks."""
    warmup_steps: int = 2
    """First steps, left out of the timing."""


class ObjectiveSection(_Section):
    """The weights of R."""

    alpha: float = 0.5
    """Weight of throughput."""
    beta: float = 0.5
    """Weight of convergence speed."""


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
    """The made-up workload of the simulated evaluator."""

    workload_seed: int = Field(default=0, ge=0)
    noise: float = Field(default=0.02, ge=0, le=1)


class RecordedSection(_Section):
    """What the recorded evaluator replays."""

    path: str | None = None
    """A file written by `autotune trials STUDY --format json`."""


SCRIPT_LAUNCH_S = 600.0
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
    searcher: str = "tpe"
    """What proposes configurations; see `autotune launch --help`."""
    trials: int = Field(default=32, ge=1)
    """Trials executed in all, the baseline included."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of the searcher and of the trials; NumPy's generators take no larger one."""
    evaluator: Literal["deepspeed", "simulated", "recorded"] = "deepspeed"
    """How a trial is measured: real DeepSpeed training, a made-up formula, or a replay of recorded trials."""
    runner: Literal["ray", "local", "inline"] | None = None
    """Where trials run. By default Ray for real trials, inline for the others."""
    ray_address: str | None = None
    """A Ray cluster to run on; by default one is started on this machine."""
    deadlines: DeadlinesSection = DeadlinesSection()
    simulated: SimulatedSection = SimulatedSection()
    recorded: RecordedSection = RecordedSection()
    storage: str = DEFAULT_URL
    """Where studies are kept: any URL that Optuna takes."""
    run_directory: str = "autotune_runs"
    """Where the logs of trials go."""
    folder: str = "."
    """Folder that relative paths count from, and that workload modules are found in; the file's own by default."""


def load(path: Path | str, overrides: Sequence[str] = (), *, command: Sequence[str] = ()) -> Campaign:
    """Read a campaign file.

    Args:
        path: the YAML file.
        overrides: `a.b=c` texts laid over it; c is read as YAML.
        command: a training command in the place of the file's workload.

    Raises:
        CampaignError: naming the key, the value got, and the rule.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        data = _from_yaml(text)
    except (OSError, ValueError) as error:
        raise CampaignError(f"can't read the campaign file {path}: {error}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise CampaignError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise CampaignError(
            f"{path}: got {type(data).__name__}; a campaign file is a mapping with at least a ds_config"
        )
    data.setdefault("name", path.stem)
    data.setdefault("folder", str(path.resolve().parent))
    for override in overrides:
        _override(data, override)
    if command:
        _put_command(data, command)
    _take_config_from_command(data, where=str(path))
    try:
        json.dumps(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise CampaignError(
            f"{path}: holds what can't be kept as JSON ({error}); values are numbers, texts, true, false, null, "
            f"lists and mappings (put a date into quotes, and let no anchor refer to itself)"
        ) from error
    campaign = parse(data, where=str(path))
    return campaign.model_copy(
        update={"ds_config": _ds_config(campaign), "ds_config_notation": _notation(campaign, text)}
    )


def _put_command(data: dict[str, Any], words: Sequence[str]) -> None:
    """Put a training command of the command line in the place of the file's workload; it runs in this folder."""
    given = data.get("workload")
    kept = dict(given) if isinstance(given, dict) else {}
    for name in ("function", "arguments", "command", "directory"):
        kept.pop(name, None)
    data["workload"] = {**kept, "command": list(words), "directory": os.getcwd()}


def _take_config_from_command(data: dict[str, Any], *, where: str) -> None:
    """Let the command name the configuration where the file doesn't."""
    workload = data.get("workload")
    command = workload.get("command") if isinstance(workload, dict) else None
    if not isinstance(command, str | list) or not isinstance(workload, dict):
        return
    folder = Path(data["folder"])
    directory = folder / str(workload.get("directory", "."))
    named = launchers.recognise(words_of(command), directory=directory).config
    if named is None or "{" in named.path:
        return
    path, given = directory / named.path, data.get("ds_config")
    if given is None:
        data["ds_config"] = str(path)
    elif not isinstance(given, str) or (folder / given).resolve() != path.resolve():
        raise CampaignError(
            f"{where}: ds_config says one configuration and the command names another, {named.path}; put {{config}} "
            f"in its place in the command, or leave ds_config out"
        )


def parse(data: Mapping[str, Any], *, where: str) -> Campaign:
    """Check a campaign that is already a mapping.

    Raises:
        CampaignError: naming the key, the value got, and the rule.
    """
    try:
        return Campaign.model_validate(data)
    except ValidationError as error:
        raise CampaignError("\n".join(f"{where}: {_complaint(detail)}" for detail in error.errors())) from error


def hardware_of(campaign: Campaign) -> Hardware:
    """Return the hardware that the campaign's trials run on.

    Raises:
        ResourceError: when it asks for a GPU and there is none.
    """
    wanted = campaign.hardware
    ranks = wanted.ranks
    if campaign.workload.command is not None:
        starts = launchers.recognise(campaign.workload.command, directory=_directory(campaign)).ranks
        if ranks is not None and starts is not None and ranks != starts:
            raise CampaignError(
                f"hardware.ranks: got {ranks}, but workload.command starts {starts}; leave hardware.ranks out"
            )
        ranks = ranks or starts
    return hardware_detection.detect(ranks=ranks, accelerator=wanted.accelerator)


def start_config(campaign: Campaign, hardware: Hardware) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the starting configuration, whole and concrete, and the keys that were "auto" in it.

    Raises:
        ConfigError: when the batch triple can't be met, or the ZeRO stage is none.
    """
    concrete, auto = config_file.without_auto(_ds_config(campaign))
    config_file.check_stage(concrete)
    command = command_of(campaign)
    if command is not None:
        concrete = scripts.start_of(command, concrete)
    return config_file.complete(concrete, world_size=hardware.ranks), auto


def command_of(campaign: Campaign) -> CommandTemplate | None:
    """Return the campaign's training command; None where a function is trained."""
    words = campaign.workload.command
    if words is None:
        return None
    return scripts.template_of(words, _ds_config(campaign), directory=_directory(campaign))


def checkpoints_at_start(campaign: Campaign) -> bool:
    """Return whether the user's training recomputes activations today."""
    command = command_of(campaign)
    said = scripts.checkpoints_at_start(command) if command is not None else None
    return campaign.workload.activation_checkpointing if said is None else said


def space_of(campaign: Campaign, hardware: Hardware) -> SearchSpace:
    """Return the search space of the campaign.

    Raises:
        SpaceError: when the campaign's changes can't be made.
        ConfigError: when the learning rate is searched but the configuration has no optimizer.
    """
    config, _ = start_config(campaign, hardware)
    start = config_file.settings_of(config)
    start[config_file.ACTIVATION_CHECKPOINTING] = checkpoints_at_start(campaign)
    command = command_of(campaign)
    unavailable = {} if command is None else scripts.unavailable(command, _ds_config(campaign))
    space = build(campaign.space, hardware, start=start, unavailable=unavailable)
    if config_file.LEARNING_RATE in space.names and not isinstance(config.get("optimizer"), dict):
        raise ConfigError(
            f"{config_file.LEARNING_RATE} is searched, but the DeepSpeed configuration has no optimizer block; "
            f"add one, or put space: {{remove: [{config_file.LEARNING_RATE}]}} into the campaign"
        )
    return space


def objective_of(campaign: Campaign) -> Objective:
    """Return the campaign's objective."""
    return Objective(alpha=campaign.objective.alpha, beta=campaign.objective.beta)


def create(campaign: Campaign, storage: Storage, *, name: str) -> StoredStudy:
    """Make the study of a campaign in the storage: everything that is needed to run or resume it.

    Raises:
        AutotuneError: when the campaign can't be used; nothing is made then.
        StudyError: when a study of that name exists.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise CampaignError(
            f"study: got {name!r}; a name has letters, digits, '.', '_' and '-', at most 200, a letter or digit first"
        )
    hardware = hardware_of(campaign)
    space_of(campaign, hardware)
    _refuse_address_without_ray(campaign)
    _evaluator(campaign, hardware, name)
    # Without the storage's URL: it may hold a password, and whoever reads this has found the storage.
    kept = campaign.model_dump(mode="json", exclude={"storage"})
    attributes = {"campaign": kept, "hardware": asdict(hardware)}
    return storage.create(name, attributes)


def move_to(stored: StoredStudy, ray_address: str) -> None:
    """Let a study's further trials run on another Ray cluster.

    Raises:
        CampaignError: when its trials don't run on Ray.
    """
    campaign = campaign_of(stored).model_copy(update={"ray_address": ray_address})
    _refuse_address_without_ray(campaign)
    stored.set_attribute("campaign", campaign.model_dump(mode="json", exclude={"storage"}))


def campaign_of(stored: StoredStudy) -> Campaign:
    """Return the campaign that a study was made from.

    Raises:
        StudyError: when the study was not made by autotune.
    """
    data = stored.attribute("campaign")
    if data is None:
        raise StudyError(f"study {stored.name!r} was not made by autotune; it has no campaign to go on with")
    return parse(data, where=f"study {stored.name}")


def recorded_hardware(stored: StoredStudy) -> Hardware:
    """Return the hardware that a study's trials were measured on."""
    return Hardware(**stored.attribute("hardware"))


def study(
    stored: StoredStudy,
    *,
    listener: StudyListener | None = None,
    on_stage: StageListener | None = None,
    stop: StopRequest | None = None,
    trials: int | None = None,
) -> Study:
    """Return the study of the storage, ready to be entered and run.

    Args:
        stored: made by `create`.
        listener: hears what happens.
        on_stage: hears which stage a trial entered, from any thread.
        stop: a wish to stop.
        trials: another trial budget than the campaign's.

    Raises:
        StudyError: when real trials would run on other hardware than the study's so far.
    """
    campaign, hardware = campaign_of(stored), recorded_hardware(stored)
    if campaign.evaluator == "deepspeed" and campaign.ray_address is None:
        _refuse_other_hardware(stored, hardware, hardware_of(campaign))
    space = space_of(campaign, hardware)
    config, _ = start_config(campaign, hardware)
    checkpointing = checkpoints_at_start(campaign)
    return Study(
        stored=stored,
        space=space,
        start=Start.of(config, space, activation_checkpointing=checkpointing),
        objective=objective_of(campaign),
        runner=_runner(campaign, hardware, stored.name, on_stage),
        budget=Budget(**campaign.budget.model_dump()),
        trial_budget=trials or campaign.trials,
        world_size=hardware.ranks,
        seed=campaign.seed,
        listener=listener,
        stop=stop,
    )


def summary(stored: StoredStudy) -> StudySummary:
    """Return all that reports and listings need to know of a study."""
    campaign, hardware = campaign_of(stored), recorded_hardware(stored)
    return StudySummary(
        name=stored.name,
        searcher=stored.attribute("searcher") or campaign.searcher,
        evaluator=campaign.evaluator,
        workload=campaign.workload.name,
        trials=tuple(stored.trials()),
        trial_budget=stored.attribute("trial_budget") or campaign.trials,
        space=space_of(campaign, hardware),
        objective=objective_of(campaign),
        hardware=hardware,
        is_running=controller_is_alive(stored.attribute("controller")),
        ds_config=_ds_config(campaign),
        ds_config_notation=campaign.ds_config_notation,
    )


def _evaluator(campaign: Campaign, hardware: Hardware, study_name: str) -> Evaluator:
    Budget(**campaign.budget.model_dump())
    objective_of(campaign)
    if campaign.evaluator == "simulated":
        return SimulatedEvaluator(**campaign.simulated.model_dump())
    if campaign.evaluator == "recorded":
        if campaign.recorded.path is None:
            raise CampaignError("recorded.path: missing; give a file written by autotune trials STUDY --format json")
        return RecordedEvaluator(path=str(_path(campaign, campaign.recorded.path)))
    device: Literal["cpu", "cuda"] = "cuda" if hardware.accelerator == "cuda" else "cpu"
    command = command_of(campaign)
    if command is not None:
        decided = space_of(campaign, hardware).decided
        config, auto = start_config(campaign, hardware)
        command.check({*commands.GIVEN, *script_settings_of(config), *decided})
        scripts.check_starts(command, config, auto=auto)
        return ScriptEvaluator(
            command=command,
            directory=_directory(campaign),
            environment=campaign.workload.environment,
            world_size=hardware.ranks,
            device=device,
            own_config=_ds_config(campaign),
            searched=decided,
            counts_samples=campaign.workload.batch_dimension == "first",
            run_directory=str(run_directory(campaign, study_name)),
            deadlines=_deadlines(campaign),
            memory_limit_bytes=campaign.hardware.memory_limit_bytes,
        )
    return DeepSpeedEvaluator(
        workload=WorkloadReference(
            function=campaign.workload.function,
            arguments=campaign.workload.arguments,
            python_path=(campaign.folder,),
        ),
        ranks=hardware.ranks,
        device=device,
        run_directory=str(run_directory(campaign, study_name)),
        deadlines=_deadlines(campaign),
        memory_limit_bytes=campaign.hardware.memory_limit_bytes,
    )


def _deadlines(campaign: Campaign) -> Deadlines:
    given = campaign.deadlines.model_dump()
    if given["launch_s"] is None:
        given["launch_s"] = Deadlines().launch_s if campaign.workload.command is None else SCRIPT_LAUNCH_S
    return Deadlines(**given)


def _directory(campaign: Campaign) -> str:
    return os.path.abspath(_path(campaign, campaign.workload.directory))


def run_directory(campaign: Campaign, study_name: str) -> Path:
    """Return the folder of a study's logs."""
    return Path(os.path.abspath(campaign.run_directory)) / study_name


def _runner(campaign: Campaign, hardware: Hardware, study_name: str, on_stage: StageListener | None) -> TrialRunner:
    evaluator = _evaluator(campaign, hardware, study_name)
    kind = campaign.runner or ("ray" if evaluator.ranks else "inline")
    listener: StageListener = on_stage or ignore_stage
    gpus_per_rank = 1 if hardware.accelerator == "cuda" else 0
    # A command starts all its ranks on one host, which gets what they all need.
    ranks_per_host = hardware.ranks if campaign.workload.command is not None else 1
    if kind == "inline":
        return InlineRunner(evaluator, on_stage=listener)
    if kind == "local":
        return LocalRunner(evaluator, gpus_per_rank=gpus_per_rank * ranks_per_host, on_stage=listener)
    from autotune.runners.ray_runner import RayRunner

    return RayRunner(
        evaluator,
        address=campaign.ray_address,
        cpus_per_rank=campaign.hardware.cpus_per_rank * ranks_per_host,
        gpus_per_rank=gpus_per_rank * ranks_per_host,
        on_stage=listener,
    )


def _refuse_address_without_ray(campaign: Campaign) -> None:
    runner = campaign.runner or ("ray" if campaign.evaluator == "deepspeed" else "inline")
    if campaign.ray_address is not None and runner != "ray":
        raise CampaignError(
            f"ray_address: got {campaign.ray_address!r}, but trials run {runner}; "
            f"real trials run on Ray with runner: ray, the others without an address"
        )


def _ds_config(campaign: Campaign) -> dict[str, Any]:
    if isinstance(campaign.ds_config, dict):
        return campaign.ds_config
    return config_file.read(_path(campaign, campaign.ds_config))


def _notation(campaign: Campaign, text: str) -> dict[str, str]:
    """How the user writes numbers in the configuration: in its own file, or in the campaign's text."""
    if isinstance(campaign.ds_config, str):
        return config_file.notation_of(_path(campaign, campaign.ds_config).read_text(encoding="utf-8-sig"))
    document = yaml.compose(text, _Loader)
    members = document.value if isinstance(document, yaml.MappingNode) else []
    return config_file.notation_of_yaml(next((node for key, node in members if key.value == "ds_config"), None))


def _path(campaign: Campaign, text: str) -> Path:
    return Path(campaign.folder) / text


def _refuse_other_hardware(stored: StoredStudy, then: Hardware, now: Hardware) -> None:
    for name in ("accelerator", "device_name", "ranks"):
        before, after = getattr(then, name), getattr(now, name)
        if before != after:
            raise StudyError(
                f"study {stored.name!r} was measured with {name} {before!r}, and here it is {after!r}: "
                f"figures would not compare; go on where it began, or launch a new study (--study)"
            )


def _override(data: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise CampaignError(f"--set: got {override!r}; write KEY=VALUE, such as budget.seconds=5")
    *sections, key = dotted.split(".")
    place = data
    for section in sections:
        inner = place.setdefault(section, {})
        if not isinstance(inner, dict):
            raise CampaignError(f"--set {override}: {section} holds {inner!r}, which has no keys of its own")
        place = inner
    try:
        place[key] = _from_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CampaignError(f"--set {override}: the value is not valid YAML: {error}") from error


class _Loader(yaml.SafeLoader):
    """YAML as a user means it: a key stands once, and 1e-3 is a number (as in YAML 1.2 and JSON)."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key, count in keys.items():
            if count > 1:
                raise yaml.composer.ComposerError(problem=f"{key} stands {count} times", problem_mark=node.start_mark)
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def _from_yaml(text: str) -> Any:
    return yaml.load(text, _Loader)  # noqa: S506 (a SafeLoader)


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
