"""Validation: interleaved re-measuring, and the verdict on it."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune import campaign as campaigns
from autotune import storage as storages
from autotune import validation
from autotune.errors import StudyError
from autotune.objective import Objective
from autotune.remeasuring import Remeasured, mean_with_interval
from autotune.searchers.optuna import OptunaSearcher
from autotune.study import StopRequest
from autotune.validation import Pair, Validation, Verdict

OBJECTIVE = Objective()


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A finished simulated study of six trials."""
    folder = tmp_path_factory.mktemp("validation")
    start = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
    hardware = {"accelerator": "cpu", "ranks": 2}
    raw = {"name": "sim", "ds_config": start, "evaluator": "simulated", "trials": 6, "hardware": hardware}
    raw |= {"simulated": {"workload_seed": 1}}  # one where some of so few trials beat the baseline
    storage = storages.connect(f"sqlite:///{folder}/autotune.db")
    stored = campaigns.create(campaigns.parse(raw, where="test"), storage, name="sim")
    with campaigns.study(stored) as study:
        study.run(OptunaSearcher(study.space, sampler="random", seed=0))
    yield stored
    storage.close()


@pytest.fixture(scope="module")
def trials(stored):
    """Its best trial and its baseline."""
    summary = campaigns.summary(stored)
    return summary.best, summary.baseline


@pytest.fixture
def judged(trials):
    """Judge pairs given as ((baseline speed, learning), (best speed, learning)); None is a failed run."""
    best, baseline = trials

    def remeasured(figures):
        if figures is None:
            return Remeasured(failure="CRASH: it broke")
        return Remeasured(samples_per_second=figures[0], convergence_per_second=figures[1])

    def judge(*figures, repeats=None, claimed=2.0):
        pairs = [
            Pair(baseline=remeasured(base), best=remeasured(top), best_first=index % 2 == 1)
            for index, (base, top) in enumerate(figures)
        ]
        claim = replace(best, score=claimed, throughput_ratio=claimed, convergence_ratio=claimed)
        repeats = len(pairs) if repeats is None else repeats
        return validation.judge(pairs, best=claim, baseline=baseline, repeats=repeats, objective=OBJECTIVE)

    return judge


def test_runs_are_interleaved_and_nothing_is_recorded(stored, trials, monkeypatch):
    best, baseline = trials
    heard, order = [], []
    with campaigns.study(stored) as study:
        remeasure = study.remeasure
        monkeypatch.setattr(study, "remeasure", lambda trial: order.append(trial.number) or remeasure(trial))
        result = validation.validate(
            study,
            best=best,
            baseline=baseline,
            repeats=4,
            objective=OBJECTIVE,
            on_pair=lambda *news: heard.append(news),
        )
    assert order == [0, best.number, best.number, 0, 0, best.number, best.number, 0]
    assert [news[:2] for news in heard] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert [pair.best_first for pair in result.pairs] == [False, True, False, True]
    assert len(stored.trials()) == 6
    ratio = {ratio.name: ratio for ratio in result.ratios}
    assert ratio["throughput"].value == pytest.approx(best.throughput_ratio, rel=0.1)
    assert ratio["R"].value == pytest.approx(best.score, rel=0.1)
    assert ratio["R"].claimed == best.score
    assert result.verdict is Verdict.HOLDS
    assert not any("no noise" in note for note in result.notes)


def test_figures_that_never_move_are_said_to_have_no_noise(judged):
    result = judged(*[((100, 1.0), (150, 1.4))] * 3)
    assert result.verdict is Verdict.HOLDS
    assert any("no noise" in note for note in result.notes)


def test_it_goes_through_json(judged):
    result = judged(((100, 1.0), (150, 1.4)), ((101, 1.1), (153, 1.5)), (None, (150, 1.4)))
    assert Validation.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_a_stop_ends_it(stored, trials, monkeypatch):
    best, baseline = trials
    stop = StopRequest()
    with campaigns.study(stored, stop=stop) as study:
        remeasure = study.remeasure
        monkeypatch.setattr(study, "remeasure", lambda trial: None if stop.wanted else remeasure(trial))
        result = validation.validate(
            study, best=best, baseline=baseline, repeats=3, objective=OBJECTIVE, on_pair=lambda *_: stop()
        )
    assert len(result.pairs) == 1
    assert result.verdict is Verdict.CANNOT_TELL
    assert "Stopped after 1 of 3 pairs." in result.notes


def test_it_holds(judged):
    result = judged(((100, 1.0), (150, 1.4)), ((102, 1.1), (151, 1.5)), ((99, 1.0), (148, 1.4)), claimed=3.0)
    assert result.verdict is Verdict.HOLDS
    assert result.headline.startswith("The gain holds: measured again 3 times each, the best has 1.49x (1.4")
    assert any("less than claimed (the winner's curse)" in note for note in result.notes)
    score = result.ratios[-1]
    assert score.low < score.value < score.high < score.claimed


def test_it_does_not_hold(judged):
    result = judged(((100, 1.0), (80, 0.7)), ((102, 1.1), (82, 0.8)), ((99, 1.0), (79, 0.75)))
    assert result.verdict is Verdict.DOES_NOT_HOLD


def test_noise_leaves_it_open(judged):
    result = judged(((100, 1.0), (130, 1.2)), ((120, 1.4), (95, 0.9)))
    assert result.verdict is Verdict.CANNOT_TELL
    assert "1.00x is within the interval of R" in result.headline


def test_failures_are_told_of(judged):
    always = judged(((100, 1.0), None), ((100, 1.0), None))
    assert always.verdict is Verdict.DOES_NOT_HOLD
    assert "failed all 2 times" in always.headline
    assert "The best failed in 2 runs: CRASH: it broke" in always.notes
    good = ((100, 1.0), (150, 1.4))
    sometimes = judged(good, good, ((100, 1.0), None))
    assert sometimes.verdict is Verdict.CANNOT_TELL
    assert "1 of 3 runs" in sometimes.headline
    baseline = judged(good, ((101, 1.0), (150, 1.4)), (None, (150, 1.4)))
    assert baseline.verdict is Verdict.HOLDS
    assert len(baseline.ratios[0].pairs) == 2


def test_nothing_measured(judged):
    assert judged(repeats=2).verdict is Verdict.CANNOT_TELL
    assert judged((None, (150, 1.4))).verdict is Verdict.CANNOT_TELL


def test_convergence_that_is_not_positive(judged):
    result = judged(((100, 1.0), (150, -0.1)), ((100, 1.2), (150, 0.5)))
    convergence = result.ratios[1]
    assert convergence.value == pytest.approx(0.4 / 2.2)
    assert convergence.low < convergence.value < convergence.high


def test_a_baseline_that_does_not_learn(judged):
    result = judged(((100, -1.0), (150, 0.5)), ((100, 0.5), (150, 0.5)))
    assert result.ratios[1].value is None
    assert result.ratios[-1].value == pytest.approx(1.5)
    assert "convergence" not in result.headline


def test_what_is_useless_is_refused(stored, trials):
    best, baseline = trials
    failed = replace(best, outcome=None)
    with campaigns.study(stored) as study:
        for arguments, message in (
            ({"best": baseline, "baseline": baseline, "repeats": 3}, "the baseline itself"),
            ({"best": failed, "baseline": baseline, "repeats": 3}, "no measurement"),
            ({"best": best, "baseline": baseline, "repeats": 2}, "at least 3"),
        ):
            with pytest.raises(StudyError, match=message):
                validation.validate(study, objective=OBJECTIVE, **arguments)


@given(st.lists(st.floats(0.05, 20), min_size=1, max_size=8))
def test_the_mean_lies_in_its_interval(ratios):
    mean = mean_with_interval(ratios)
    assert mean.value == pytest.approx(math.prod(ratios) ** (1 / len(ratios)))
    if len(ratios) == 1:
        assert mean.low is mean.high is None
    else:
        assert mean.low <= mean.value <= mean.high
        inverse = mean_with_interval([1 / ratio for ratio in ratios])
        assert inverse.low == pytest.approx(1 / mean.high, rel=1e-6)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    draws = np.random.default_rng(0)
    bounds = [mean_with_interval(np.exp(draws.normal(0.3, 0.1, size=4)).tolist()) for _ in range(400)]
    hits = sum(mean.low <= math.exp(0.3) <= mean.high for mean in bounds)
    assert 0.91 <= hits / len(bounds) <= 0.985


def test_a_drift_cancels_out(judged):
    clock = itertools.count()
    pairs = []
    for index in range(4):
        speeds = [100 * (1 + 0.01 * next(clock)), 150 * (1 + 0.01 * next(clock))]
        if index % 2:
            speeds = [100 * speeds[1] / 150, 150 * speeds[0] / 100]
        pairs.append(((speeds[0], 1.0), (speeds[1], 1.0)))
    assert judged(*pairs).ratios[0].value == pytest.approx(1.5, rel=1e-3)
