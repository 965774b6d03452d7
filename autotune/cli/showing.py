"""One trial from near: its settings, its figures or its failure, and its log."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from autotune.cli.console import make_console, write
from autotune.cli.exit_codes import ExitCode
from autotune.cli.formats import Column, print_csv, print_json, print_pairs, print_table
from autotune.cli.options import Format
from autotune.cli.rows import INTERRUPTED, outcome_seconds, peak_memory_bytes, trial_figures, trial_record
from autotune.cli.settings import folded
from autotune.cli.studies import opened, summary_of, trial_of
from autotune.errors import StudyError
from autotune.evaluators.script import LOG
from autotune.report import finalists, steadiness, units
from autotune.report.changes import Change, changes
from autotune.report.findings import length, r_of
from autotune.report.summary import StudySummary
from autotune.storage import command
from autotune.trials import Failure, Measurement, Trial

_TAIL_LINES = 15


def print_trial(
    name: str, number: int, *, url: str | None, form: Format, alpha: float | None, beta: float | None
) -> int:
    """Show one trial; return the exit code."""
    with opened(url) as storage:
        summary = summary_of(storage, name, alpha=alpha, beta=beta)
    trial = trial_of(summary, number)
    if form is Format.JSON:
        print_json(trial_record(trial))
    elif form is Format.CSV:
        print_csv([trial_figures(trial, summary.space.names)])
    else:
        _print(make_console(), trial, summary, url=url)
    return ExitCode.OK


def print_log(name: str, number: int, *, rank: int | None, url: str | None) -> int:
    """Print a trial's log; return the exit code."""
    with opened(url) as storage:
        summary = summary_of(storage, name)
    trial = trial_of(summary, number)
    if summary.is_interrupted(trial):
        raise StudyError(
            f"trial {number} of study {name!r} was interrupted: what ran the study ended before it did, and recorded "
            f"no log of it; go on with the study: {command('resume', name, url=url)}"
        )
    if trial.outcome is None:
        raise StudyError(f"trial {number} of study {name!r} is still running; its log is kept when it ends")
    failed_rank = trial.failure.rank if trial.failure and trial.failure.rank is not None else 0
    wanted = f"rank{failed_rank if rank is None else rank}"
    path = trial.outcome.logs.get(wanted) or trial.outcome.logs.get(LOG)
    if path is not None and Path(path).is_file():
        sys.stderr.write(f"{path}\n")
        sys.stdout.write(Path(path).read_text(encoding="utf-8", errors="replace"))
        return ExitCode.OK
    node = trial.outcome.nodes.get(wanted) or trial.outcome.nodes.get(LOG)
    tail = trial.failure.log_tail if trial.failure and rank in (None, failed_rank) else ()
    if tail:
        missing = _elsewhere(path, node) if path else "no log file was kept"
        sys.stderr.write(f"{missing}; the last lines, from the storage:\n")
        sys.stdout.write("\n".join(tail) + "\n")
        return ExitCode.OK
    if not trial.outcome.logs and summary.evaluator != "deepspeed":
        raise StudyError(f"trial {number} of study {name!r} has no log: it is {summary.evaluator}, and no process ran")
    if path is not None and node is not None:
        raise StudyError(f"trial {number} of study {name!r}: the log of {wanted}, {_elsewhere(path, node)}")
    there = ", ".join(f"{key}: {where}" for key, where in trial.outcome.logs.items()) or "it has none"
    raise StudyError(f"trial {number} of study {name!r} has no log of {wanted} on this machine; its logs: {there}")


def _elsewhere(path: str, node: str | None) -> str:
    if node is None:
        return f"{path} is not on this machine"
    return f"{path}, is not on this machine but on the node where it ran, {node}"


def _on(node: str | None) -> str:
    return f", on {node}" if node else ""


def _print(console: Console, trial: Trial, summary: StudySummary, *, url: str | None) -> None:
    title = f"trial {trial.number} of {summary.name}{' (your configuration)' if trial.is_baseline else ''}"
    pairs: list[tuple[str, str | Text]] = [("trial", Text(title, style="name")), ("state", _state(trial, summary))]
    if trial.started_at is not None:
        pairs.append(("started", trial.started_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")))
    pairs.append(("took", units.seconds(outcome_seconds(trial))))
    if trial.measurement is not None:
        pairs += _figures(trial, trial.measurement)
    if trial.failure is not None:
        pairs += _failure(trial.failure)
    if trial.outcome is not None and trial.outcome.pruned is not None:
        pairs += _pruned(trial, trial.outcome.pruned)
    if trial.outcome is not None:
        stages = [f"{stage.replace('_', ' ')} {units.seconds(s)}" for stage, s in trial.outcome.stage_s.items()]
        pairs += [("stages", ", ".join(stages))] if stages else []
        pairs += [
            ("log", f"{rank}: {path}{_on(trial.outcome.nodes.get(rank))}") for rank, path in trial.outcome.logs.items()
        ]
    pairs += _finals(trial, summary)
    caution = steadiness.caution(summary)
    pairs += [("caution", caution)] if caution else []
    print_pairs(console, pairs)
    if summary.baseline is not None:
        write(console, "")
        _print_settings(console, changes(summary.baseline, trial, summary.space))
    if trial.failure is not None and trial.failure.log_tail:
        write(console, Text("\nLast lines of the log", style="muted"))
        for line in trial.failure.log_tail[-_TAIL_LINES:]:
            write(console, f"  {line}")
        write(console, Text(f"\nWhole: {command('logs', summary.name, str(trial.number), url=url)}", style="muted"))


def _finals(trial: Trial, summary: StudySummary) -> list[tuple[str, str | Text]]:
    finals = summary.finals
    finalist = finals.finalist(trial.number) if finals is not None else None
    if finals is None or finalist is None:
        return []
    again = f", run again {units.count(len(finalist.scores), 'time')}: R {finalists.score(finalist.score)}"
    return [("finals", f"{finalists.verdict(finals, finalist)}{again if finalist.scores else ''}")]


def _state(trial: Trial, summary: StudySummary) -> Text:
    if summary.is_interrupted(trial):
        return Text(f"{INTERRUPTED}: what ran the study ended before the trial did", style="yellow")
    return Text(trial.state.value, style="bad" if trial.failure else "")


def _figures(trial: Trial, measurement: Measurement) -> list[tuple[str, str | Text]]:
    spread = f"+-{units.percent(measurement.samples_per_second_spread)}"
    loss = f"{measurement.held_out_loss_before:.4g} to {measurement.held_out_loss_after:.4g}"
    learnt = f"{measurement.loss_source} loss {loss} in {units.seconds(measurement.convergence_time_s)} of training"
    pairs: list[tuple[str, str | Text]] = [
        ("R", units.score(trial.score)),
        (
            "throughput",
            f"{units.times(trial.throughput_ratio)}, {units.number(measurement.samples_per_second)} samples/s {spread}",
        ),
        ("convergence", f"{units.times(trial.convergence_ratio)}, {learnt}"),
        ("step", f"{units.seconds(measurement.step_time_s)}, {measurement.samples_per_step} samples"),
        ("measured", f"{length(measurement)}; {measurement.warmup_steps} of warm-up before"),
        ("memory", f"{units.memory(peak_memory_bytes(trial))} at most on one rank ({measurement.memory_kind})"),
    ]
    if measurement.tokens_per_second is not None:
        pairs.insert(2, ("", f"{units.number(measurement.tokens_per_second)} tokens/s"))
    parts = [
        f"{part} {units.seconds(getattr(measurement, f'{part}_s'))}"
        for part in ("forward", "backward", "optimizer", "communication")
        if getattr(measurement, f"{part}_s") is not None
    ]
    pairs += [("of a step", ", ".join(parts))] if parts else []
    if measurement.trained_parameters is not None:
        pairs.append(("parameters", _parameters(measurement)))
    pairs += [("note", remark) for remark in measurement.remarks]
    if measurement.skipped_steps:
        pairs.append(("skipped", f"{units.count(measurement.skipped_steps, 'step')} by an overflowing loss scale"))
    return pairs


def _parameters(measurement: Measurement) -> str:
    trained, total = measurement.trained_parameters, measurement.total_parameters
    frozen = f" of {units.number(total)}: the others are frozen" if total != trained else ""
    return f"{units.number(trained)} trained{frozen}"


def _failure(failure: Failure) -> list[tuple[str, str | Text]]:
    where = [
        f"stage {failure.stage.replace('_', ' ')}" if failure.stage else "",
        f"rank {failure.rank}" if failure.rank is not None else "",
        f"exit code {failure.exit_code}" if failure.exit_code is not None else "",
    ]
    pairs: list[tuple[str, str | Text]] = [
        ("failure", Text(failure.kind.value, style="bad")),
        ("reason", failure.reason),
    ]
    known = ", ".join(part for part in where if part)
    return [*pairs, ("where", known)] if known else pairs


def _pruned(trial: Trial, reason: str) -> list[tuple[str, str | Text]]:
    last = trial.intermediates[-1]
    so_far = f"{units.count(last.timed_steps, 'timed step')} in {units.seconds(last.training_time_s)} of training"
    return [
        ("R", f"{r_of(trial)}, estimated"),
        ("pruned", reason),
        ("so far", f"{so_far}, {units.number(last.samples_per_second)} samples/s, loss {last.training_loss:.4g}"),
    ]


def _print_settings(console: Console, settings: list[Change]) -> None:
    columns: list[Column[Change]] = [
        Column(title="Setting", cell=lambda change: folded(change.name, width=console.width), wraps=True),
        Column(title="Your start", cell=lambda change: change.before, right=True),
        Column(title="This trial", cell=lambda c: Text(c.after, style="name" if c.is_change else "muted"), right=True),
    ]
    print_table(console, columns, settings)
