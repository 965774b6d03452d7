"""The measurement of a script's trial, put together from what each of its ranks wrote down."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.evaluators.script_files import ENGINE_FILE, STEPS_FILE, EngineRecord, StepRecord, samples_of_all
from autotune.evaluators.script_worker.progress import Progress
from autotune.evaluators.script_worker.rank_watch import read
from autotune.evaluators.step_times import LEAST_TIMED_STEPS, relative_interval, relative_spread
from autotune.trials import (
    KEPT_STEPS,
    EndedBy,
    Failure,
    FailureKind,
    Measurement,
    Outcome,
    Stage,
    TrialRequest,
)

LOSS_WINDOW = 0.2
"""Share of the training time, up to the convergence time, over which training losses are averaged: one batch's loss is
too noisy. Each is taken before the step that trains on it: progressive validation (Blum, Kalai, Langford, COLT 1999).
"""
LEAST_LOSSES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """What one rank wrote down."""

    engine: EngineRecord | None
    steps: tuple[StepRecord, ...]

    @classmethod
    def of(cls, folder: Path) -> RankRecord:
        """Read a rank's folder; a line that is being written is left for the next time."""
        engine, steps = read(folder / ENGINE_FILE), read(folder / STEPS_FILE) or ""
        lines = [line for line in steps.splitlines(keepends=True) if line.endswith("\n")]
        return cls(
            engine=EngineRecord.from_text(engine) if engine else None,
            steps=tuple(StepRecord.from_line(line) for line in lines),
        )


def measure(request: TrialRequest, ranks: Sequence[RankRecord]) -> Outcome:
    """Return the measurement of the steps that all ranks did, or why there is none."""
    engines = [rank.engine for rank in ranks if rank.engine is not None]
    if len(engines) < len(ranks):
        return _failed(FailureKind.CRASH, "a rank trained without an engine of its own; the log tells more")
    if len({engine.config_hash for engine in engines}) > 1:
        return _failed(
            FailureKind.INVALID_CONFIG,
            f"the ranks run different configurations ({_named(ranks)}): each must read the file that was sent",
        )
    steps = list(zip(*(rank.steps for rank in ranks), strict=False))
    skipped = max((each.skipped_steps for each in steps[-1]), default=0) if steps else 0
    if steps and skipped >= len(steps):
        return _failed(
            FailureKind.DIVERGED,
            f"the loss scaler skipped every one of {len(steps)} optimizer steps: nothing was learned; "
            "a lower fp16.initial_scale_power, bf16 or a longer budget may help",
        )
    times_s = [max(each.time_s for each in step) for step in steps]
    warmup_steps = engines[0].warmup_steps
    timed_s = times_s[warmup_steps:]
    losses = [_mean([each.loss for each in step]) for step in steps]
    if len(timed_s) < LEAST_TIMED_STEPS:
        return _failed(FailureKind.CRASH, f"only {len(timed_s)} steps were timed; {LEAST_TIMED_STEPS} are needed")
    if any(loss is None for loss in losses):
        return _failed(
            FailureKind.CRASH,
            "the script's losses can't be seen: they come by engine.backward(loss) or loss.backward(), with one number",
        )
    return Outcome(measurement=_measurement(request, ranks, engines[0], times_s, [loss or 0.0 for loss in losses]))


def training_time_s(times_s: Sequence[float], warmup_steps: int) -> float:
    """Return the time in training steps, warm-up steps charged at the median of the timed ones."""
    return sum(times_s[warmup_steps:]) + min(warmup_steps, len(times_s)) * statistics.median(times_s[warmup_steps:])


def loss_at(losses: Sequence[float], ends_s: Sequence[float], at_s: float) -> float:
    """Return the training loss just before `at_s` of training, averaged over the window before it."""
    begins_s = [0.0, *ends_s[:-1]]
    before = [i for i, begin_s in enumerate(begins_s) if begin_s <= at_s]
    window = [i for i in before if begins_s[i] >= (1 - LOSS_WINDOW) * at_s]
    chosen = window if len(window) >= LEAST_LOSSES else before[-LEAST_LOSSES:]
    return statistics.fmean(losses[i] for i in chosen)


def _measurement(
    request: TrialRequest,
    ranks: Sequence[RankRecord],
    engine: EngineRecord,
    times_s: Sequence[float],
    losses: Sequence[float],
) -> Measurement:
    warmup_steps, count = engine.warmup_steps, len(times_s)
    timed_s = times_s[warmup_steps:]
    step_time_s = statistics.median(timed_s)
    own = ranks[0].steps[warmup_steps:count]
    samples = [_samples([rank.steps[i] for rank in ranks], engine) for i in range(warmup_steps, count)]
    tokens = [[rank.steps[i].tokens for rank in ranks] for i in range(warmup_steps, count)]
    trained_s = training_time_s(times_s, warmup_steps)
    convergence_s = trained_s if request.convergence_at_s is None else request.convergence_at_s
    charged_s = [min(time_s, step_time_s) if i < warmup_steps else time_s for i, time_s in enumerate(times_s)]
    samples_per_step = round(statistics.median(samples))
    return Measurement(
        samples_per_second=samples_per_step / step_time_s,
        samples_per_second_spread=relative_spread(timed_s),
        step_time_s=step_time_s,
        timed_steps=len(timed_s),
        warmup_steps=warmup_steps,
        samples_per_step=samples_per_step,
        training_time_s=trained_s,
        held_out_loss_before=losses[0],
        held_out_loss_after=loss_at(losses, list(itertools.accumulate(charged_s)), convergence_s),
        convergence_time_s=convergence_s,
        training_loss_last=losses[-1],
        tokens_per_second=_tokens_per_step(tokens) / step_time_s if _tokens_per_step(tokens) else None,
        peak_memory_bytes=tuple(rank.steps[count - 1].peak_memory_bytes for rank in ranks),
        memory_kind=engine.memory_kind,
        forward_s=statistics.fmean(each.forward_s for each in own),
        backward_s=statistics.fmean(each.backward_s for each in own),
        optimizer_s=statistics.fmean(each.optimizer_s for each in own),
        skipped_steps=max(rank.steps[count - 1].skipped_steps for rank in ranks),
        effective_config=engine.effective,
        versions=engine.versions,
        loss_source="training",
        trained_parameters=engine.trained_parameters,
        total_parameters=engine.total_parameters,
        remarks=_remarks(engine, ranks[0].steps[0], samples_per_step),
        step_time_interval=relative_interval(sorted(timed_s)),
        ended_by=_ended_by(request, ranks, engine),
        step_times_s=tuple(timed_s[:KEPT_STEPS]),
        training_losses=tuple(losses[:KEPT_STEPS]),
    )


def _ended_by(request: TrialRequest, ranks: Sequence[RankRecord], engine: EngineRecord) -> EndedBy:
    """Return what ended the training: the first rank that has enough ends it for all."""
    for rank in ranks:
        progress = Progress(request, warmup_steps=engine.warmup_steps)
        for step in rank.steps:
            progress.add(step.time_s, samples=samples_of_all(step, engine, ranks=len(ranks)))
        if progress.is_over:
            return progress.ended_by
    return EndedBy.SCRIPT


def _samples(step: Sequence[StepRecord], engine: EngineRecord) -> float:
    """Return the samples of one optimizer step over all ranks: as fed, else as the engine counts them."""
    fed = [each.samples for each in step if each.samples is not None]
    if len(fed) == len(step):
        return sum(fed)
    return engine.train_batch_size * step[0].micro_steps / engine.accumulation_steps


def _tokens_per_step(tokens: Sequence[Sequence[int | None]]) -> float:
    counted = [sum(each or 0 for each in step) for step in tokens]
    return statistics.median(counted) if all(each is not None for step in tokens for each in step) else 0.0


def _remarks(engine: EngineRecord, first: StepRecord, samples_per_step: int) -> tuple[str, ...]:
    remarks = [f"not searched, and set by the script: {difference}" for difference in engine.differences]
    if first.micro_steps != engine.accumulation_steps:
        remarks.append(
            f"the script runs {first.micro_steps} micro-batches for each optimizer step, and the engine's "
            f"gradient_accumulation_steps is {engine.accumulation_steps}"
        )
    if first.samples is not None and samples_per_step != engine.train_batch_size:
        remarks.append(
            f"the script feeds {samples_per_step} samples for each optimizer step, and the engine's train_batch_size "
            f"is {engine.train_batch_size}: throughput counts those that were fed"
        )
    return tuple(remarks)


def _mean(losses: Sequence[float | None]) -> float | None:
    known = [loss for loss in losses if loss is not None]
    return statistics.fmean(known) if len(known) == len(losses) and known else None


def _named(ranks: Sequence[RankRecord]) -> str:
    return ", ".join(f"rank {i}: {rank.engine.config_hash}" for i, rank in enumerate(ranks) if rank.engine)


def _failed(kind: FailureKind, reason: str) -> Outcome:
    return Outcome(failure=Failure(kind=kind, reason=reason, stage=Stage.RUN))
