"""What a training command is, read from its words: its launcher, ranks and port, and what it says about the training.

Nothing is started and nothing is imported of what the command names.
"""

from autotune.launchers.launch import Argument, ConfigArgument, Launch, LaunchKind
from autotune.launchers.recognition import recognise
from autotune.launchers.templates import template, with_arg_mappings, with_free_port

__all__ = [
    "Argument",
    "ConfigArgument",
    "Launch",
    "LaunchKind",
    "recognise",
    "template",
    "with_arg_mappings",
    "with_free_port",
]
