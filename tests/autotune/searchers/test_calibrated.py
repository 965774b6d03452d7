"""Calibrated search: its contract, its first proposal, its quick configurations, and that it learns."""

import itertools
import json
import math

import numpy as np
import pytest

from autotune import ds_config as config_file
from autotune.cli import searchers
from autotune.errors import CampaignError, ResourceError, SearcherError, StudyError
from autotune.objective import Objective
from autotune.performance import Configurations, ModelShape, cluster
from autotune.performance.calibration import configurations_of
from autotune.performance.subject import Subject
from autotune.searchers.calibrated import CalibratedSearcher
from autotune.searchers.calibrated.acquisition import expected_improvement
from autotune.searchers.calibrated.encodings import EncodedSpace
from autotune.searchers.calibrated.residuals import Kernel, Residuals
from autotune.searchers.knowledge import StudyKnowledge
from autotune.space import ACCUMULATION, MICRO_BATCH, GlobalBatch, Integer, SearchSpace
from autotune.study import Start
from autotune.testing.searchers import SPACE, SearcherContract, finished_trial
from autotune.trials import Trial
from autotune_spaces import SpaceChanges, build
from tests.benchmarks import search
from tests.benchmarks.simulated_workloads import HARDWARE, SimulatedWorkload, default_space

OVERLAP = "zero_optimization.overlap_comm"
SUBJECT = Subject(
    shape=ModelShape.from_numbers(layers=12, hidden=1024, sequence=512, vocabulary=32000),
    cluster=cluster("A100-SXM-40GB", devices=4),
    fixed={"flash_attention": 1.0},
)


def knowledge(**changes) -> StudyKnowledge:
    ds_config = {MICRO_BATCH: 1, ACCUMULATION: 1, "train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {}}}
    known = {
        "ds_config": ds_config,
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
    "narrow": SpaceChanges(remove=[OVERLAP, "precision"], fix={MICRO_BATCH: 4, "activation_checkpointing": True}),
    "global batch": SpaceChanges(global_batch_size=512),
    "more": SpaceChanges(
        add=[{"name": "zero_optimization.zero_hpz_partition_size", "type": "integer", "levels": [1, 2, 4]}]
    ),
}


@pytest.mark.parametrize(("file", "changes"), list(itertools.product(FILES, CHANGES)))
def test_quick_configurations_are_those_of_the_trials(file, changes):
    ds_config = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, **FILES[file]}
    ds_config = config_file.complete(ds_config, world_size=HARDWARE.ranks)
    start = {**config_file.settings_of(ds_config), config_file.ACTIVATION_CHECKPOINTING: False}
    space = build(CHANGES[changes], HARDWARE, start=start)
    encoded = EncodedSpace(
        space, ds_config, activation_checkpointing=False, world_size=HARDWARE.ranks, fixed={"flash_attention": 1.0}
    )
    generator = np.random.default_rng(0)
    drawn = generator.integers(space.sizes, size=(60, len(space.sizes))).astype(np.int16)
    canonical = encoded.canonical(drawn)
    points = [space.decode(row) for row in drawn]
    assert [tuple(row) for row in canonical] == [space.encode(point) for point in points]
    trials = []
    for point in points:
        settings = space.settings(point)
        trials.append(
            Trial(
                **{
                    **{name: getattr(finished_trial(1, point, 1.0), name) for name in Trial.__slots__},
                    "ds_config": config_file.build(ds_config, settings, world_size=HARDWARE.ranks),
                    "activation_checkpointing": bool(settings.get(config_file.ACTIVATION_CHECKPOINTING, False)),
                }
            )
        )
    expected = configurations_of(trials, flash_attention=1.0)
    for rows in (drawn, canonical):
        found = encoded.configurations(rows)
        for name in Configurations.__slots__:
            wanted = np.broadcast_to(getattr(expected, name), len(points))
            np.testing.assert_array_equal(np.broadcast_to(getattr(found, name), len(points)), wanted, err_msg=name)
