"""The configuration that was sent, compared with what the script's engine runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.dotted import leaves
from autotune.evaluators.rank_worker import engine as rank_engine
from autotune.evaluators.rank_worker.failures import TrialFailed
from autotune.evaluators.script_files import ScriptAssignment
from autotune.trials import FailureKind

_MISSING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What came of the comparison."""

    config_hash: str
    effective: Mapping[str, Any]
    differences: tuple[str, ...]
    """Of keys that are not searched."""


def compare(engine: Any, assignment: ScriptAssignment) -> Compared:
    """Compare every key that was sent with the dictionary that reached DeepSpeed, and with what the engine says of it.

    Raises:
        TrialFailed: INVALID_CONFIG, when a searched key runs with another value: the script overrides it.
    """
    reached = leaves(_dictionary(engine))
    runs = rank_engine.effective_config(engine, assignment.ranks)
    wanted = assignment.wanted
    overridden: list[str] = []
    differences: list[str] = []
    for key, want in wanted.items():
        got = next((each for each in _values(key, reached, runs) if not rank_engine.same(want, each)), None)
        if got is not None:
            text = f"{key} (sent {want!r}, the engine runs {got if got == _MISSING else repr(got)})"
            (overridden if key in assignment.searched else differences).append(text)
    if overridden:
        raise TrialFailed(
            FailureKind.INVALID_CONFIG,
            f"the script overrides what is searched: {', '.join(overridden)}. Pass each of them to the script with a "
            f"placeholder in the command, or take it out of the search (space: remove)",
        )
    text = json.dumps({key: reached.get(key) for key in sorted(wanted)}, default=str)
    return Compared(
        config_hash=hashlib.sha256(text.encode()).hexdigest()[:16],
        effective={**reached, **runs},
        differences=tuple(differences),
    )


def _values(key: str, reached: Mapping[str, Any], runs: Mapping[str, Any]) -> list[Any]:
    values = [reached.get(key, _MISSING)]
    scheduled = key == rank_engine.LEARNING_RATE and runs["scheduler.type"] is not None
    if key in runs and not scheduled:
        values.append(runs[key])
    return values


def _dictionary(engine: Any) -> Mapping[str, Any]:
    """Return the configuration as DeepSpeed was given it (`DeepSpeedEngine.config` in deepspeed/runtime/engine.py)."""
    config = engine.config
    if isinstance(config, Mapping):
        return config
    dictionary: Mapping[str, Any] = engine._config._param_dict  # noqa: SLF001 - where a path was given
    return dictionary
