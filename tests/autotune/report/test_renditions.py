"""Exports for DeepSpeed, Hugging Face's Trainer and accelerate, each read by the real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from autotune import campaign as campaigns
from autotune import ds_config, report
from autotune import storage as storages
from autotune.command import as_argument
from autotune.consumer import Consumer
from autotune.ds_config import hugging_face
from autotune.errors import ConfigError
from autotune.report.exports import LAUNCH_NAME
from autotune.searchers.optuna import OptunaSearcher

READER = Path(__file__).with_name("read_export.py")
MINE = """{
  "bf16": {"enabled": "auto"},
  "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1e3},
  "optimizer": {
    "type": "AdamW",
    "params": {"lr": "auto", "betas": [0.9, 0.950], "eps": 1.0e-8, "weight_decay": "auto", "torch_adam": true}
  },
  "scheduler": {
    "type": "WarmupLR",
    "params": {"warmup_min_lr": "auto", "warmup_max_lr": 3e-4, "warmup_num_steps": 1e2}
  },
  "zero_optimization": {
    "stage": 2,
    "offload_optimizer": {"device": "cpu", "pin_memory": true},
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "sub_group_size": 1e14,
    "stage3_max_live_parameters": 5e8
  },
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": 1.0,
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "wall_clock_breakdown": false
}"""
TRAINS = """
import importlib
# Collectives for tensor-parallel inference that DeepSpeed compiles on CPU before anything else (45 s or more).
importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
import torch
from accelerate import Accelerator
from accelerate.utils import DummyOptim
accelerator = Accelerator()
model = torch.nn.Linear(4, 4)
micro_batch = accelerator.state.deepspeed_plugin.deepspeed_config["train_micro_batch_size_per_gpu"]
loader = torch.utils.data.DataLoader(torch.zeros(256, 4), batch_size=micro_batch)
engine, optimizer, loader = accelerator.prepare(model, DummyOptim(model.parameters(), lr=0.5), loader)
for batch in loader:
    loss = engine(batch.to(accelerator.device, next(engine.parameters()).dtype)).float().sum()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
stage, dtype = engine.zero_optimization_stage(), next(engine.parameters()).dtype
print("TRAINED", engine.global_steps, engine.train_batch_size(), stage, dtype, flush=True)
accelerator.end_training()
"""
SEARCHED = {"narrow": {"optimizer.params.lr": [3e-4, 1e-3], "precision": ["bf16"]}}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """The summary of a simulated study on one rank that began with a configuration full of "auto"."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "mine.json").write_text(MINE)
    settings = {"ds_config": "mine.json", "evaluator": "simulated", "trials": 12, "space": SEARCHED}
    settings |= {"simulated": {"workload_seed": 1}, "hardware": {"accelerator": "cpu", "ranks": 1}}
    (folder / "c.yaml").write_text(yaml.safe_dump(settings))
    storage = storages.connect(f"sqlite:///{folder}/autotune.db")
    try:
        stored = campaigns.create(campaigns.load(folder / "c.yaml"), storage, name="tuned")
        with campaigns.study(stored) as study:
            study.run(OptunaSearcher(study.space, sampler="random", seed=0))
        return campaigns.summary(stored)
    finally:
        storage.close()


def best_at(summary, *stages):
    """The number of a completed trial of one of these ZeRO stages."""
    return next(t.number for t in summary.completed if not t.is_baseline and t.point[ds_config.STAGE] in stages)


def measured_with(summary, number, **effective):
    """The summary with what a real engine reports in a trial's measurement."""

    def change(trial):
        if trial.number != number:
            return trial
        effective_config = {name.replace("__", "."): value for name, value in effective.items()}
        measurement = replace(trial.measurement, effective_config=effective_config)
        return replace(trial, outcome=replace(trial.outcome, measurement=measurement))

    return replace(summary, trials=tuple(map(change, summary.trials)))


def read_by(consumer, path, *flags, folder):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    done = subprocess.run(
        [sys.executable, str(READER), consumer, str(path), *flags],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment | {"HF_HOME": str(folder), "DS_ACCELERATOR": "cpu"},
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("ANSWER "))
    return json.loads(line.removeprefix("ANSWER "))


def without(config, *names):
    return {key: value for key, value in config.items() if key not in names}


class TestDeepSpeed:
    """Every number in the file."""

    def test_it_reads_what_was_measured(self, tuned, tmp_path):
        number = best_at(tuned, 1, 2, 3)
        trial = tuned.trials[number]
        exported = report.export(tuned, tmp_path / "ds.json", trial_number=number)
        read = read_by("deepspeed", exported.config_path, folder=tmp_path)
        assert {name: read[name] for name in ("train_batch_size", "train_micro_batch_size_per_gpu")} == {
            name: trial.ds_config[name] for name in ("train_batch_size", "train_micro_batch_size_per_gpu")
        }
        assert read["gradient_accumulation_steps"] == trial.ds_config["gradient_accumulation_steps"]
        assert read["optimizer"] == trial.ds_config["optimizer"]["params"]
        assert read["optimizer"]["lr"] == trial.point["optimizer.params.lr"]
        assert read["scheduler"] == trial.ds_config["scheduler"]["params"]
        assert read["stage"] == trial.point[ds_config.STAGE]
        assert read["reduce_bucket_size"] == trial.point["zero_optimization.reduce_bucket_size"]
        assert read["sub_group_size"] == 10**14
        assert (read["bf16"], read["fp16"]) == (True, False)

    def test_what_is_not_searched_is_written_as_it_was(self, tuned, tmp_path):
        text = report.export(tuned, tmp_path / "ds.json", trial_number=best_at(tuned, 2)).config_path.read_text()
        for written in ("0.950", "1.0e-8", "1e2", "1e3", "1e14", "5e8"):
            assert f" {written}" in text.replace("[", " ").replace("]", " "), written
        assert "auto" not in text
        assert "e+" not in text
        order = [key for key in json.loads(MINE) if key in json.loads(text)]
        assert list(json.loads(text)) == order

    def test_the_baseline_is_the_users_file(self, tuned, tmp_path):
        exported = report.export(tuned, tmp_path / "ds.json", trial_number=0)
        concrete, _ = ds_config.without_auto(json.loads(MINE))
        batch = {"gradient_accumulation_steps": 1, "train_batch_size": 1, "train_micro_batch_size_per_gpu": 1}
        assert json.loads(exported.config_path.read_text()) == concrete | batch
        (note,) = (note for note in exported.notes if "left out" in note)
        assert note.startswith("bf16.enabled, fp16.enabled, optimizer.params.lr")

    def test_auto_is_what_the_engine_ran_with(self, tuned, tmp_path):
        known = {"zero_optimization__reduce_bucket_size": 500_000_000, "bf16__enabled": False, "fp16__enabled": False}
        summary = measured_with(tuned, 0, optimizer__params__lr=1e-3, scheduler__type="WarmupLR", **known)
        exported = report.export(summary, tmp_path / "ds.json", trial_number=0)
        config = json.loads(exported.config_path.read_text())
        assert config["zero_optimization"]["reduce_bucket_size"] == 500_000_000
        assert config["bf16"] == {"enabled": False}
        assert "lr" not in config["optimizer"]["params"], "the schedule had changed it"
        assert not any("bf16.enabled" in note for note in exported.notes)

    @pytest.mark.parametrize(
        ("given", "written"),
        [
            ({"train_batch_size": 8}, {"train_batch_size": 8}),
            ({"train_batch_size": 8, "gradient_accumulation_steps": 2}, None),
            ({"train_micro_batch_size_per_gpu": 4}, None),
            (
                {"gradient_accumulation_steps": 2},
                {"gradient_accumulation_steps": 2, "train_micro_batch_size_per_gpu": 1},
            ),
            ({}, {"train_micro_batch_size_per_gpu": 1}),
        ],
    )
    def test_no_more_of_the_batch_triple_than_needed(self, tuned, tmp_path, given, written):
        baseline = replace(tuned.baseline, ds_config=ds_config.complete(given, world_size=1))
        summary = replace(tuned, ds_config=given, trials=(baseline, *tuned.trials[1:]))
        exported = report.export(summary, tmp_path / "ds.json", trial_number=0)
        assert json.loads(exported.config_path.read_text()) == (written or given)


class TestHuggingFace:
    """Shared keys "auto", their values as flags."""

    def test_the_trainer_puts_together_what_was_measured(self, tuned, tmp_path):
        number = best_at(tuned, 3)
        trial = tuned.trials[number]
        path = tmp_path / "ds_zero3.json"
        exported = report.export(tuned, path, trial_number=number, consumer=Consumer.HUGGING_FACE)
        words = [word for flag, value in exported.flags.items() for word in (flag, as_argument(value))]
        read = read_by("hf", path, "--deepspeed", str(path), *words, folder=tmp_path)
        assert read["mismatches"] == []
        assert read["gradient_checkpointing"] == trial.activation_checkpointing
        config = read["config"]
        assert config["optimizer"]["params"].pop("weight_decay") == 0.0, "TrainingArguments' own"
        assert config["scheduler"]["params"].pop("warmup_min_lr") == 0
        assert config["zero_optimization"].pop("stage3_prefetch_bucket_size") == 57, "0.9 x hidden size squared"
        assert without(config, "steps_per_print") == trial.ds_config
        assert exported.flags["--bf16"] is True
        assert exported.flags["--fp16"] is False
        assert json.loads(exported.provenance_path.read_text())["flags"] == exported.flags

    def test_shared_keys_are_auto_and_the_rest_is_concrete(self, tuned, tmp_path):
        path = tmp_path / "ds.json"
        exported = report.export(tuned, path, trial_number=best_at(tuned, 1, 2), consumer=Consumer.HUGGING_FACE)
        text = path.read_text()
        config = json.loads(text)
        assert all(ds_config.get(config, key) in (None, "auto") for key in hugging_face.FLAGS)
        assert isinstance(config["zero_optimization"]["reduce_bucket_size"], int), "it was searched"
        assert config["zero_optimization"]["stage3_prefetch_bucket_size"] == "auto", "it was not"
        assert "1e14" in text
        notes = " ".join(exported.notes)
        assert 'optimizer.params.weight_decay stays "auto", and --weight_decay decides' in notes
        assert "the Trainer fills in its own values" in notes

    def test_a_file_without_what_accelerate_needs_gets_it(self, summary, tmp_path):
        report.export(summary, tmp_path / "ds.json", trial_number=0, consumer=Consumer.HUGGING_FACE)
        config = json.loads((tmp_path / "ds.json").read_text())
        assert config["zero_optimization"] == {"stage": 0}
        assert config["gradient_accumulation_steps"] == config["train_micro_batch_size_per_gpu"] == "auto"
        assert "train_batch_size" not in config

    def test_a_batch_that_the_script_filled_in_is_what_was_measured(self, tuned, tmp_path):
        filled_in = {"train_micro_batch_size_per_gpu": 6, "gradient_accumulation_steps": 2, "train_batch_size": 12}
        number = tuned.baseline.number
        filled = measured_with(tuned, number, **filled_in)
        exported = report.export(filled, tmp_path / "hf.json", consumer=Consumer.HUGGING_FACE, trial_number=number)
        assert exported.flags["--per_device_train_batch_size"] == 6
        assert exported.flags["--gradient_accumulation_steps"] == 2
        exported = report.export(filled, tmp_path / "ds.json", trial_number=number)
        assert json.loads(exported.config_path.read_text()).items() >= filled_in.items()

    def test_a_schedules_peak_is_the_learning_rate(self):
        config = {"optimizer": {"params": {"lr": 1e-4}}, "scheduler": {"params": {"warmup_max_lr": 1e-3}}}
        assert hugging_face.flags_of(config) == {"--learning_rate": 1e-3}


class TestAccelerate:
    """A YAML that points at the file."""

    def test_accelerate_launch_takes_it(self, tuned, tmp_path):
        number = best_at(tuned, 1, 2, 3)
        exported = report.export(tuned, tmp_path, trial_number=number, consumer=Consumer.ACCELERATE)
        assert exported.launch_path == tmp_path / LAUNCH_NAME
        read = read_by("accelerate", exported.launch_path, folder=tmp_path)
        trial = tuned.trials[number]
        assert without(read["config"], "steps_per_print") == trial.ds_config
        assert read["num_processes"] == 1
        assert read["stage"] == trial.point[ds_config.STAGE]
        assert read["gradient_accumulation_steps"] == trial.ds_config["gradient_accumulation_steps"]
        assert any("DummyOptim" in note for note in exported.notes)

    @pytest.mark.real
    def test_a_script_trains_by_it(self, tuned, tmp_path):
        number = best_at(tuned, 2)
        exported = report.export(tuned, tmp_path, trial_number=number, consumer=Consumer.ACCELERATE)
        (tmp_path / "train.py").write_text(TRAINS)
        launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(exported.launch_path)]
        environment = {"HF_HOME": str(tmp_path), "DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(tmp_path / "ops")}
        done = subprocess.run(
            [*launch, "--main_process_port", "0", "train.py"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | environment,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        (line,) = (line for line in done.stdout.splitlines() if line.startswith("TRAINED"))
        batch = tuned.trials[number].ds_config["train_batch_size"]
        assert line == f"TRAINED {256 // batch} {batch} 2 torch.bfloat16"

    def test_names(self, tuned, tmp_path):
        def names(path):
            exported = report.export(tuned, path, trial_number=best_at(tuned, 3), consumer=Consumer.ACCELERATE)
            return exported.config_path.name, exported.launch_path.name

        assert names(tmp_path) == ("ds_config_zero3.json", "accelerate.yaml")
        assert names(tmp_path / "best.json") == ("best.json", "best.accelerate.yaml")
        assert names(tmp_path / "mine.yml") == ("ds_config_zero3.json", "mine.yml")

    def test_a_yaml_that_no_export_wrote_stays(self, tuned, tmp_path):
        (tmp_path / LAUNCH_NAME).write_text("distributed_type: NO\n")
        with pytest.raises(ConfigError, match="no export wrote it"):
            report.export(tuned, tmp_path, consumer=Consumer.ACCELERATE)
        assert [path.name for path in tmp_path.iterdir()] == [LAUNCH_NAME]
        report.export(tuned, tmp_path / "best.json", consumer=Consumer.ACCELERATE)
        report.export(tuned, tmp_path / "best.json", consumer=Consumer.ACCELERATE, trial_number=0)

    def test_all_files_or_none(self, tuned, tmp_path):
        (tmp_path / "best.accelerate.yaml").mkdir()
        with pytest.raises(ConfigError, match="can't write"):
            report.export(tuned, tmp_path / "best.json", consumer=Consumer.ACCELERATE)
        assert [path.name for path in tmp_path.iterdir()] == ["best.accelerate.yaml"]
