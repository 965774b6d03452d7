"""What a campaign comes to on this machine: its hardware, start, command, search space and objective."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from autotune import ds_config as config_file
from autotune import hardware as hardware_detection
from autotune import launchers, scripts
from autotune.campaign.sections import Campaign
from autotune.command import CommandTemplate
from autotune.errors import CampaignError, ConfigError
from autotune.finals import Rules
from autotune.hardware import Hardware
from autotune.objective import Objective
from autotune.space import SearchSpace
from autotune.study import Start
from autotune_spaces import build

_NOISE_FLOOR_ONE_RANK, _NOISE_FLOOR = 0.05, 0.08
"""Why these: `Campaign.noise_floor`."""


def hardware_of(campaign: Campaign) -> Hardware:
    """Return the hardware that the campaign's trials run on.

    Raises:
        ResourceError: when it asks for a GPU and there is none.
    """
    wanted = campaign.hardware
    ranks = wanted.ranks
    if campaign.workload.command is not None:
        starts = launchers.recognise(campaign.workload.command, directory=directory_of(campaign)).ranks
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
    concrete, auto = config_file.without_auto(ds_config_of(campaign))
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
    return scripts.template_of(words, ds_config_of(campaign), directory=directory_of(campaign))


def checkpoints_at_start(campaign: Campaign) -> bool:
    """Return whether the user's training recomputes activations today."""
    command = command_of(campaign)
    said = scripts.checkpoints_at_start(command) if command is not None else None
    return campaign.workload.activation_checkpointing if said is None else said


def start_of(campaign: Campaign, hardware: Hardware, space: SearchSpace) -> Start:
    """Return the user's configuration as the first trial measures it, and its place in the space.

    Raises:
        ConfigError: as `start_config`.
    """
    config, _ = start_config(campaign, hardware)
    return Start.of(config, space, activation_checkpointing=checkpoints_at_start(campaign))


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
    unavailable = {} if command is None else scripts.unavailable(command, ds_config_of(campaign))
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


def has_noise(campaign: Campaign) -> bool:
    """Return whether a configuration that runs twice gives two figures."""
    return campaign.evaluator == "deepspeed" or (campaign.evaluator == "simulated" and campaign.simulated.noise > 0)


def runs_warm(campaign: Campaign) -> bool:
    """Return whether trials are forks of a process that has loaded everything."""
    return campaign.evaluator == "deepspeed" and campaign.workload.command is None and campaign.execution != "cold"


def rules_of(campaign: Campaign, hardware: Hardware) -> Rules:
    """Return the rules of the campaign's finals; of no candidates where they would tell nothing new."""
    candidates = campaign.finals.candidates if has_noise(campaign) else 0
    floor = _NOISE_FLOOR_ONE_RANK if hardware.ranks == 1 else _NOISE_FLOOR
    if campaign.evaluator != "deepspeed":
        floor = 2 * campaign.simulated.noise
    if campaign.noise_floor is not None:
        floor = campaign.noise_floor
    return Rules(candidates=candidates, rounds=campaign.finals.rounds, runs=campaign.finals.runs, noise_floor=floor)


def directory_of(campaign: Campaign) -> str:
    """Return the folder that the training command runs in."""
    return os.path.abspath(path_of(campaign, campaign.workload.directory))


def ds_config_of(campaign: Campaign) -> dict[str, Any]:
    """Return the user's DeepSpeed configuration as it is, with its "auto" values.

    Raises:
        ConfigError: when its file can't be read.
    """
    if isinstance(campaign.ds_config, dict):
        return campaign.ds_config
    return config_file.read(path_of(campaign, campaign.ds_config))


def runner_of(campaign: Campaign) -> Literal["ray", "local", "inline"]:
    """Return where the campaign's trials run."""
    return campaign.runner or ("ray" if campaign.evaluator == "deepspeed" else "inline")


def replay_slots(campaign: Campaign) -> int | None:
    """Return how many trials go on at once in simulated time; None where trials run for real."""
    return (campaign.placement.slots or 1) if campaign.evaluator != "deepspeed" else None


def at_once(campaign: Campaign, hardware: Hardware) -> str:
    """Say how many trials run at once, and why."""
    slots = campaign.placement.slots
    if runner_of(campaign) == "inline":
        return f"{slots} trials (placement.slots)" if slots is not None and slots > 1 else "1 trial"
    if runner_of(campaign) == "local" or slots == 1:
        return "1 trial"
    apart = "GPUs" if hardware.accelerator == "cuda" else "processors"
    if slots is not None:
        return f"{slots} trials, each on {apart} of its own (placement.slots)"
    if hardware.accelerator == "cuda":
        return f"as many trials as there are GPUs for, {hardware.ranks} each (placement.slots overrides)"
    return "1 trial on each machine: on one they would share caches and memory (placement.slots overrides)"


def path_of(campaign: Campaign, text: str) -> Path:
    """Return a path of the campaign file, from the folder that its paths count from."""
    return Path(campaign.folder) / text
