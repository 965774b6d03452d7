"""A launch: what is known of a training command from its words alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class LaunchKind(StrEnum):
    """What starts the ranks."""

    DEEPSPEED = "deepspeed"
    TORCHRUN = "torchrun"
    ACCELERATE = "accelerate"
    PYTHON = "python"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A value in a command, and where it stands: `words[index][offset:]` is `text`."""

    flag: str
    """The argument's name as the command writes it, such as --learning_rate."""
    index: int
    """Of the word that holds the value; of the flag itself where it stands without one."""
    offset: int = 0
    """Where the value begins in its word: past the `=` of --flag=value."""
    text: str
    """The value, as it is written; "true" for a flag that stands without one."""
    is_bare: bool = False
    """Whether the flag stands without a value."""
    is_guess: bool = False
    """Whether the name doesn't say for certain what is meant: --batch_size may count all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigArgument:
    """Where a command names its DeepSpeed configuration."""

    path: str
    """As it is written; relative to where the command runs."""
    flag: str
    index: int | None = None
    """Of the word that holds the path; None where accelerate's own configuration file names it."""
    offset: int = 0
    """Where the path begins in its word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is known of a training command."""

    kind: LaunchKind
    program_index: int = 0
    """Of the word that names the launcher, past variables and wrappers such as `env` or `srun`."""
    options_index: int
    """Of the first word behind the launcher's name: its own options go there."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the command sets in front of the launcher: A=b or env A=b."""
    ranks: int | None = None
    """World size that it starts; None where the words don't say."""
    nodes: int | None = None
    """Machines that it runs on; None where the words don't say."""
    port: Argument | None = None
    """A fixed port for the ranks' rendezvous."""
    autotuning: Argument | None = None
    """DeepSpeed's own --autotuning, which would tune instead of training."""
    accelerate_config: str | None = None
    """Path of accelerate's configuration file, as it is written."""
    script_index: int | None = None
    """Of the word that is the user's script, or the module behind -m; None where there is none to see."""
    config: ConfigArgument | None = None
    settings: Mapping[str, Argument] = field(default_factory=dict)
    """What the command says of the training: by DeepSpeed's dotted key, or the search space's name."""
    is_hugging_face: bool = False
    """Whether the script's arguments look like Hugging Face's TrainingArguments."""
