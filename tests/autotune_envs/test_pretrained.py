"""The pre-trained policy as a searcher: the contract, other spaces than its own, what it sees, and its file."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from autotune.cli import searchers
from autotune.errors import SearcherError
from autotune.space import Integer, SearchSpace
from autotune.testing.searchers import SPACE, SearcherContract, finished_trial
from autotune_envs import WorkloadFeatures
from autotune_envs.policy_file import CARD, SHIPPED, WEIGHTS, load, read_card
from autotune_envs.policy_network import PolicyNetwork
from autotune_envs.policy_space import SpaceMapping, policy_space
from autotune_envs.pretrained import PretrainedSearcher
from autotune_envs.simulation import TRAINING, SimulatedStudies, draw_cases
from tests.autotune_spaces.test_building import CPU, GPU, space

MICRO_BATCH = "train_micro_batch_size_per_gpu"
LR = "optimizer.params.lr"


class TestPretrained(SearcherContract):
    def make(self, space, seed):
        return PretrainedSearcher(space, trial_budget=16, seed=seed)


def levels_of(mask):
    """Return the levels of the policy's space that a mask leaves, by dimension."""
    found, begin = {}, 0
    for dimension in policy_space().dimensions:
        part = mask[begin : begin + len(dimension.levels)]
        found[dimension.name] = [level for level, allowed in zip(dimension.levels, part, strict=True) if allowed]
        begin += len(dimension.levels)
    return found


def test_what_a_space_lacks_is_masked_by_the_levels_values():
    narrowed = space(CPU, narrow={MICRO_BATCH: [1, 2, 4], LR: {"low": 1e-4}}, fix={"zero_optimization.stage": 3})
    left = levels_of(SpaceMapping(narrowed).mask)
    assert left[MICRO_BATCH] == [1, 2, 4]
    assert left[LR] == [1e-4, 3e-4, 1e-3, 3e-3, 1e-2]
    assert left["zero_optimization.stage"] == [3]
    assert left["precision"] == ["fp32", "bf16"]
    assert left["zero_optimization.offload"] == ["none"]
    assert left["gradient_accumulation_steps"] == [1, 2, 4, 8, 16]


def test_a_level_that_the_policy_does_not_know_stands_at_the_nearest_by_ratio():
    wide = space(GPU, start={MICRO_BATCH: 6, LR: 2e-4})  # a start becomes a level
    assert 6 in wide[MICRO_BATCH].levels
    mapping = SpaceMapping(wide)
    point = wide.canonical({d.name: d.default for d in wide.dimensions} | {MICRO_BATCH: 6, LR: 2e-4})
    seen = policy_space().decode(mapping.encoding_of(point))
    assert seen[MICRO_BATCH] == 8  # 8/6 is less than 6/4
    assert seen[LR] == 3e-4  # 3/2 is less than 2/1
    chosen = {mapping.point_of(mapping.encoding_of(point), np.random.default_rng(n))[MICRO_BATCH] for n in range(20)}
    assert chosen == {6, 8}
    assert mapping.point_of(mapping.encoding_of(point))[MICRO_BATCH] == 8


def test_accumulation_that_follows_from_a_global_batch_is_seen_and_not_proposed():
    start = {"gradient_accumulation_steps": 2, MICRO_BATCH: 16, "precision": "bf16"}
    fixed = space(GPU, start=start, global_batch_size=GPU.ranks * 32, remove=["precision"])
    mapping = SpaceMapping(fixed)
    left = levels_of(mapping.mask)
    assert left["gradient_accumulation_steps"] == [1, 2, 4, 8, 16]
    assert left["precision"] == ["bf16"]  # as the start has it
    point = fixed.canonical({d.name: d.default for d in fixed.dimensions} | {MICRO_BATCH: 8})
    assert policy_space().decode(mapping.encoding_of(point))["gradient_accumulation_steps"] == 4
    searcher = PretrainedSearcher(fixed, trial_budget=8)
    for number in range(1, 8):
        fixed.check(point := searcher.ask())
        searcher.tell(finished_trial(number, point, 1.0))


def test_a_dimension_that_the_policy_does_not_know_is_refused_with_a_way_out():
    odd = SearchSpace(
        dimensions=(*SPACE.dimensions, Integer(name="zero_optimization.sub_group_size", levels=(1, 2), default=1))
    )
    with pytest.raises(SearcherError, match=r"zero_optimization\.sub_group_size.*ppo-scratch"):
        searchers.create("ppo", odd, seed=0, trial_budget=8, hardware=GPU)
    assert searchers.create("ppo-scratch", odd, seed=0, trial_budget=8, hardware=GPU).ask()


def test_on_a_narrowed_space_it_proposes_what_is_there():
    narrowed = space(CPU, narrow={MICRO_BATCH: [2, 8], "zero_optimization.stage": [0, 3]}, remove=[LR])
    searcher = PretrainedSearcher(narrowed, trial_budget=32, features=WorkloadFeatures.of(CPU))
    for number in range(1, 31):
        narrowed.check(point := searcher.ask())
        searcher.tell(finished_trial(number, point, 1.0 if number % 3 else None))


def test_it_sees_what_it_was_trained_to_see():
    cases = draw_cases(TRAINING[1:2])
    studies = SimulatedStudies(cases, 1, noise=0.0, outliers=0.0)
    first = np.array([0])
    hardware = {"cuda": True, "ranks": 8, "device_memory_bytes": 40 * 10**9}
    seen = WorkloadFeatures(**hardware, parameter_count=10**8, tokens_per_sample=512)
    studies.begin(first, first, budget=np.array([9]), features=seen.vector()[None])
    never_seen = {"host_memory_bytes": 10**12, "cpu_count": 64}
    searcher = PretrainedSearcher(policy_space(), trial_budget=9, features=WorkloadFeatures(**hardware, **never_seen))
    point = policy_space().decode(cases.baseline[0].tolist())
    baseline = finished_trial(0, point, 1.0, is_baseline=True)
    counted = replace(
        baseline.outcome.measurement, total_parameters=10**8, samples_per_second=2.0, tokens_per_second=1024.0
    )
    searcher.tell(replace(baseline, outcome=replace(baseline.outcome, measurement=counted)))
    np.testing.assert_allclose(searcher.observation(), studies.observations[0], atol=1e-6)


def test_another_searchers_state_is_refused():
    with pytest.raises(SearcherError, match="another searcher"):
        PretrainedSearcher(SPACE, trial_budget=8).restore({"networks": "", "calls": ""}, [])


def test_a_proposal_loads_neither_torch_nor_stable_baselines3():
    code = (
        "import sys\n"
        "from autotune.testing.searchers import SPACE\n"
        "from autotune_envs.pretrained import PretrainedSearcher\n"
        "PretrainedSearcher(SPACE, trial_budget=8).ask()\n"
        "print([name for name in ('torch', 'stable_baselines3') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"


class TestFile:
    @pytest.fixture
    def copy(self, tmp_path):
        for name in (WEIGHTS, CARD):
            shutil.copy(SHIPPED / name, tmp_path)
        return tmp_path

    def test_its_card_says_where_it_comes_from(self):
        card = read_card()
        assert card["made_by"].startswith("autotune pretrain --seed 0")
        assert {"data", "settings", "scores", "limits", "versions", "weights", "space"} <= set(card)
        assert (SHIPPED / WEIGHTS).stat().st_size == card["weights"]["bytes"] < 2_000_000

    def test_a_damaged_file_is_refused(self, copy):
        data = bytearray((copy / WEIGHTS).read_bytes())
        data[len(data) // 2] ^= 1
        (copy / WEIGHTS).write_bytes(data)
        with pytest.raises(SearcherError, match="SHA-256"):
            load(copy)

    def test_a_file_that_is_gone_is_refused(self, copy):
        (copy / WEIGHTS).unlink()
        with pytest.raises(SearcherError, match="can't be read"):
            load(copy)

    def test_a_card_of_another_space_is_refused(self, copy):
        card = read_card(copy)
        card["space"][MICRO_BATCH].append(128)
        (copy / CARD).write_text(json.dumps(card))
        with pytest.raises(SearcherError, match="another search space"):
            load(copy)

    @pytest.mark.parametrize("harm", ["shape", "missing", "nan"])
    def test_arrays_of_another_network_are_refused(self, harm):
        arrays = load().arrays()
        if harm == "shape":
            arrays["logits.bias"] = arrays["logits.bias"][1:]
        elif harm == "missing":
            del arrays["gates.bias"]
        else:
            arrays["gates.bias"] = arrays["gates.bias"] * np.nan
        with pytest.raises(SearcherError, match="policy: "):
            PolicyNetwork.from_arrays(arrays)
