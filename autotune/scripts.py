"""What a user's training command means for tuning: its template, where it starts, and what it can't be tuned in."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune import command as commands
from autotune import ds_config as config_file
from autotune import launchers
from autotune.command import CommandTemplate
from autotune.ds_config import hugging_face
from autotune.errors import CampaignError
from autotune.evaluators.script import PRECISION_NAMES, passed_keys
from autotune.trials import Value

_RATES = ("lr", config_file.LEARNING_RATE)
"""Names of the learning rate in `autotuning.arg_mappings`."""


def template_of(words: Sequence[str], config: Mapping[str, Any], *, directory: str) -> CommandTemplate:
    """Return a command as a template.

    A command without a placeholder for the configuration is taken as its user types it: the path of the configuration
    and the well-known arguments become placeholders. `autotuning.arg_mappings` of the configuration are honoured, and
    the launcher gets a free port where the command names none.

    Raises:
        CampaignError: when the command is empty, or one of its placeholders has two starts.
    """
    written = CommandTemplate(tuple(words))
    made = written.words
    launch = launchers.recognise(made, directory=directory)
    if not written.names & {commands.CONFIG, commands.CONFIG_BASE64}:
        # A learning rate has no place in a configuration without an optimizer block: it stays the script's own.
        kept = () if _has_optimizer(config) else (config_file.LEARNING_RATE,)
        made = launchers.template(made, launch, kept=kept)
    mappings = config_file.get(config, "autotuning.arg_mappings")
    if isinstance(mappings, Mapping):
        texts = {str(key): str(flag) for key, flag in mappings.items()}
        texts = {key: flag for key, flag in texts.items() if key.strip() not in _RATES or _has_optimizer(config)}
        starts = {**(_training_arguments(config) if launch.is_hugging_face else {}), **_said(config)}
        made = launchers.with_arg_mappings(made, texts, starts, directory=directory)
    return CommandTemplate(launchers.with_free_port(made, launchers.recognise(made, directory=directory)))


def start_of(command: CommandTemplate, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's configuration with what the command says of it: where tuning starts.

    Args:
        command: its placeholders' starts are values in the user's own command.
        config: the user's configuration without its "auto" values.

    Raises:
        ConfigError: when a start has no place in the configuration.
        CampaignError: when the file says another value than the command, or a learning rate has no place in it.
    """
    if config_file.LEARNING_RATE in command.names and not _has_optimizer(config):
        raise CampaignError(
            f"workload.command: {{{config_file.LEARNING_RATE}}} has no place in a DeepSpeed configuration without an "
            "optimizer block; where your script makes the optimizer, write the number itself into the command"
        )
    starts = dict(command.starts)
    mixed = starts.pop(commands.MIXED_PRECISION, None)
    if mixed is not None:
        starts[config_file.PRECISION] = "fp32" if mixed == "no" else mixed
    starts.pop(config_file.ACTIVATION_CHECKPOINTING, None)
    for key, value in starts.items():
        said = config_file.get(config, key)
        if said is not None and said != value and not isinstance(said, Mapping):
            raise CampaignError(
                f"workload.command: {{{key}={value}}} starts at {value!r}, but the DeepSpeed configuration says "
                f'{said!r}; make them equal, or leave the key "auto" in the file'
            )
    settings = {key: value for key, value in starts.items() if key not in commands.GIVEN}
    return config_file.overlay(config, settings)


def check_starts(command: CommandTemplate, config: Mapping[str, Any], *, auto: Collection[str]) -> None:
    """Refuse a placeholder whose value in the user's own run nobody says: trial 0 would measure something else.

    Args:
        command: the template.
        config: where tuning starts, as `start_of` returns it.
        auto: keys that are "auto" in the user's configuration.

    Raises:
        CampaignError: naming the placeholder.
    """
    settings = config_file.settings_of(config)
    for placeholder in command.placeholders:
        name = placeholder.name
        if name in commands.GIVEN and name != commands.MIXED_PRECISION:
            continue
        keys = config_file.keys_of(config_file.PRECISION) if name in PRECISION_NAMES else (name,)
        if placeholder.start is None and (set(keys) & set(auto) or not (name in settings or name in PRECISION_NAMES)):
            raise CampaignError(
                f"workload.command: {{{name}}} has no value to start at: write {{{name}=VALUE}} with what your own "
                "command passes today"
            )


def check_script(command: CommandTemplate, *, directory: str) -> None:
    """Refuse a command whose script is not there.

    Raises:
        CampaignError: naming the script and the folder.
    """
    index = launchers.recognise(command.words, directory=directory).script_index
    script = command.words[index] if index is not None else ""
    if script.endswith(".py") and "{" not in script and not (Path(directory) / script).is_file():
        raise CampaignError(
            f"workload.command: got {script}; there is no such file in {directory}, where the command runs; mend the "
            "path, or set workload.directory"
        )


def _training_arguments(config: Mapping[str, Any]) -> dict[str, Value]:
    """Return what Hugging Face's TrainingArguments default to, where the configuration leaves it to them."""
    defaults = {key: default for key, (_, default) in hugging_face.ARGUMENTS.items()}
    return {key: value for key, value in defaults.items() if config_file.get(config, key) == config_file.AUTO}


def _said(config: Mapping[str, Any]) -> dict[str, Value]:
    """Return what stands in a configuration, without what is "auto" in it."""
    settings = config_file.settings_of(config)
    return {
        key: value for key, value in settings.items() if config_file.get(config, key) not in (None, config_file.AUTO)
    }


def checkpoints_at_start(command: CommandTemplate) -> bool | None:
    """Return whether the user's own command recomputes activations; None where it doesn't say."""
    value: Value | None = command.starts.get(config_file.ACTIVATION_CHECKPOINTING)
    return None if value is None else bool(value)


def unavailable(command: CommandTemplate, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the dimensions that can't be searched with this command, and why.

    Args:
        command: the template.
        config: the user's configuration as it is, with its "auto" values.
    """
    reasons = {}
    if config_file.ACTIVATION_CHECKPOINTING not in command.names:
        reasons[config_file.ACTIVATION_CHECKPOINTING] = (
            "only the script can switch it; to search it, pass it with {activation_checkpointing}"
        )
    passed = passed_keys(command)
    for name in (*config_file.SHARED_BY_TRAINER, config_file.PRECISION):
        auto = [key for key in config_file.keys_of(name) if config_file.get(config, key) == config_file.AUTO]
        if auto and not set(config_file.keys_of(name)) & passed:
            key = auto[0]
            reasons[name] = (
                f'{key} is "auto": the script sets it; to search it, pass it with {{{key}=VALUE}} in the command'
            )
    if not _has_optimizer(config):
        reasons[config_file.LEARNING_RATE] = (
            "the configuration has no optimizer block: the script makes the optimizer; add a block to search it"
        )
    return reasons


def _has_optimizer(config: Mapping[str, Any]) -> bool:
    return isinstance(config.get("optimizer"), Mapping)
