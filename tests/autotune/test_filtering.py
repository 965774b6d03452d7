"""Where the memory filter of a campaign works, and what it is told of the machine."""

from dataclasses import replace

import pytest

from autotune import campaign as campaigns
from autotune import storage as storages
from autotune.campaign.calibrating import machines_of
from autotune.campaign.filtering import filtered, why_without_filter
from autotune.searchers.memory_filtered import MemoryFiltered
from autotune.searchers.optuna import OptunaSearcher
from tests.autotune.test_space import GPU

DS = {"train_batch_size": 16, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
CPU = replace(GPU, accelerator="cpu", device_count=1, ranks=2, host_memory_bytes=16 * 10**9, compute_capability=None)


def campaign(**more):
    return campaigns.parse({"name": "mine", "ds_config": DS, **more}, where="test")


def test_a_rank_s_memory_limit_is_its_memory_on_a_cpu_and_no_gpu_s():
    limited = campaign(hardware={"memory_limit_bytes": 3 * 10**9})
    assert machines_of(campaign(), CPU).device.memory_bytes == 8e9
    assert machines_of(limited, CPU).device.memory_bytes == 3e9
    a100 = replace(GPU, device_name="NVIDIA A100-SXM4-80GB")
    assert machines_of(limited, a100).device.memory_bytes == machines_of(campaign(), a100).device.memory_bytes > 80e9


def test_of_an_unknown_gpu_it_says_why_it_is_off():
    unknown = replace(GPU, device_name="NVIDIA Z9000")
    assert "'NVIDIA Z9000', which is like none of the hardware table's" in why_without_filter(campaign(), unknown)
    assert why_without_filter(campaign(), CPU) is None


@pytest.mark.parametrize(
    ("more", "is_filtered"),
    [
        ({}, True),
        ({"memory_filter": False}, False),
        ({"evaluator": "recorded", "recorded": {"path": "tests/data/recorded/quickstart.json"}}, False),
    ],
)
def test_it_is_in_front_where_the_campaign_wants_it(more, is_filtered, tmp_path):
    storage = storages.connect(f"sqlite:///{tmp_path}/a.db")
    wanted = campaign(**{"evaluator": "simulated", "hardware": {"ranks": 2, "accelerator": "cpu"}, **more})
    stored = campaigns.create(wanted, storage, name="mine")
    study = campaigns.study(stored)
    searcher = OptunaSearcher(study.space, sampler="random")
    found = filtered(searcher, stored, study)
    storage.close()
    assert isinstance(found, MemoryFiltered) == is_filtered
    assert is_filtered or found is searcher


def test_yaml_s_off_is_off(tmp_path):
    (tmp_path / "c.yaml").write_text("ds_config: {train_batch_size: 4}\nmemory_filter: off\n")
    assert campaigns.load(tmp_path / "c.yaml").memory_filter is False
    assert campaigns.load(tmp_path / "c.yaml", ["memory_filter=on"]).memory_filter is True
