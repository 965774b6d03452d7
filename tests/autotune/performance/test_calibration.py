import json
import time
from dataclasses import replace

import numpy as np
import pytest

from autotune import campaign as campaigns
from autotune import storage as storages
from autotune.campaign.calibrating import calibrate_study, kept_calibration, subject_of
from autotune.errors import ResourceError, StudyError
from autotune.evaluators import simulated_workload
from autotune.hardware import Hardware
from autotune.performance import ModelShape, cluster, priors
from autotune.performance.calibration import (
    WORKLOAD,
    Calibration,
    Observations,
    Parameters,
    calibrate,
    calibration_priors,
    left_out,
    predict,
)
from autotune.performance.calibration.fitting import MOST_TRIALS
from autotune.performance.learning_curve import loss_drop
from autotune.performance.machines import cluster_of, table_name
from autotune.searchers.optuna import OptunaSearcher
from autotune.testing.searchers import finished_trial
from autotune.trials import Failure, FailureKind, Measurement, Outcome, Trial
from tests import calibrated_trials, filtered_trials

SHAPE = ModelShape.from_numbers(layers=12, hidden=1024, sequence=512, vocabulary=32000)
CLUSTER = cluster("A100-SXM-40GB", devices=4)
GIGA = 1e9


def trial(number, *, failure=None, measurement=None, **point):
    """A finished trial at this point."""
    named = {
        "zero_optimization.stage": point.get("stage", 1),
        "train_micro_batch_size_per_gpu": point.get("micro", 8),
        "gradient_accumulation_steps": point.get("accumulation", 1),
        "optimizer.params.lr": point.get("rate", 1e-4),
        "precision": point.get("precision", "bf16"),
    }
    failed = Failure(kind=failure, reason="it did") if failure else None
    outcome = Outcome(failure=failed, measurement=measurement)
    return Trial(
        number=number,
        state=outcome.state,
        is_baseline=number == 0,
        point=named,
        ds_config={},
        activation_checkpointing=point.get("checkpointing", False),
        config_hash=str(number),
        outcome=outcome,
    )


def measured(step_s, *, memory_bytes=10 * GIGA, after=8.0):
    return Measurement(
        samples_per_second=32 / step_s,
        samples_per_second_spread=0.01,
        step_time_s=step_s,
        timed_steps=10,
        warmup_steps=2,
        samples_per_step=32,
        training_time_s=10.0,
        held_out_loss_before=10.0,
        held_out_loss_after=after,
        convergence_time_s=10.0,
        training_loss_last=after,
        peak_memory_bytes=(int(memory_bytes),),
        memory_kind="allocated",
    )


def drawn(count, *, seed):
    """Configurations at random."""
    generator = np.random.default_rng(seed)
    return [
        {
            "stage": int(generator.integers(4)),
            "micro": int(2 ** generator.integers(6)),
            "accumulation": int(2 ** generator.integers(4)),
            "precision": ("fp32", "bf16")[generator.integers(2)],
            "checkpointing": bool(generator.integers(2)),
        }
        for _ in range(count)
    ]


def world(seed):
    """Hidden parameters, drawn from the priors."""
    known = calibration_priors(is_cpu=False)
    at = np.random.default_rng(seed).standard_normal(len(known)) * [p.spread for p in known.values()]
    return Parameters.from_logarithms(at + np.log([p.mean for p in known.values()]), names=list(known))


def trials_of(truth, points, *, noise=0.0, seed=0, slow=()):
    """Trials as they would be measured in a world; those in `slow` took four times as long."""
    asked = [trial(number, measurement=measured(1.0), **point) for number, point in enumerate(points)]
    seen = predict(SHAPE, CLUSTER, Observations.of(asked), truth)
    off = noise * np.random.default_rng(seed).standard_normal(len(points))
    found = []
    for number, point in enumerate(points):
        step_s = float(np.exp(seen.measured["step_time"][number] + off[number])) * (4.0 if number in slow else 1.0)
        memory = float(np.exp(seen.measured["memory"][number]))
        found.append(trial(number, measurement=measured(step_s, memory_bytes=memory), **point))
    return found


def step_times(truth, points):
    asked = [trial(number, measurement=measured(1.0), **point) for number, point in enumerate(points)]
    return np.exp(predict(SHAPE, CLUSTER, Observations.of(asked), truth).measured["step_time"])


class TestFit:
    @pytest.mark.parametrize("seed", range(4))
    def test_other_configurations_of_an_unknown_world_are_foretold(self, seed):
        truth, others = world(seed), drawn(100, seed=100 + seed)
        slow = (3, 17, 29)
        found = calibrate(trials_of(truth, drawn(32, seed=seed), noise=0.03, seed=seed, slow=slow), SHAPE, CLUSTER)
        off = np.abs(step_times(found.parameters(), others) / step_times(truth, others) - 1)
        medians = Parameters.from_logarithms(
            np.log([p.mean for p in calibration_priors(is_cpu=False).values()]), names=found.names
        )
        before = np.abs(step_times(medians, others) / step_times(truth, others) - 1)
        assert np.median(off) < 0.05
        assert np.median(off) < 0.5 * np.median(before)

    def test_the_truth_is_inside_the_ensemble(self):
        """Of many configurations of several worlds, about 9 in 10 lie inside the central 90 %."""
        inside = []
        for seed in range(6):
            truth, others = world(seed), drawn(50, seed=100 + seed)
            found = calibrate(trials_of(truth, drawn(16, seed=seed), noise=0.05, seed=seed), SHAPE, CLUSTER)
            low, high = np.quantile(step_times(found.ensemble(256), others), (0.05, 0.95), axis=0)
            inside.append(np.mean((low <= step_times(truth, others)) & (step_times(truth, others) <= high)))
        assert 0.75 <= np.mean(inside) <= 1.0

    def test_running_out_of_memory_says_that_more_was_needed(self):
        points = [{"micro": micro, "stage": 1} for micro in (4, 8, 16)]
        fits = trials_of(world(0), points)
        kept = calibrate([*fits], SHAPE, CLUSTER)
        asked = trial(9, measurement=measured(1.0), micro=32, stage=1)

        def needed(found):
            seen = Observations.of([asked])
            return float(predict(SHAPE, CLUSTER, seen, found.parameters()).needed_bytes[0])

        capacity = needed(kept) * 1.15  # the model says that it would fit
        small = replace(CLUSTER, device=replace(CLUSTER.device, memory_bytes=capacity))
        out = [trial(3 + n, failure=FailureKind.OUT_OF_MEMORY, micro=32, stage=1) for n in range(2)]
        told = calibrate([*fits, *out], SHAPE, small)
        assert needed(told) > needed(calibrate(fits, SHAPE, small)) * 1.03
        assert told.fitted.observations["out_of_memory"] == 2

    def test_divergence_lowers_the_best_learning_rate(self):
        fine = [trial(n, measurement=measured(0.3), rate=1e-4) for n in range(4)]
        gone = [trial(4 + n, failure=FailureKind.DIVERGED, rate=3e-4) for n in range(4)]

        def bears(found):
            asked = Observations.of([trial(9, measurement=measured(0.3), rate=3e-4)])
            return float(predict(SHAPE, CLUSTER, asked, found.parameters()).divergence_probability[0])

        assert bears(calibrate([*fine, *gone], SHAPE, CLUSTER)) > 0.5 > bears(calibrate(fine, SHAPE, CLUSTER))

    def test_other_failures_tell_nothing(self):
        with pytest.raises(StudyError, match="got 1 trials, none of them measured"):
            calibrate([trial(0, failure=FailureKind.CRASH)], SHAPE, CLUSTER)

    def test_sixty_four_trials_take_a_few_seconds_at_most(self):
        trials = trials_of(world(1), drawn(64, seed=1), noise=0.05)
        begun_s = time.process_time()
        calibrate(trials, SHAPE, CLUSTER)
        assert time.process_time() - begun_s < 5.0


class TestRecordedTrials:
    """On two busy cores, where one configuration's step time differs by a factor of two between hours."""

    @pytest.fixture(scope="class")
    @classmethod
    def errors(cls):
        trials = calibrated_trials.everything()
        runs = [calibrated_trials.held_out(trials, 16, seed)[0] for seed in range(6)]
        return {kind: calibrated_trials.mean([run[kind] for run in runs]) for kind in calibrated_trials.KINDS}

    def test_step_times_left_out(self, errors):
        found = errors["step_time"]
        before = calibrated_trials.before(calibrated_trials.everything())["step_time"]
        null = calibrated_trials.mean(
            [calibrated_trials.null(calibrated_trials.everything(), 16, seed) for seed in range(6)]
        )
        assert found.median < 0.33 < before.median
        assert found.median < null.median
        assert found.spearman > 0.85
        assert 0.75 < found.inside < 0.97

    def test_memory_left_out(self, errors):
        assert errors["memory"].median < 0.04
        assert errors["memory"].inside > 0.8

    def test_losses_left_out(self, errors):
        """The drop of the held-out loss, by batch and learning rate."""
        assert errors["loss"].median < 0.2
        assert errors["loss"].spearman > 0.9


class TestCalibration:
    @pytest.fixture(scope="class")
    @classmethod
    def found(cls):
        return calibrate(trials_of(world(2), drawn(12, seed=2), noise=0.05), SHAPE, CLUSTER)

    def test_it_goes_through_json(self, found):
        assert Calibration.from_json(json.loads(json.dumps(found.to_json()))) == found
        newer = {**json.loads(json.dumps(found.to_json())), "of_a_newer_version": 1}
        assert Calibration.from_json(newer) == found

    def test_it_says_what_it_was_fitted_to(self, found):
        assert found.fitted.trials == 12
        assert found.fitted.observations["step_time"] == found.fitted.observations["memory"] == 12
        assert found.fitted.observations["forward"] == 0
        assert (found.fitted.device_name, found.fitted.ranks) == ("A100-SXM-40GB", 4)

    def test_an_ensemble_is_drawn_again_by_its_seed(self, found):
        members = found.ensemble(8, seed=3)
        assert np.shape(members.coefficients.matmul_efficiency) == np.shape(members.half_rate) == (8, 1)
        again = found.ensemble(8, seed=3).coefficients.host_layer_s
        assert np.array_equal(members.coefficients.host_layer_s, again)

    def test_the_machine_carries_over_and_the_workload_does_not(self, found):
        prior, table = found.as_prior(), calibration_priors(is_cpu=False)
        means = dict(zip(found.names, np.exp(found.mean), strict=True))
        for name, each in prior.items():
            if name in WORKLOAD:
                assert each == table[name]
            else:
                assert each.mean == pytest.approx(means[name])
                assert each.spread <= table[name].spread * 1.01
        assert priors().keys() <= prior.keys() >= WORKLOAD

    def test_an_earlier_study_helps_the_next(self, found):
        truth, points, few = world(2), drawn(100, seed=8), drawn(3, seed=9)
        alone = calibrate(trials_of(truth, few), SHAPE, CLUSTER)
        helped = calibrate(trials_of(truth, few), SHAPE, CLUSTER, prior=found.as_prior())

        def error(each):
            return np.median(np.abs(step_times(each.parameters(), points) / step_times(truth, points) - 1))

        assert error(helped) < error(alone)


def test_a_study_keeps_its_calibration(tmp_path):
    raw = {
        "name": "s",
        "evaluator": "simulated",
        "hardware": {"ranks": 2, "accelerator": "cpu"},
        "trials": 8,
        "ds_config": {"train_batch_size": 16, "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}},
    }
    storage = storages.connect(f"sqlite:///{tmp_path}/c.db")
    stored = campaigns.create(campaigns.parse(raw, where="test"), storage, name="s")
    assert kept_calibration(stored) is None
    with pytest.raises(StudyError, match="run some first"):
        calibrate_study(stored)
    with campaigns.study(stored) as study:
        study.run(OptunaSearcher(study.space, sampler="random", seed=0))
    found = calibrate_study(stored)
    assert json.dumps(kept_calibration(storage.open("s")).to_json()) == json.dumps(found.to_json())  # it may hold NaN
    assert found.fitted.trials == 8
    storage.close()


def test_the_learning_curve_by_hand():
    # 0.5 (1 - (1 + 3)^-0.5) = 0.25
    assert loss_drop(3e5, reach=0.5, scale=1e5, power=0.5) == pytest.approx(0.25)
    assert loss_drop(0.0, reach=0.5, scale=1e5, power=0.5) == 0.0


class TestMachines:
    def test_a_cpu_machines_cores_are_shared_out(self):
        hardware = Hardware(
            accelerator="cpu",
            device_name="some CPU",
            device_count=1,
            device_memory_bytes=64_000_000_000,
            host_memory_bytes=64_000_000_000,
            cpu_count=16,
            ranks=4,
        )
        found = cluster_of(hardware)
        # 4 of 16 cores at 62.5 Gflop/s each, and a quarter of the memory
        assert found.device.fp32_flops == pytest.approx(250e9)
        assert found.device.memory_bytes == pytest.approx(16e9)
        assert found.devices == 4

    @pytest.mark.parametrize(
        ("called", "gib", "name"),
        [
            ("NVIDIA A100-SXM4-80GB", 80, "A100-SXM-80GB"),
            ("NVIDIA A100-SXM4-40GB", 40, "A100-SXM-40GB"),
            ("NVIDIA A100 80GB PCIe", 80, "A100-PCIe-80GB"),
            ("NVIDIA H100 80GB HBM3", 80, "H100-SXM-80GB"),
            ("NVIDIA H200", 141, "H200-SXM-141GB"),
            ("Tesla V100-SXM2-32GB", 32, "V100-SXM2/3-32GB"),
            ("NVIDIA GeForce RTX 3090", 24, "RTX-3090"),
            ("Tesla T4", 15, "T4"),
        ],
    )
    def test_nvidias_names_are_found_in_the_table(self, called, gib, name):
        assert table_name(called, memory_bytes=gib * 2**30) == name

    @pytest.mark.parametrize("called", ["Tesla P100-SXM2-16GB", "Quadro M4000", "x"])
    def test_an_unknown_one_is_refused(self, called):
        with pytest.raises(ResourceError, match="which is like none of the hardware table's"):
            table_name(called, memory_bytes=16 * 2**30)


@pytest.mark.parametrize(
    ("workload", "tokens_per_second", "sequence"),
    [
        ({"function": "mine:mlp"}, None, 1.0),
        ({"function": "mine:transformer"}, 6400.0, 64.0),
        ({"command": "deepspeed train.py --deepspeed {ds_config}"}, None, 512.0),
    ],
)
def test_the_shape_of_a_workload_that_is_not_built_in(workload, tokens_per_second, sequence):
    """A function that says no tokens trains on vectors; of a command that doesn't tell, text is assumed."""
    campaign = campaigns.parse({"name": "s", "ds_config": {}, "workload": workload}, where="test")
    trial = finished_trial(0, {}, 1.0)  # 100 samples per second
    measurement = replace(
        trial.measurement, tokens_per_second=tokens_per_second, total_parameters=4_260_000, trained_parameters=1_000
    )
    trials = [replace(trial, outcome=replace(trial.outcome, measurement=measurement))]
    shape = subject_of(campaign, calibrated_trials.HARDWARE, trials).shape
    assert (shape.sequence, shape.parameters, shape.trainable) == (sequence, 4_260_000, 1_000)


def test_of_very_many_trials_some_are_taken_from_first_to_last():
    """Two kinds in turns, 1,023 in all: every second of them is of the first kind."""
    first, second = (trial(number, measurement=measured(step), micro=2) for number, step in enumerate((0.5, 5.0)))
    many = [first, second] * (MOST_TRIALS - 1) + [first]
    found = calibrate(many, SHAPE, CLUSTER)
    assert found.fitted.trials == MOST_TRIALS
    assert found.mean == calibrate([first] * MOST_TRIALS, SHAPE, CLUSTER).mean


def test_a_rank_that_was_killed_says_nothing_of_a_gpu_s_memory():
    """As killed by the kernel for the host's memory, at a point that fits: on a GPU it counts for nothing."""
    fits = [trial(number, measurement=measured(0.5), micro=micro) for number, micro in enumerate((1, 2, 4, 8))]
    ran_out = trial(4, failure=FailureKind.OUT_OF_MEMORY, micro=1)
    killed = replace(ran_out, outcome=Outcome(failure=replace(ran_out.failure, exit_code=-9)))
    assert calibrate([*fits, killed], SHAPE, CLUSTER).mean == calibrate(fits, SHAPE, CLUSTER).mean
    assert calibrate([*fits, ran_out], SHAPE, CLUSTER).fitted.observations["out_of_memory"] == 1
    on_cpu = cluster_of(calibrated_trials.HARDWARE)
    assert calibrate([*fits, killed], SHAPE, on_cpu).fitted.observations["out_of_memory"] == 1


def test_trials_left_out_are_foretold_better_than_by_the_priors():
    trials = [each for each in filtered_trials.ran(0, 25) if each.measurement]
    workload = simulated_workload.drawn(0, filtered_trials.RANKS)
    fixed = {"flash_attention": workload.flash_attention}
    checks = left_out(trials, workload.shape, workload.cluster, **fixed)
    assert [check.trial for check in checks] == [each.number for each in trials]
    assert [check.step_time_s.measured for check in checks] == [each.measurement.step_time_s for each in trials]
    for figures in ([c.step_time_s for c in checks], [c.peak_memory_bytes for c in checks]):
        before, after = (np.median([getattr(f, name) for f in figures]) for name in ("error_before", "error_after"))
        assert after < 0.75 * before
    without = trials[9:10]
    alone = left_out(without, workload.shape, workload.cluster, **fixed)
    assert np.isnan(alone[0].step_time_s.after)
    assert alone[0].step_time_s.before == pytest.approx(checks[9].step_time_s.before)


def test_a_trial_s_foretelling_is_that_of_a_fit_to_the_others():
    """Up to eight trials are left out one by one."""
    trials = [each for each in filtered_trials.ran(3, 9) if each.measurement][:6]
    workload = simulated_workload.drawn(3, filtered_trials.RANKS)
    fixed = {"flash_attention": workload.flash_attention}
    check = left_out(trials, workload.shape, workload.cluster, **fixed)[2]
    found = calibrate([*trials[:2], *trials[3:]], workload.shape, workload.cluster, **fixed)
    foretold = predict(workload.shape, workload.cluster, Observations.of(trials[2:3], **fixed), found.parameters())
    assert check.step_time_s.after == pytest.approx(np.exp(foretold.measured["step_time"][0]))
    assert check.peak_memory_bytes.after == pytest.approx(np.exp(foretold.measured["memory"][0]))


def test_a_fit_that_begins_at_the_solution_of_fewer_trials_comes_to_the_same():
    trials = calibrated_trials.everything()[:24]
    subject = calibrated_trials.BYTE_GPT
    shape, machines, fixed = subject.shape, subject.cluster, subject.fixed
    before = calibrate(trials[:23], shape, machines, **fixed)
    anew, onwards = (
        predict(
            shape,
            machines,
            Observations.of(trials, **fixed),
            calibrate(trials, shape, machines, prior=None, begin=begin, **fixed).parameters(),
        )
        for begin in (None, before.solution)
    )
    for kind in ("step_time", "memory", "loss"):
        np.testing.assert_allclose(onwards.measured[kind], anew.measured[kind], atol=0.03)


def test_a_loss_that_hardly_fell_says_at_most_so_much_not_just_so_much():
    """Losses fall by 0.1 and 3 % at rates of 1e-5 and 1e-4: 1 % at the lower would halve the best rate."""
    slow = trial(0, measurement=measured(0.4, after=10.0 * (1 - 0.001)), rate=1e-5)
    fast = trial(1, measurement=measured(0.4, after=10.0 * (1 - 0.03)), rate=1e-4)
    both, alone = (calibrate(told, SHAPE, CLUSTER).coefficients() for told in ([slow, fast], [fast]))
    assert both.learning_rate == pytest.approx(alone.learning_rate, rel=0.02)
