"""The files between a controller, the guard of a script's launcher, and the probe in each of the script's ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from autotune.evaluators.deadlines import Deadlines
from autotune.evaluators.rank_files import request_from_json
from autotune.trials import TrialRequest

ASSIGNMENT_FILE = "assignment.json"
CONFIG_FILE = "ds_config.json"
ZERO3_CONFIG_FILE = "ds_config_zero3.json"
"""For stage 3: some trainers go by `zero3` in the path."""
OUTPUT_FOLDER = "output"
DIRECTORY_VARIABLE = "AUTOTUNE_PROBE_DIRECTORY"
"""Tells the probe where the files of its trial are."""
PACKAGE_VARIABLE = "AUTOTUNE_PROBE_PACKAGE"
"""Folder of the package `autotune`, for a script whose environment doesn't have it."""
CANNOT_WRITE = os.EX_IOERR
"""Exit code of a guard that could not write the files of its trial."""
PID_FILE = "pid"
SEEN_FILE = "seen"
"""The guard's answer to it, with the same number: from now on it sees how that process ends."""
ENGINE_FILE = "engine.json"
STEPS_FILE = "steps.jsonl"


def rank_folder(rank: int) -> str:
    """Return the name of a rank's folder in the trial's folder."""
    return f"rank{rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptAssignment:
    """One trial of a script, as the guard and the probe need to know it."""

    request: TrialRequest
    command: tuple[str, ...]
    """Whole: nothing left to fill in but paths below the trial's folder, which are in it already."""
    directory: str
    """Where the command runs."""
    environment: Mapping[str, str] = field(default_factory=dict)
    ranks: int
    device: str
    """'cpu' or 'cuda'."""
    wanted: Mapping[str, Any]
    """What the engine should run, by dotted keys: all that was sent, but what is the script's to fill in."""
    searched: tuple[str, ...]
    """Dotted DeepSpeed keys that the search decides: the engine must run the value that was sent."""
    counts_samples: bool = True
    """Whether the first dimension of the model's first tensor input counts samples."""
    fixed_port: int | None = None
    """Where the ranks meet, if the command itself names a port."""
    reserved_port: int | None = None
    """Where they meet otherwise; it was free a moment ago."""
    deadlines: Deadlines
    memory_limit_bytes: int | None = None
    """Resident size of one rank above which the trial ends."""

    def to_text(self) -> str:
        """Return the JSON text that `from_text` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> ScriptAssignment:
        """Read what `to_text` wrote."""
        data: dict[str, Any] = json.loads(text)
        request, deadlines = request_from_json(data.pop("request")), Deadlines(**data.pop("deadlines"))
        data["command"], data["searched"] = tuple(data["command"]), tuple(data["searched"])
        return cls(request=request, deadlines=deadlines, **data)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecord:
    """What the probe of one rank saw of the engine, right after `deepspeed.initialize`."""

    config_hash: str
    """Of the keys that were sent, as the engine has them; equal on all ranks."""
    effective: Mapping[str, Any]
    """What the engine runs, by dotted keys."""
    differences: tuple[str, ...] = ()
    """Keys that were sent, are not searched, and run with another value, in words."""
    warmup_steps: int
    micro_batch_size: int
    accumulation_steps: int
    train_batch_size: int
    trained_parameters: int
    total_parameters: int
    memory_kind: str
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_text(self) -> str:
        """Return the JSON text that `from_text` reads."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_text(cls, text: str) -> EngineRecord:
        """Read what `to_text` wrote."""
        data: dict[str, Any] = json.loads(text)
        data["differences"] = tuple(data["differences"])
        return cls(**data)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One optimizer step of one rank."""

    time_s: float
    """From the end of the step before to the end of this one: with the script's own work in between."""
    forward_s: float
    backward_s: float
    optimizer_s: float
    loss: float | None
    """Training loss before the step, mean over its micro-batches; None where the probe saw none."""
    samples: int | None
    """That this rank fed to the model; None where they can't be counted."""
    tokens: int | None
    micro_steps: int
    skipped_steps: int
    """So far, by an overflowing loss scale."""
    peak_memory_bytes: int

    def to_line(self) -> str:
        """Return the line of JSON that `from_line` reads."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> StepRecord:
        """Read what `to_line` wrote."""
        return cls(**json.loads(line))


def samples_of_all(step: StepRecord, engine: EngineRecord, *, ranks: int) -> int:
    """Return the samples of a step over all ranks, as one of them can tell."""
    return engine.train_batch_size if step.samples is None else step.samples * ranks
