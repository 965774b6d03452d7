"""Calibrated search: its contract, its first proposal, its quick configurations, and that it learns."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad

from autotune import ds_config as config_file
from autotune.campaign.calibrating import refuse_unknown_machines
from autotune.campaign.sections import parse
from autotune.cli import searchers
from autotune.errors import CampaignError, SearcherError, StudyError
from autotune.objective import Objective
from autotune.performance import Configurations, ModelShape, cluster
from autotune.performance.calibration import Parameters, calibration_priors, configurations_of
from autotune.performance.expected_scores import expected_scores
from autotune.performance.subject import Subject
from autotune.searchers.calibrated import CalibratedSearcher
from autotune.searchers.calibrated.acquisition import expected_improvement
from autotune.searchers.calibrated.encodings import EncodedSpace
from autotune.searchers.calibrated.residuals import ADDITIVE, Kernel, Residuals
from autotune.searchers.knowledge import StudyKnowledge
from autotune.searchers.optuna import OptunaSearcher
from autotune.space import ACCUMULATION, MICRO_BATCH
from autotune.testing.searchers import SPACE, SearcherContract, finished_trial
from autotune.trials import Failure, FailureKind, Outcome
from autotune_spaces import SpaceChanges, build
from tests.benchmarks.search import course, knowledge_of
from tests.benchmarks.simulated_workloads import HARDWARE, SimulatedWorkload

OVERLAP = "zero_optimization.overlap_comm"
CHECKPOINTING = config_file.ACTIVATION_CHECKPOINTING
SUBJECT = Subject(
    shape=ModelShape.from_numbers(layers=12, hidden=1024, sequence=512, vocabulary=32000),
    cluster=cluster("A100-SXM-40GB", devices=4),
    fixed={"flash_attention": 1.0},
)
DS_CONFIG = {
    MICRO_BATCH: 1,
    ACCUMULATION: 1,
    "train_batch_size": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
}


def knowledge(**changes) -> StudyKnowledge:
    known = {
        "ds_config": DS_CONFIG,
        "activation_checkpointing": False,
        "world_size": 4,
        "objective": Objective(),
        "training_s": 10.0,
        "subject": lambda trials: SUBJECT,
    }
    return StudyKnowledge(**{**known, **changes})


class TestCalibratedSearcher(SearcherContract):
    def make(self, space, seed):
        return CalibratedSearcher(space, knowledge(), seed=seed)


FILES = {
    "stage 3, overlap not said": {"zero_optimization": {"stage": 3}},
    "stage 0": {"fp16": {"enabled": True, "loss_scale": 0}},
    "offloaded to NVMe": {
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}, "stage3_prefetch_bucket_size": 7},
        "optimizer": {"type": "Lion", "params": {"lr": 2e-4}},
    },
    "other keys": {
        "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 5e7},
        "activation_checkpointing": {"partition_activations": True, "cpu_checkpointing": True},
    },
}
CHANGES = {
    "default": SpaceChanges(),
    "narrow": SpaceChanges(remove=[OVERLAP, "precision"], fix={MICRO_BATCH: 4, CHECKPOINTING: True}),
    "global batch": SpaceChanges(global_batch_size=512),
    "more": SpaceChanges(
        add=[{"name": "zero_optimization.zero_hpz_partition_size", "type": "integer", "levels": [1, 2, 4]}]
    ),
}


@pytest.mark.parametrize(("file", "changes"), list(itertools.product(FILES, CHANGES)))
def test_quick_configurations_are_those_of_the_trials(file, changes):
    ds_config = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, **FILES[file]}
    ds_config = config_file.complete(ds_config, world_size=HARDWARE.ranks)
    start = {**config_file.settings_of(ds_config), CHECKPOINTING: False}
    space = build(CHANGES[changes], HARDWARE, start=start)
    encoded = EncodedSpace(
        space, ds_config, activation_checkpointing=False, world_size=HARDWARE.ranks, fixed={"flash_attention": 1.0}
    )
    drawn = np.random.default_rng(0).integers(space.sizes, size=(60, len(space.sizes))).astype(np.int16)
    canonical = encoded.canonical(drawn)
    points = [space.decode(row) for row in drawn]
    assert [tuple(row) for row in canonical] == [space.encode(point) for point in points]
    trials = [
        replace(
            finished_trial(1, point, 1.0),
            ds_config=config_file.build(ds_config, space.settings(point), world_size=HARDWARE.ranks),
            activation_checkpointing=bool(space.settings(point)[CHECKPOINTING]),
        )
        for point in points
    ]
    expected = configurations_of(trials, flash_attention=1.0)
    for rows in (drawn, canonical):
        found = encoded.configurations(rows)
        for name in Configurations.__slots__:
            wanted = np.broadcast_to(getattr(expected, name), len(points))
            np.testing.assert_array_equal(np.broadcast_to(getattr(found, name), len(points)), wanted, err_msg=name)


def test_neighbours_differ_by_one_level_and_are_canonical():
    encoded = EncodedSpace(SPACE, DS_CONFIG, activation_checkpointing=False, world_size=4, fixed={})
    start = SPACE.encode(
        {"zero_optimization.stage": 0, MICRO_BATCH: 4, "optimizer.params.lr": 1e-3, "precision": "bf16"}
    )
    found = {tuple(int(level) for level in row) for row in encoded.neighbours(np.array([start], dtype=np.int16))}
    # 3 other stages, 4 micro-batches, 3 rates, 1 precision; live parameters have no effect at stage 0
    assert len(found) == 1 + 3 + 4 + 3 + 1
    assert all(SPACE.encode(SPACE.decode(code)) == code for code in found)


def test_the_first_proposal_is_the_robust_optimum():
    """Of all 240 points by another, larger draw of the priors: the searcher's own draw has 32 members."""
    points = list(SPACE.points())
    configurations = Configurations.from_points(points, **SUBJECT.fixed)
    start = Configurations.from_points([{**DS_CONFIG, "optimizer.params.lr": 1e-3}], **SUBJECT.fixed)
    drawn = Parameters.sample(calibration_priors(is_cpu=False), 500, seed=99)
    found = expected_scores(
        SUBJECT, drawn, configurations, reference=start, convergence_at_s=10.0, objective=Objective()
    )
    worth = found.value.mean(axis=0)
    first = CalibratedSearcher(SPACE, knowledge(), seed=0).ask()
    assert worth[points.index(first)] > 0.8 * worth.max() > 1.5 * np.median(worth)


def test_expected_improvement_is_the_integral():
    mean, deviation, best = 0.1, 0.5, 1.2

    def integrand(z: float) -> float:
        gain = max(math.exp(mean + deviation * z) - best, 0.0)
        return gain * math.exp(-(z**2) / 2.0) / math.sqrt(2.0 * math.pi)

    cut = (math.log(best) - mean) / deviation
    wanted = quad(integrand, cut, 12.0)[0]
    found = expected_improvement(np.array([mean]), np.array([deviation]), best)
    assert found[0] == pytest.approx(wanted, rel=1e-6)


def test_a_residual_is_believed_where_it_was_seen_and_less_elsewhere():
    levels = np.array([[0.0, 0.5, 1.0], [0.5, 0.0, 0.5], [1.0, 0.5, 0.0]])
    points = np.eye(3)
    kernel = Kernel((levels,), 1.0)
    # Matern 5/2 at .5 and 1: (1 + 5^.5 d + 5/3 d^2) exp(-5^.5 d); of one dimension both parts are the same
    near, far = 0.8286491, 0.5239941
    np.testing.assert_allclose(kernel.between(points, points)[0], [1.0, near, far], rtol=1e-6)
    found = Residuals([kernel], points[:1], np.array([[0.5], [-0.5]]))
    mean, deviation = found.at(points)
    shrunk = found.amplitude**2 / (found.amplitude**2 + found.noise**2)
    np.testing.assert_allclose(mean, np.outer([0.5, -0.5], [shrunk, shrunk * near, shrunk * far]), rtol=1e-6)
    left = found.amplitude * np.sqrt(1.0 - shrunk * np.array([1.0, near, far]) ** 2)
    np.testing.assert_allclose(deviation, left, rtol=1e-6)
    assert 0.0 < ADDITIVE < 1.0


def test_levels_without_order_are_all_as_far_apart():
    encoded = EncodedSpace(SPACE, DS_CONFIG, activation_checkpointing=False, world_size=4, fixed={})
    by_name = dict(zip(SPACE.names, encoded.distances, strict=True))
    np.testing.assert_allclose(by_name["precision"], [[0.0, 1.0], [1.0, 0.0]])
    np.testing.assert_allclose(by_name[MICRO_BATCH][0], [0.0, 0.25, 0.5, 0.75, 1.0])


@pytest.mark.parametrize("seed", [2001, 2004])
def test_it_learns_far_faster_than_random(seed):
    """Best R after 8 trials beside the start, failures counting nothing."""
    workload = SimulatedWorkload(seed)
    calibrated = CalibratedSearcher(workload.space, knowledge_of(workload), seed=1)
    found, _ = course(workload, calibrated, 8)
    at_random = [course(workload, OptunaSearcher(workload.space, sampler="random", seed=s), 8)[0] for s in range(5)]
    best = [max(score or 0.0 for score in scores) for scores in at_random]
    assert max(score or 0.0 for score in found) > 1.4 * np.mean(best)


def test_a_point_whose_like_all_crashed_is_not_the_next():
    """The model sees no reason why they should; without these crashes the point is the first."""
    first = CalibratedSearcher(SPACE, knowledge(), seed=0).ask()
    encoded = EncodedSpace(SPACE, DS_CONFIG, activation_checkpointing=False, world_size=4, fixed={})
    near = encoded.neighbours(np.array([SPACE.encode(first)], dtype=np.int16))
    alike = {tuple(int(level) for level in row) for row in near} - {SPACE.encode(first)}
    crash = Outcome(failure=Failure(kind=FailureKind.CRASH, reason="made up"))
    searcher = CalibratedSearcher(SPACE, knowledge(), seed=0)
    for number, code in enumerate(sorted(alike), 1):
        searcher.tell(replace(finished_trial(number, SPACE.decode(code), None), outcome=crash))
    next_code = SPACE.encode(searcher.ask())
    assert sum(one != other for one, other in zip(next_code, SPACE.encode(first), strict=True)) > 1


def test_what_only_the_baseline_can_tell_is_said_in_words():
    def subject(trials):
        raise StudyError("calibration: no trial has counted the model's parameters; run some first")

    searcher = CalibratedSearcher(SPACE, knowledge(subject=subject))
    with pytest.raises(SearcherError, match=r"calibrated needs the performance model: .*parameters.*--searcher tpe"):
        searcher.ask()


def test_a_gpu_that_the_model_does_not_know_is_refused_before_anything_is_made():
    campaign = parse({"name": "c", "searcher": "calibrated", "ds_config": DS_CONFIG}, where="test")
    with pytest.raises(CampaignError, match=r"searcher: device: got 'simulated'.*--searcher tpe"):
        refuse_unknown_machines(campaign, HARDWARE, because="searcher")


def test_another_searcher_s_state_is_refused():
    with pytest.raises(SearcherError, match="start a new study"):
        CalibratedSearcher(SPACE, knowledge()).restore({"proposals": "1"}, [])


def test_it_is_made_by_name_and_knows_its_study():
    workload = SimulatedWorkload(2001)
    made = searchers.create(
        "calibrated",
        workload.space,
        seed=0,
        trial_budget=8,
        hardware=HARDWARE,
        knowledge=lambda: knowledge_of(workload),
    )
    assert isinstance(made, CalibratedSearcher)
    with pytest.raises(CampaignError, match="give knowledge"):
        searchers.create("calibrated", workload.space, seed=0, trial_budget=8, hardware=HARDWARE)


def test_a_refusal_of_the_memory_filter_is_no_evidence_of_memory():
    """It is never proposed, and what the searcher takes from its trials is the same without it."""
    workload = SimulatedWorkload(2001)
    with_it, without = (CalibratedSearcher(workload.space, knowledge_of(workload), seed=1) for _ in range(2))
    start = finished_trial(0, workload.start.point, 1.0, is_baseline=True)
    for searcher in (with_it, without):
        searcher.tell(start)
    refused = without.ask()
    failure = Failure(kind=FailureKind.OUT_OF_MEMORY, reason="refused")
    with_it.tell(replace(finished_trial(-1, refused, None), outcome=Outcome(failure=failure)))
    assert with_it.ask() != refused
    assert with_it.state()["solution"] == without.state()["solution"]


def test_it_begins_with_what_an_earlier_study_found():
    known = calibration_priors(is_cpu=False)
    found = []
    for factor in (0.1, 10.0):  # of the learning rate that is the best by Kaplan et al. 2020
        prior = {**known, "learning_rate": replace(known["learning_rate"], mean=factor, spread=0.01)}
        found.append(CalibratedSearcher(SPACE, knowledge(prior=prior), seed=0).ask()["optimizer.params.lr"])
    assert found[0] < found[1]
