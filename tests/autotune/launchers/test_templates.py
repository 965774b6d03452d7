"""Commands made templates, and the arguments that `autotuning.arg_mappings` names."""

import shlex

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autotune.command import CommandTemplate
from autotune.launchers import recognise, template, with_arg_mappings, with_free_port

MICRO = "train_micro_batch_size_per_gpu"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "torchrun --nproc_per_node 2 train.py --deepspeed ds.json --learning_rate 3e-4",
            "torchrun --nproc_per_node 2 train.py --deepspeed {config} --learning_rate {optimizer.params.lr=3e-4}",
        ),
        (
            "deepspeed --master_port=29501 t.py --deepspeed_config=ds.json --lr=1e-3 --bf16",
            "deepspeed --master_port={port} t.py --deepspeed_config={config} --lr={optimizer.params.lr=1e-3} --bf16",
        ),
        (
            "deepspeed t.py --deepspeed ds.json --use_cpu --bf16 --lr 1",
            "deepspeed t.py --deepspeed {config} --use_cpu --bf16={bf16.enabled=true} --lr {optimizer.params.lr=1}",
        ),
        (
            "torchrun --rdzv-endpoint localhost:29400 t.py --batch_size 4",
            "torchrun --rdzv-endpoint localhost:{port} t.py --batch_size 4",
        ),
        (
            "torchrun --nnodes 2 --master_port 29400 t.py --micro-batch-size 4",
            "torchrun --nnodes 2 --master_port 29400 t.py --micro-batch-size {train_micro_batch_size_per_gpu=4}",
        ),
        (
            "deepspeed --autotuning run --num_gpus 2 t.py --deepspeed ds.json",
            "deepspeed --num_gpus 2 t.py --deepspeed {config}",
        ),
        (
            "deepspeed --autotuning=tune --num_gpus 2 t.py --deepspeed ds.json",
            "deepspeed --num_gpus 2 t.py --deepspeed {config}",
        ),
        (
            "deepspeed t.py --deepspeed {config} --lr {optimizer.params.lr=1e-3}",
            "deepspeed t.py --deepspeed {config} --lr {optimizer.params.lr=1e-3}",
        ),
        ("deepspeed t.py --ds_config a.json --gradient_checkpointing", None),
        ("bash train.sh --lr 1", None),
    ],
)
def test_a_template(text, expected):
    assert template(shlex.split(text)) == tuple(shlex.split(expected or text.replace("a.json", "{config}")))


def test_guesses_on_demand():
    words = ["python", "t.py", "--batch_size", "4"]
    assert template(words) == tuple(words)
    assert template(words, guesses=True)[-1] == "{train_micro_batch_size_per_gpu=4}"


def test_settings_that_are_kept():
    words = ["python", "t.py", "--lr", "1e-3", "--micro_batch_size=4"]
    assert template(words, kept=["optimizer.params.lr"])[-2:] == ("1e-3", f"--micro_batch_size={{{MICRO}=4}}")


def test_the_configuration_in_accelerates_own_file_becomes_an_option(tmp_path):
    (tmp_path / "acc.yaml").write_text("deepspeed_config: {deepspeed_config_file: ds.json}\n")
    words = ["accelerate", "launch", "--config_file", "acc.yaml", "train.py"]
    made = template(words, recognise(words, directory=tmp_path))
    assert made == ("accelerate", "launch", "--deepspeed_config_file", "{config}", *words[2:])


def test_json_in_an_argument_comes_out_as_it_went_in():
    words = ("torchrun", "t.py", "--extra", '{"a": {"b": {"c": 1}}}', "--deepspeed=ds.json")
    assert CommandTemplate(template(words)).render({"config": "ds.json"}) == words


_LAUNCHERS = st.sampled_from(
    [
        ("python",),
        ("torchrun", "--nproc_per_node", "2", "--master_port", "29500"),
        ("torchrun", "--rdzv-endpoint=localhost:29500", "--nnodes=1"),
        ("env", "A=b", "deepspeed", "--num_gpus=2"),
        ("accelerate", "launch", "--main_process_port=29500"),
    ]
)
_NUMBERS = st.integers(min_value=1, max_value=4096).map(str)
_RATES = st.floats(min_value=1e-9, max_value=9.0).filter(lambda rate: not rate.is_integer()).map(repr)
_PAIRS = st.one_of(
    st.tuples(st.sampled_from(["--per_device_train_batch_size", "--micro-batch-size", "--batch_size"]), _NUMBERS),
    st.tuples(st.sampled_from(["--learning_rate", "--lr"]), _RATES),
    st.tuples(st.just("--gradient_accumulation_steps"), _NUMBERS),
    st.tuples(st.sampled_from(["--bf16", "--fp16"]), st.sampled_from(["true", "false"])),
    st.tuples(st.just("--data"), st.text(alphabet='ab{} "=:,-', max_size=12)),
    st.tuples(st.sampled_from(["--deepspeed", "--deepspeed_config"]), st.just("ds.json")),
)


@given(launcher=_LAUNCHERS, pairs=st.lists(st.tuples(_PAIRS, st.booleans()), max_size=6), guesses=st.booleans())
def test_rendered_with_its_starts_a_template_is_the_command_again(launcher, pairs, guesses):
    words = [*launcher, "train.py"]
    for (flag, value), joined in pairs:
        words += [f"{flag}={value}"] if joined else [flag, value]
    made = CommandTemplate(template(words, guesses=guesses))
    named = CommandTemplate(tuple(words))
    assume(not named.placeholders)  # what looks like a placeholder is kept as one
    assert made.render({**made.starts, "config": "ds.json", "port": 29500}) == tuple(words)


def test_arg_mappings_replace_a_value_or_append():
    words = ["deepspeed", "--num_gpus", "2", "t.py", "--per_device_train_batch_size", "4", "--lr=1e-3"]
    mappings = {
        f"{MICRO} ": "--per_device_train_batch_size",
        "gradient_accumulation_steps ": " --gradient_accumulation_steps",
        "gradient_accumulation_steps": "--ignored_as_deepspeed_does",
        "lr": "--lr",
        "stage": "--zero_stage",
    }
    made = with_arg_mappings(words, mappings, {"gradient_accumulation_steps": 8})
    assert made == (
        *words[:5],
        "{train_micro_batch_size_per_gpu=4}",
        "--lr={optimizer.params.lr=1e-3}",
        "--gradient_accumulation_steps",
        "{gradient_accumulation_steps=8}",
        "--zero_stage",
        "{zero_optimization.stage}",
    )


def test_arg_mappings_leave_the_launchers_options_and_placeholders_alone():
    words = ["accelerate", "launch", "--gradient_accumulation_steps", "2", "t.py", "--micro", "{x=3}"]
    made = with_arg_mappings(words, {"gradient_accumulation_steps": "--gradient_accumulation_steps", MICRO: "--micro"})
    assert made == (*words, "--gradient_accumulation_steps", "{gradient_accumulation_steps}")


def test_arg_mappings_and_the_template_go_together():
    words = ["deepspeed", "t.py", "--deepspeed", "ds.json", "--mb", "4"]
    made = CommandTemplate(template(with_arg_mappings(words, {MICRO: "--mb"})))
    assert made.starts == {MICRO: 4}
    assert made.names == {"config", MICRO}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("deepspeed t.py", "deepspeed --master_port {port} t.py"),
        ("env A=b torchrun --nproc_per_node 2 t.py", "env A=b torchrun --master_port {port} --nproc_per_node 2 t.py"),
        ("accelerate launch t.py", "accelerate launch --main_process_port {port} t.py"),
        ("python -m torch.distributed.run t.py", "python -m torch.distributed.run --master_port {port} t.py"),
        ("torchrun --standalone t.py", "torchrun --standalone t.py"),
        ("torchrun --master-port=1 t.py", "torchrun --master-port=1 t.py"),
        ("deepspeed --num_nodes 2 t.py", "deepspeed --num_nodes 2 t.py"),
        ("python t.py", "python t.py"),
        ("bash t.sh", "bash t.sh"),
    ],
)
def test_a_free_port_where_none_is_named(text, expected):
    assert with_free_port(shlex.split(text)) == tuple(shlex.split(expected))
