"""An export: a trial's DeepSpeed configuration as a file, and beside it where its figures come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

import autotune
from autotune import ds_config as config_file
from autotune import whole_file
from autotune.consumer import Consumer
from autotune.errors import ConfigError, StudyError
from autotune.report import units
from autotune.report.renditions import Rendition, rendition
from autotune.report.summary import StudySummary
from autotune.storage import command
from autotune.trials import Measurement, Trial, Value

DEFAULT_NAME = "ds_config.json"
ZERO3_NAME = "ds_config_zero3.json"
"""axolotl takes a configuration for ZeRO stage 3 by `zero3` in its path."""
LAUNCH_NAME = "accelerate.yaml"
_MARK = "# Written by autotune"
"""First words of a YAML file that an export wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written."""

    consumer: Consumer
    config_path: Path
    provenance_path: Path
    launch_path: Path | None = None
    """For `accelerate launch --config_file`."""
    flags: Mapping[str, Value] = field(default_factory=dict)
    """What the training script is given on its command line."""
    notes: tuple[str, ...]
    """What the user must know that is not in the configuration file."""


def export(
    summary: StudySummary,
    path: Path | None,
    *,
    consumer: Consumer = Consumer.DEEPSPEED,
    trial_number: int | None = None,
) -> Exported:
    """Write a trial's configuration as it was measured, for the program that reads it, and its provenance beside it.

    All files are written, or none.

    Args:
        summary: of the study.
        path: where the configuration goes, a file or a folder; None is the current folder. In a folder it is named
            `ds_config.json`, or `ds_config_zero3.json` for stage 3; the other file is `<name>.provenance.json`. For
            accelerate there is `accelerate.yaml` too (`<name>.accelerate.yaml` beside a file of another name), and the
            path may be that of the YAML file.
        consumer: the program that reads it.
        trial_number: which trial; None: the best.

    Raises:
        StudyError: when that trial doesn't exist, or did not complete.
        ConfigError: when a file can't be written, or is there already and no export wrote it.
    """
    trial = _chosen(summary, trial_number)
    rendered = rendition(summary, trial, consumer)
    config_path, launch_path = _paths(path, trial, consumer)
    provenance_path = config_path.with_name(f"{config_path.stem}.provenance.json")
    _refuse_what_no_export_wrote(config_path, provenance_path, launch_path)
    notes = (*_notes(summary, trial, consumer), *rendered.notes)
    origin = provenance(summary, trial, notes=notes)
    origin |= {"for": consumer.value, "flags": dict(rendered.flags)}
    files = {
        provenance_path: config_file.render(origin),
        config_path: config_file.render(rendered.config, rendered.notation),
    }
    if launch_path is not None:
        files[launch_path] = _launch_text(rendered, config_path, summary, trial)
    try:
        whole_file.write_all(files)
    except OSError as error:
        raise ConfigError(f"can't write {config_path}: {error}") from error
    return Exported(
        consumer=consumer,
        config_path=config_path,
        provenance_path=provenance_path,
        launch_path=launch_path,
        flags=rendered.flags,
        notes=notes,
    )


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
        "finals": _finals(summary, trial),
        "figures": _figures(measurement),
        "baseline": _figures(summary.baseline.measurement if summary.baseline else None),
        "hardware": asdict(summary.hardware),
        "versions": dict(measurement.versions) if measurement else {},
        "notes": list(notes),
    }


def _paths(path: Path | None, trial: Trial, consumer: Consumer) -> tuple[Path, Path | None]:
    """Return where the configuration goes, and accelerate's YAML."""
    stage = config_file.get(trial.ds_config, config_file.STAGE)
    name = ZERO3_NAME if stage == 3 else DEFAULT_NAME
    launch_path = None
    if consumer is Consumer.ACCELERATE and path is not None and path.suffix in (".yaml", ".yml"):
        return path.with_name(name), path
    config_path = Path(name) if path is None else path / name if path.is_dir() else path
    if consumer is Consumer.ACCELERATE:
        is_default = config_path.name in (DEFAULT_NAME, ZERO3_NAME)
        launch_path = config_path.with_name(LAUNCH_NAME if is_default else f"{config_path.stem}.{LAUNCH_NAME}")
    return config_path, launch_path


def _refuse_what_no_export_wrote(config_path: Path, provenance_path: Path, launch_path: Path | None) -> None:
    if config_path.exists() and not provenance_path.exists():
        raise ConfigError(
            f"{config_path} is there already, and no export wrote it (there is no {provenance_path.name} beside it): "
            f"it may be the configuration that you started with; give another name (-o)"
        )
    if launch_path is not None and launch_path.is_file():
        try:
            is_ours = launch_path.read_text(encoding="utf-8").startswith(_MARK)
        except (OSError, ValueError):
            is_ours = False
        if not is_ours:
            raise ConfigError(
                f"{launch_path} is there already, and no export wrote it (it doesn't begin with {_MARK!r}); "
                f"give another name (-o)"
            )


def _launch_text(rendered: Rendition, config_path: Path, summary: StudySummary, trial: Trial) -> str:
    """Return accelerate's YAML; the path in it is absolute, as accelerate takes it from the folder it is started in."""
    settings = {**(rendered.launch or {}), "deepspeed_config": {"deepspeed_config_file": str(config_path.absolute())}}
    head = f"{_MARK} {autotune.__version__}: study {summary.name}, trial {trial.number}\n"
    return head + yaml.safe_dump(settings, sort_keys=False, width=1000)


def _chosen(summary: StudySummary, number: int | None) -> Trial:
    if number is None:
        if summary.best is None:
            raise StudyError(
                f"study {summary.name!r}: none of its {units.count(summary.executed_count, 'trial')} completed, so "
                "there is no configuration to export; see why: "
                f"{command('trials', summary.name, url=summary.storage_url)}"
            )
        return summary.best
    trial = next((trial for trial in summary.trials if trial.number == number), None)
    if trial is None:
        raise StudyError(f"study {summary.name!r}: got trial {number}; it has trials 0 to {len(summary.trials) - 1}")
    if trial.measurement is None:
        why = f"it ended as {trial.failure.kind}: {trial.failure.reason}" if trial.failure else "it has not ended yet"
        if summary.is_interrupted(trial):
            why = "it was interrupted"
        if trial.outcome is not None and trial.outcome.pruned is not None:
            why = f"it was pruned: {trial.outcome.pruned}"
        raise StudyError(f"study {summary.name!r}: trial {number} can't be exported: {why}; choose one that completed")
    return trial


def _finals(summary: StudySummary, trial: Trial) -> dict[str, Any] | None:
    """Return what the finals found of a trial; None where it took no part."""
    finals = summary.finals
    finalist = finals.finalist(trial.number) if finals is not None else None
    if finals is None or finalist is None:
        return None
    return {
        "verdict": finals.verdict.value if finals.verdict is not None else None,
        "place": finalist.place.value,
        "tied": list(finals.tied),
        "rounds": len(finalist.scores),
        "R": asdict(finalist.score),
        "throughput_ratio": asdict(finalist.throughput),
        "convergence_ratio": asdict(finalist.convergence),
        "noise_floor": finals.record.rules.noise_floor,
    }


def _figures(measurement: Measurement | None) -> dict[str, Any] | None:
    if measurement is None:
        return None
    return {
        "samples_per_second": measurement.samples_per_second,
        "samples_per_second_spread": measurement.samples_per_second_spread,
        "tokens_per_second": measurement.tokens_per_second,
        "step_time_s": measurement.step_time_s,
        "timed_steps": measurement.timed_steps,
        "step_time_interval": measurement.step_time_interval,
        "convergence_per_second": measurement.convergence_per_second,
        "convergence_time_s": measurement.convergence_time_s,
        "held_out_loss_before": measurement.held_out_loss_before,
        "held_out_loss_after": measurement.held_out_loss_after,
        "peak_memory_bytes": list(measurement.peak_memory_bytes),
        "memory_kind": measurement.memory_kind,
    }


def _notes(summary: StudySummary, trial: Trial, consumer: Consumer) -> tuple[str, ...]:
    notes = []
    if trial.is_baseline:
        notes.append(
            f"this is your own starting configuration: none of {units.count(summary.executed_count, 'trial')} beat it "
            f"beyond noise"
        )
    if summary.evaluator == "simulated":
        notes.append("the figures are simulated (made up by a formula): they say nothing about your hardware")
    baseline = summary.baseline
    has_flags = consumer is Consumer.HUGGING_FACE  # among them those of activation checkpointing and batch sizes
    if trial.activation_checkpointing and not has_flags:
        notes.append(
            "measured with activation checkpointing on, which DeepSpeed's file can't switch: switch it on in your "
            "model (Hugging Face: `gradient_checkpointing: true`)"
        )
    elif (
        baseline is not None
        and baseline.activation_checkpointing
        and not trial.activation_checkpointing
        and not has_flags
    ):
        notes.append(
            "measured with activation checkpointing off, unlike your start: switch it off in your model "
            "(Hugging Face: `gradient_checkpointing: false`)"
        )
    if baseline is not None and _batch(trial) != _batch(baseline):
        by_hand = "; if your script sets batch size or accumulation itself, give it the same numbers"
        notes.append(
            f"train_batch_size is {_batch(trial)} (it was {_batch(baseline)}): "
            f"{_batch(trial) or 0} samples per optimizer step on {units.count(summary.hardware.ranks, 'rank')}"
            f"{'' if has_flags else by_hand}"
        )
    if config_file.get(trial.ds_config, "optimizer") is None:
        notes.append("the file has no optimizer block: your script makes the optimizer, as it does now")
    return tuple(notes)


def _batch(trial: Trial) -> Any:
    return trial.ds_config.get("train_batch_size")
