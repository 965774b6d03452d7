"""Fixtures: an empty storage of either kind, and studies of simulated trials in it."""

from __future__ import annotations

import pytest

from autotune import campaign as campaigns
from autotune import storage as storages
from autotune.searchers.optuna import OptunaSearcher

CAMPAIGN = {
    "name": "s",
    "evaluator": "simulated",
    "hardware": {"ranks": 2},
    "ds_config": {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
        "zero_optimization": {"stage": 1},
    },
}


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request, tmp_path):
    """An open, empty storage, on SQLite and on PostgreSQL."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/studies.db"
    else:
        server = request.getfixturevalue("postgres")
        url = server.url(server.new_database())
    opened = storages.connect(url)
    yield opened
    opened.close()


def made(storage, name="s"):
    """Make a study of simulated trials."""
    return campaigns.create(campaigns.parse(CAMPAIGN, where="test"), storage, name=name)


def run(stored, *, trials, listener=None):
    """Run a study by random search."""
    with campaigns.study(stored, trials=trials, listener=listener) as study:
        return study.run(OptunaSearcher(study.space, sampler="random", seed=0))
