from dataclasses import replace

import numpy as np
import pytest

from autotune.performance.calibration import calibrate
from autotune.performance.memory_filter import MemoryFilter
from tests import calibrated_trials, filtered_trials

SEEDS = range(6)


@pytest.mark.parametrize("calibrated_to", [0, 4, 16])
def test_what_fits_is_never_refused(calibrated_to):
    counts = [filtered_trials.counted(seed, calibrated_to=calibrated_to, points=200) for seed in SEEDS]
    judged, out, caught, wrong = (sum(column) for column in zip(*counts, strict=True))
    assert wrong == 0
    assert judged - out > 700  # so many that fit were judged
    assert caught > (0.05 if calibrated_to == 0 else 0.4) * out


def test_the_recorded_trials_all_pass():
    """None of them came near the memory; on a machine a quarter as large as they need, all are refused."""
    trials = calibrated_trials.everything()
    subject = calibrated_trials.BYTE_GPT
    machine = subject.cluster
    found = calibrate(trials[:16], subject.shape, machine, **subject.fixed)
    judge = MemoryFilter.of(subject.shape, found, **subject.fixed)
    points = [trial.point for trial in trials]
    assert not judge.judge(points).refused.any()
    small = replace(machine, device=replace(machine.device, memory_bytes=1e8))
    assert replace(judge, cluster=small).judge(points).refused.all()
    assert not judge.is_contradicted(trials)
    assert replace(judge, cluster=small).is_contradicted(trials)
    assert not replace(judge, cluster=small).is_contradicted([])


def test_those_left_are_in_the_order_of_their_risk():
    judge = filtered_trials.filter_of(0, filtered_trials.ran(0, 9)[1:])
    points = [
        {"train_micro_batch_size_per_gpu": micro, "zero_optimization.stage": 0} for micro in (4096, 16, 1, 24, 32)
    ]
    said = judge.judge(points)
    assert said.refused[0]
    assert "it needs" in said.reason(0)
    assert set(said.order) == {place for place in range(5) if not said.refused[place]}
    assert said.order[0] == 2
    assert np.all(np.diff(said.probability[said.order]) >= 0)


def test_a_margin_is_kept():
    """At a capacity just below the optimistic need nothing is refused; beyond the margin it is."""
    judge = filtered_trials.filter_of(1, filtered_trials.ran(1, 9)[1:])
    point = [{"train_micro_batch_size_per_gpu": 16, "zero_optimization.stage": 1}]
    needed = float(judge.judge(point).optimistic_bytes[0])

    def refused(capacity):
        device = replace(judge.cluster.device, memory_bytes=capacity)
        return bool(replace(judge, cluster=replace(judge.cluster, device=device)).judge(point).refused[0])

    assert not refused(needed * 0.95)
    assert refused(needed / 1.12)
