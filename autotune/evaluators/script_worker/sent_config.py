"""The configuration that was sent, compared with what the script's engine runs. Loads neither torch nor DeepSpeed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.dotted import leaves
from autotune.evaluators.rank_worker.failures import TrialFailed
from autotune.evaluators.rank_worker.sameness import same
from autotune.evaluators.script_files import ScriptAssignment
from autotune.space import LEARNING_RATE
from autotune.trials import FailureKind

_MISSING = "nothing"
_SET_BY_ACCELERATE: Mapping[str, Any] = {"steps_per_print": math.inf}
"""What accelerate, and with it Hugging Face's Trainer, sets whatever the file says, so that DeepSpeed prints nothing
(`DeepSpeedPlugin.__post_init__` in accelerate/utils/dataclasses.py): nothing that a user did, or could change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What came of the comparison."""

    config_hash: str
    effective: Mapping[str, Any]
    differences: tuple[str, ...]
    """Of keys that are not searched."""


def compare(config: Mapping[str, Any], runs: Mapping[str, Any], assignment: ScriptAssignment) -> Compared:
    """Compare every key that was sent with the dictionary that reached DeepSpeed, and with what the engine says of it.

    Args:
        config: the dictionary that reached DeepSpeed.
        runs: what the engine says that it runs, by dotted keys.
        assignment: says what was sent.

    Raises:
        TrialFailed: INVALID_CONFIG, when a searched key runs with another value: the script overrides it.
    """
    reached, runs = leaves(config), _settled(runs)
    wanted = assignment.wanted
    overridden: list[str] = []
    differences: list[str] = []
    for key, want in wanted.items():
        values = [reached.get(key, _MISSING), *([runs[key]] if key in runs else [])]
        others = [each for each in values if not same(want, each)]
        if others and not (key not in assignment.searched and _SET_BY_ACCELERATE.get(key) == others[0]):
            got = others[0]
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
        effective={key: _plain(value) for key, value in {**reached, **runs}.items()},
        differences=tuple(differences),
    )


def _settled(runs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the engine says without a learning rate that a schedule has begun to change."""
    is_scheduled = runs.get("scheduler.type") is not None
    return {key: value for key, value in runs.items() if not (is_scheduled and key == LEARNING_RATE)}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: a number that is not finite is a text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
