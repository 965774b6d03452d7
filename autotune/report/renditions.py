"""A rendition: a trial's configuration as one consumer reads it, with the numbers that were measured.

Keys that the search did not touch stay as the user wrote them, in the user's order. What autotune had to say to
DeepSpeed to run the trial, and the consumer need not be told, is left out.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune import ds_config as config_file
from autotune.consumer import Consumer
from autotune.ds_config import hugging_face, notation
from autotune.ds_config.building import BATCH_TRIPLE
from autotune.errors import ConfigError
from autotune.report.summary import StudySummary
from autotune.space import ACCUMULATION, MICRO_BATCH
from autotune.trials import Measurement, Trial, Value

_TRAIN_BATCH = "train_batch_size"
_SCHEDULE = "scheduler.params"
_PEAKS = ("scheduler.params.warmup_max_lr", "scheduler.params.cycle_max_lr")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendition:
    """What a consumer is given."""

    config: Mapping[str, Any]
    """For the JSON file, in its order."""
    notation: Mapping[str, str]
    """How its numbers are written."""
    flags: Mapping[str, Value] = field(default_factory=dict)
    """What the training script is given on its command line."""
    launch: Mapping[str, Any] | None = None
    """`accelerate launch`'s own configuration, but for the path of the JSON file."""
    notes: tuple[str, ...] = ()


def rendition(summary: StudySummary, trial: Trial, consumer: Consumer) -> Rendition:
    """Return a completed trial's configuration for a consumer."""
    auto = config_file.without_auto(summary.ds_config)[1]
    overlaid = _overlaid(summary, trial)
    config, unknown = _with_known(trial, auto)
    if consumer is Consumer.HUGGING_FACE:
        return _for_hugging_face(summary, trial, config, auto=auto, unknown=unknown, overlaid=overlaid)
    if consumer is Consumer.ACCELERATE:
        return _for_accelerate(summary, config, unknown=unknown, overlaid=overlaid)
    _leave_out(config, BATCH_TRIPLE, but=_batch_keys_needed(summary, trial, overlaid))
    return Rendition(
        config=_in_order(config, summary),
        notation=notation.without(summary.ds_config_notation, overlaid),
        notes=_left_out(unknown),
    )


def _for_hugging_face(
    summary: StudySummary,
    trial: Trial,
    config: dict[str, Any],
    *,
    auto: tuple[str, ...],
    unknown: tuple[str, ...],
    overlaid: frozenset[str],
) -> Rendition:
    """Shared keys "auto", their values as flags; the Trainer hands the file on to accelerate."""
    flags = hugging_face.flags_of(config)
    notes: list[str] = []
    rates = {config_file.get(config, key) for key in (config_file.LEARNING_RATE, hugging_face.PEAK_LEARNING_RATE)}
    if len(rates - {None}) > 1:
        notes.append(
            f"{config_file.LEARNING_RATE} and {hugging_face.PEAK_LEARNING_RATE} differ in your file, which Hugging "
            f"Face's Trainer refuses: --learning_rate is the schedule's peak, which is what was trained with"
        )
    if _checkpointing_is_told(summary, trial):
        flags[hugging_face.ACTIVATION_CHECKPOINTING_FLAG] = trial.activation_checkpointing
    _complete_for_accelerate(config, summary)
    for dotted in hugging_face.shared(config):
        _put(config, dotted, "auto")
    for dotted in auto:
        if dotted in hugging_face.FILLED and dotted not in overlaid:
            _put(config, dotted, "auto")
        elif dotted in unknown and dotted in hugging_face.FLAGS:
            _put(config, dotted, "auto")
            names = " ".join(hugging_face.FLAGS[dotted]) or "the length of your training"
            notes.append(
                f'{dotted} stays "auto", and {names} decides; the trials ran with DeepSpeed\'s default, as your file '
                f"gave them no value"
            )
    filled = [dotted for dotted in hugging_face.FILLED if config_file.get(config, dotted) == "auto"]
    if filled:
        known = [f"{name} {_known(trial.measurement, name)}" for name in filled if _known(trial.measurement, name)]
        notes.append(
            f'{_list(filled)} {_verb(filled, "stays", "stay")} "auto", and the Trainer fills in its own values; the '
            f"trials ran with DeepSpeed's defaults{f' ({_list(known)})' if known else ''}"
        )
    dropped = tuple(key for key in unknown if key not in hugging_face.FLAGS and key not in hugging_face.FILLED)
    return Rendition(
        config=_in_order(config, summary),
        notation=notation.without(summary.ds_config_notation, {*overlaid, *BATCH_TRIPLE, _SCHEDULE}),
        flags=flags,
        notes=(*notes, *_left_out(dropped)),
    )


def _for_accelerate(
    summary: StudySummary, config: dict[str, Any], *, unknown: tuple[str, ...], overlaid: frozenset[str]
) -> Rendition:
    """Concrete numbers, and a YAML that points at them.

    accelerate fills in the file only what is "auto", so its numbers win over the script's. Beside a configuration file
    the YAML may hold none of the keys that the file has too, `mixed_precision` among them: `_deepspeed_config_checks`
    in accelerate/utils/dataclasses.py refuses them.
    """
    _complete_for_accelerate(config, summary)
    batch = (
        f"your script's DataLoader must give micro-batches of {config[MICRO_BATCH]}: the file says so, and accelerate "
        f"doesn't change your DataLoader"
    )
    optimizer = "the optimizer is in the file, so your script makes `accelerate.utils.DummyOptim` in its place"
    trainer = (
        "if your script is built on Hugging Face's Trainer, take --for hf instead: it refuses a file that says other "
        "numbers than its TrainingArguments"
    )
    notes = (batch, optimizer, trainer) if config.get("optimizer") else (batch, trainer)
    return Rendition(
        config=_in_order(config, summary),
        notation=notation.without(summary.ds_config_notation, {*overlaid, *BATCH_TRIPLE, _SCHEDULE}),
        launch={
            "compute_environment": "LOCAL_MACHINE",
            "distributed_type": "DEEPSPEED",
            "num_machines": 1,
            "num_processes": summary.hardware.ranks,
        },
        notes=(*notes, *_left_out(unknown)),
    )


def _overlaid(summary: StudySummary, trial: Trial) -> frozenset[str]:
    """Return the keys that the search laid over the user's configuration."""
    if trial.is_baseline:
        return frozenset()
    settings = summary.space.settings(trial.point)
    return frozenset((*settings, *(_PEAKS if config_file.LEARNING_RATE in settings else ())))


def _checkpointing_is_told(summary: StudySummary, trial: Trial) -> bool:
    """Whether the user must be told of activation checkpointing: it is searched, fixed, or on in one of the two."""
    name, baseline = config_file.ACTIVATION_CHECKPOINTING, summary.baseline
    is_on = trial.activation_checkpointing or (baseline is not None and baseline.activation_checkpointing)
    return is_on or name in summary.space.names or name in summary.space.fixed


def _complete_for_accelerate(config: dict[str, Any], summary: StudySummary) -> None:
    """Leave what accelerate needs, and of the rest of the batch triple what the user has.

    accelerate wants a `zero_optimization` block, takes a missing accumulation for 1 and multiplies with the micro-batch
    (`DeepSpeedPlugin.__post_init__` in accelerate/utils/dataclasses.py, `_prepare_deepspeed` in accelerator.py). It
    reads the file by `json`, which makes 100.0 of a 1e2, and DeepSpeed's schedulers refuse that (`WarmupLR` in
    deepspeed/runtime/lr_schedules.py): their whole numbers become ints.
    """
    _leave_out(config, (_TRAIN_BATCH,), but={_TRAIN_BATCH} & summary.ds_config.keys())
    config.setdefault("zero_optimization", {"stage": 0})
    schedule = config_file.get(config, _SCHEDULE)
    for key, value in schedule.items() if isinstance(schedule, dict) else ():
        if isinstance(value, float) and value.is_integer():
            schedule[key] = int(value)


def _with_known(trial: Trial, auto: tuple[str, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the trial's configuration with what the engine ran with in place of "auto", and the keys not known."""
    config: dict[str, Any] = copy.deepcopy(dict(trial.ds_config))
    unknown: list[str] = []
    for dotted in auto:
        above, _, _ = dotted.rpartition(".")
        is_gone = bool(above) and not isinstance(config_file.get(config, above), dict)  # the search took its block out
        has_value = config_file.get(config, dotted) is not None
        # The batch triple was made whole for DeepSpeed's sake; a script that fills it in may have filled in another.
        if is_gone or (has_value and dotted not in BATCH_TRIPLE):
            continue
        value = _known(trial.measurement, dotted)
        if value is not None:
            _put(config, dotted, value)
        elif not has_value:
            unknown.append(dotted)
    return config, tuple(unknown)


def _known(measurement: Measurement | None, dotted: str) -> Any:
    """Return what the engine ran with, where the measurement says so (`effective_config`, by dotted keys)."""
    effective = measurement.effective_config if measurement else {}
    if dotted == config_file.LEARNING_RATE and effective.get("scheduler.type") is not None:
        return None  # the schedule had set it already
    return effective.get(dotted)


def _batch_keys_needed(summary: StudySummary, trial: Trial, overlaid: frozenset[str]) -> set[str]:
    """Return as few of the batch triple as say what was measured: the user's own, the searched, then what lacks.

    DeepSpeed wants `train_batch_size` or the micro-batch, and derives the rest (`_set_batch_related_parameters` in
    deepspeed/runtime/config.py). A `train_batch_size` that the user did not write is left out: it would tie the file to
    the number of ranks.
    """
    kept = {name for name in BATCH_TRIPLE if name in summary.ds_config or (name in overlaid and name != _TRAIN_BATCH)}
    for name in (MICRO_BATCH, ACCUMULATION):
        if not _derives(trial, kept, ranks=summary.hardware.ranks):
            kept.add(name)
    return kept


def _derives(trial: Trial, names: set[str], *, ranks: int) -> bool:
    if not names & {_TRAIN_BATCH, MICRO_BATCH}:
        return False
    given = {name: trial.ds_config[name] for name in names}
    try:
        whole = config_file.complete(given, world_size=ranks)
    except ConfigError:
        return False
    return all(whole[name] == trial.ds_config[name] for name in BATCH_TRIPLE)


def _leave_out(config: dict[str, Any], names: tuple[str, ...], *, but: set[str]) -> None:
    for name in names:
        if name not in but:
            config.pop(name, None)


def _put(config: dict[str, Any], dotted: str, value: Any) -> None:
    """Set a key whose block is there; where the search took the block out there is nothing to set."""
    above, _, key = dotted.rpartition(".")
    block = config_file.get(config, above) if above else config
    if isinstance(block, dict):
        block[key] = value


def _in_order(config: Mapping[str, Any], summary: StudySummary) -> dict[str, Any]:
    return notation.ordered_like(config, summary.ds_config)


def _left_out(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        return ()
    note = (
        f'{_list(names)} {_verb(names, "was", "were")} "auto" in your file and no trial set a value: left out, so that '
        f"DeepSpeed's default applies, as it did in the trials"
    )
    return (note,)


def _verb(names: tuple[str, ...] | list[str], one: str, many: str) -> str:
    return one if len(names) == 1 else many


def _list(names: tuple[str, ...] | list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
