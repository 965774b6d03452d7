"""Campaign files: read one, with what the command line says laid over it."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from autotune import ds_config as config_file
from autotune import launchers
from autotune.campaign.plan import ds_config_of, path_of
from autotune.campaign.sections import Campaign, parse
from autotune.command import words_of
from autotune.errors import CampaignError


def load(path: Path | str, overrides: Sequence[str] = (), *, command: Sequence[str] = ()) -> Campaign:
    """Read a campaign file.

    Args:
        path: the YAML file.
        overrides: `a.b=c` texts laid over it; c is read as YAML.
        command: a training command in the place of the file's workload.

    Raises:
        CampaignError: naming the key, the value got, and the rule.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        data = from_yaml(text)
    except FileNotFoundError as error:
        raise CampaignError(
            f"there is no campaign file {path}; `autotune init -- COMMAND...` writes one from your training command"
        ) from error
    except (OSError, ValueError) as error:
        raise CampaignError(f"can't read the campaign file {path}: {error}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise CampaignError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise CampaignError(
            f"{path}: got {type(data).__name__}; a campaign file is a mapping with at least a ds_config"
        )
    data.setdefault("name", path.stem)
    data.setdefault("folder", str(path.resolve().parent))
    for override in overrides:
        _override(data, override)
    if command:
        _put_command(data, command)
    _take_config_from_command(data, where=str(path))
    try:
        json.dumps(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise CampaignError(
            f"{path}: holds what can't be kept as JSON ({error}); values are numbers, texts, true, false, null, "
            f"lists and mappings (put a date into quotes, and let no anchor refer to itself)"
        ) from error
    campaign = parse(data, where=str(path))
    return campaign.model_copy(
        update={"ds_config": ds_config_of(campaign), "ds_config_notation": _notation(campaign, text)}
    )


def _put_command(data: dict[str, Any], words: Sequence[str]) -> None:
    """Put a training command of the command line in the place of the file's workload; it runs in this folder."""
    given = data.get("workload")
    kept = dict(given) if isinstance(given, dict) else {}
    for name in ("function", "arguments", "command", "directory"):
        kept.pop(name, None)
    data["workload"] = {**kept, "command": list(words), "directory": os.getcwd()}
    hardware = data.get("hardware")
    if isinstance(hardware, dict) and launchers.recognise(words, directory=os.getcwd()).ranks is not None:
        data["hardware"] = {key: value for key, value in hardware.items() if key != "ranks"}  # the command says them


def _take_config_from_command(data: dict[str, Any], *, where: str) -> None:
    """Let the command name the configuration where the file doesn't."""
    workload = data.get("workload")
    command = workload.get("command") if isinstance(workload, dict) else None
    if not isinstance(command, str | list) or not isinstance(workload, dict):
        return
    folder = Path(data["folder"])
    directory = folder / str(workload.get("directory", "."))
    named = launchers.recognise(words_of(command), directory=directory).config
    if named is None or "{" in named.path:
        return
    path, given = directory / named.path, data.get("ds_config")
    if given is None:
        data["ds_config"] = str(path)
    elif not isinstance(given, str) or (folder / given).resolve() != path.resolve():
        raise CampaignError(
            f"{where}: ds_config says one configuration and the command names another, {named.path}; put {{config}} "
            f"in its place in the command, or leave ds_config out"
        )


def _notation(campaign: Campaign, text: str) -> dict[str, str]:
    """How the user writes numbers in the configuration: in its own file, or in the campaign's text."""
    if isinstance(campaign.ds_config, str):
        return config_file.notation_of(path_of(campaign, campaign.ds_config).read_text(encoding="utf-8-sig"))
    document = yaml.compose(text, _Loader)
    members = document.value if isinstance(document, yaml.MappingNode) else []
    return config_file.notation_of_yaml(next((node for key, node in members if key.value == "ds_config"), None))


def _override(data: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise CampaignError(f"--set: got {override!r}; write KEY=VALUE, such as budget.seconds=5")
    *sections, key = dotted.split(".")
    place = data
    for section in sections:
        inner = place.setdefault(section, {})
        if not isinstance(inner, dict):
            raise CampaignError(f"--set {override}: {section} holds {inner!r}, which has no keys of its own")
        place = inner
    try:
        place[key] = from_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CampaignError(f"--set {override}: the value is not valid YAML: {error}") from error


class _Loader(yaml.SafeLoader):
    """YAML as a user means it: a key stands once, and 1e-3 is a number (as in YAML 1.2 and JSON)."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key, count in keys.items():
            if count > 1:
                raise yaml.composer.ComposerError(problem=f"{key} stands {count} times", problem_mark=node.start_mark)
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def from_yaml(text: str) -> Any:
    """Return what a YAML text says, as a campaign file is read."""
    return yaml.load(text, _Loader)  # noqa: S506 (a SafeLoader)
