"""The launchers' own options: which take a value, where they end, and what they say."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from autotune.launchers.launch import Argument, LaunchKind

_DEEPSPEED_FLAGS = frozenset(
    {
        "help",
        "h",
        "quiet",
        "q",
        "module",
        "no_python",
        "no_local_rank",
        "no_ssh",
        "no_ssh_check",
        "force_multi",
        "save_pid",
        "bind_cores_to_rank",
    }
)
"""deepspeed/launcher/runner.py, `parse_args`: the options without a value."""

_TORCHRUN_FLAGS = frozenset(
    {
        "help",
        "h",
        "module",
        "m",
        "no_python",
        "run_path",
        "standalone",
        "virtual_local_rank",
        "use_env",
    }
)
"""torch/distributed/run.py, `get_args_parser`; `use_env` is of torch/distributed/launch.py."""

_ACCELERATE_FLAGS = frozenset(
    {
        "help",
        "h",
        "quiet",
        "q",
        "module",
        "m",
        "no_python",
        "cpu",
        "debug",
        "multi_gpu",
        "tpu",
        "tpu_cluster",
        "no_tpu_cluster",
        "tpu_use_sudo",
        "use_deepspeed",
        "use_fsdp",
        "use_megatron_lm",
        "use_parallelism_config",
        "same_network",
        "downcast_bf16",
        "dynamo_use_dynamic",
        "dynamo_use_fullgraph",
        "dynamo_use_regional_compilation",
        "enable_cpu_affinity",
        "fp8_use_autocast_during_eval",
    }
)
"""accelerate/commands/launch.py, `launch_command_parser`."""

FLAGS = {
    LaunchKind.DEEPSPEED: _DEEPSPEED_FLAGS,
    LaunchKind.TORCHRUN: _TORCHRUN_FLAGS,
    LaunchKind.ACCELERATE: _ACCELERATE_FLAGS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A launcher's options, and where they end."""

    found: dict[str, Argument]
    """By name, without dashes in front and with `_` inside; the last one of a name counts, as in argparse."""
    end: int
    """Index of the first word that is no option: the script."""

    def text(self, *names: str) -> str | None:
        """Return the value of the first name that is there."""
        argument = self.argument(*names)
        return None if argument is None else argument.text

    def argument(self, *names: str) -> Argument | None:
        """Return the option of the first name that is there."""
        return next((self.found[name] for name in names if name in self.found), None)

    def number(self, *names: str) -> int | None:
        """Return a value that is a whole number, or None."""
        text = self.text(*names)
        return int(text) if text is not None and text.isdecimal() else None


def read(words: Sequence[str], start: int, flags: AbstractSet[str]) -> Options:
    """Read options from `start` up to the first word that is none.

    Args:
        words: the whole command.
        start: index of the first word after the launcher.
        flags: names of the options that take no value.
    """
    found: dict[str, Argument] = {}
    index = start
    while index < len(words) and words[index].startswith("-"):
        word = words[index]
        if word == "--":
            return Options(found=found, end=index + 1)
        flag, equals, text = word.partition("=")
        name = name_of(flag)
        if equals:
            found[name] = Argument(flag=flag, index=index, offset=len(flag) + 1, text=text)
        elif name in flags:
            found[name] = Argument(flag=flag, index=index, text="true", is_bare=True)
        elif index + 1 < len(words):
            index += 1
            found[name] = Argument(flag=flag, index=index, text=words[index])
        index += 1
    return Options(found=found, end=index)


def python_script(words: Sequence[str], start: int) -> tuple[int | None, bool]:
    """Return the index of the script or module that a Python interpreter runs, and whether it is a module."""
    index = start
    while index < len(words) and words[index].startswith("-"):
        word = words[index]
        if word == "-m":
            return (index + 1, True) if index + 1 < len(words) else (None, True)
        if word in ("-", "-c"):
            return None, False
        takes_value = word in ("-W", "-X", "--check-hash-based-pycs")
        index += 2 if takes_value else 1
    return (index, False) if index < len(words) else (None, False)


def name_of(flag: str) -> str:
    """Return an option's name: launchers and scripts take `-` and `_` for the same."""
    return flag.lstrip("-").replace("-", "_")


def read_anywhere(words: Sequence[str], end: int) -> Options:
    """Read every option that stands before `end`, whatever stands between them."""
    found: dict[str, Argument] = {}
    index = 0
    while index < end:
        single = read(words[:end], index, frozenset())
        found |= single.found
        index = max(single.end, index) + 1
    return Options(found=found, end=end)
