"""The validation against published measurements, as text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autotune.performance.arrays import Array
from autotune.performance.coefficients import Coefficients
from autotune.performance.validation.fitting import Fit, fit_memory, fit_times, predicted_bytes
from autotune.performance.validation.rows import Left, Reading, Row, Table, read, readings, runs, table
from autotune.performance.validation.scores import (
    Score,
    effects_applied,
    mean_over_sources,
    predicted,
    scores,
    source_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Everything that is published and determined enough."""

    timed: Table
    verdicts: tuple[Row, ...]
    """Runs of which is known whether they ran out of memory."""
    readings: tuple[Reading, ...]
    left: tuple[Left, ...]
    """Runs that stay out, with the reason."""
    readings_left: tuple[Left, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """Out-of-memory verdicts against what happened."""

    fitted: int
    fitted_right: int
    failed: int
    failed_right: int
    wrong: tuple[str, ...]

    @property
    def right(self) -> float:
        """Share of all cases."""
        return (self.fitted_right + self.failed_right) / max(self.fitted + self.failed, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the validation finds, calculated once for all that tell of it."""

    shipped: tuple[Score, ...]
    unseen: tuple[Score, ...]
    own: tuple[Score, ...]
    """Fitted to all sources, each with its own fitted level."""
    unseen_times: Array
    """Predicted seconds per step of `Published.timed`, each source by coefficients fitted to the others."""
    verdicts: Verdicts
    memory: tuple[tuple[str, str, int, float, float], ...]
    """As `memory_errors` returns them."""


def load(folder: Path) -> Published:
    """Read `runs.csv` and `memory.csv` of a folder.

    Raises:
        ConfigError: when one is not there.
    """
    rows, left = runs(read(folder / "runs.csv"))
    found, without = readings(read(folder / "memory.csv"))
    return Published(
        timed=table([row for row in rows if np.isfinite(row.step_time_s)]),
        verdicts=tuple(row for row in rows if row.out_of_memory is not None),
        readings=tuple(found),
        left=tuple(left),
        readings_left=tuple(without),
    )


def fit(published: Published) -> Fit:
    """Fit all coefficients to everything published: time and memory."""
    found = fit_times(published.timed)
    together = fit_memory(published.readings, found.coefficients)
    return Fit(coefficients=together, effects=found.effects, iterations=found.iterations)


def shipped_scores(published: Published, coefficients: Coefficients) -> list[Score]:
    """Return the scores of the model as it is shipped: no source's own factor."""
    found = predicted(published.timed, coefficients)
    return scores(published.timed, found.time.step_time_s, found.samples_per_second)


def left_out_times(published: Published) -> Array:
    """Return the step time of each row by coefficients fitted to all other sources, at the mean random effect."""
    rows = published.timed.rows
    times = np.empty(len(rows))
    sources = np.array([source_of(row.group) for row in rows])
    for source in dict.fromkeys(sources.tolist()):
        inside = np.flatnonzero(sources == source)
        others = [row for row, own in zip(rows, sources.tolist(), strict=True) if own != source]
        c = fit_times(table(others)).coefficients
        times[inside] = predicted(table([rows[place] for place in inside]), c).time.step_time_s
    return times


def findings(published: Published, coefficients: Coefficients) -> Findings:
    """Return what the validation finds; fits as many times as there are sources, which takes some 20 seconds."""
    again = fit(published)
    found = predicted(published.timed, again.coefficients)
    own = effects_applied(published.timed, np.asarray(found.time.step_time_s), again.effects)
    unseen = left_out_times(published)
    return Findings(
        shipped=tuple(shipped_scores(published, coefficients)),
        unseen=tuple(scores(published.timed, unseen, _speeds(published.timed, unseen))),
        own=tuple(scores(published.timed, own, _speeds(published.timed, own))),
        unseen_times=unseen,
        verdicts=verdicts(published, coefficients),
        memory=tuple(memory_errors(published, coefficients)),
    )


def verdicts(published: Published, coefficients: Coefficients) -> Verdicts:
    """Return how many out-of-memory verdicts are right, and which are not."""
    rows = published.verdicts
    asked = table(rows)
    said = np.broadcast_to(predicted(asked, coefficients).memory.out_of_memory, len(rows))
    happened = np.array([bool(row.out_of_memory) for row in rows])
    return Verdicts(
        fitted=int((~happened).sum()),
        fitted_right=int((~happened & ~said).sum()),
        failed=int(happened.sum()),
        failed_right=int((happened & said).sum()),
        wrong=tuple(row.identifier for row, wrong in zip(rows, said != happened, strict=True) if wrong),
    )


def memory_errors(published: Published, c: Coefficients) -> list[tuple[str, str, int, float, float]]:
    """Return (kind of reading, source, rows, mean absolute relative error, median of predicted over measured)."""
    asked = table([reading.row for reading in published.readings])
    said = predicted_bytes(published.readings, asked, c)
    ratio = said / np.array([reading.measured_bytes for reading in published.readings])
    kinds = [(reading.field, reading.row.group) for reading in published.readings]
    found = []
    for kind, source in dict.fromkeys(kinds):
        part = ratio[[place for place, one in enumerate(kinds) if one == (kind, source)]]
        found.append((kind, source, len(part), float(np.mean(np.abs(part - 1.0))), float(np.median(part))))
    return found


def text(published: Published, found: Findings) -> str:
    """Return the whole validation as text: what is reached, by source, with what stays out."""
    return "\n".join([*_table(found.shipped, found.unseen, found.own), "", *_memory(found), "", *_left(published)])


def _speeds(timed: Table, times: Array) -> Array:
    return np.asarray(predicted(timed, Coefficients.prior()).convergence.batch_samples / times)


def _table(shipped: Sequence[Score], unseen: Sequence[Score], own: Sequence[Score]) -> list[str]:
    lines = [*HEADING.splitlines(), COLUMNS]
    for one, other in zip(shipped, unseen, strict=True):
        name = short(one.group) + (" (rel)" if one.relative else "")
        lines.append(
            f"{name:62} {one.rows:5d} {one.assumed:4d} {one.error:6.1%} {other.error:6.1%} {other.level:5.2f}"
            f" {other.scaled_error:6.1%} {one.null_error:6.1%} {_or_dash(other.rank)} {_or_dash(other.rank_alike)}"
            f" {_or_dash(other.regret, percent=True)}"
        )
    large = [score for score in unseen if score.rows >= LARGE and not score.relative]
    own_large = [score for score in own if score.rows >= LARGE and not score.relative]
    means = {
        "shipped": mean_over_sources(shipped),
        "unseen": mean_over_sources(unseen),
        "with each source's own fitted level": mean_over_sources(own),
        "null (0 for a source of one row)": mean_over_sources(shipped, field="null_error"),
    }
    several = {
        "shipped": _mean([score for score in shipped if score.rows >= LARGE and not score.relative], "error"),
        "unseen": _mean(large, "error"),
        "scaled": _mean(large, "scaled_error"),
        "with own level": _mean(own_large, "error"),
        "null": _mean(large, "null_error"),
        "regret": _mean(large, "regret"),
    }
    ranks = f"rank {_mean(large, 'rank'):.3f}, alike {_mean(large, 'rank_alike'):.3f}"
    lines += ["", "Unweighted mean over sources: " + _percentages(means)]
    lines += [f"Sources of {LARGE} rows or more ({len(large)}): {_percentages(several)}; {ranks}"]
    return lines


HEADING = """\
Step time by source. error: mean |predicted/measured - 1| of the shipped coefficients; unseen: of coefficients fitted
to the other sources; level: unseen predicted over measured, median; scaled: unseen error once that level is known;
null: one fitted utilisation per source; rank, alike, regret: Spearman over the source, the same among rows of one model
and machines, throughput lost by the best predicted of those, all three unseen. (rel): TFLOPS of an unspecified
convention, so every error is after one fitted factor. *: rows with an assumption filled in.
"""
COLUMNS = " ".join(
    [f"{'source':62}", " rows", "   *", " error", "unseen", "level", "scaled", "  null", " rank", "alike", "regret"]
)
LARGE = 8
"""Rows from which a source's error and order mean something by themselves."""


UNTOLD = re.compile(
    r"deepspeedai|bigscience-workshop|NVIDIA|NVIDIA-NeMo|cli99|calculon-ai|VIA-Research|facebookresearch"
    r"|docs|blogs|assets|images|media|figures|training|autotuning|hf|examples_deepspeed|projects|_posts|_tutorials|README.md"
)
"""Owners, folders and files that tell nothing of a source."""


def short(group: str) -> str:
    """Return a source's name short enough for a table, with the part in brackets that keeps it apart."""
    source, bracket, apart = group.partition(" [")
    words = []
    for word in source.split():
        parts = [part.partition("@")[0] for part in word.split("/")]
        words.append("/".join(part for part in parts if not UNTOLD.fullmatch(part)))
    told = " ".join(word for word in words if word)
    if len(told + bracket + apart) > WIDTH:
        told = re.split(r"[;(]", told)[0].rstrip()
    return told + bracket + apart


WIDTH = 62
"""Characters from which a source's name loses what it says in parentheses."""


def _memory(all_found: Findings) -> list[str]:
    lines = ["Memory, measured readings only, by kind of reading:"]
    for kind, source, rows, error, ratio in all_found.memory:
        lines.append(f"  {kind:22} {short(source):58} {rows:4d} error {error:6.1%} predicted/measured {ratio:.2f}")
    found = all_found.verdicts
    cases = found.fitted + found.failed
    ran = f"{found.fitted_right} of {found.fitted} that ran, {found.failed_right} of {found.failed} that ran out"
    lines += [f"Out-of-memory verdicts right: {found.right:.1%} of {cases} ({ran})"]
    lines += [f"  to say of each that it runs would be right in {found.fitted / max(cases, 1):.1%}"]
    lines += [f"  wrong: {', '.join(found.wrong) or 'none'}"]
    return lines


def _left(published: Published) -> list[str]:
    lines = [f"Runs that stay out: {len(published.left)}, by reason:"]
    for reason, count in Counter(one.reason for one in published.left).most_common():
        sources = Counter(short(one.source) for one in published.left if one.reason == reason)
        named = "; ".join(f"{name} {rows}" for name, rows in sources.most_common(4))
        lines.append(f"  {count:4d}  {reason}: {named}{'; ...' if len(sources) > 4 else ''}")
    lines.append(f"Readings of memory that stay out: {len(published.readings_left)}, by reason:")
    for reason, count in Counter(one.reason for one in published.readings_left).most_common():
        lines.append(f"  {count:4d}  {reason}")
    return lines


def _percentages(named: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.1%}" for name, value in named.items())


def _mean(found: Sequence[Score], field: str) -> float:
    values = [value for value in (getattr(score, field) for score in found) if np.isfinite(value)]
    return float(np.mean(values)) if values else float("nan")


def _or_dash(value: float, *, percent: bool = False) -> str:
    if not np.isfinite(value):
        return "     -" if percent else "    -"
    return f"{value:6.1%}" if percent else f"{value:5.2f}"
