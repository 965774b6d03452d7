"""What `autotune init` finds: the DeepSpeed configuration and the training command, and what it can't tell."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune import command as commands
from autotune import ds_config as config_file
from autotune import launchers
from autotune.command import CommandTemplate
from autotune.ds_config import hugging_face
from autotune.errors import CampaignError, ConfigError
from autotune.launchers import Launch, LaunchKind
from autotune.space import ACCUMULATION, MICRO_BATCH
from autotune.trials import Value

_PATTERNS = ("*ds_config*.json", "*deepspeed*.json", "*zero*.json", "ds_*.json", "ds*.json")
_ACCELERATE_PATTERNS = ("*accelerate*.y*ml", "*deepspeed*.y*ml", "default_config.y*ml")
_FOLDERS = ("conf", "config", "configs", "deepspeed", "ds_configs")
_TELLING_KEYS = frozenset(
    {"bf16", "fp16", "gradient_accumulation_steps", "optimizer", "train_batch_size", MICRO_BATCH, "zero_optimization"}
)
"""A mapping that has none of these is no DeepSpeed configuration."""

_BF16, _FP16 = "bf16.enabled", "fp16.enabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """All that goes into a campaign file."""

    config_path: Path | None
    """None where no DeepSpeed configuration was found."""
    config_source: str
    """Where it was named or found, in words."""
    template: CommandTemplate | None = None
    """None for a workload that is a function."""
    launch: Launch | None = None
    """Of the command as the user types it."""
    environment: Mapping[str, str]
    """Variables in front of the command."""
    added: Sequence[str] = ()
    """Arguments that the command didn't have."""
    questions: Mapping[str, str]
    """What could not be found, by the section of the file that it belongs to."""


def draft(words: Sequence[str], *, given: Path | None, directory: Path) -> Draft:
    """Look at a command and a folder.

    Args:
        words: the training command; none for a workload that is a function.
        given: the DeepSpeed configuration, where the user names it.
        directory: where the command runs.

    Raises:
        CampaignError: when there are several configurations to choose from, or the command can't be used.
        ConfigError: when the configuration can't be read.
    """
    environment, rest = _without_variables(words)
    launch = launchers.recognise(rest, directory=directory) if rest else None
    path, source = _config_path(given, launch, directory)
    config = config_file.read(directory / path) if path is not None else {}
    if launch is None:
        questions = {} if path is not None else {"ds_config": _NO_CONFIG}
        return Draft(config_path=path, config_source=source, environment=environment, questions=questions)
    made, added = _templated(rest, launch, config, directory)
    return Draft(
        config_path=path,
        config_source=source,
        template=made,
        launch=launch,
        environment=environment,
        added=added,
        questions=dict(_questions(made, launch, config, has_config=path is not None)),
    )


_NO_CONFIG = "no DeepSpeed configuration was found; give the path of yours instead of this small one"


def _without_variables(words: Sequence[str]) -> tuple[dict[str, str], Sequence[str]]:
    """Take A=b in front of a command for what a shell takes it for."""
    environment: dict[str, str] = {}
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            return environment, words[index:]
        environment[name] = value
    return environment, ()


def _config_path(given: Path | None, launch: Launch | None, directory: Path) -> tuple[Path | None, str]:
    if given is not None:
        return given, "--from"
    if launch is not None and launch.config is not None and not launch.config.path.startswith("{"):
        return Path(launch.config.path), launch.config.flag
    found = [*_likely(directory)]
    if len(found) > 1:
        listed = "\n".join(f"  {path}" for path in found)
        raise CampaignError(
            f"there are {len(found)} DeepSpeed configurations here, and the command names none; "
            f"choose one by adding --from {shlex.quote(str(found[0]))}, or another of them:\n{listed}"
        )
    return (found[0], "the only one here") if found else (None, "none found")


def _likely(directory: Path) -> Iterator[Path]:
    """Return the files of a folder that are DeepSpeed configurations, or that accelerate's own files name."""
    seen = set()
    for path in _matching(directory, _PATTERNS):
        try:
            config = config_file.read(path)
        except ConfigError:
            continue
        if _TELLING_KEYS & config.keys():
            seen.add(str(path.relative_to(directory)))
            yield path.relative_to(directory)
    for path in _matching(directory, _ACCELERATE_PATTERNS):
        launch = launchers.recognise(["accelerate", "launch", "--config_file", str(path)], directory=directory)
        named = launch.config.path if launch.config is not None else None
        if named is not None and os.path.normpath(named) not in seen and (directory / named).is_file():
            yield Path(named)


def _matching(directory: Path, patterns: Sequence[str]) -> list[Path]:
    folders = [directory, *(directory / name for name in _FOLDERS)]
    found = {path for folder in folders for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return sorted(found)


def _templated(
    words: Sequence[str], launch: Launch, config: Mapping[str, Any], directory: Path
) -> tuple[CommandTemplate, list[str]]:
    """Return the command as a template, and the arguments that were added to it."""
    concrete, _ = config_file.without_auto(config)
    starts: dict[str, Value] = config_file.settings_of(concrete) if config else {}
    starts |= {_BF16: starts.get(config_file.PRECISION) == "bf16", _FP16: starts.get(config_file.PRECISION) == "fp16"}
    said = config_file.get(config, "autotuning.arg_mappings")
    mappings = {str(key): str(flag) for key, flag in said.items()} if isinstance(said, Mapping) else {}
    # A learning rate has no place in a configuration without an optimizer block: it stays the script's own.
    kept = () if isinstance(config.get("optimizer"), Mapping) else (config_file.LEARNING_RATE,)
    made = launchers.with_arg_mappings(words, mappings, starts, directory=directory)
    made = launchers.template(made, launchers.recognise(made, directory=directory), guesses=True, kept=kept)
    if launch.is_hugging_face:
        names = CommandTemplate(made).names
        lacking = {key: flag for key, (flag, _) in hugging_face.ARGUMENTS.items() if key not in {*names, *kept}}
        defaults = {key: default for key, (_, default) in hugging_face.ARGUMENTS.items()}
        known = {key: value for key, value in starts.items() if config_file.get(concrete, key) is not None}
        made = launchers.with_arg_mappings(made, lacking, {**defaults, **known}, directory=directory)
    made = launchers.with_free_port(made, launchers.recognise(made, directory=directory))
    added = [word for word in made if word.startswith("-") and word.partition("=")[0] not in _flags(words)]
    return CommandTemplate(made), added


def _flags(words: Sequence[str]) -> set[str]:
    return {word.partition("=")[0] for word in words}


def _questions(
    made: CommandTemplate, launch: Launch, config: Mapping[str, Any], *, has_config: bool
) -> Iterator[tuple[str, str]]:
    if not has_config:
        yield "ds_config", _NO_CONFIG
    if not made.names & {commands.CONFIG, commands.CONFIG_BASE64}:
        yield (
            "config",
            "where does your script take its DeepSpeed configuration? put {config} there, such as --deepspeed {config}",
        )
    if launch.kind is LaunchKind.OTHER:
        yield "launcher", "this is no launcher that autotune knows; hardware.ranks must say how many ranks it starts"
    elif launch.ranks is None:
        yield "ranks", "the command doesn't say how many ranks it starts; is this right?"
    if launch.nodes is not None and launch.nodes > 1:
        yield "nodes", f"the command runs on {launch.nodes} machines; a trial runs on one: give it fewer ranks"
    yield from _setting_questions(made, launch, config)


def _setting_questions(made: CommandTemplate, launch: Launch, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    guess = launch.settings.get(MICRO_BATCH)
    if guess is not None and guess.is_guess and MICRO_BATCH in made.names:
        yield (
            "micro-batch",
            f"is {guess.flag} of one rank and micro-step? if it counts all ranks, take the placeholder out again",
        )
    for key in (MICRO_BATCH, ACCUMULATION, config_file.LEARNING_RATE):
        value = config_file.get(config, key)
        start = made.starts.get(key)
        if key in made.names:
            if start is not None and value not in (None, config_file.AUTO, start):
                yield key, f"your command says {start} and your configuration {value!r}; which one? make them equal"
        elif value == config_file.AUTO:
            yield key, f'it is "auto" in your configuration and not passed; pass it: --ARGUMENT {{{key}=VALUE}}'
        elif key == MICRO_BATCH and launch.kind is not LaunchKind.OTHER:
            yield (
                key,
                f"does your script read it from the configuration? if not, pass it: --ARGUMENT {{{key}={value or 1}}}",
            )


def study_name(directory: Path, launch: Launch | None, words: Sequence[str]) -> str:
    """Return a name for the study: the script's, or the folder's."""
    script = words[launch.script_index] if launch is not None and launch.script_index is not None else ""
    stem = Path(script).stem if script.endswith(".py") else directory.resolve().name
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")
    return name[:100] or "campaign"


def about(key: str, question: str) -> str:
    """Return a question with the setting that it is about in front."""
    return f"{key}: {question}" if key in (MICRO_BATCH, ACCUMULATION, config_file.LEARNING_RATE) else question
