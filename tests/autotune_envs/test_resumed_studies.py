"""A study that PPO searches goes on exactly where it was stopped: simulated and recorded trials, whole and in parts."""

import json

import pytest

from autotune import campaign as campaigns
from autotune import storage as storages
from autotune.searchers.optuna import OptunaSearcher
from autotune_envs.training import PpoSearcher

DS_CONFIG = {"train_batch_size": 16, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
CAMPAIGN = {"name": "s", "ds_config": DS_CONFIG, "hardware": {"ranks": 2, "accelerator": "cpu"}, "trials": 10}


@pytest.fixture
def storage(tmp_path):
    opened = storages.connect(f"sqlite:///{tmp_path}/studies.db")
    yield opened
    opened.close()


@pytest.fixture
def recording(storage, tmp_path):
    """A file as `autotune trials STUDY --format json` writes it, of a random study."""
    stored = campaigns.create(campaigns.parse(CAMPAIGN | {"evaluator": "simulated"}, where="test"), storage, name="rec")
    with campaigns.study(stored, trials=40) as study:
        study.run(OptunaSearcher(study.space, sampler="random", seed=3))
    rows = [
        {"point": dict(trial.point), "is_baseline": trial.is_baseline, "outcome": trial.outcome.to_json()}
        for trial in stored.trials()
    ]
    path = tmp_path / "trials.json"
    path.write_text(json.dumps(rows))
    return path


@pytest.mark.parametrize("evaluator", ["simulated", "recorded"])
def test_five_and_five_resumed_are_ten_in_one_go(storage, recording, evaluator):
    campaign = campaigns.parse(CAMPAIGN | {"evaluator": evaluator, "recorded": {"path": str(recording)}}, where="test")
    whole, parts = (campaigns.create(campaign, storage, name=name) for name in ("whole", "parts"))
    for stored, budgets in ((whole, [10]), (parts, [5, 10])):
        for budget in budgets:
            with campaigns.study(stored, trials=budget) as study:
                study.run(PpoSearcher(study.space, seed=1, trial_budget=10))
    assert len(whole.trials()) == 10
    assert [trial.point for trial in parts.trials()] == [trial.point for trial in whole.trials()]
    assert [trial.score for trial in parts.trials()] == [trial.score for trial in whole.trials()]
    # Policy, optimizer, normalisation statistics, open rollout and random state, to the last bit.
    assert parts.attribute("searcher_state") == whole.attribute("searcher_state")
