"""Fill docs/performance_model.md: its tables, its outputs of commands, and its pictures (docs/pictures/*.svg).

`python docs/make_performance_model.py` writes what follows from the model and the published measurements. How fast the
model is depends on the machine, so that block stays unless `--speed` is given; its picture is drawn from the block.
"""

from __future__ import annotations

import html
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from autotune.performance import Coefficients
from autotune.performance.arrays import Array
from autotune.performance.validation import report, scores
from autotune.performance.validation.report import Findings, Published
from autotune.performance.validation.scores import Score

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance_model.md"
PICTURES = ROOT / "docs" / "pictures"
BLOCK = re.compile(r"```text\n\$ (python [^\n]*)\n(.*?)```", re.DOTALL)
TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
SPEED = "tests/benchmarks/performance_model.py"

LONGEST = "VIA-Research/vTrain data/ground_truth_single.csv"
FAMILIES: Mapping[str, re.Pattern[str]] = {
    "vTrain, A100": re.compile("vTrain"),
    "bigscience: BLOOM and before": re.compile("bigscience"),
    "NVIDIA: Megatron, NeMo": re.compile(r"^NVIDIA|Megatron-LM|megatron|calculon"),
    "DeepSpeed: blogs, tutorials, examples": re.compile("deepspeedai"),
    "others": re.compile(""),
}
"""Groups of sources by who published them: the first that a source's name fits."""
AIM, AIM_UNSEEN = 0.10, 0.15
CLOSE, FAR = 1.1, 2.0
NEAR = 0.15
"""Of a card: where `autotune estimate` says that a run fits tightly."""


# ---------------------------------------------------------------------------------------------------------- tables


def shipped_table(published: Published, found: Sequence[Score]) -> list[str]:
    """Return what the coefficients reach as they ship: nothing in it takes a fit."""
    coefficients = Coefficients.prior()
    longest = next(score for score in found if score.group == LONGEST)
    told = report.verdicts(published, coefficients)
    close, far = within(published, shipped_times(published))
    sources = len({scores.source_of(score.group) for score in found if not score.relative})
    both = f"{told.fitted_right} of {told.fitted} that ran, {told.failed_right} of {told.failed} that ran out"
    margin, ran_out = margins(published)
    nothing = told.fitted / (told.fitted + told.failed)
    kinds = memory_by_kind(published, coefficients)
    by_class = f"{told.fitted_right / told.fitted:.0%} / {told.failed_right / told.failed:.0%}"
    rows = [
        (f"step time, unweighted mean over {sources} sources", "10 %", f"{scores.mean_over_sources(found):.1%}"),
        (f"step time, the longest source ({longest.rows:,} runs)", "", f"{longest.error:.1%}"),
        ("runs within 10 % / within a factor of 2", "", f"{close:.0%} / {far:.1%}"),
        ("memory after a step", "10 %", f"{kinds['steady_bytes']:.1%}"),
        ("memory allocated at the peak", "10 %", f"{kinds['peak_allocated_bytes']:.1%}"),
        ("memory as nvidia-smi shows it", "10 %", f"{kinds['device_used_bytes']:.1%}"),
        ("memory reserved at the peak (2 rows of one source)", "10 %", f"{kinds['peak_reserved_bytes']:.0%}"),
        ("out-of-memory verdicts that are right", "90 %", f"{told.right:.1%} of {told.fitted + told.failed} ({both})"),
        ("the same, of those that ran / that ran out", "", by_class),
        ('what "everything fits" would reach', "", f"{nothing:.1%} (100% / 0%)"),
        ("said to fit with more than 15 % of the card left, but ran out", "", share(margin > NEAR, ran_out)),
        ("within 15 % of the card, and wrong", "", share(np.abs(margin) <= NEAR, ran_out == (margin >= 0))),
        ("said to need more than 15 % above the card, but ran", "", share(margin < -NEAR, ~ran_out)),
    ]
    return markdown(("as it ships", "aim", "reached"), rows)


def share(judged: Array, wrong: Array) -> str:
    """Return how many of those judged are wrong."""
    return f"{(judged & wrong).sum()} of {judged.sum()}"


def unseen_table(found: Findings) -> list[str]:
    """Return what is reached on sources that a fit has not seen, beside what a source's own level would explain."""
    large = [score for score in found.unseen if score.rows >= report.LARGE and not score.relative]
    own = scores.mean_over_sources(found.own)
    rows = [
        ("step time, unweighted mean over sources", "15 %", f"{scores.mean_over_sources(found.unseen):.1%}"),
        (f"the same, the {len(large)} sources of {report.LARGE} rows or more", "", f"{mean(large, 'error'):.1%}"),
        ("these, once the source's level is known", "", f"{mean(large, 'scaled_error'):.1%}"),
        ("these by the null model: one fitted utilisation per source", "", f"{mean(large, 'null_error'):.1%}"),
        ("Spearman within such a source", ".95", f"{mean(large, 'rank'):.2f}"),
        ("Spearman among its rows of one model and machines", "", f"{mean(large, 'rank_alike'):.2f}"),
        ("throughput lost by the best predicted of such rows", "", f"{mean(large, 'regret'):.1%}"),
        ("for comparison: fitted to all, each source with its own level", "", f"{own:.1%}"),
    ]
    return markdown(("a source that the fit never saw", "aim", "reached"), rows)


def sources_table(found: Findings) -> list[str]:
    """Return one row for each source."""
    pairs = sorted(zip(found.shipped, found.unseen, strict=True), key=lambda pair: -pair[0].rows)
    rows = [
        (
            name_of(one),
            f"{one.rows:,}",
            *(f"{value:.1%}" for value in (one.error, other.error)),
            f"{other.level:.2f}",
            *(f"{value:.1%}" for value in (other.scaled_error, one.null_error)),
            f"{other.rank:.2f}" if np.isfinite(other.rank) else "",
            f"{other.regret:.0%}" if np.isfinite(other.regret) else "",
        )
        for one, other in pairs
    ]
    return markdown(("source", "rows", "error", "unseen", "level", "scaled", "null", "rank", "regret"), rows)


def memory_table(published: Published) -> list[str]:
    """Return one row for each kind of reading and source."""
    rows = [
        (kind, report.short(source), f"{count}", f"{error:.1%}", f"{ratio:.2f}")
        for kind, source, count, error, ratio in report.memory_errors(published, Coefficients.prior())
    ]
    return markdown(("reading", "source", "rows", "error", "predicted/measured"), rows)


def left_table(published: Published) -> list[str]:
    """Return how many runs stay out, by reason."""
    counted = Counter(re.sub(r"^the metric \S+", "a metric that", one.reason) for one in published.left)
    rows = [(f"{count}", reason) for reason, count in counted.most_common(8)]
    rest = len(published.left) - sum(count for _, count in counted.most_common(8))
    return markdown(("runs", "stay out because"), [*rows, (f"{rest}", "other reasons")])


def markdown(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table; `10.0%` becomes `10.0 %`."""
    lines = [heading, ["---"] * len(heading), *rows]
    return [re.sub(r"(\d)%", r"\1 %", f"| {' | '.join(line)} |") for line in lines]


def memory_by_kind(published: Published, coefficients: Coefficients) -> dict[str, float]:
    """Return the mean error of each kind of reading, by reading."""
    errors: dict[str, list[tuple[float, int]]] = {}
    for kind, _, rows, error, _ in report.memory_errors(published, coefficients):
        errors.setdefault(kind, []).append((error, rows))
    return {
        kind: float(np.average([error for error, _ in parts], weights=[rows for _, rows in parts]))
        for kind, parts in errors.items()
    }


def mean(found: Sequence[Score], name: str) -> float:
    """Return the mean of a score's field over the groups that have it."""
    return float(np.nanmean([getattr(score, name) for score in found]))


def name_of(score: Score) -> str:
    """Return a group's short name, marked where only ratios count."""
    return report.short(score.group) + (" (rel)" if score.relative else "")


def shipped_times(published: Published) -> Array:
    """Return the predicted seconds per step of each timed run, shape (runs,)."""
    return np.asarray(scores.predicted(published.timed, Coefficients.prior()).time.step_time_s)


def within(published: Published, times: Array) -> tuple[float, float]:
    """Return the shares of runs of a known convention that are predicted within 10 % and within a factor of 2."""
    ratio = (times / published.timed.step_time_s)[absolute(published)]
    return float(np.mean(np.abs(ratio - 1.0) <= CLOSE - 1.0)), float(np.mean(np.abs(np.log(ratio)) <= np.log(FAR)))


def absolute(published: Published) -> Array:
    """Return which runs have a step time of a known convention, shape (runs,)."""
    known = np.ones(len(published.timed), dtype=bool)
    for _, chosen in scores.by_group(published.timed):
        known[chosen] = not scores.is_relative(published.timed, chosen)
    return known


def margins(published: Published) -> tuple[Array, Array]:
    """Return each judged run's predicted margin as a share of what it has, and whether it ran out; shape (runs,)."""
    asked = report.table(published.verdicts)
    needs = scores.predicted(asked, Coefficients.prior()).memory
    on_host = needs.host_margin_bytes / asked.cluster.host_memory_bytes
    ran_out = np.array([bool(row.out_of_memory) for row in published.verdicts])
    return np.minimum(needs.margin_bytes / needs.capacity_bytes, on_host), ran_out


# -------------------------------------------------------------------------------------------------------- pictures


STYLE = """\
text{font:12px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}
.small{font-size:11px}.muted{fill:#59636e}.end{text-anchor:end}.middle{text-anchor:middle}
.card{fill:#fff}.grid{stroke:#e4e8ec}.axis{stroke:#8c959f}.wide{fill:#eef3f8}.narrow{fill:#c2d8ef}.bad{fill:#fff0ee}
path,line{fill:none;stroke-width:1}.line{stroke-width:2}.aim{stroke-dasharray:4 3}
.dot{stroke-linecap:round;stroke-width:3.4;stroke-opacity:.75}.big{stroke-width:8;stroke-opacity:1}.stacked{stroke-width:4.6;stroke-opacity:1}
.c0{stroke:#8c959f}.c1{stroke:#0969da}.c2{stroke:#1a7f37}.c3{stroke:#bc4c00}.c4{stroke:#8250df}.c5{stroke:#cf222e}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.muted{fill:#9198a1}.card{fill:#0d1117}.grid{stroke:#262c36}
.axis{stroke:#656c76}.wide{fill:#151d28}.narrow{fill:#294263}.bad{fill:#2b1719}.c0{stroke:#7d8590}
.c1{stroke:#4493f8}.c2{stroke:#3fb950}.c3{stroke:#f0883e}.c4{stroke:#ab7df8}.c5{stroke:#f85149}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """From a quantity to pixels."""

    low: float
    high: float
    begin: float
    """Pixel of `low`."""
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        change = np.log10 if self.logarithmic else float
        share = (change(value) - change(self.low)) / (change(self.high) - change(self.low))
        return float(self.begin + share * (self.end - self.begin))


@dataclass(slots=True, kw_only=True)
class Picture:
    """An SVG with its own ground, in the colours of a light or a dark page."""

    width: int
    height: int
    told: str
    """What it shows, for who can't see it."""
    parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, style: str = "") -> None:
        """Write words."""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{html.escape(words)}</text>')

    def upright(self, x: float, y: float, words: str) -> None:
        """Write words that run upwards, centred."""
        turned = f'transform="rotate(-90 {x:.1f} {y:.1f})"'
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" class="middle muted" {turned}>{html.escape(words)}</text>')

    def lines(self, style: str, *points: Sequence[tuple[float, float]]) -> None:
        """Draw lines through points."""
        drawn = "".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in line) for line in points)
        self.parts.append(f'<path class="{style}" d="{drawn}"/>')

    def area(self, style: str, points: Sequence[tuple[float, float]]) -> None:
        """Fill a polygon."""
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polygon class="{style}" points="{corners}"/>')

    def dots(self, style: str, points: Iterable[tuple[float, float]]) -> None:
        """Draw round dots: lines without length and with round ends, which is a tenth of the bytes of circles."""
        drawn = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in points)
        self.parts.append(f'<path class="dot {style}" d="{drawn}"/>')

    def crosses(self, style: str, points: Iterable[tuple[float, float]]) -> None:
        """Draw small crosses."""
        drawn = "".join(f"M{x - 3:.1f} {y - 3:.1f}l6 6m0-6l-6 6" for x, y in points)
        self.parts.append(f'<path class="{style}" d="{drawn}"/>')

    def svg(self) -> str:
        """Return the file."""
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        ground = f'<rect class="card" width="{self.width}" height="{self.height}" rx="6"/>'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{html.escape(self.told)}</title>",
            f"<style>\n{STYLE}</style>",
            ground,
            *self.parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


def ratios(published: Published) -> tuple[Array, Array]:
    """Return measured and predicted seconds per step; of relative groups predicted after one factor."""
    times = shipped_times(published)
    measured = published.timed.step_time_s
    for _, chosen in scores.by_group(published.timed):
        if scores.is_relative(published.timed, chosen):
            times[chosen] /= np.median(times[chosen] / measured[chosen])
    return measured, times


def predicted_against_measured(published: Published) -> str:
    """Draw each timed run."""
    picture = Picture(width=760, height=640, told="Predicted against measured step time of all published runs")
    measured, times = ratios(published)
    low, high = 0.04, 2000.0
    x = Axis(low=low, high=high, begin=70, end=740, logarithmic=True)
    y = Axis(low=low, high=high, begin=585, end=125, logarithmic=True)
    for factor, style in ((FAR, "wide"), (CLOSE, "narrow")):
        edges = [(low, low * factor), (high / factor, high), (high, high), (high, high / factor), (low * factor, low)]
        picture.area(style, [(x.at(a), y.at(b)) for a, b in [(low, low), *edges]])
    marks = (0.1, 1.0, 10.0, 100.0, 1000.0)
    for mark in marks:
        picture.lines(
            "grid", [(x.at(mark), y.begin), (x.at(mark), y.end)], [(x.begin, y.at(mark)), (x.end, y.at(mark))]
        )
        picture.text(x.at(mark), y.begin + 18, f"{mark:g} s", "middle muted")
        picture.text(x.begin - 8, y.at(mark) + 4, f"{mark:g} s", "end muted")
    picture.lines("axis", [(x.at(low), y.at(low)), (x.at(high), y.at(high))])
    picture.text((x.begin + x.end) / 2, 628, "measured step time (bands: 10 %, and a factor of 2)", "middle muted")
    picture.upright(20, (y.begin + y.end) / 2, "predicted step time")
    family = np.array(
        [next(name for name, of in FAMILIES.items() if of.search(group)) for group in published.timed.groups]
    )
    known = absolute(published)
    for number, name in enumerate(FAMILIES):
        place = 24 + 18 * number
        chosen = (family == name) & known
        ratio = times[chosen] / measured[chosen]
        close, far = np.mean(np.abs(ratio - 1) <= CLOSE - 1), np.mean(np.abs(np.log(ratio)) <= np.log(FAR))
        picture.dots(f"c{number}", ((x.at(a), y.at(b)) for a, b in zip(measured[chosen], times[chosen], strict=True)))
        picture.dots(f"c{number} big", [(x.begin + 6, place - 4)])
        picture.text(x.begin + 20, place, name)
        picture.text(430, place, f"{chosen.sum():,} runs", "end muted")
        picture.text(560, place, f"{close:.0%} within 10 %".replace("% w", " % w", 1), "end muted")
        picture.text(740, place, f"{far:.1%} within a factor of 2".replace("% w", " % w", 1), "end muted")
    for number, name in enumerate(FAMILIES):
        chosen = (family == name) & ~known
        points = [(x.at(a), y.at(b)) for a, b in zip(measured[chosen], times[chosen], strict=True)]
        if points:
            picture.crosses(f"c{number}", points)
    picture.crosses("c3", [(x.begin + 6, 110)])
    unspecified = f"TFLOPS of an unspecified convention ({(~known).sum()} runs)"
    picture.text(x.begin + 20, 114, f"{unspecified}: only ratios count, so after one factor per source")
    return picture.svg()


def error_by_source(published: Published, found: Findings) -> str:
    """Draw each source's error as shipped and left out, with the spread over its rows."""
    rows = scores.row_errors(published.timed, found.unseen_times)
    places = dict(scores.by_group(published.timed))
    pairs = sorted(zip(found.shipped, found.unseen, strict=True), key=lambda pair: -pair[1].error)
    top, step = 76, 17
    bottom = top + step * len(pairs)
    picture = Picture(width=860, height=bottom + 44, told="Error of the step time by source, as shipped and left out")
    x = Axis(low=0.0, high=0.9, begin=440, end=845)
    for mark in (0.0, 0.2, 0.4, 0.6, 0.8):
        picture.lines("grid", [(x.at(mark), top - 6), (x.at(mark), bottom)])
        picture.text(x.at(mark), bottom + 16, f"{100 * mark:.0f} %", "middle muted")
    picture.text((x.begin + x.end) / 2, bottom + 34, "mean absolute error of the step time", "middle muted")
    for aim, style in ((AIM, "c1"), (AIM_UNSEEN, "c3")):
        picture.lines(f"{style} aim", [(x.at(aim), top - 6), (x.at(aim), bottom)])
    for number, (one, other) in enumerate(pairs):
        y = top + step * (number + 0.5)
        picture.text(372, y + 4, name_of(one), "small end")
        picture.text(418, y + 4, f"{one.rows:,}", "small end muted")
        if one.rows > 1:
            low, high = np.quantile(rows[places[one.group]], [0.1, 0.9])
            picture.lines("c3", [(x.at(low), y), (x.at(min(high, x.high)), y)])
        picture.dots("c3 big", [(x.at(other.error), y)])
        picture.dots("c1 big", [(x.at(one.error), y)])
    picture.text(418, top - 14, "rows", "small end muted")
    picture.dots("c1 big", [(16, 20)])
    picture.text(28, 24, "as it ships: all sources are in the fit. Aim: 10 % (line)")
    picture.dots("c3 big", [(16, 40)])
    picture.text(
        28, 44, "left out: fitted to the other sources. Aim: 15 % (line). Bar: the middle 80 % of the source's rows"
    )
    return picture.svg()


def memory_margin(published: Published) -> str:
    """Draw the predicted margin of each run that ran, and of each that ran out of memory."""
    margin, ran_out = margins(published)
    bins, least = 0.04, -1.0
    places = np.maximum(np.floor(margin / bins), least / bins).astype(int)
    stacks = {kind: Counter(places[ran_out == kind].tolist()) for kind in (False, True)}
    pitch = 5.0
    above, below = (max(stacks[kind].values()) * pitch for kind in (False, True))
    base = 76 + above
    height = int(base + below + 78)
    picture = Picture(width=760, height=height, told="Predicted memory margin of runs that ran and that ran out")
    x = Axis(low=least - 0.04, high=1.0, begin=30, end=730)
    picture.area("bad", [(x.begin, 60), (x.at(0), 60), (x.at(0), base + below + 26), (x.begin, base + below + 26)])
    for mark in (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0):
        words = f"{'≤ ' if mark == least else ''}{100 * mark:.0f} %"
        picture.text(x.at(mark), base + below + 44, words, "small middle muted")
        picture.lines("grid", [(x.at(mark), 60), (x.at(mark), base + below + 28)])
    picture.lines("axis", [(x.begin, base + 8), (x.end, base + 8)], [(x.at(0), 60), (x.at(0), base + below + 28)])
    for kind, style, way in ((False, "c1", -1), (True, "c5", 1)):
        points = [
            (x.at((place + 0.5) * bins), base + 8 + way * (pitch * number + 6))
            for place, count in stacks[kind].items()
            for number in range(count)
        ]
        picture.dots(f"{style} stacked", points)
    picture.text((x.begin + x.end) / 2, height - 12, "predicted margin, as a share of the card", "middle muted")
    picture.dots("c1 big", [(36, 20)])
    picture.text(48, 24, f"ran ({(~ran_out).sum()})")
    picture.dots("c5 big", [(130, 20)])
    picture.text(142, 24, f"ran out of memory ({ran_out.sum()}), below the line")
    picture.text(x.at(0) - 8, 54, "said to run out", "end muted")
    picture.text(x.at(0) + 8, 54, "said to fit", "muted")
    return picture.svg()


def speed(page: str) -> str:
    """Draw the speed that the page's own block tells."""
    told = next(text for command, text in BLOCK.findall(page) if SPEED in command)
    rows = [
        [float(value.replace(",", "")) for value in line.split()]
        for line in told.splitlines()
        if re.fullmatch(r"\s*[\d,]+\s+[\d,]+\s+[\d,]+\s*", line)
    ]
    picture = Picture(width=760, height=400, told="Configurations per CPU-second against configurations asked at once")
    x = Axis(low=1, high=1e6, begin=90, end=640, logarithmic=True)
    y = Axis(low=100, high=1e7, begin=340, end=20, logarithmic=True)
    for power in range(7):
        picture.lines("grid", [(x.at(10**power), y.begin), (x.at(10**power), y.end)])
        picture.text(x.at(10**power), y.begin + 18, f"{10**power:,}", "middle muted")
    for power in range(2, 8):
        picture.lines("grid", [(x.begin, y.at(10**power)), (x.end, y.at(10**power))])
        picture.text(x.begin - 8, y.at(10**power) + 4, f"{10**power:,}", "end muted")
    picture.text((x.begin + x.end) / 2, 386, "configurations asked at once", "middle muted")
    picture.upright(16, (y.begin + y.end) / 2, "configurations per CPU-second")
    for number, (style, name) in enumerate((("c1", "1 member"), ("c3", "32 members")), start=1):
        points = [(x.at(row[0]), y.at(row[number])) for row in rows]
        picture.lines(f"{style} line", points)
        picture.dots(f"{style} big", points)
        picture.text(points[-1][0] + 12, points[-1][1] + 4, name)
    return picture.svg()


# ------------------------------------------------------------------------------------------------------------ page


def answer(command: str) -> str:
    """Return what a command prints."""
    program, *words = shlex.split(command)
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert program == "python"  # noqa: S101 (BLOCK finds no other)
    return done.stdout + done.stderr


def with_outputs(page: str, *, measures_speed: bool) -> str:
    """Return the page with the outputs of its commands filled anew."""

    def block(match: re.Match[str]) -> str:
        kept = SPEED in match[1] and not measures_speed
        return match[0] if kept else f"```text\n$ {match[1]}\n{answer(match[1]).rstrip()}\n```"

    return BLOCK.sub(block, page)


def with_tables(page: str, tables: Mapping[str, Callable[[], list[str]]]) -> str:
    """Return the page with those tables filled anew that there is a maker for."""

    def block(match: re.Match[str]) -> str:
        lines = tables[match[2]]() if match[2] in tables else None
        return match[0] if lines is None else "\n".join([match[1], *lines, "", match[3]])

    return TABLE.sub(block, page)


def light_tables(published: Published) -> dict[str, Callable[[], list[str]]]:
    """Return the makers of those tables that take no fit."""
    return {
        "shipped": lambda: shipped_table(published, report.shipped_scores(published, Coefficients.prior())),
        "memory": lambda: memory_table(published),
        "left": lambda: left_table(published),
    }


def fitted_tables(found: Findings) -> dict[str, Callable[[], list[str]]]:
    """Return the makers of the others."""
    return {"unseen": lambda: unseen_table(found), "sources": lambda: sources_table(found)}


def pictures(published: Published, found: Findings, page: str) -> dict[str, str]:
    """Return the pictures by file name."""
    return {
        "predicted_against_measured.svg": predicted_against_measured(published),
        "error_by_source.svg": error_by_source(published, found),
        "memory_margin.svg": memory_margin(published),
        "speed.svg": speed(page),
    }


def main() -> None:
    """Write the page and its pictures."""
    published = report.load(ROOT / "experiments" / "published")
    found = report.findings(published, Coefficients.prior())
    page = with_outputs(PAGE.read_text(encoding="utf-8"), measures_speed="--speed" in sys.argv[1:])
    page = with_tables(page, light_tables(published) | fitted_tables(found))
    PAGE.write_text(page, encoding="utf-8")
    PICTURES.mkdir(exist_ok=True)
    for name, drawn in pictures(published, found, page).items():
        (PICTURES / name).write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
