"""The script's arguments: the DeepSpeed configuration, and the settings that well-known names stand for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from autotune.launchers.launch import Argument, ConfigArgument
from autotune.launchers.options import name_of
from autotune.space import ACCUMULATION, LEARNING_RATE, MICRO_BATCH

BF16, FP16 = "bf16.enabled", "fp16.enabled"
CHECKPOINTING = "activation_checkpointing"

_KEYS: Mapping[str, str] = {
    # transformers.TrainingArguments
    "per_device_train_batch_size": MICRO_BATCH,
    "gradient_accumulation_steps": ACCUMULATION,
    "learning_rate": LEARNING_RATE,
    "bf16": BF16,
    "fp16": FP16,
    "gradient_checkpointing": CHECKPOINTING,
    # Megatron-DeepSpeed's and DeepSpeedExamples' scripts
    "train_micro_batch_size_per_gpu": MICRO_BATCH,
    "micro_batch_size": MICRO_BATCH,
    "lr": LEARNING_RATE,
}
_GUESSES: Mapping[str, str] = {"batch_size": MICRO_BATCH, "train_batch_size": MICRO_BATCH}
"""Names that some scripts mean per rank and others over all ranks."""

_SWITCHES = frozenset({BF16, FP16, CHECKPOINTING})
_CONFIG_NAMES = ("deepspeed_config", "ds_config", "deepspeed_config_file", "deepspeed")
"""The surest first. `--deepspeed` is a bare switch beside --deepspeed_config (`deepspeed.add_config_arguments`), and
takes the path itself in TrainingArguments."""
_CONFIG_SUFFIXES = (".json", ".hjson", ".yaml", ".yml")

_ONLY_TRAINING_ARGUMENTS = frozenset(
    {
        "do_train",
        "eval_strategy",
        "evaluation_strategy",
        "logging_steps",
        "overwrite_output_dir",
        "save_strategy",
        "save_total_limit",
    }
)
"""Names of TrainingArguments that plain argparse scripts, the *_no_trainer.py ones among them, don't have."""

_BESIDE_CONFIG = frozenset(
    {
        "gradient_accumulation_steps",
        "gradient_checkpointing",
        "learning_rate",
        "max_steps",
        "num_train_epochs",
        "output_dir",
        "per_device_train_batch_size",
        "use_cpu",
    }
)
"""Further names of TrainingArguments, which other scripts have too: with `--deepspeed PATH` they tell."""

_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_SWITCH_TEXTS = frozenset({"true", "false"})


def config(words: Sequence[str], start: int) -> ConfigArgument | None:
    """Return where the script's arguments, from `start` on, name the DeepSpeed configuration."""
    found = {name_of(argument.flag): argument for argument in _arguments(words, start) if not argument.is_bare}
    for name in _CONFIG_NAMES:
        argument = found.get(name)
        if argument is None or (name == "deepspeed" and not _is_path(argument.text)):
            continue
        return ConfigArgument(path=argument.text, flag=argument.flag, index=argument.index, offset=argument.offset)
    return None


def settings(words: Sequence[str], start: int) -> dict[str, Argument]:
    """Return what the script's arguments, from `start` on, say of the training; the last one counts, as in argparse."""
    found: dict[str, Argument] = {}
    guesses: dict[str, Argument] = {}
    for argument in _arguments(words, start):
        name = name_of(argument.flag)
        key, place = (_KEYS[name], found) if name in _KEYS else (_GUESSES.get(name), guesses)
        if key is not None and _fits(key, argument):
            place[key] = argument
    for key, argument in guesses.items():
        if key not in found:
            found[key] = _guessed(argument)
    return found


def is_hugging_face(words: Sequence[str], start: int) -> bool:
    """Whether the script's arguments look like TrainingArguments."""
    given = {name_of(argument.flag): argument for argument in _arguments(words, start)}
    takes_config = "deepspeed" in given and _is_path(given["deepspeed"].text)
    if given.keys() & _ONLY_TRAINING_ARGUMENTS or (takes_config and given.keys() & _BESIDE_CONFIG):
        return True
    return any(name in given and not given[name].is_bare for name in ("bf16", "fp16", "gradient_checkpointing"))


def find(words: Sequence[str], start: int, flag: str) -> Argument | None:
    """Return the last argument of that very flag, from `start` on."""
    return next((argument for argument in reversed([*_arguments(words, start)]) if argument.flag == flag), None)


def _arguments(words: Sequence[str], start: int) -> Iterator[Argument]:
    for index in range(start, len(words)):
        word = words[index]
        if not word.startswith("-") or _NUMBER.fullmatch(word):
            continue
        flag, equals, text = word.partition("=")
        following = words[index + 1] if index + 1 < len(words) else None
        if equals:
            yield Argument(flag=flag, index=index, offset=len(flag) + 1, text=text)
        elif following is not None and (not following.startswith("-") or _NUMBER.fullmatch(following)):
            yield Argument(flag=flag, index=index + 1, text=following)
        else:
            yield Argument(flag=flag, index=index, text="true", is_bare=True)


def _fits(key: str, argument: Argument) -> bool:
    """Whether the value can be the key's: a shell variable or a positional behind a switch is not."""
    if key in _SWITCHES:
        return argument.is_bare or argument.text.lower() in _SWITCH_TEXTS
    return not argument.is_bare and _NUMBER.fullmatch(argument.text) is not None


def _guessed(argument: Argument) -> Argument:
    return Argument(flag=argument.flag, index=argument.index, offset=argument.offset, text=argument.text, is_guess=True)


def _is_path(text: str) -> bool:
    return text.lower().endswith(_CONFIG_SUFFIXES) or text == "{config}"  # a template already
