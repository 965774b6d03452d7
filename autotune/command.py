"""A user's training command, with placeholders for what a trial changes.

    torchrun --nproc_per_node 2 train.py --deepspeed {config} --learning_rate {optimizer.params.lr=3e-4}

A placeholder is a name in braces: `{config}` is the path of the trial's DeepSpeed configuration; a DeepSpeed dotted key
or a name of the search space is that setting's value. What stands behind `=` is the value in the user's own command: it
is where tuning starts when the configuration file doesn't say. `{{name}}` is `{name}`, as it stands. Braces around
anything but a name (JSON, say) are left alone.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import CampaignError
from autotune.trials import Value

CONFIG = "config"
CONFIG_BASE64 = "config_base64"
OUTPUT = "output"
PORT = "port"
SEED = "seed"
TRIAL = "trial"
MIXED_PRECISION = "mixed_precision"
GIVEN: Mapping[str, str] = {
    CONFIG: "path of the trial's DeepSpeed configuration file",
    CONFIG_BASE64: "that configuration as base64, for `deepspeed`'s --deepspeed_config",
    OUTPUT: "an empty folder for what the script writes",
    PORT: "a port that is free on this machine",
    SEED: "the campaign's seed",
    TRIAL: "the trial's number",
    MIXED_PRECISION: "'no', 'fp16' or 'bf16', as `accelerate launch --mixed_precision` takes it",
}
"""Placeholders that are not settings."""

_NAME = r"[A-Za-z_][A-Za-z0-9_.]*"
_PLACEHOLDER = re.compile(
    rf"\{{\{{(?P<literal>{_NAME}(?:=[^{{}}]*)?)\}}\}}|\{{(?P<name>{_NAME})(?:=(?P<start>[^{{}}]*))?\}}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholder:
    """One placeholder of a command."""

    name: str
    start: Value | None = None
    """Its value in the user's own command; None where the command doesn't say."""


@dataclass(frozen=True, slots=True)
class CommandTemplate:
    """A command, word by word, with placeholders.

    Raises:
        CampaignError: when it has no words, or a placeholder stands in it twice with different starts.
    """

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.words or not self.words[0].strip():
            raise CampaignError("workload.command: it is empty; give the command that starts your training")
        starts: dict[str, Value] = {}
        for placeholder in self._found():
            if placeholder.start is None:
                continue
            if starts.setdefault(placeholder.name, placeholder.start) != placeholder.start:
                raise CampaignError(
                    f"workload.command: {{{placeholder.name}}} starts at {starts[placeholder.name]!r} in one place and "
                    f"at {placeholder.start!r} in another; give it one value"
                )

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        """Each placeholder once, in order."""
        found: dict[str, Placeholder] = {}
        for placeholder in self._found():
            if placeholder.name not in found or found[placeholder.name].start is None:
                found[placeholder.name] = placeholder
        return tuple(found.values())

    @property
    def names(self) -> frozenset[str]:
        """The placeholders' names."""
        return frozenset(placeholder.name for placeholder in self.placeholders)

    @property
    def starts(self) -> dict[str, Value]:
        """What the user's own command gives, by name."""
        return {p.name: p.start for p in self.placeholders if p.start is not None}

    def check(self, known: Collection[str]) -> None:
        """Refuse a placeholder that will have no value.

        Raises:
            CampaignError: naming the nearest that has one.
        """
        for name in sorted(self.names - set(known)):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {{{near[0]}}}?" if near else f"there are {', '.join(sorted(known))}"
            raise CampaignError(f"workload.command: {{{name}}} is no placeholder here; {hint}")

    def render(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the command with every placeholder replaced.

        Raises:
            CampaignError: when a placeholder has no value, naming the nearest that has.
        """
        self.check(values)

        def replaced(match: re.Match[str]) -> str:
            name = match["name"]
            return f"{{{match['literal']}}}" if name is None else as_argument(values[name])

        return tuple(_PLACEHOLDER.sub(replaced, word) for word in self.words)

    def __str__(self) -> str:
        return shlex.join(self.words)

    def _found(self) -> list[Placeholder]:
        return [
            Placeholder(name=match["name"], start=None if match["start"] is None else _value(match["start"]))
            for word in self.words
            for match in _PLACEHOLDER.finditer(word)
            if match["name"] is not None
        ]


def words_of(command: str | Sequence[str]) -> tuple[str, ...]:
    """Return a command's words: a text is split as a shell does.

    Raises:
        CampaignError: when its quotes don't match.
    """
    if not isinstance(command, str):
        return tuple(command)
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise CampaignError(f"workload.command: got {command!r}; it can't be split into words: {error}") from error


def as_argument(value: Any) -> str:
    """Return a value as a command line takes it: true and false in lower case, whole numbers without a point."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return json.dumps(value)


def _value(text: str) -> Value:
    """Read a start as JSON reads numbers, true and false; any other text is a text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text
