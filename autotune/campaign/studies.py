"""The studies made from a campaign: create one, open it to run or resume it, sum it up."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from autotune import command as commands
from autotune import ds_config as config_file
from autotune import scripts
from autotune.campaign.plan import (
    command_of,
    directory_of,
    ds_config_of,
    hardware_of,
    objective_of,
    path_of,
    rules_of,
    runner_of,
    runs_warm,
    space_of,
    start_config,
    start_of,
)
from autotune.campaign.sections import NAME_PATTERN, Campaign, PlacementSection, parse
from autotune.cold_checks import checks
from autotune.drift import readings
from autotune.ds_config import schema
from autotune.errors import CampaignError, StudyError, UnreadableStudyError
from autotune.evaluators.deadlines import Deadlines
from autotune.evaluators.deepspeed import DeepSpeedEvaluator
from autotune.evaluators.protocol import Evaluator
from autotune.evaluators.recorded import RecordedEvaluator
from autotune.evaluators.script import ScriptEvaluator
from autotune.evaluators.script import settings_of as script_settings_of
from autotune.evaluators.simulated import SimulatedEvaluator
from autotune.file_systems import why_not_writable
from autotune.finals import Record, judge
from autotune.hardware import Hardware
from autotune.report.summary import StudySummary
from autotune.runners import InlineRunner, LocalRunner, TrialRunner, labels
from autotune.runners.attempt import ignore_stage, prune_none
from autotune.runners.protocol import Judge, StageListener
from autotune.searchers import refusals
from autotune.searchers.pruning import TrialPruner
from autotune.storage import Storage, StoredStudy
from autotune.study import StopRequest, Study, StudyListener, controller_is_alive
from autotune.trials import Budget
from autotune.workload import WorkloadReference

SCRIPT_LAUNCH_S = 600.0


def create(campaign: Campaign, storage: Storage, *, name: str) -> StoredStudy:
    """Make the study of a campaign in the storage: everything that is needed to run or resume it.

    Raises:
        AutotuneError: when the campaign can't be used; nothing is made then.
        StudyError: when a study of that name exists, or the one that it is `calibrate_from` is of no use to it.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise CampaignError(
            f"study: got {name!r}; a name has letters, digits, '.', '_' and '-', at most 200, a letter or digit first"
        )
    hardware = hardware_of(campaign)
    space_of(campaign, hardware)
    _refuse_cluster_without_ray(campaign)
    labels.check(campaign.placement.labels)
    _evaluator(campaign, hardware, name)
    _refuse_run_directory(campaign)
    # Without the storage's URL: it may hold a password, and whoever reads this has found the storage.
    kept = campaign.model_dump(mode="json", exclude={"storage"})
    attributes = {"campaign": kept, "hardware": asdict(hardware)}
    if campaign.calibrate_from is not None:
        from autotune.campaign.calibrating import earlier_calibration  # it loads scipy

        attributes |= earlier_calibration(campaign, hardware, storage)
    return storage.create(name, attributes)


def move_to(stored: StoredStudy, ray_address: str) -> None:
    """Let a study's further trials run on another Ray cluster.

    Raises:
        CampaignError: when its trials don't run on Ray.
    """
    campaign = campaign_of(stored).model_copy(update={"ray_address": ray_address})
    _refuse_cluster_without_ray(campaign)
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
    """Return the hardware that a study's trials were measured on.

    Raises:
        UnreadableStudyError: when another version kept it in another form.
    """
    with _read(stored, "hardware"):
        return Hardware(**stored.attribute("hardware"))


@contextmanager
def _read(stored: StoredStudy, what: str) -> Iterator[None]:
    """Say what of a study can't be read, where its JSON data don't have the form that this version writes."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableStudyError(
            f"study {stored.name!r}: its {what} can't be read ({type(error).__name__}: {error}); another version of "
            f"autotune kept it in another form: use that version for this study, or launch it anew under another name"
        ) from error


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
    _refuse_run_directory(campaign)
    space = space_of(campaign, hardware)
    pruner = TrialPruner(objective_of(campaign)) if campaign.pruner == "percentile" else None
    return Study(
        stored=stored,
        space=space,
        start=start_of(campaign, hardware, space),
        objective=objective_of(campaign),
        runner=_runner(
            campaign,
            hardware,
            stored.name,
            on_stage,
            pruner.judge if pruner else prune_none,
            most_slots=trials or campaign.trials,
        ),
        budget=Budget(**campaign.budget.model_dump()),
        trial_budget=trials or campaign.trials,
        world_size=hardware.ranks,
        seed=campaign.seed,
        listener=listener,
        stop=stop,
        pruner=pruner,
    )


def summary(stored: StoredStudy) -> StudySummary:
    """Return all that reports and listings need to know of a study.

    Raises:
        StudyError: when the study was not made by autotune.
        UnreadableStudyError: when another version made it.
    """
    campaign, hardware = campaign_of(stored), recorded_hardware(stored)
    with _read(stored, "trials"):
        trials = tuple(stored.trials())
    with _read(stored, "readings of the machine"):
        drift = readings(stored)
    with _read(stored, "cold checks"):
        cold_checks = checks(stored)
    with _read(stored, "record of the finals"):
        records = [Record.from_json(data) for data in stored.attribute("finals") or ()]
    with _read(stored, "refused configurations"):
        refused = stored.attribute(refusals.ATTRIBUTE)
        refused = refusals.Refusals.from_json(refused) if refused else None
    state = StudySummary(
        name=stored.name,
        searcher=stored.attribute("searcher") or campaign.searcher,
        evaluator=campaign.evaluator,
        workload=campaign.workload.name,
        trials=trials,
        trial_budget=stored.attribute("trial_budget") or campaign.trials,
        space=space_of(campaign, hardware),
        objective=objective_of(campaign),
        hardware=hardware,
        is_running=controller_is_alive(stored.attribute("controller")),
        storage_url=stored.url,
        ds_config=ds_config_of(campaign),
        ds_config_notation=campaign.ds_config_notation,
        rules=rules_of(campaign, hardware),
        readings=drift,
        cold_checks=cold_checks,
        refusals=refused,
    )
    return _with_finals(state, records)


def _with_finals(state: StudySummary, records: Sequence[Record]) -> StudySummary:
    """Take the last record for the study's finals, unless further trials have run since."""
    is_present = bool(records) and records[-1].executed_trials == state.executed_count
    past = tuple(records[:-1] if is_present else records)
    finals = judge(records[-1], state.objective) if is_present else None
    state = replace(state, past_finals=past, finals=finals)
    is_over = finals.next_run is None if finals is not None else not state.leaders
    return replace(state, finals_are_due=state.executed_count >= state.trial_budget and not is_over)


def run_directory(campaign: Campaign, study_name: str) -> Path:
    """Return the folder of a study's logs."""
    return Path(os.path.abspath(campaign.run_directory)) / study_name


def _refuse_run_directory(campaign: Campaign) -> None:
    """Refuse real trials on this machine whose files would have no place: each would fail."""
    if campaign.evaluator != "deepspeed" or campaign.ray_address is not None:
        return
    why = why_not_writable(Path(os.path.abspath(campaign.run_directory)))
    if why is not None:
        raise CampaignError(
            f"run_directory: {campaign.run_directory} can't be written to: {why}; make room there, or set "
            "run_directory to another folder"
        )


def _evaluator(campaign: Campaign, hardware: Hardware, study_name: str) -> Evaluator:
    Budget(**campaign.budget.model_dump())
    objective_of(campaign)
    if campaign.evaluator == "simulated":
        return SimulatedEvaluator(**campaign.simulated.model_dump())
    if campaign.evaluator == "recorded":
        if campaign.recorded.path is None:
            raise CampaignError("recorded.path: missing; give a file written by autotune trials STUDY --format json")
        return RecordedEvaluator(path=str(path_of(campaign, campaign.recorded.path)), missing=campaign.recorded.missing)
    device: Literal["cpu", "cuda"] = "cuda" if hardware.accelerator == "cuda" else "cpu"
    command = command_of(campaign)
    if command is not None:
        decided = space_of(campaign, hardware).decided
        config, auto = start_config(campaign, hardware)
        # Not by `config`: the command's own starts are in it, a misspelt one too.
        said = script_settings_of(config_file.without_auto(ds_config_of(campaign))[0])
        command.check({*commands.GIVEN, *said, *auto, *decided, *schema.dotted_keys()})
        scripts.check_starts(command, config, auto=auto)
        if campaign.ray_address is None:
            scripts.check_script(command, directory=directory_of(campaign))
        return ScriptEvaluator(
            command=command,
            directory=directory_of(campaign),
            environment=campaign.workload.environment,
            world_size=hardware.ranks,
            device=device,
            own_config=ds_config_of(campaign),
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
        execution="warm" if runs_warm(campaign) else "cold",
        run_directory=str(run_directory(campaign, study_name)),
        deadlines=_deadlines(campaign),
        memory_limit_bytes=campaign.hardware.memory_limit_bytes,
    )


def _deadlines(campaign: Campaign) -> Deadlines:
    given = campaign.deadlines.model_dump()
    if given["launch_s"] is None:
        given["launch_s"] = Deadlines().launch_s if campaign.workload.command is None else SCRIPT_LAUNCH_S
    return Deadlines(**given)


def _runner(
    campaign: Campaign,
    hardware: Hardware,
    study_name: str,
    on_stage: StageListener | None,
    judge: Judge,
    *,
    most_slots: int,
) -> TrialRunner:
    evaluator = _evaluator(campaign, hardware, study_name)
    kind = runner_of(campaign)
    listener: StageListener = on_stage or ignore_stage
    gpus_per_rank = 1 if hardware.accelerator == "cuda" else 0
    # A command starts all its ranks on one host, which gets what they all need.
    ranks_per_host = hardware.ranks if campaign.workload.command is not None else 1
    if kind == "inline":
        return InlineRunner(evaluator, slots=campaign.placement.slots or 1, on_stage=listener, judge=judge)
    if kind == "local":
        gpus = gpus_per_rank * ranks_per_host
        return LocalRunner(evaluator, gpus_per_rank=gpus, on_stage=listener, judge=judge)
    from autotune.runners.ray_runner import RayRunner

    placement = campaign.placement
    code = Path(directory_of(campaign) if campaign.workload.command is not None else os.path.abspath(campaign.folder))
    return RayRunner(
        evaluator,
        address=campaign.ray_address,
        slots=placement.slots,
        most_slots=most_slots,
        cpus_per_rank=campaign.hardware.cpus_per_rank * ranks_per_host,
        gpus_per_rank=gpus_per_rank * ranks_per_host,
        strategy=placement.strategy,
        labels=placement.labels,
        code=str(code) if placement.ship_code else None,
        excluded=not_shipped(campaign, code),
        environment=placement.environment,
        node_wait_s=placement.node_wait_s,
        on_stage=listener,
        judge=judge,
    )


def not_shipped(campaign: Campaign, code: Path) -> list[str]:
    """Return what of the code's folder is autotune's own: logs of trials, and storages that are files."""
    logs = Path(os.path.abspath(campaign.run_directory))
    return ["*.db", "*.db-*", *([f"/{logs.relative_to(code)}"] if logs.is_relative_to(code) and logs != code else [])]


def _refuse_cluster_without_ray(campaign: Campaign) -> None:
    if runner_of(campaign) == "ray":
        return
    if campaign.ray_address is not None:
        raise CampaignError(
            f"ray_address: got {campaign.ray_address!r}, but trials run {runner_of(campaign)}; "
            f"real trials run on Ray with runner: ray, the others without an address"
        )
    is_inline = runner_of(campaign) == "inline"
    takes = PlacementSection(slots=campaign.placement.slots) if is_inline else PlacementSection()
    if campaign.placement != takes:
        raise CampaignError(
            f"placement: got {campaign.placement.model_dump(exclude_defaults=True)}, but trials run "
            f"{runner_of(campaign)}, on this machine; leave {'all but slots' if is_inline else 'it'} out, or set "
            "runner: ray"
        )


def _refuse_other_hardware(stored: StoredStudy, then: Hardware, now: Hardware) -> None:
    for name in ("accelerator", "device_name", "ranks"):
        before, after = getattr(then, name), getattr(now, name)
        if before != after:
            raise StudyError(
                f"study {stored.name!r} was measured with {name} {before!r}, and here it is {after!r}: "
                f"figures would not compare; go on where it began, or launch a new study (--study)"
            )
