"""Record real trials of a campaign over a designed sample of its space, for `evaluator: recorded` to replay.

The design: scrambled Sobol points over the levels (Owen 1998, by scipy.stats.qmc), each level of each dimension in turn
around the starting configuration, the starting configuration again after every few trials, and some Sobol points
again, spread over the whole time. All is interleaved, so a recording that ends early is a sample of the whole space.

The file is JSON lines, each a gzip member of its own that is on the disk before the next trial: first a sheet of the
hardware (again whenever the recording goes on), then one row for each trial. The same command goes on where it ended.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import json
import os
import platform
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from scipy.stats import qmc

from autotune import campaign as campaigns
from autotune import storage
from autotune.campaign import Campaign
from autotune.evaluators.interpolation import Interpolation
from autotune.evaluators.recording import Recording
from autotune.space import SearchSpace
from autotune.study import Study
from autotune.trials import Outcome, Point, Trial

PACKAGES = ("deepspeed-autotune", "torch", "deepspeed", "numpy")
NOT_KEPT = ("logs", "nodes")
NOT_KEPT_OF_MEASUREMENT = ("effective_config", "versions")
"""The versions are in the sheet, the configuration follows from the point."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """What is to be recorded."""

    points: int
    """Sobol points drawn; fewer are tried where some are one configuration."""
    baseline_every: int
    """Other trials after which the starting configuration runs again; 0: never."""
    repeated: int
    """Sobol points that run again."""
    repeats: int
    """How often they do."""
    seed: int


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One run: of a point, or of the starting configuration (`point` None)."""

    point: Point | None
    repeat: int


def entries(design: Design, space: SearchSpace, start: Point) -> list[Entry]:
    """Return all runs in order, the starting configuration first.

    Args:
        design: how many of each.
        space: what is sampled.
        start: canonical point that single levels are changed from.
    """
    known = {space.encode(start)}
    timed: list[tuple[float, int, Entry]] = []
    around = _shuffled(one_at_a_time(space, start), design.seed)
    for kind, points in enumerate((sobol_points(space, design.points, design.seed), around)):
        new = {space.encode(point): point for point in points if space.encode(point) not in known}
        known |= set(new)
        for number, point in enumerate(new.values()):
            timed.append(((number + 0.5) / len(new), kind, Entry(point=point, repeat=0)))
    timed.sort(key=lambda item: item[:2])
    firsts = [(place, entry) for place, kind, entry in timed if kind == 0][: design.repeated]
    for repeat in range(1, design.repeats + 1):
        for place, entry in firsts:
            later = place + (1 - place) * repeat / design.repeats
            timed.append((later, 2, Entry(point=entry.point, repeat=repeat)))
    ordered = [Entry(point=None, repeat=0)]
    for number, (_, _, entry) in enumerate(sorted(timed, key=lambda item: item[:2]), start=1):
        ordered.append(entry)
        if design.baseline_every and number % design.baseline_every == 0:
            ordered.append(Entry(point=None, repeat=number // design.baseline_every))
    return ordered


def sobol_points(space: SearchSpace, count: int, seed: int) -> list[Point]:
    """Return `count` scrambled Sobol points over the levels, as canonical points; some may be alike."""
    drawn = qmc.Sobol(len(space.dimensions), scramble=True, rng=np.random.default_rng(seed))
    shares = drawn.random_base2(max(0, (count - 1).bit_length()))[:count]
    return [space.decode([int(i) for i in row]) for row in (shares * np.array(space.sizes)).astype(int)]


def one_at_a_time(space: SearchSpace, start: Point) -> list[Point]:
    """Return every point that one other level makes of the start."""
    code = space.encode(start)
    return [
        space.decode((*code[:position], index, *code[position + 1 :]))
        for position, size in enumerate(space.sizes)
        for index in range(size)
        if index != code[position]
    ]


def _shuffled(points: Sequence[Point], seed: int) -> list[Point]:
    return [points[i] for i in np.random.default_rng([seed, 1]).permutation(len(points))]


def sheet(campaign: Campaign, design: Design) -> dict[str, Any]:
    """Return what the trials run on, by what, and what is to be recorded."""
    return {
        "hardware": asdict(campaigns.hardware_of(campaign)),
        "physical_cores": psutil.cpu_count(logical=False),
        "machine": platform.machine(),
        "system": platform.platform(),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "campaign": campaign.model_dump(mode="json", exclude={"storage", "folder", "run_directory"}),
        "design": asdict(design),
    }


def whole_rows(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the rows that were written whole, and how many bytes they take."""
    rows, end, data = [], 0, path.read_bytes() if path.exists() else b""
    while end < len(data):
        member = zlib.decompressobj(wbits=31)
        try:
            text = member.decompress(data[end:])
        except zlib.error:
            break
        if not member.eof:
            break
        rows.append(json.loads(text))
        end = len(data) - len(member.unused_data)
    return rows, end


def append(path: Path, row: dict[str, Any]) -> None:
    """Write a row, and wait until it is on the disk."""
    with path.open("ab") as file:
        file.write(gzip.compress(json.dumps(row).encode() + b"\n"))
        file.flush()
        os.fsync(file.fileno())


def record(campaign: Campaign, path: Path, design: Design, *, most: int | None = None) -> Iterator[dict[str, Any]]:
    """Run what the file lacks of the design, at most `most` of it, and yield each row once it is written."""
    rows, end = whole_rows(path)
    here = json.loads(json.dumps(sheet(campaign, design)))
    for row in rows:
        for name in ("hardware", "campaign", "design"):
            if "sheet" in row and _differ(row["sheet"][name], here[name]):
                raise SystemExit(f"{path} was begun with another {name}; give another file, or the same {name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, end)
    append(path, {"sheet": here})
    done = {row["entry"] for row in rows if "entry" in row}
    opened = storage.connect(f"sqlite:///{path}.db")
    try:
        name = campaign.name
        stored = opened.open(name) if name in opened.names() else campaigns.create(campaign, opened, name=name)
        with campaigns.study(stored) as study:
            study.measure_baseline()
            assert study.baseline is not None
            start = study.baseline.point or study.space.canonical({d.name: d.default for d in study.space.dimensions})
            plan = entries(design, study.space, start)
            study.trial_budget = len(plan)
            missing = [number for number in range(len(plan)) if number not in done]
            for number in missing[:most]:
                trial, outcome = _run(study, plan[number])
                row = _row(number, plan[number], trial, outcome)
                append(path, row)
                yield {**row, "of": len(plan)}
    finally:
        opened.close()


def _differ(then: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether what both say differs; what only one version knows is no difference."""
    return any(then[key] != now[key] for key in then.keys() & now.keys())


def _run(study: Study, entry: Entry) -> tuple[Trial, Outcome]:
    trial = study.baseline if entry.point is None else study.evaluate(entry.point)
    assert trial is not None
    outcome = study.remeasure(trial) if entry.repeat else trial.outcome
    if outcome is None or not trial.counts:
        raise KeyboardInterrupt
    return trial, outcome


def _row(number: int, entry: Entry, trial: Trial, outcome: Outcome) -> dict[str, Any]:
    kept = {name: value for name, value in outcome.to_json().items() if name not in NOT_KEPT}
    if kept["measurement"]:
        kept["measurement"] = {k: v for k, v in kept["measurement"].items() if k not in NOT_KEPT_OF_MEASUREMENT}
    return {
        "entry": number,
        "number": trial.number,
        "repeat": entry.repeat,
        "state": outcome.state.value,
        "is_baseline": trial.is_baseline,
        "point": dict(trial.point),
        "outcome": kept,
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def main() -> None:
    """Record, and say how far it is and what the recording is worth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("campaign", help="a campaign file")
    parser.add_argument("recording", type=Path, help="what to write, NAME.jsonl.gz")
    parser.add_argument("--points", type=int, default=256, help="Sobol points; a power of two fills the space best")
    parser.add_argument("--baseline-every", type=int, default=16)
    parser.add_argument("--repeated", type=int, default=8, help="Sobol points that run again")
    parser.add_argument("--repeats", type=int, default=4, help="how often they do")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, help="end after so many runs; the same command goes on")
    parser.add_argument("--fit", action="store_true", help="fit the surrogate to what there is then, and keep it too")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="over the campaign")
    chosen = parser.parse_args()
    campaign = campaigns.load(chosen.campaign, ["runner=local", *chosen.set, "pruner=none"])
    design = Design(
        points=chosen.points,
        baseline_every=chosen.baseline_every,
        repeated=chosen.repeated,
        repeats=chosen.repeats,
        seed=chosen.seed,
    )
    for row in record(campaign, chosen.recording, design, most=chosen.most):
        measurement = row["outcome"]["measurement"]
        end = f"{measurement['samples_per_second']:.1f} samples/s" if measurement else row["state"]
        took = f"{row['outcome']['duration_s']:.1f} s"
        print(f"{row['entry'] + 1}/{row['of']}: {end}, {took}, repeat {row['repeat']}", flush=True)
    rows, _ = whole_rows(chosen.recording)
    recording = Recording(rows)
    print(recording.leave_one_out())
    if chosen.fit:
        interpolation = Interpolation(recording)
        append(chosen.recording, {"kernels": interpolation.kernels()})
        print(interpolation.left_out())


if __name__ == "__main__":
    main()
