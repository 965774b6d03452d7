"""What a command's words say: its launcher, ranks, nodes, port, script, configuration and settings."""

import shlex

import pytest

from autotune.launchers import LaunchKind, recognise


def recognised(text, **options):
    words = shlex.split(text)
    return words, recognise(words, **options)


@pytest.mark.parametrize(
    ("text", "kind", "ranks", "nodes", "script"),
    [
        ("python train.py --lr 1", "python", 1, 1, "train.py"),
        ("/opt/conda/bin/python3.11 -u -W ignore train.py", "python", 1, 1, "train.py"),
        ("python -X dev -m my.train", "python", 1, 1, "my.train"),
        ("python -c 'import x'", "python", 1, 1, None),
        ("deepspeed train.py", "deepspeed", None, 1, "train.py"),
        ("deepspeed --num_gpus=4 train.py", "deepspeed", 4, 1, "train.py"),
        ("deepspeed --num_gpus 4 --num_nodes 2 --hostfile h train.py", "deepspeed", 8, 2, "train.py"),
        ("deepspeed --num_accelerators 2 --no_local_rank train.py", "deepspeed", 2, 1, "train.py"),
        ("deepspeed -H hosts --num_gpus 4 train.py", "deepspeed", None, None, "train.py"),
        ("deepspeed --include localhost:0,2,3 train.py", "deepspeed", 3, 1, "train.py"),
        ("deepspeed -i worker-0:0,1@worker-1:0 train.py", "deepspeed", 3, 2, "train.py"),
        ("deepspeed --include worker-0@worker-1:0 train.py", "deepspeed", None, 2, "train.py"),
        ("deepspeed --module --num_gpus 2 my.train --x 1", "deepspeed", 2, 1, "my.train"),
        ("python -m deepspeed.launcher.runner --num_gpus 2 train.py", "deepspeed", 2, 1, "train.py"),
        ("python /usr/bin/deepspeed --num_gpus 2 train.py", "deepspeed", 2, 1, "train.py"),
        ("torchrun train.py", "torchrun", 1, 1, "train.py"),
        ("torchrun --nproc_per_node 8 --nnodes=2 train.py", "torchrun", 16, 2, "train.py"),
        ("torchrun --nproc-per-node=gpu train.py", "torchrun", None, 1, "train.py"),
        ("torchrun --nproc-per-node auto train.py", "torchrun", None, 1, "train.py"),
        ("torchrun --nnodes 1:4 --nproc_per_node 8 train.py", "torchrun", None, None, "train.py"),
        ("torchrun --standalone --nproc_per_node 2 -m my.train", "torchrun", 2, 1, "my.train"),
        ("torchrun --nproc_per_node 2 -- train.py", "torchrun", 2, 1, "train.py"),
        ("python -m torch.distributed.run --nproc_per_node 2 train.py", "torchrun", 2, 1, "train.py"),
        ("python -m torch.distributed.launch --use_env --nproc_per_node 2 train.py", "torchrun", 2, 1, "train.py"),
        ("accelerate launch train.py", "accelerate", None, 1, "train.py"),
        ("accelerate launch --use_deepspeed --num_processes 4 train.py", "accelerate", 4, 1, "train.py"),
        ("accelerate launch --num_processes 8 --num_machines 2 -m my.train", "accelerate", 8, 2, "my.train"),
        ("python -m accelerate.commands.launch --num_processes=2 train.py", "accelerate", 2, 1, "train.py"),
        ("accelerate-launch --num_processes=2 train.py", "accelerate", 2, 1, "train.py"),
        ("accelerate config", "other", None, None, None),
        ("bash train.sh --lr 1", "other", None, None, None),
        ("./train.sh", "other", None, None, None),
        ("srun bash train.sh", "other", None, None, None),
        ("srun -N 2 --ntasks=16 --gres gpu:8 python train.py", "python", 16, 2, "train.py"),
        ("srun python train.py", "python", None, None, "train.py"),
        ("mpirun -np 4 python train.py", "python", 4, None, "train.py"),
        ("srun torchrun --nproc_per_node 2 train.py", "torchrun", 2, 1, "train.py"),
        ("numactl --cpunodebind=0 torchrun --nproc_per_node 2 train.py", "torchrun", 2, 1, "train.py"),
        ("uv run python train.py", "python", 1, 1, "train.py"),
        ("conda run -n mine deepspeed --num_gpus 2 train.py", "deepspeed", 2, 1, "train.py"),
        ("", "other", None, None, None),
        ("torchrun", "torchrun", 1, 1, None),
        ("torchrun --nproc_per_node", "torchrun", 1, 1, None),
    ],
)
def test_a_launcher_and_its_size(text, kind, ranks, nodes, script):
    words, launch = recognised(text)
    assert (launch.kind, launch.ranks, launch.nodes) == (LaunchKind(kind), ranks, nodes)
    assert (None if launch.script_index is None else words[launch.script_index]) == script
    assert recognise(tuple(words)) == launch


def test_variables_in_front_are_told_apart():
    words, launch = recognised("CUDA_VISIBLE_DEVICES=0,1 env -u X WANDB_MODE=offline A=b=c deepspeed train.py")
    assert launch.environment == {"CUDA_VISIBLE_DEVICES": "0,1", "WANDB_MODE": "offline", "A": "b=c"}
    assert words[launch.program_index] == "deepspeed"
    assert words[launch.options_index] == "train.py"


@pytest.mark.parametrize(
    ("text", "port", "before"),
    [
        ("deepspeed --master_port 29501 train.py", "29501", ""),
        ("torchrun --master-port=29501 train.py", "29501", "--master-port="),
        ("torchrun --rdzv-endpoint=localhost:29400 train.py", "29400", "--rdzv-endpoint=localhost:"),
        ("accelerate launch --main_process_port 29502 train.py", "29502", ""),
        ("torchrun --rdzv_endpoint localhost:0 train.py", None, None),
        ("torchrun --rdzv_endpoint $HOST train.py", None, None),
        ("torchrun train.py --master_port 29501", None, None),
    ],
)
def test_a_fixed_port(text, port, before):
    words, launch = recognised(text)
    if port is None:
        assert launch.port is None
    else:
        assert launch.port.text == port
        assert words[launch.port.index] == before + port
        assert launch.port.offset == len(before)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("deepspeed train.py --deepspeed ds.json", "ds.json"),
        ("deepspeed train.py --deepspeed=conf/ds.json", "conf/ds.json"),
        ("deepspeed train.py --deepspeed --deepspeed_config ds.json", "ds.json"),
        ("deepspeed train.py --deepspeed_config=ds.json --deepspeed", "ds.json"),
        ("torchrun train.py --ds_config ds.hjson", "ds.hjson"),
        ("torchrun train.py --ds-config ds.json", "ds.json"),
        ("accelerate launch --deepspeed_config_file ds.json train.py", "ds.json"),
        ("accelerate launch --deepspeed_config_file ds.json train.py --deepspeed mine.json", "mine.json"),
        ("deepspeed train.py --deepspeed data.txt", None),
        ("deepspeed train.py --deepspeed", None),
        ("deepspeed --deepspeed_config ds.json", None),
    ],
)
def test_the_configuration(text, path):
    words, launch = recognised(text)
    if path is None:
        assert launch.config is None
    else:
        assert launch.config.path == path
        assert words[launch.config.index][launch.config.offset :] == path


def test_the_configuration_of_accelerates_own_file(tmp_path):
    (tmp_path / "acc.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 4\nnum_machines: 1\n"
        "deepspeed_config:\n  deepspeed_config_file: ds.json\n  zero3_init_flag: true\n"
    )
    _, launch = recognised("accelerate launch --config_file acc.yaml train.py", directory=tmp_path)
    assert (launch.ranks, launch.nodes, launch.accelerate_config) == (4, 1, "acc.yaml")
    assert (launch.config.path, launch.config.index) == ("ds.json", None)
    _, launch = recognised("accelerate launch --config_file acc.yaml --num_processes 2 train.py", directory=tmp_path)
    assert launch.ranks == 2


@pytest.mark.parametrize("content", [None, "a: [", "- a\n", "num_processes: many\ndeepspeed_config: x\n"])
def test_a_file_of_accelerate_that_says_nothing(tmp_path, content):
    if content is not None:
        (tmp_path / "acc.yaml").write_text(content)
    _, launch = recognised("accelerate launch --config_file acc.yaml train.py", directory=tmp_path)
    assert (launch.ranks, launch.config) == (None, None)


def test_settings_of_training_arguments():
    words, launch = recognised(
        "deepspeed --num_gpus 2 train.py --deepspeed ds.json --per_device_train_batch_size 4 --learning_rate=3e-4 "
        "--gradient_accumulation_steps 8 --bf16 --fp16 False --gradient_checkpointing"
    )
    assert launch.is_hugging_face
    assert {key: argument.text for key, argument in launch.settings.items()} == {
        "train_micro_batch_size_per_gpu": "4",
        "optimizer.params.lr": "3e-4",
        "gradient_accumulation_steps": "8",
        "bf16.enabled": "true",
        "fp16.enabled": "False",
        "activation_checkpointing": "true",
    }
    rate = launch.settings["optimizer.params.lr"]
    assert words[rate.index][rate.offset :] == "3e-4"
    assert launch.settings["bf16.enabled"].is_bare
    assert words[launch.settings["bf16.enabled"].index] == "--bf16"


def test_the_launchers_arguments_are_not_the_scripts():
    _, launch = recognised("accelerate launch --gradient_accumulation_steps 2 train.py --lr 1e-3")
    assert set(launch.settings) == {"optimizer.params.lr"}
    assert not launch.is_hugging_face


def test_a_batch_size_is_a_guess_and_a_sure_name_beats_it():
    _, launch = recognised("python train.py --batch-size 32 --lr 0.1")
    assert launch.settings["train_micro_batch_size_per_gpu"].is_guess
    assert not launch.settings["optimizer.params.lr"].is_guess
    _, launch = recognised("python train.py --micro_batch_size 4 --batch_size 32")
    argument = launch.settings["train_micro_batch_size_per_gpu"]
    assert (argument.text, argument.is_guess) == ("4", False)


def test_the_last_of_an_argument_counts_and_what_is_no_number_does_not():
    _, launch = recognised("python train.py --lr 1 --lr 2 --micro_batch_size $BATCH --fp16 data.txt")
    assert {key: argument.text for key, argument in launch.settings.items()} == {"optimizer.params.lr": "2"}


def test_a_negative_number_is_a_value():
    _, launch = recognised("python train.py --lr -1e-3 --steps 5")
    assert launch.settings["optimizer.params.lr"].text == "-1e-3"
