"""The recorder of real trials, on simulated ones: its design, what it writes, how it goes on, and its replay."""

import gzip
import json

import pytest

from autotune import campaign as campaigns
from autotune import storage
from autotune.evaluators.recording import read
from autotune.searchers.optuna import OptunaSearcher
from autotune.testing.searchers import SMALL_SPACE, SPACE
from tests.benchmarks.record import Design, append, entries, one_at_a_time, record, sobol_points, whole_rows

MICRO, STAGE, LIVE = (
    "train_micro_batch_size_per_gpu",
    "zero_optimization.stage",
    "zero_optimization.stage3_max_live_parameters",
)
START = {STAGE: 0, MICRO: 1, "optimizer.params.lr": 1e-3, "precision": "fp32"}
DESIGN = Design(points=8, baseline_every=5, repeated=2, repeats=2, seed=0)


def test_sobol_points_have_each_half_of_each_dimension_equally_often():
    """Of 16 scrambled Sobol points each quarter of a dimension holds four: each stage is drawn four times."""
    points = sobol_points(SPACE, 16, 0)
    assert sorted(point[STAGE] for point in points) == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert sum(point["precision"] == "bf16" for point in points) == 8
    assert points != sobol_points(SPACE, 16, 1)


def test_single_levels_are_changed_around_the_start():
    """3 stages, 4 micro-batches, 3 rates, 1 precision; at stage 0 two levels of the stage-3 knob change nothing."""
    around = one_at_a_time(SPACE, START)
    changed = [{name for name in {*point, *START} if point.get(name) != START.get(name)} for point in around]
    assert sorted(len(names) for names in changed) == [0, 0, *[1] * 10, 2]
    assert [names for names in changed if len(names) == 2] == [{STAGE, LIVE}]  # stage 3 brings its knob along


def test_the_design_interleaves_and_repeats_what_it_says():
    plan = entries(DESIGN, SPACE, START)
    firsts = [SPACE.encode(entry.point) for entry in plan if entry.point is not None and entry.repeat == 0]
    again = [entry for entry in plan if entry.point is not None and entry.repeat]
    assert len(set(firsts)) == len(firsts)
    assert SPACE.encode(START) not in firsts
    assert len(firsts) >= 11  # around the start, and eight Sobol points where they are others
    assert sorted(entry.repeat for entry in again) == [1, 1, 2, 2]
    baselines = [number for number, entry in enumerate(plan) if entry.point is None]
    assert baselines == [0, *range(6, len(plan), 6)]  # after every five others
    assert [plan[number].repeat for number in baselines] == list(range(len(baselines)))
    for entry in again:
        assert plan.index(entry) > firsts.index(SPACE.encode(entry.point))
    half = firsts[: len(firsts) // 2]
    around = {SPACE.encode(point) for point in one_at_a_time(SPACE, START)}
    assert 3 <= sum(code in around for code in half) <= 8  # half of each kind in the first half


def test_a_space_that_the_start_and_its_neighbours_exhaust():
    plan = entries(Design(points=4, baseline_every=0, repeated=0, repeats=0, seed=0), SMALL_SPACE, {STAGE: 0})
    assert len(plan) == 3


@pytest.fixture
def campaign():
    return campaigns.parse(
        {
            "name": "made-up",
            "evaluator": "simulated",
            "hardware": {"ranks": 2, "accelerator": "cpu"},
            "ds_config": {"train_batch_size": 16, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}},
            "pruner": "none",
            "simulated": {"noise": 0.05},
        },
        where="made up",
    )


def recorded(campaign, path, **more):
    return list(record(campaign, path, DESIGN, **more))


def test_a_recording_goes_on_where_it_ended_and_drops_what_was_half_written(campaign, tmp_path):
    whole, parts = tmp_path / "whole.jsonl.gz", tmp_path / "parts.jsonl.gz"
    expected = recorded(campaign, whole)
    assert len(recorded(campaign, parts, most=7)) == 7
    with parts.open("ab") as file:
        file.write(gzip.compress(b'{"entry": 7}')[:-9])
    rest = recorded(campaign, parts)
    assert [row["entry"] for row in rest] == list(range(7, len(expected)))
    assert recorded(campaign, parts) == []
    rows = [row for row in whole_rows(parts)[0] if "entry" in row]
    assert [row["point"] for row in rows] == [row["point"] for row in expected]
    assert [speed(row) for row in rows] == [speed(row) for row in expected]
    sheets = [row["sheet"] for row in whole_rows(parts)[0] if "sheet" in row]
    assert len(sheets) == 3
    assert sheets[0]["hardware"]["device_name"]
    assert set(sheets[0]["versions"]) == {"deepspeed-autotune", "torch", "deepspeed", "numpy"}
    assert sheets[0]["date"].endswith("+00:00")


def speed(row):
    return row["outcome"]["measurement"] and row["outcome"]["measurement"]["samples_per_second"]


def test_repeats_are_runs_of_their_own_and_replayed_as_such(campaign, tmp_path):
    path = tmp_path / "recording.jsonl.gz"
    rows = recorded(campaign, path)
    baselines = [speed(row) for row in rows if row["is_baseline"]]
    assert len(set(baselines)) == len(baselines) >= 4  # noise: each is another run
    assert max(baselines) / min(baselines) < 1.5
    recording = read(path)
    assert [outcome.measurement.samples_per_second for outcome in recording.baselines] == baselines
    point = next(row["point"] for row in rows if row["repeat"] == 2 and not row["is_baseline"])
    assert len(recording.exact(point)) == 3


def test_searchers_can_be_compared_on_it(campaign, tmp_path):
    path = tmp_path / "recording.jsonl.gz"
    rows = recorded(campaign, path)
    replay = campaign.model_copy(
        update={
            "evaluator": "recorded",
            "recorded": campaigns.parse(
                {**campaign.model_dump(), "recorded": {"path": str(path), "missing": "nearest"}}, where="replay"
            ).recorded,
        }
    )
    opened = storage.connect("sqlite:///:memory:")
    stored = campaigns.create(replay, opened, name="replay")
    with campaigns.study(stored, trials=10) as study:
        study.run(OptunaSearcher(study.space, sampler="random", seed=0))
        assert study.baseline.measurement.samples_per_second == speed(rows[0])
        known = {speed(row) for row in rows}
        for trial in study.history:
            assert trial.measurement is None or trial.measurement.samples_per_second in known
    opened.close()


def test_a_file_that_another_design_began_is_refused(campaign, tmp_path):
    path = tmp_path / "recording.jsonl.gz"
    recorded(campaign, path, most=1)
    with pytest.raises(SystemExit, match="begun with another design"):
        list(record(campaign, path, Design(points=4, baseline_every=5, repeated=2, repeats=2, seed=0)))


def test_a_recording_of_an_older_version_goes_on(campaign, tmp_path):
    """Whose campaigns lacked a key that they have now."""
    path = tmp_path / "recording.jsonl.gz"
    list(record(campaign, path, DESIGN, most=2))
    rows, _ = whole_rows(path)
    path.unlink()
    for row in rows:
        if "sheet" in row:
            del row["sheet"]["campaign"]["memory_filter"]
        append(path, row)
    assert [row["entry"] for row in record(campaign, path, DESIGN, most=1)] == [2]


def test_each_row_is_a_member_of_its_own(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    for number in range(3):
        append(path, {"entry": number})
    assert [json.loads(line)["entry"] for line in gzip.decompress(path.read_bytes()).splitlines()] == [0, 1, 2]
    assert whole_rows(path) == ([{"entry": n} for n in range(3)], path.stat().st_size)
