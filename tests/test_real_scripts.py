"""Training scripts as users write them, tuned unchanged: what is measured is what they train without autotune."""

import json
import math
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.command import as_argument
from autotune.trials import EndedBy, FailureKind
from tests.script_trials import SCRIPTS, by_hand, losses_said, trial

pytestmark = pytest.mark.real

MICRO, ACCUMULATION, RATE = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "optimizer.params.lr"
STAGE = "zero_optimization.stage"
UNIFORM = math.log(256)
"""Loss of a model of bytes that knows nothing, 5.55; an untrained one is close to it."""

TORCHRUN = ["torchrun", "--nproc_per_node", "2"]
LOOP = ["--max_steps", "9", "--log_every", "1", "--eval_every", "0"]
TRAINER = shlex.split("--use_cpu --max_steps 9 --logging_steps 1 --save_strategy no --disable_tqdm true")
PASSED = shlex.split("--per_device_train_batch_size 8 --gradient_accumulation_steps 2 --learning_rate 3e-3")
OUTPUT = ["--output_dir", "{output}"]
PLAIN = ["plain_loop.py", "--deepspeed_config", "plain_loop.json", *LOOP]
OWN_OPTIMIZER = ["own_optimizer.py", "--deepspeed_config", "own_optimizer.json", *LOOP]
ACCELERATE = ["accelerate", "launch", "--config_file", "accelerate_loop.yaml"]
ACCELERATE_LOOP = ["accelerate_loop.py", "--cpu", "--max_steps", "9", "--log_every", "1", *PASSED]


def check(measured, *, micro, accumulation, ranks=2, stage=2):
    """Hold a trial to what is true of every one."""
    measurement = measured.measurement
    assert len(measured.engines) == ranks
    assert len({engine.config_hash for engine in measured.engines}) == 1
    assert measurement.samples_per_step == micro * accumulation * ranks
    assert measurement.samples_per_second == pytest.approx(measurement.samples_per_step / measurement.step_time_s)
    for steps in measured.steps:
        assert all(step.micro_steps == accumulation for step in steps)
        assert all(step.samples == micro * accumulation for step in steps)
        assert all(step.forward_s + step.backward_s + step.optimizer_s <= step.time_s for step in steps)
        assert all(min(step.forward_s, step.backward_s, step.optimizer_s) > 0 for step in steps)
    assert UNIFORM - 0.2 < measurement.held_out_loss_before < UNIFORM + 0.4
    assert measurement.training_loss_last == pytest.approx(measured.losses[-1])
    assert measurement.loss_source == "training"
    effective = measurement.effective_config
    assert (effective[MICRO], effective[ACCUMULATION], effective[STAGE]) == (micro, accumulation, stage)
    assert measurement.remarks == ()
    json.dumps(effective, allow_nan=False)
    assert all(100e6 < peak < 3e9 for peak in measurement.peak_memory_bytes)
    assert len(measurement.peak_memory_bytes) == ranks


def check_same_training(measured, said_by_hand):
    """Hold what the measured script says of its losses to what it says without autotune."""
    said = losses_said(measured.log)
    assert len(said) >= 3
    assert said == said_by_hand[: len(said)]


def check_same_time(measured):
    """Hold the time of the steps to the loop's own stopwatch, which says steps/s since its start.

    Between the first step that it tells of and the last: it starts before the first batch, we at the first forward.
    """
    said = re.findall(r"^step (\d+) loss \S+ ([\d.]+) steps/s", measured.log, re.MULTILINE)
    (first, first_s), (last, last_s) = [(int(step), int(step) / float(speed)) for step, speed in (said[0], said[-1])]
    ours_s = sum(each.time_s for each in measured.steps[0][first:last])
    assert ours_s == pytest.approx(last_s - first_s, rel=0.25, abs=0.25)


@pytest.fixture(scope="module")
def plain_by_hand(tmp_path_factory):
    return by_hand([*TORCHRUN, "--standalone", *PLAIN], tmp_path_factory.mktemp("by-hand") / "log")


def test_a_plain_loop(tmp_path, plain_by_hand):
    began_s = time.monotonic()
    measured = trial(tmp_path, [*TORCHRUN, *PLAIN], "plain_loop.json")
    took_s = time.monotonic() - began_s
    check(measured, micro=8, accumulation=2)
    check_same_training(measured, plain_by_hand)
    check_same_time(measured)
    assert measured.measurement.trained_parameters == measured.measurement.total_parameters == 137_216
    assert sum(step.time_s for step in measured.steps[0]) < took_s
    assert (measured.measurement.timed_steps, measured.measurement.warmup_steps) == (3, 1)
    assert [len(steps) for steps in measured.steps] == [4, 4]
    assert measured.measurement.training_loss_last < measured.measurement.held_out_loss_before


def test_a_plain_loop_under_deepspeed_launcher_with_what_the_file_says(tmp_path):
    settings = {STAGE: 1, ACCUMULATION: 1, "zero_optimization.reduce_bucket_size": 50_000_000}
    measured = trial(tmp_path, ["deepspeed", "--num_gpus", "2", *PLAIN], "plain_loop.json", settings)
    check(measured, micro=8, accumulation=1, stage=1)
    assert measured.measurement.effective_config["zero_optimization.reduce_bucket_size"] == 50_000_000
    # With one micro-batch in each step, what the loop prints is rank 0's loss of the step.
    said = losses_said(measured.log)
    assert said == pytest.approx([step.loss for step in measured.steps[0]][: len(said)], abs=6e-5)


def test_a_script_that_logs_error_and_ends_by_itself_as_one_process_without_a_rank(tmp_path, monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    # `python` is whatever the user's PATH says: here as in an activated environment.
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    words = ["python", "logs_error.py", "--deepspeed_config", "plain_loop.json", *LOOP, "--max_steps", "5"]
    measured = trial(tmp_path, words, "plain_loop.json", {MICRO: 4}, steps=50)
    check(measured, micro=4, accumulation=2, ranks=1)
    assert "ERROR" in measured.log
    assert "CUDA out of memory" in measured.log
    assert "done: 5 steps" in measured.log
    assert measured.measurement.timed_steps == 4  # and the first, to warm up


@pytest.mark.parametrize("style", ["--torch_style_backward", pytest.param("", marks=pytest.mark.slow)])
def test_a_script_with_an_optimizer_of_its_own(tmp_path, style):
    words = [*TORCHRUN, *OWN_OPTIMIZER, *style.split()]
    settings = {} if style else {ACCUMULATION: 4, STAGE: 1}
    measured = trial(tmp_path, words, "own_optimizer.json", settings)
    check(measured, micro=8, accumulation=4 if settings else 2, stage=1 if settings else 2)
    assert measured.measurement.effective_config["optimizer.class"] == "AdamW"
    if style:  # the same losses, whichever way they go backward, and without autotune
        check_same_training(measured, by_hand([*TORCHRUN, "--standalone", *OWN_OPTIMIZER], tmp_path / "by-hand"))


@pytest.fixture(scope="module")
def accelerate_by_hand(tmp_path_factory):
    return by_hand([*ACCELERATE, *ACCELERATE_LOOP], tmp_path_factory.mktemp("by-hand") / "log")


def test_accelerate_launch(tmp_path, accelerate_by_hand):
    measured = trial(tmp_path, [*ACCELERATE, *ACCELERATE_LOOP], "accelerate_loop.json")
    check(measured, micro=8, accumulation=2)
    check_same_training(measured, accelerate_by_hand)
    check_same_time(measured)
    assert measured.sent[MICRO] == measured.sent[ACCUMULATION] == "auto"


@pytest.mark.slow
def test_accelerate_launch_with_what_the_arguments_and_the_file_say(tmp_path):
    settings = {MICRO: 4, ACCUMULATION: 1, RATE: 1e-3, STAGE: 3}
    measured = trial(tmp_path, [*ACCELERATE, *ACCELERATE_LOOP], "accelerate_loop.json", settings)
    check(measured, micro=4, accumulation=1, stage=3)
    assert measured.measurement.effective_config[RATE] == 1e-3
    said = losses_said(measured.log)
    assert said == pytest.approx([step.loss for step in measured.steps[0]][: len(said)], abs=6e-5)


@pytest.fixture(scope="module")
def trainer_by_hand(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainer")
    words = ["hf_trainer.py", "--deepspeed", "hf_trainer.json", *TRAINER, *PASSED, "--output_dir", str(folder)]
    return by_hand([*TORCHRUN, "--standalone", *words], folder / "log")


def test_hugging_face_trainer(tmp_path, trainer_by_hand):
    words = [*TORCHRUN, "hf_trainer.py", "--deepspeed", "hf_trainer.json", *TRAINER, *PASSED, *OUTPUT]
    measured = trial(tmp_path, words, "hf_trainer.json")
    check(measured, micro=8, accumulation=2)
    check_same_training(measured, trainer_by_hand)
    # The loss that goes into backward is divided by the accumulation; what is measured is the mean all the same.
    said = losses_said(measured.log)
    assert said == pytest.approx(measured.losses[: len(said)], rel=2e-4)
    assert measured.measurement.trained_parameters == 164_160
    assert measured.sent[MICRO] == "auto"
    assert list(measured.sent) == list(json.loads((SCRIPTS / "hf_trainer.json").read_text()))


@pytest.mark.slow
def test_hugging_face_trainer_with_argument_mappings(tmp_path):
    own = json.loads((SCRIPTS / "hf_trainer.json").read_text())
    own["autotuning"] = {  # as in real files, a trailing space and all
        "enabled": True,
        "arg_mappings": {MICRO: "--per_device_train_batch_size", f"{ACCUMULATION} ": "--gradient_accumulation_steps"},
    }
    words = [*TORCHRUN, "hf_trainer.py", "--deepspeed", "hf_trainer.json", *TRAINER, *OUTPUT]
    words += ["--learning_rate", "3e-3", "--bf16", "false"]
    settings = {MICRO: 4, ACCUMULATION: 4, RATE: 1e-3, "precision": "bf16", STAGE: 1}
    measured = trial(tmp_path, words, own, settings)
    assert measured.measurement.remarks[0].startswith("autotuning.enabled is true in your configuration")
    effective = measured.measurement.effective_config
    assert effective["autotuning.enabled"] is False
    assert (effective[MICRO], effective[ACCUMULATION], effective[STAGE]) == (4, 4, 1)
    assert (effective[RATE], effective["bf16.enabled"]) == (1e-3, True)
    assert effective["scheduler.params.warmup_max_lr"] == 1e-3
    assert measured.measurement.samples_per_step == 32
    said = losses_said(measured.log)
    assert len(said) >= 3
    assert said == pytest.approx(measured.losses[: len(said)], rel=2e-4)


def test_an_argument_that_overrides_what_is_searched_is_named(tmp_path):
    own = json.loads((SCRIPTS / "plain_loop.json").read_text())
    words = [*TORCHRUN, "accelerate_loop.py", "--cpu", *PASSED, "--per_device_train_batch_size", "4"]
    launcher = shlex.split("accelerate launch --use_deepspeed --num_processes 2 --deepspeed_config_file {config}")
    measured = trial(tmp_path, [*launcher, *words[3:]], own, {MICRO: 16})
    assert measured.failure.kind is FailureKind.INVALID_CONFIG
    assert f"the script overrides {MICRO}: it feeds micro-batches of 4" in measured.failure.reason


def test_the_trainer_refuses_what_its_arguments_contradict(tmp_path):
    words = [*TORCHRUN, "hf_trainer.py", "--deepspeed", "{config}", *TRAINER, *OUTPUT]
    words += ["--per_device_train_batch_size", "4"]
    measured = trial(tmp_path, words, "hf_trainer.json", {MICRO: 16})
    assert measured.failure.kind is FailureKind.INVALID_CONFIG
    assert MICRO in measured.failure.reason


@pytest.mark.parametrize("config", [pytest.param("hf_trainer.json", marks=pytest.mark.slow), "hf_trainer_zero3.json"])
def test_a_lora_adapter(tmp_path, config):
    words = [*TORCHRUN, "lora.py", "--deepspeed", config, *TRAINER, *PASSED, *OUTPUT]
    settings = {MICRO: 2} if config == "hf_trainer.json" else {}
    measured = trial(tmp_path, words, config, settings)
    check(measured, micro=2 if settings else 8, accumulation=2, stage=2 if settings else 3)
    assert (measured.measurement.trained_parameters, measured.measurement.total_parameters) == (39_936, 204_096)
    said = losses_said(measured.log)
    assert said == pytest.approx(measured.losses[: len(said)], rel=2e-4)


@pytest.mark.slow
@pytest.mark.ray
def test_a_campaign_on_the_trainer_and_a_run_by_hand_of_what_it_exports(tmp_path):
    campaign = {
        "name": "trainer",
        "ds_config": str(SCRIPTS / "hf_trainer.json"),
        "hardware": {"accelerator": "cpu"},
        "budget": {"steps": 3, "warmup_steps": 1},
        "finals": {"candidates": 0},
        "space": {"narrow": {MICRO: [4, 8], ACCUMULATION: [1, 2]}},
        "run_directory": str(tmp_path / "runs"),
    }
    (tmp_path / "campaign.yaml").write_text(json.dumps(campaign))
    script = ["hf_trainer.py", "--use_cpu", "--max_steps", "1000", "--logging_steps", "1", "--save_strategy", "no"]
    passed = ["--per_device_train_batch_size", f"{{{MICRO}=8}}", "--learning_rate", f"{{{RATE}=3e-3}}"]
    passed += ["--gradient_accumulation_steps", f"{{{ACCUMULATION}=2}}"]
    words = [*TORCHRUN, *script, "--deepspeed", "{config}", *passed, *OUTPUT]

    def autotune(*arguments):
        url = f"sqlite:///{tmp_path}/autotune.db"
        done = subprocess.run(
            [sys.executable, "-m", "autotune", *arguments],
            cwd=SCRIPTS,
            env=os.environ | {"AUTOTUNE_STORAGE": url, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    autotune("launch", str(tmp_path / "campaign.yaml"), "--trials", "3", "--", *words)
    rows = json.loads(autotune("trials", "trainer", "--format", "json"))
    assert [row["state"] for row in rows] == ["COMPLETE"] * 3
    said = autotune("export", "trainer", "--for", "hf", "-o", str(tmp_path / "best.json"))
    exported = json.loads((tmp_path / "best.json").read_text())
    assert exported[MICRO] == exported[ACCUMULATION] == exported["optimizer"]["params"]["lr"] == "auto"
    flags = json.loads((tmp_path / "best.provenance.json").read_text())["flags"]
    given = [word for flag, value in flags.items() for word in (flag, as_argument(value))]
    assert "--per_device_train_batch_size" in given
    assert all(flag in said for flag in flags)
    typed = [*script, "--deepspeed", str(tmp_path / "best.json"), *given, "--output_dir", str(tmp_path / "out")]
    losses = by_hand([*TORCHRUN, "--standalone", *typed], tmp_path / "by-hand", losses=3)
    assert UNIFORM - 0.2 < losses[0] < UNIFORM + 0.2


LONG = ["plain_loop.py", "--deepspeed_config", "plain_loop.json", "--max_steps", "900", "--log_every", "1"]


@pytest.mark.slow
def test_a_script_ends_when_its_step_time_is_known_precisely_enough(tmp_path):
    measured = trial(tmp_path, [*TORCHRUN, *LONG], "plain_loop.json", steps=500, precision=0.9, convergence_at_s=0.1)
    measurement = measured.measurement
    assert measurement.ended_by is EndedBy.PRECISION
    assert 6 <= measurement.timed_steps < 500
    assert measurement.step_time_interval is not None
    assert len(measurement.training_losses) == min(64, measurement.timed_steps + measurement.warmup_steps)
    assert measurement.training_losses[0] == measurement.held_out_loss_before


@pytest.mark.slow
def test_a_pruned_script_ends_with_its_figures_so_far(tmp_path):
    asked = []

    def should_prune(course):
        asked.append(course)
        return "clearly dominated" if len(course) >= 2 else None

    outcome = trial(tmp_path, [*TORCHRUN, *LONG], "plain_loop.json", steps=500, should_prune=should_prune).outcome
    assert (outcome.pruned, outcome.measurement, outcome.failure) == ("clearly dominated", None, None)
    assert outcome.intermediates == asked[-1]
    assert outcome.intermediates[-1].training_loss < outcome.intermediates[-1].loss_before
