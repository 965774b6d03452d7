"""The workload 'module-mlp': its samples by hand, what it learns, and a real trial of it."""

import pytest
import torch

from autotune.errors import WorkloadError
from autotune.evaluators.deepspeed import DeepSpeedEvaluator
from autotune.evaluators.workloads.module_mlp import ModuleMLP, module_loss, module_mlp, samples
from autotune.runners.rank_process import RankProcess
from autotune.trials import Budget, TrialRequest
from autotune.workload import WorkloadReference

SMALL = {"modules": 8, "windows_per_module": 60, "features": 256, "width": 128, "layers": 2}


def test_samples_count_byte_pairs_by_hand(tmp_path):
    """Of "abab" the pairs are ab, ba, ab; feature (257 x first + second) mod 16: ab -> 25027 -> 3, ba -> 25283 -> 3."""
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_bytes(b"ababcc")
    other.write_bytes(b"aaaaaaaaaaaa")
    counts, labels = samples([one, other], window=4, most=2, features=16)
    assert labels.tolist() == [0, 1, 1]  # one window fits into 6 bytes; of three at most two are taken
    assert counts.dtype == torch.uint8
    assert counts[0].tolist() == [0, 0, 0, 3, *[0] * 12]
    assert counts[1].tolist() == [0, 0, 3, *[0] * 13]  # aa -> 257 x 97 + 97 = 25026 -> 2


def test_every_tenth_window_is_held_out_and_none_is_trained_on_too():
    made = module_mlp(**SMALL)
    assert (len(made.data), len(made.held_out)) == (432, 48)  # 8 modules of 60 windows
    assert {int(label) for _, label in made.held_out} == set(range(8))


def test_it_learns_and_the_first_loss_is_that_of_a_guess():
    torch.manual_seed(0)
    made = module_mlp(**SMALL)
    held_out = tuple(torch.stack(part) for part in zip(*made.held_out, strict=True))
    batch = tuple(torch.stack(part) for part in zip(*made.data, strict=True))
    optimizer = torch.optim.AdamW(made.model.parameters(), lr=1e-3)
    before = module_loss(made.model, held_out).item()
    for _ in range(20):
        optimizer.zero_grad()
        module_loss(made.model, batch).backward()
        optimizer.step()
    assert before == pytest.approx(2.08, abs=0.4)  # ln 8
    assert module_loss(made.model, held_out).item() < before - 0.4


def test_its_parameters_by_hand():
    model = ModuleMLP(features=1024, width=1024, layers=3, modules=64)
    square = 1024 * 1024 + 1024
    assert sum(p.numel() for p in model.parameters()) == 4 * square + 4 * 2 * 1024 + 64 * 1024 + 64


def test_more_modules_than_there_are_is_refused():
    with pytest.raises(WorkloadError, match="modules: got 5000; the standard library has"):
        module_mlp(modules=5000)


@pytest.mark.real
def test_a_real_trial_of_it_is_measured(tmp_path):
    hosts = [RankProcess(), RankProcess()]
    evaluator = DeepSpeedEvaluator(
        workload=WorkloadReference(function="module-mlp", arguments=SMALL), ranks=2, run_directory=str(tmp_path)
    )
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": True},
    }
    request = TrialRequest(number=1, point={}, ds_config=config, budget=Budget(steps=20), activation_checkpointing=True)
    try:
        outcome = evaluator.evaluate(request, hosts=hosts, progress=lambda stage: None, cancelled=lambda: False)
    finally:
        for host in hosts:
            host.close()
    assert outcome.measurement is not None, outcome.failure
    assert outcome.measurement.samples_per_step == 16
    assert outcome.measurement.held_out_loss_before == pytest.approx(2.08, abs=0.4)
    assert outcome.measurement.held_out_loss_after < outcome.measurement.held_out_loss_before
