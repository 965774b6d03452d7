"""A command made a template: placeholders where a trial puts its own values."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from autotune.command import CONFIG, PORT, as_argument
from autotune.launchers import arguments
from autotune.launchers.launch import Argument, Launch, LaunchKind
from autotune.launchers.options import name_of
from autotune.launchers.recognition import recognise
from autotune.space import LEARNING_RATE
from autotune.trials import Value

_NAMED = re.compile(r"\{[A-Za-z_][A-Za-z0-9_.]*(=[^{}]*)?\}")
"""A word that holds one was written as a template's already."""

_PORT_OPTIONS = {
    LaunchKind.DEEPSPEED: "--master_port",
    LaunchKind.TORCHRUN: "--master_port",
    LaunchKind.ACCELERATE: "--main_process_port",
}

_SETTLES_PORT = frozenset({"main_process_port", "master_port", "rdzv_backend", "rdzv_endpoint", "standalone"})
"""Options by which a user has seen to the port, or has torchrun find one."""

_LEAVES: Mapping[str, str] = {
    "lr": LEARNING_RATE,
    "stage": "zero_optimization.stage",
    "overlap_comm": "zero_optimization.overlap_comm",
    "reduce_bucket_size": "zero_optimization.reduce_bucket_size",
    "allgather_bucket_size": "zero_optimization.allgather_bucket_size",
    "stage3_max_live_parameters": "zero_optimization.stage3_max_live_parameters",
    "stage3_param_persistence_threshold": "zero_optimization.stage3_param_persistence_threshold",
}
"""`arg_mappings` may name a key without its block: DeepSpeed looks it up at any depth (`get_val_by_key` in
deepspeed/autotuning/utils.py)."""


def template(
    words: Sequence[str], launch: Launch | None = None, *, guesses: bool = False, kept: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the command with placeholders for its configuration, port and settings.

    Rendered with its own starts, configuration and port it is the same command again, up to how a number is written,
    and a switch of TrainingArguments that stands alone comes as --bf16=true. Words that hold placeholders already are
    kept. DeepSpeed's own --autotuning is dropped: it would tune instead of training.

    Args:
        words: the user's command.
        launch: what `recognise` says of it; recognised here by default.
        guesses: whether values that are only guessed become placeholders too.
        kept: settings whose values stay as they are.
    """
    launch = launch or recognise(words)
    made = list(words)
    for key, argument in launch.settings.items():
        if key in kept:
            continue
        _place(made, words, argument, f"{key}={argument.text}", launch, guesses=guesses)
    if launch.port is not None and launch.nodes == 1:
        _put(made, words, launch.port.index, launch.port.offset, PORT, len(launch.port.text))
    config = launch.config
    if config is not None and config.index is not None:
        _put(made, words, config.index, config.offset, CONFIG)
    elif config is not None:  # accelerate's own file names it, and an option overrides the file
        made[launch.options_index : launch.options_index] = ["--deepspeed_config_file", f"{{{CONFIG}}}"]
    if launch.autotuning is not None:
        last = launch.autotuning.index
        del made[last if launch.autotuning.offset else last - 1 : last + 1]
    return tuple(made)


def with_arg_mappings(
    words: Sequence[str],
    mappings: Mapping[str, str],
    starts: Mapping[str, Value] | None = None,
    *,
    directory: Path | str = ".",
) -> tuple[str, ...]:
    """Return the command with a placeholder behind each argument that `autotuning.arg_mappings` names.

    As `ResourceManager.run_job` in deepspeed/autotuning/scheduler.py: the value behind the argument is replaced, and
    an argument that is not there is appended. Spaces around names are stripped, and the first of a name counts.

    Args:
        words: the user's command.
        mappings: arguments of the script by DeepSpeed's keys, dotted or without their blocks.
        starts: values of keys whose arguments the command doesn't have, by dotted key.
        directory: where the command runs.
    """
    stripped: dict[str, str] = {}
    for name, flag in mappings.items():
        stripped.setdefault(name.strip(), flag.strip())
    made = list(words)
    start = recognise(words, directory=directory).script_index
    for name, flag in stripped.items():
        key = _LEAVES.get(name, name)
        argument = arguments.find(made, 0 if start is None else start + 1, flag)
        if argument is not None and argument.is_bare:
            made[argument.index] = f"{flag}={{{key}={argument.text}}}"
        elif argument is not None:
            if not _NAMED.search(made[argument.index]):
                _put(made, made, argument.index, argument.offset, f"{key}={argument.text}")
        else:
            value = None if starts is None else starts.get(key)
            made += [flag, f"{{{key}}}" if value is None else f"{{{key}={as_argument(value)}}}"]
    return tuple(made)


def with_free_port(words: Sequence[str], launch: Launch | None = None) -> tuple[str, ...]:
    """Return the command with `{port}` as the launcher's port, where it names none and runs on one machine.

    Trials side by side, and a trial beside any other training, would all take the launchers' default, 29500.
    """
    launch = launch or recognise(words)
    made = list(words)
    option = _PORT_OPTIONS.get(launch.kind)
    given = {name_of(word.partition("=")[0]) for word in words[launch.options_index : launch.script_index]}
    if option is not None and launch.nodes == 1 and not given & _SETTLES_PORT:
        made[launch.options_index : launch.options_index] = [option, f"{{{PORT}}}"]
    return tuple(made)


def _place(
    made: list[str], words: Sequence[str], argument: Argument, text: str, launch: Launch, *, guesses: bool
) -> None:
    if argument.is_guess and not guesses:
        return
    if not argument.is_bare:
        _put(made, words, argument.index, argument.offset, text)
    elif launch.is_hugging_face:  # an argparse switch takes no value, one of TrainingArguments does
        made[argument.index] = f"{argument.flag}={{{text}}}"


def _put(made: list[str], words: Sequence[str], index: int, offset: int, text: str, length: int | None = None) -> None:
    """Put a placeholder over what stands from `offset` on."""
    word = words[index]
    if _NAMED.search(word):
        return
    tail = "" if length is None else word[offset + length :]
    made[index] = f"{word[:offset]}{{{text}}}{tail}"
