"""An export: a trial's DeepSpeed configuration as a file, and beside it where its figures come from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import autotune
from autotune import ds_config as config_file
from autotune.errors import ConfigError, StudyError
from autotune.report import units
from autotune.report.summary import StudySummary
from autotune.trials import Measurement, Trial

DEFAULT_NAME = "ds_config.json"
ZERO3_NAME = "ds_config_zero3.json"
"""axolotl takes a configuration for ZeRO stage 3 by `zero3` in its path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written."""

    config_path: Path
    provenance_path: Path
    notes: tuple[str, ...]
    """What the user must know that is not in the configuration file."""


def export(summary: StudySummary, path: Path | None, *, trial_number: int | None = None) -> Exported:
    """Write a trial's configuration exactly as it was measured, and its provenance beside it.

    Args:
        summary: of the study.
        path: where the configuration goes, a file or a folder; None is the current folder. In a folder it is named
            `ds_config.json`, or `ds_config_zero3.json` for stage 3; the other file is `<name>.provenance.json`.
        trial_number: which trial; None: the best.

    Raises:
        StudyError: when that trial doesn't exist, or did not complete.
        ConfigError: when a file can't be written, or is there already and no export wrote it.
    """
    trial = _chosen(summary, trial_number)
    stage = config_file.get(trial.ds_config, config_file.STAGE)
    name = ZERO3_NAME if stage == 3 else DEFAULT_NAME
    config_path = Path(name) if path is None else path / name if path.is_dir() else path
    provenance_path = config_path.with_name(f"{config_path.stem}.provenance.json")
    if config_path.exists() and not provenance_path.exists():
        raise ConfigError(
            f"{config_path} is there already, and no export wrote it (there is no {provenance_path.name} beside it): "
            f"it may be the configuration that you started with; give another name (-o)"
        )
    notes = _notes(summary, trial)
    config_file.write(trial.ds_config, config_path)
    config_file.write(provenance(summary, trial, notes=notes), provenance_path)
    return Exported(config_path=config_path, provenance_path=provenance_path, notes=notes)


def provenance(summary: StudySummary, trial: Trial, *, notes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return, as JSON data, where a trial's configuration and figures come from."""
    measurement = trial.measurement
    return {
        "written_by": f"autotune {autotune.__version__}",
        "study": summary.name,
        "searcher": summary.searcher,
        "evaluator": summary.evaluator,
        "workload": summary.workload,
        "trial": trial.number,
        "is_baseline": trial.is_baseline,
        "config_hash": trial.config_hash,
        "measured_at": trial.finished_at.isoformat() if trial.finished_at else None,
        "executed_trials": summary.executed_count,
        "point": dict(trial.point),
        "script_side": {config_file.ACTIVATION_CHECKPOINTING: trial.activation_checkpointing},
        "objective": {
            "R": trial.score,
            **asdict(summary.objective),
            "throughput_ratio": trial.throughput_ratio,
            "convergence_ratio": trial.convergence_ratio,
            "relative_to_trial": summary.reference.number if summary.reference else None,
        },
        "figures": _figures(measurement),
        "baseline": _figures(summary.baseline.measurement if summary.baseline else None),
        "hardware": asdict(summary.hardware),
        "versions": dict(measurement.versions) if measurement else {},
        "notes": list(notes),
    }


def _chosen(summary: StudySummary, number: int | None) -> Trial:
    if number is None:
        if summary.best is None:
            raise StudyError(
                f"study {summary.name!r}: none of its {units.count(summary.executed_count, 'trial')} completed, so "
                f"there is no configuration to export; see why: autotune trials {summary.name}"
            )
        return summary.best
    trial = next((trial for trial in summary.trials if trial.number == number), None)
    if trial is None:
        raise StudyError(f"study {summary.name!r}: got trial {number}; it has trials 0 to {len(summary.trials) - 1}")
    if trial.measurement is None:
        why = f"it ended as {trial.failure.kind}: {trial.failure.reason}" if trial.failure else "it has not ended yet"
        raise StudyError(f"study {summary.name!r}: trial {number} can't be exported: {why}; choose one that completed")
    return trial


def _figures(measurement: Measurement | None) -> dict[str, Any] | None:
    if measurement is None:
        return None
    return {
        "samples_per_second": measurement.samples_per_second,
        "samples_per_second_spread": measurement.samples_per_second_spread,
        "tokens_per_second": measurement.tokens_per_second,
        "step_time_s": measurement.step_time_s,
        "timed_steps": measurement.timed_steps,
        "convergence_per_second": measurement.convergence_per_second,
        "convergence_time_s": measurement.convergence_time_s,
        "held_out_loss_before": measurement.held_out_loss_before,
        "held_out_loss_after": measurement.held_out_loss_after,
        "peak_memory_bytes": list(measurement.peak_memory_bytes),
        "memory_kind": measurement.memory_kind,
    }


def _notes(summary: StudySummary, trial: Trial) -> tuple[str, ...]:
    notes = []
    if trial.is_baseline:
        notes.append(f"this is your own starting configuration: none of {summary.executed_count} trials beat it")
    if summary.evaluator == "simulated":
        notes.append("the figures are simulated (made up by a formula): they say nothing about your hardware")
    baseline = summary.baseline
    if trial.activation_checkpointing:
        notes.append(
            "measured with activation checkpointing on, which DeepSpeed's file can't switch: switch it on in your "
            "model (Hugging Face: `gradient_checkpointing: true`)"
        )
    elif baseline is not None and baseline.activation_checkpointing:
        notes.append(
            "measured with activation checkpointing off, unlike your start: switch it off in your model "
            "(Hugging Face: `gradient_checkpointing: false`)"
        )
    if baseline is not None and _batch(trial) != _batch(baseline):
        notes.append(
            f"train_batch_size is {_batch(trial)} (it was {_batch(baseline)}): "
            f"{_batch(trial) or 0} samples per optimizer step on {units.count(summary.hardware.ranks, 'rank')}; "
            f"if your script sets batch size or accumulation itself, give it the same numbers"
        )
    if config_file.get(trial.ds_config, "optimizer") is None:
        notes.append("the file has no optimizer block: your script makes the optimizer, as it does now")
    return tuple(notes)


def _batch(trial: Trial) -> Any:
    return trial.ds_config.get("train_batch_size")
