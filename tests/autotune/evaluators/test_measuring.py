"""Measurements put together from what ranks wrote down: no process runs here."""

import pytest

from autotune.evaluators.script_files import ENGINE_FILE, STEPS_FILE, EngineRecord, StepRecord
from autotune.evaluators.script_worker.measuring import RankRecord, loss_at, measure, training_time_s
from autotune.trials import Budget, FailureKind, TrialRequest


def engine(**more):
    values = {
        "config_hash": "a",
        "effective": {"zero_optimization.stage": 2},
        "warmup_steps": 1,
        "micro_batch_size": 8,
        "accumulation_steps": 2,
        "train_batch_size": 32,
        "trained_parameters": 10,
        "total_parameters": 12,
        "memory_kind": "resident",
    }
    return EngineRecord(**values | more)


def step(time_s=1.0, **more):
    values = {
        "forward_s": 0.25,
        "backward_s": 0.5,
        "optimizer_s": 0.25,
        "loss": 2.0,
        "samples": 16,
        "tokens": 160,
        "micro_steps": 2,
        "skipped_steps": 0,
        "peak_memory_bytes": 1000,
    }
    return StepRecord(time_s=time_s, **values | more)


def rank(*steps, **more):
    return RankRecord(engine=engine(**more), steps=steps)


def steps(times_s=(9.0, 1.0, 1.0, 1.0), losses=(5.0, 4.0, 3.0, 2.0), **more):
    return [step(time_s, loss=loss, **more) for time_s, loss in zip(times_s, losses, strict=True)]


def request(**more):
    return TrialRequest(number=0, point={}, ds_config={}, budget=Budget(steps=3, warmup_steps=1), **more)


def failure(*ranks):
    outcome = measure(request(), ranks)
    assert outcome.failure is not None, outcome.measurement
    return outcome.failure


def test_a_step_takes_as_long_as_its_slowest_rank():
    fast, slow = steps(), steps((9.0, 1.0, 4.0, 4.0), (7.0, 6.0, 5.0, 4.0), peak_memory_bytes=2000)
    measured = measure(request(), [rank(*fast), rank(*slow)]).measurement
    assert measured.step_time_s == 4.0
    assert (measured.timed_steps, measured.warmup_steps) == (3, 1)
    assert (measured.samples_per_step, measured.samples_per_second) == (32, 8.0)
    assert measured.tokens_per_second == 80.0
    assert measured.training_time_s == 1.0 + 4.0 + 4.0 + 4.0  # the warm-up at the median
    assert (measured.held_out_loss_before, measured.training_loss_last) == (6.0, 3.0)
    assert measured.peak_memory_bytes == (1000, 2000)
    assert measured.loss_source == "training"
    assert measured.remarks == ()


def test_steps_that_only_one_rank_did_are_left_out():
    measured = measure(request(), [rank(*steps(), step(1.0)), rank(*steps())]).measurement
    assert measured.timed_steps == 3


def test_what_was_fed_is_counted_and_what_differs_is_remarked():
    fed = [rank(*steps(samples=4, micro_steps=1), differences=("seed: sent 1, runs 2",)) for _ in range(2)]
    measured = measure(request(), fed).measurement
    assert measured.samples_per_step == 8
    said = " ".join(measured.remarks)
    for words in ("seed: sent 1, runs 2", "1 micro-batches for each optimizer step", "feeds 8 samples"):
        assert words in said


def test_where_samples_can_not_be_counted_the_engine_says_them():
    measured = measure(request(), [rank(*steps(samples=None, tokens=None)) for _ in range(2)]).measurement
    assert measured.samples_per_step == 32
    assert measured.tokens_per_second is None


@pytest.mark.parametrize(
    ("ranks", "kind", "words"),
    [
        ([rank(*steps()), RankRecord(engine=None, steps=())], FailureKind.CRASH, "without an engine of its own"),
        (
            [rank(*steps()), rank(*steps(), config_hash="b")],
            FailureKind.INVALID_CONFIG,
            "different configurations (rank 0: a, rank 1: b)",
        ),
        (
            [rank(*[step(skipped_steps=i + 1) for i in range(4)])],
            FailureKind.DIVERGED,
            "skipped every one of 4 optimizer steps",
        ),
        ([rank(*steps()[:3])], FailureKind.CRASH, "only 2 steps were timed; 3 are needed"),
        ([rank(*[step(loss=None)] * 4)], FailureKind.CRASH, "the script's losses can't be seen"),
    ],
)
def test_what_can_not_be_measured(ranks, kind, words):
    failed = failure(*ranks)
    assert failed.kind is kind
    assert words in failed.reason


def test_one_skipped_step_is_no_divergence():
    skipped = [step(skipped_steps=1) for _ in range(4)]
    assert measure(request(), [rank(*skipped)]).measurement.skipped_steps == 1


def test_training_time_of_steps_all_warm_up_but_one():
    assert training_time_s([5.0, 5.0, 2.0], 2) == 6.0


def test_the_loss_is_averaged_over_the_window_before():
    losses, ends_s = [float(10 - i) for i in range(10)], [float(i + 1) for i in range(10)]
    assert loss_at(losses, ends_s, 10.0) == pytest.approx((2.0 + 1.0 + 3.0) / 3)  # at least three
    assert loss_at(losses, ends_s, 5.0) == pytest.approx((7.0 + 6.0 + 5.0) / 3)
    assert loss_at(losses, ends_s, 0.0) == 10.0


def test_a_line_that_is_being_written_is_left_for_the_next_time(tmp_path):
    (tmp_path / ENGINE_FILE).write_text(engine().to_text())
    (tmp_path / STEPS_FILE).write_text(step().to_line() + step(2.0).to_line()[:20])
    record = RankRecord.of(tmp_path)
    assert record.engine == engine()
    assert [each.time_s for each in record.steps] == [1.0]


def test_a_rank_that_never_showed_has_no_record(tmp_path):
    assert RankRecord.of(tmp_path / "rank0") == RankRecord(engine=None, steps=())
