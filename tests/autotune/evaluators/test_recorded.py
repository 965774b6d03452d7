"""Replaying recorded trials: exact and nearest points, repeats, and what the nearest is worth."""

import gzip
import json
import math
from dataclasses import replace

import pytest

from autotune.errors import CampaignError
from autotune.evaluators.interpolation import Interpolation
from autotune.evaluators.recorded import RecordedEvaluator
from autotune.evaluators.recording import Recording, distances, read
from autotune.testing.searchers import finished_trial
from autotune.trials import Budget, FailureKind, TrialRequest

MICRO, LR, STAGE = "train_micro_batch_size_per_gpu", "optimizer.params.lr", "zero_optimization.stage"


def row(number, point, score, *, is_baseline=False):
    """A recorded trial of 100 x score samples per second; failed where there is none."""
    outcome = finished_trial(number, point, score).outcome
    return {"number": number, "point": point, "is_baseline": is_baseline, "outcome": outcome.to_json()}


ROWS = [
    row(0, {MICRO: 4, LR: 1e-3}, 1.0, is_baseline=True),
    row(1, {MICRO: 8, LR: 1e-3}, 2.0),
    row(2, {MICRO: 8, LR: 1e-3}, 2.2),
    row(3, {MICRO: 64, LR: 1e-3}, None),
]


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "recording.jsonl.gz"
    sheet = {"sheet": {"processor": "made up"}}
    # As a recorder appends: each line a gzip member of its own.
    file.write_bytes(b"".join(gzip.compress(json.dumps(each).encode() + b"\n") for each in [sheet, *ROWS]))
    return file


def answer(evaluator, point, *, number=5, repeat=0):
    request = TrialRequest(number=number, point=point, ds_config={}, budget=Budget(steps=1), repeat=repeat)
    return evaluator.evaluate(request, hosts=(), progress=lambda stage: None, cancelled=lambda: False)


def speed(outcome):
    return outcome.measurement.samples_per_second


def test_a_recorded_point_answers_as_it_was_and_its_repeats_in_turn(path):
    evaluator = RecordedEvaluator(path=str(path))
    point = {MICRO: 8, LR: 1e-3}
    assert [speed(answer(evaluator, point, repeat=repeat)) for repeat in range(3)] == [200.0, 220.00000000000003, 200.0]
    assert answer(evaluator, point).measurement.remarks == ()
    assert answer(evaluator, {MICRO: 64, LR: 1e-3}).failure.kind is FailureKind.OUT_OF_MEMORY
    assert speed(answer(evaluator, {}, number=0)) == 100.0


def test_the_nearest_point_answers_where_none_was_recorded_and_says_so(path):
    outcome = answer(RecordedEvaluator(path=str(path)), {MICRO: 16, LR: 1e-3})  # a factor of 2 from 8, of 4 from 64
    assert speed(outcome) == 200.0
    assert outcome.measurement.remarks == (f"recorded of the nearest configuration, which differs in {MICRO}",)


def test_with_refuse_it_is_a_failure_and_recorded_points_answer_still(path):
    evaluator = RecordedEvaluator(path=str(path), missing="refuse")
    failure = answer(evaluator, {MICRO: 16, LR: 1e-3}).failure
    assert (failure.kind, "never recorded" in failure.reason) == (FailureKind.INVALID_CONFIG, True)
    assert speed(answer(evaluator, {MICRO: 8, LR: 1e-3})) == 200.0


def test_distances_by_hand():
    """A tenfold is 1, a factor of 2 log10(2); another category, a missing one, or a zero counts 1; True is not 1."""
    ones = [{MICRO: 4, STAGE: 0, "overlap": True}]
    others = [
        {MICRO: 4, STAGE: 0, "overlap": True},
        {MICRO: 8, STAGE: 0, "overlap": True},
        {MICRO: 400, STAGE: 0, "overlap": False},
        {MICRO: 4, STAGE: 3},
        {MICRO: 4, STAGE: 0, "overlap": 1},
    ]
    assert distances(ones, others)[0].tolist() == pytest.approx([0, 0.30103, 2, 2, 1], abs=1e-5)


def test_what_the_nearest_is_worth_is_measured_by_leaving_each_point_out():
    """4 is answered by 8 (twice as fast: +100 %), 8 by 4 (half: -50 %), and 64, which fails, by 8, which doesn't."""
    left_out = Recording(ROWS).leave_one_out()
    assert left_out.points == 3
    assert left_out.same_end == pytest.approx(2 / 3)
    assert left_out.throughput_error == pytest.approx(0.75)
    assert left_out.convergence_error == 0.0  # made-up trials learn alike
    assert "67 % end alike; median errors: throughput 75 %, convergence 0 %" in str(left_out)


def test_preparing_says_what_there_is_and_how_good_the_nearest(path):
    told = []
    RecordedEvaluator(path=str(path)).prepare([], told.append)
    assert told[0] == "3 recorded configurations"
    assert told[1].startswith("left out one by one")


@pytest.mark.parametrize(
    "content", [b"", b"not gzip", gzip.compress(b'{"sheet": {}}\n')], ids=["empty", "no gzip", "a sheet"]
)
def test_a_file_that_holds_no_trial_is_refused(tmp_path, content):
    file = tmp_path / "bad.jsonl.gz"
    file.write_bytes(content)
    with pytest.raises(CampaignError, match=r"recorded.path: .*bad.jsonl.gz"):
        read(file)


def smooth_rows(count=24):
    """Trials whose speed is the root of the micro-batch, and whose loss falls with the rate's logarithm."""
    rows = []
    for number in range(count):
        point = {MICRO: 2 ** (number % 6), LR: 10.0 ** -(2 + number % 4)}
        outcome = finished_trial(number, point, 1.0).outcome
        measurement = replace(
            outcome.measurement,
            samples_per_second=100.0 * point[MICRO] ** 0.5,
            held_out_loss_before=5.0,
            held_out_loss_after=5.0 + 0.3 * math.log10(point[LR]),
        )
        outcome = replace(outcome, measurement=measurement)
        rows.append({"number": number, "point": point, "is_baseline": number == 0, "outcome": outcome.to_json()})
    return rows


def ask(evaluator, point, *, batch=64, repeat=0):
    request = TrialRequest(
        number=5, point=point, ds_config={"train_batch_size": batch}, budget=Budget(steps=1), repeat=repeat
    )
    return evaluator.evaluate(request, hosts=(), progress=lambda stage: None, cancelled=lambda: False)


def test_a_surrogate_answers_between_recorded_points_and_says_so(tmp_path):
    file = tmp_path / "recording.json"
    file.write_text(json.dumps(smooth_rows()))
    evaluator, heard = RecordedEvaluator(path=str(file), missing="surrogate"), []
    evaluator.prepare([], heard.append)
    assert any("by the surrogate" in text for text in heard)
    point = {MICRO: 6, LR: 3e-4}
    outcome = ask(evaluator, point)
    assert speed(outcome) == pytest.approx(100.0 * 6**0.5, rel=0.1)
    assert outcome.measurement.step_time_s == pytest.approx(64 / speed(outcome))
    assert outcome.measurement.held_out_loss_after == pytest.approx(5.0 + 0.3 * math.log10(3e-4), abs=0.1)
    assert outcome.measurement.remarks[-1] == "interpolated between recorded configurations"
    assert ask(evaluator, point) == outcome
    assert speed(ask(evaluator, point, repeat=1)) != speed(outcome)


def test_kernels_that_were_kept_are_used_again(tmp_path):
    rows = smooth_rows()
    fitted = Interpolation(Recording(rows))
    kept = {"kernels": fitted.kernels()}
    again = Interpolation(Recording([*rows, kept]))
    assert again.kernels() == kept["kernels"]
    request = TrialRequest(
        number=1, point={MICRO: 6, LR: 3e-4}, ds_config={"train_batch_size": 64}, budget=Budget(steps=1)
    )
    assert speed(again.outcome(request)) == pytest.approx(speed(fitted.outcome(request)))


def test_a_point_beside_a_failure_fails(tmp_path):
    rows = smooth_rows()
    rows.append(row(99, {MICRO: 4096, LR: 1e-3}, None))
    request = TrialRequest(
        number=1, point={MICRO: 2048, LR: 1e-3}, ds_config={"train_batch_size": 64}, budget=Budget(steps=1)
    )
    assert Interpolation(Recording(rows)).outcome(request).failure.kind is FailureKind.OUT_OF_MEMORY
