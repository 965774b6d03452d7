"""What a user's command means for tuning: its template, where it starts, what it can't be tuned in."""

import shlex

import pytest

from autotune import ds_config, scripts
from autotune.command import CommandTemplate
from autotune.errors import CampaignError

MICRO, ACCUMULATION, RATE = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "optimizer.params.lr"
AUTO = {
    MICRO: "auto",
    ACCUMULATION: "auto",
    "train_batch_size": "auto",
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    "bf16": {"enabled": "auto"},
}
NUMBERS = {MICRO: 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}


def template(text, config):
    return scripts.template_of(shlex.split(text), config, directory=".")


def start(text, config):
    concrete, auto = ds_config.without_auto(config)
    command = template(text, config)
    begun = scripts.start_of(command, concrete)
    scripts.check_starts(command, begun, auto=auto)
    return begun


def test_a_command_as_its_user_types_it():
    made = template("torchrun t.py --deepspeed ds.json --per_device_train_batch_size 8 --learning_rate 1e-4", AUTO)
    assert str(made.words[1:3]) == str(("--master_port", "{port}"))
    assert made.starts == {MICRO: 8, RATE: 1e-4}
    assert "config" in made.names


def test_a_command_with_a_place_for_the_configuration_is_left_as_it_is():
    text = "torchrun --standalone t.py --deepspeed {config} --per_device_train_batch_size 4"
    assert template(text, AUTO).words == tuple(shlex.split(text))


def test_without_an_optimizer_block_the_learning_rate_stays_the_scripts_own():
    made = template("python t.py --deepspeed_config ds.json --lr 1e-3", {MICRO: 4})
    assert made.words == ("python", "t.py", "--deepspeed_config", "{config}", "--lr", "1e-3")


def test_a_learning_rate_without_a_place_is_refused():
    with pytest.raises(CampaignError, match="write the number itself into the command"):
        start("python t.py {config} --lr {optimizer.params.lr=1e-3}", {MICRO: 4})
    mapped = {MICRO: 4, "autotuning": {"arg_mappings": {"lr ": "--lr", MICRO: "--mb"}}}
    made = template("python t.py --deepspeed_config ds.json --lr 1e-3", mapped)
    assert made.words == ("python", "t.py", "--deepspeed_config", "{config}", "--lr", "1e-3", "--mb", f"{{{MICRO}=4}}")


def test_argument_mappings_are_honoured():
    own = {**AUTO, "autotuning": {"arg_mappings": {f"{MICRO} ": "--mb", ACCUMULATION: " --ga"}}}
    made = template("python t.py --deepspeed_config ds.json --mb 4 --ga 2", own)
    assert made.starts == {MICRO: 4, ACCUMULATION: 2}


def test_argument_mappings_start_at_what_the_file_says_or_the_trainer_does():
    mappings = {MICRO: "--per_device_train_batch_size", ACCUMULATION: "--gradient_accumulation_steps"}
    numbers = {**NUMBERS, "autotuning": {"arg_mappings": {MICRO: "--mb"}}}
    assert template("python t.py --deepspeed_config ds.json", numbers).starts == {MICRO: 4}
    trainer = {**AUTO, "autotuning": {"arg_mappings": mappings}}
    assert template("torchrun t.py --deepspeed ds.json --save_strategy no", trainer).starts == {
        MICRO: 8,
        ACCUMULATION: 1,
    }
    with pytest.raises(CampaignError, match=rf"\{{{MICRO}\}} has no value to start at"):
        start("torchrun t.py --deepspeed_config ds.json", trainer)  # a script of one's own: nobody knows


def test_the_start_is_the_users_own_run():
    begun = start("torchrun t.py --deepspeed ds.json --per_device_train_batch_size 8 --bf16 true", AUTO)
    assert (begun[MICRO], begun["bf16"]) == (8, {"enabled": True})
    assert ACCUMULATION not in begun


@pytest.mark.parametrize(
    ("placeholder", "precision"),
    [
        ("{precision=bf16}", "bf16"),
        ("{mixed_precision=fp16}", "fp16"),
        ("{mixed_precision=no}", "fp32"),
        ("{bf16.enabled=true}", "bf16"),
        ("{bf16.enabled=false}", "fp32"),
    ],
)
def test_each_way_to_say_the_precision(placeholder, precision):
    begun = start(f"accelerate launch t.py --deepspeed {{config}} --precision {placeholder}", AUTO)
    assert ds_config.precision_of(begun) == precision
    left_out = scripts.unavailable(template(f"python t.py {{config}} {placeholder}", AUTO), AUTO)
    assert "precision" not in left_out


def test_a_command_and_a_file_that_disagree_are_refused():
    with pytest.raises(CampaignError, match=r"starts at 8, but the DeepSpeed configuration says 4"):
        start("torchrun t.py --deepspeed {config} --mb {train_micro_batch_size_per_gpu=8}", NUMBERS)


@pytest.mark.parametrize("name", [MICRO, RATE, "bf16.enabled", "precision", "mixed_precision"])
def test_a_start_that_nobody_says_is_refused(name):
    with pytest.raises(CampaignError, match=rf"write \{{{name}=VALUE\}}"):
        start(f"torchrun t.py --deepspeed {{config}} --x {{{name}}}", AUTO)


def test_a_start_that_the_file_says_needs_none_in_the_command():
    text = "torchrun t.py {config} {train_micro_batch_size_per_gpu} {optimizer.params.lr} {mixed_precision} {seed}"
    assert start(text, NUMBERS) == NUMBERS
    with pytest.raises(CampaignError, match="reduce_bucket_size"):
        start("torchrun t.py {config} {zero_optimization.reduce_bucket_size}", NUMBERS)


def test_what_can_not_be_searched_and_why():
    literal = CommandTemplate(("torchrun", "t.py", "--deepspeed", "{config}", "--per_device_train_batch_size", "4"))
    reasons = scripts.unavailable(literal, AUTO)
    assert set(reasons) == {MICRO, ACCUMULATION, RATE, "precision", "activation_checkpointing"}
    assert reasons[MICRO] == (
        f'{MICRO} is "auto": the script sets it; to search it, pass it with {{{MICRO}=VALUE}} in the command'
    )
    assert set(scripts.unavailable(literal, NUMBERS)) == {"activation_checkpointing"}
    without_optimizer = scripts.unavailable(literal, {MICRO: 4})
    assert "no optimizer block" in without_optimizer[RATE]
    passed = CommandTemplate(("t.py", "{config}", "{precision=bf16}", f"{{{MICRO}=4}}", "{activation_checkpointing}"))
    assert set(scripts.unavailable(passed, AUTO)) == {ACCUMULATION, RATE}


def test_whether_the_command_recomputes_activations():
    said = CommandTemplate(("t.py", "--gradient_checkpointing", "{activation_checkpointing=true}"))
    assert scripts.checkpoints_at_start(said) is True
    assert scripts.checkpoints_at_start(CommandTemplate(("t.py",))) is None
