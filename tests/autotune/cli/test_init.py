"""`autotune init` writes a campaign file that loads, and says what it could not tell."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from autotune import campaign as campaigns
from autotune.cli.exit_codes import ExitCode
from autotune.command import CommandTemplate

SCRIPTS = Path(__file__).parents[2] / "scripts"
PLAIN = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}}


@pytest.fixture
def put(folder):
    """Return a function that writes a configuration into the folder."""
    (folder / "c.yaml").unlink()

    def written(config=PLAIN, name="ds_config.json"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(config))
        return path

    return written


def template(path="campaign.yaml"):
    return CommandTemplate(campaigns.load(path).workload.command)


def init(cli, command):
    return cli("init", "--", *shlex.split(command))


def test_a_plain_command(cli, put):
    put()
    answer = init(cli, "torchrun --nproc_per_node 2 train.py --deepspeed_config ds_config.json --lr 3e-4")
    assert answer.code == ExitCode.OK, answer.err
    campaign = campaigns.load("campaign.yaml")
    assert (campaign.name, campaign.ds_config, campaign.hardware.ranks) == ("train", PLAIN, 2)
    assert campaign.workload.directory == "."
    words = "torchrun --master_port {port} --nproc_per_node 2 train.py --deepspeed_config {config} --lr"
    assert campaign.workload.command == (*words.split(), "{optimizer.params.lr=3e-4}")
    for part in ("torchrun, 2 ranks", "ds_config.json (--deepspeed_config)", "optimizer.params.lr=0.0003"):
        assert part in answer.out
    assert "autotune doctor campaign.yaml" in answer.out
    assert "does your script read it from the configuration?" in answer.out
    assert "# QUESTION: train_micro_batch_size_per_gpu:" in Path("campaign.yaml").read_text()


@pytest.mark.parametrize("script", ["hf_trainer", "plain_loop", "own_optimizer"])
def test_real_scripts_have_a_space(cli, folder, script):
    for path in SCRIPTS.glob(f"{script}*"):
        shutil.copy(path, folder)
    answer = init(cli, f"torchrun --nproc_per_node 2 {script}.py --deepspeed {script}.json")
    assert answer.code == ExitCode.OK, answer.err
    assert cli("space", "campaign.yaml").code == ExitCode.OK


def test_training_arguments_that_are_not_passed_are_added_with_their_defaults(cli, put):
    auto = {"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}, "gradient_accumulation_steps": 4}
    put(auto | {"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})
    answer = init(cli, "deepspeed --num_gpus 2 train.py --deepspeed ds_config.json --output_dir out --bf16")
    assert template().starts == {
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 4,
        "optimizer.params.lr": 5e-5,
        "bf16.enabled": True,
        "fp16.enabled": False,
        "activation_checkpointing": False,
    }
    assert "question" not in answer.out
    assert "added" in answer.out


def test_auto_that_nobody_passes_is_a_question(cli, put):
    put({"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 2})
    answer = init(cli, "deepspeed --num_gpus 2 train.py --deepspeed_config ds_config.json")
    assert 'it is "auto" in your configuration and not passed' in answer.out


def test_two_values_are_a_question(cli, put):
    put()
    answer = init(cli, "torchrun train.py --deepspeed_config ds_config.json --micro_batch_size 8")
    assert "your command says 8 and your configuration 4" in answer.out


def test_arg_mappings_are_honoured(cli, put):
    mappings = {"train_micro_batch_size_per_gpu": "--mb", "gradient_accumulation_steps ": "--ga"}
    put(PLAIN | {"gradient_accumulation_steps": 2, "autotuning": {"enabled": True, "arg_mappings": mappings}})
    init(cli, "deepspeed --autotuning run --num_gpus 2 train.py --deepspeed_config ds_config.json --mb 4")
    assert template().starts == {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
    assert "--autotuning" not in template().words


def test_what_can_not_be_told_is_asked(cli, put):
    put()
    answer = init(cli, "bash train.sh")
    assert answer.code == ExitCode.OK
    text = Path("campaign.yaml").read_text()
    assert text.count("# QUESTION:") == answer.out.count("question") == 2
    assert "put {config} there" in text
    assert "no launcher that autotune knows" in text


def test_a_guess_is_asked_about(cli, put):
    put()
    init(cli, "deepspeed train.py --deepspeed_config ds_config.json --batch_size 4")
    text = " ".join(Path("campaign.yaml").read_text().split())
    assert "QUESTION: is --batch_size of one rank and micro-step?" in text
    assert "QUESTION: the command doesn't say how many ranks" in text
    assert template().starts == {"train_micro_batch_size_per_gpu": 4}


def test_variables_in_front_become_the_environment(cli, put):
    put()
    init(cli, "CUDA_VISIBLE_DEVICES=0,1 A='b c' torchrun train.py --deepspeed_config ds_config.json")
    workload = campaigns.load("campaign.yaml").workload
    assert workload.environment == {"CUDA_VISIBLE_DEVICES": "0,1", "A": "b c"}
    assert workload.command[0] == "torchrun"


@pytest.mark.parametrize("word", ["a b", "it's", "#x", '{"a": {"b": 1}}', "two\nlines", "- : [x", "x: y", "é", ""])
def test_any_word_survives_the_file(cli, put, word):
    put()
    cli("init", "--", "torchrun", "train.py", "--deepspeed_config", "ds_config.json", "--text", word)
    rendered = template().render({"config": "c", "port": 1, "train_micro_batch_size_per_gpu": 1})
    assert rendered[-1] == word


def test_without_a_command_the_only_configuration_is_taken(cli, put):
    put(name="conf/ds_config.json")
    answer = cli("init")
    assert answer.code == ExitCode.OK
    assert "conf/ds_config.json (the only one here)" in answer.out
    campaign = campaigns.load("campaign.yaml")
    assert (campaign.ds_config, campaign.workload.function) == (PLAIN, "byte-gpt")
    assert "module:function" in Path("campaign.yaml").read_text()


def test_several_configurations_are_listed(cli, put):
    put(name="ds_config_zero2.json")
    put(name="ds_config_zero3.json")
    put({"not": "one"}, name="ds_config_other.json")
    answer = cli("init")
    assert answer.code == ExitCode.WRONG_INPUT
    assert "there are 2 DeepSpeed configurations here" in answer.err
    assert "by adding --from ds_config_zero2.json" in answer.err
    assert cli("init", "--from", "ds_config_zero3.json").code == ExitCode.OK


def test_accelerates_own_file(cli, put):
    put(name="other.json")
    Path("accelerate.yaml").write_text("num_processes: 2\ndeepspeed_config: {deepspeed_config_file: other.json}\n")
    assert "other.json (the only one here)" in cli("init", "-o", "one.yaml").out
    answer = init(cli, "accelerate launch --config_file accelerate.yaml train.py")
    assert answer.code == ExitCode.OK, answer.err
    assert "accelerate, 2 ranks" in answer.out
    assert template().words[:4] == ("accelerate", "launch", "--main_process_port", "{port}")
    assert "{config}" in template().words


def test_nothing_found_still_gives_a_file_that_loads(cli, put):
    answer = cli("init")
    assert answer.code == ExitCode.OK
    assert "no DeepSpeed configuration was found" in answer.out
    assert campaigns.load("campaign.yaml").ds_config["zero_optimization"] == {"stage": 1}


def test_nothing_is_overwritten_unless_asked(cli, put):
    put()
    assert cli("init").code == ExitCode.OK
    before = Path("campaign.yaml").read_text()
    answer = init(cli, "torchrun train.py --deepspeed_config ds_config.json")
    assert answer.code == ExitCode.WRONG_INPUT
    assert "--force" in answer.err
    assert Path("campaign.yaml").read_text() == before
    assert cli("init", "--force").code == ExitCode.OK
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["campaign.yaml", "ds_config.json"]


def test_a_file_elsewhere_counts_its_paths_from_there(cli, put, folder):
    put()
    answer = cli("init", "-o", "deep/mine.yaml", "--", *shlex.split("torchrun t.py --deepspeed_config ds_config.json"))
    assert answer.code == ExitCode.OK, answer.err
    campaign = campaigns.load("deep/mine.yaml")
    assert campaign.ds_config == PLAIN
    assert campaign.workload.directory == ".."


def test_a_configuration_that_can_not_be_read_is_named(cli, put):
    answer = init(cli, "torchrun train.py --deepspeed_config missing.json")
    assert answer.code == ExitCode.WRONG_INPUT
    assert "missing.json" in answer.err
    assert not Path("campaign.yaml").exists()


def test_the_users_own_debug_is_the_users(cli, put):
    put()
    init(cli, "torchrun train.py --deepspeed_config ds_config.json --debug")
    assert template().words[-1] == "--debug"


def test_commented_sections_are_right(cli, put):
    """What stands behind a comment sign is a key of the campaign too."""
    put()
    init(cli, "torchrun train.py --deepspeed_config ds_config.json --micro_batch_size 4")
    lines = Path("campaign.yaml").read_text().splitlines()
    starts = ("# space:", "#   ", "# deadlines:", "# runner:", "# ray_address:", "# placement:", "  # memory_")
    code = [line for line in lines if line.startswith(starts)]
    code = [line for line in code if ":" in line and line.strip("# ")[0].islower()]
    bare = [line.replace("# ", "", 1) if line in code else line for line in lines]
    Path("all.yaml").write_text("\n".join(bare))
    campaign = campaigns.load("all.yaml")
    assert campaign.space.global_batch_size == 256
    assert campaign.runner == "local"
    assert (campaign.placement.slots, campaign.placement.strategy) == (4, "STRICT_PACK")
    assert campaign.deadlines.first_step_s == 600
    assert campaign.hardware.memory_limit_bytes == 8_000_000_000
