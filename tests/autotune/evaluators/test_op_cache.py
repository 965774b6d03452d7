import os
import shutil
import subprocess
import sys

import pytest

from autotune.errors import ResourceError
from autotune.evaluators import op_build, op_cache
from autotune.evaluators.op_build import Build

ADAM = "FusedAdamBuilder"


def config(optimizer="AdamW", *, offload=None, torch_adam=False, **zero):
    if offload:
        zero["offload_optimizer"] = {"device": offload}
    params = {"lr": 0.1} | ({"torch_adam": True} if torch_adam else {})
    return {"optimizer": {"type": optimizer, "params": params}, "zero_optimization": zero}


@pytest.mark.parametrize(
    ("ds_config", "builders"),
    [
        ({}, set()),
        (config(), {"FusedAdamBuilder"}),
        (config("adam"), {"FusedAdamBuilder"}),
        (config("Muon"), {"FusedAdamBuilder"}),
        (config(torch_adam=True), set()),
        (config(offload="cpu"), {"CPUAdamBuilder"}),
        (config(offload="none"), {"FusedAdamBuilder"}),
        (config(offload="cpu", torch_adam=True), set()),
        (config(offload="nvme"), {"CPUAdamBuilder", "AsyncIOBuilder"}),
        (config(torch_adam=True, offload_param={"device": "nvme"}), {"AsyncIOBuilder"}),
        (config("Lion"), {"FusedLionBuilder"}),
        (config("Lion", offload="cpu"), {"CPULionBuilder"}),
        (config("Adagrad"), set()),
        (config("Adagrad", offload="cpu"), {"CPUAdagradBuilder"}),
        (config("Lamb"), {"FusedLambBuilder"}),
        (config("SGD"), set()),
        (config("SGD", zero_quantized_weights=True), {"QuantizerBuilder"}),
    ],
)
def test_which_ops_a_configuration_needs(ds_config, builders):
    assert op_cache.builders_for(ds_config) == builders


def test_the_folder_tells_versions_device_and_processor(monkeypatch, tmp_path):
    monkeypatch.setenv(op_cache.ROOT_VARIABLE, str(tmp_path))
    folder = op_cache.directory("cpu")
    assert folder.parent == tmp_path
    assert "torch" in folder.name
    assert "deepspeed" in folder.name
    assert folder.name.endswith(f"-cpu-{op_cache.hardware_fingerprint('cpu')}")
    assert folder != op_cache.directory("cuda")
    monkeypatch.delenv(op_cache.ROOT_VARIABLE)
    assert op_cache.directory("cpu").is_relative_to(os.path.expanduser("~"))


def lock_in(folder, op):
    (folder / op).mkdir(parents=True, exist_ok=True)
    return folder / op / "lock"


def test_a_lock_that_nobody_holds_open_is_cleared(tmp_path):
    stale, held = lock_in(tmp_path, "fused_adam"), lock_in(tmp_path, "cpu_adam")
    stale.touch()
    with held.open("w"):  # as torch's FileBaton: open as long as its builder lives
        assert op_cache.clear_stale_locks(tmp_path) == [stale]
        assert held.exists()
        assert not stale.exists()
    assert op_cache.clear_stale_locks(tmp_path) == [held]
    assert op_cache.clear_stale_locks(tmp_path / "absent") == []


def test_preparing_builds_what_is_missing_and_no_more(monkeypatch, tmp_path):
    monkeypatch.setenv(op_cache.ROOT_VARIABLE, str(tmp_path))
    folder = op_cache.directory("cpu")
    built, lines = [], []
    monkeypatch.setattr(Build, "run", lambda build: built.append(build.builder))
    library = op_cache.library(folder, op_cache.OP_NAMES[ADAM])
    library.parent.mkdir(parents=True)
    library.touch()
    (library.parent / "lock").touch()
    op_cache.prepare([config(), config("SGD"), config(offload="cpu")], device="cpu", progress=lines.append)
    assert built == ["CPUAdamBuilder"]
    assert lines == [
        f"removed {library.parent / 'lock'}: its builder is gone, and DeepSpeed would have waited for it for ever"
    ]


def build(tmp_path, lines, builder):
    return Build(builder=builder, op="an_op", folder=tmp_path, device="cpu", progress=lines.append)


@pytest.mark.real
def test_a_folder_that_cannot_be_made_is_told_with_the_way_out(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv(op_cache.ROOT_VARIABLE, str(tmp_path / "file" / "ops"))
    with pytest.raises(ResourceError, match=r"op cache: the folder .*/file/ops/.* can't be made .*AUTOTUNE_OP_CACHE"):
        op_cache.prepare([], device="cpu", progress=print)


def test_an_op_that_the_device_does_not_have_is_told(tmp_path):
    lines = []
    assert not build(tmp_path, lines, "FusedLambBuilder").run()
    assert lines[-1] == "an_op does not exist for device 'cpu': what needs it will be refused"


@pytest.mark.real
def test_a_build_that_fails_shows_its_last_lines(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setenv("CXX", "/bin/false")
    assert not build(tmp_path, lines, ADAM).run()
    assert lines[-1].startswith("could not compile an_op (exit code 1); its last lines:\n")
    assert "Error" in lines[-1]


@pytest.mark.real
def test_a_build_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(op_build, "DEADLINE_S", 0.5)
    monkeypatch.setattr(op_build, "PROGRESS_EVERY_S", 0.2)
    assert not build(tmp_path, lines, ADAM).run()
    assert any(line.startswith("still compiling an_op: ") for line in lines)
    assert "not done after 0 s" in lines[-1]


LOAD = """
import pathlib, sys
from deepspeed.accelerator import get_accelerator
from autotune.evaluators.rank_worker import compiled_ops
compiled_ops.load_from(pathlib.Path(sys.argv[1]))
for name in sys.argv[2:]:
    print(get_accelerator().create_op_builder(name).load().__name__)
"""


def load(folder, *builders, **environment):
    return subprocess.run(
        [sys.executable, "-c", LOAD, str(folder), *builders],
        env=os.environ | {"TORCH_EXTENSIONS_DIR": str(folder), "DS_ACCELERATOR": "cpu"} | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.slow
@pytest.mark.real
def test_a_rank_loads_a_compiled_op_without_lock_or_build(tmp_path):
    op = op_cache.OP_NAMES[ADAM]
    op_cache.prepare([config()], device="cpu", progress=lambda line: None)
    copy = op_cache.library(tmp_path, op)
    copy.parent.mkdir()
    shutil.copy(op_cache.library(op_cache.directory("cpu"), op), copy)
    assert load(tmp_path, ADAM, ADAM).stdout.splitlines()[-2:] == [op, op]
    assert list(copy.parent.iterdir()) == [copy]


@pytest.mark.real
def test_a_lock_that_a_killed_rank_left_does_not_hold_up_the_next(tmp_path):
    lock = lock_in(tmp_path, op_cache.OP_NAMES[ADAM])
    lock.touch()
    ended = load(tmp_path, ADAM, CXX="/bin/false")
    assert ended.returncode == 1, "it waited no longer for the lock, and came to the compiler"
    assert "/bin/false" in ended.stderr
    assert not lock.exists()


BACKEND = """
import os
import deepspeed
from autotune.evaluators.rank_worker import compiled_ops
compiled_ops.without_inference_collectives()
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
print("ready", deepspeed.comm.comm.cdb.shm_comm_op, flush=True)
os._exit(0)
"""


@pytest.mark.real
def test_nothing_is_compiled_to_bring_up_the_collectives(tmp_path):
    environment = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path), "DS_ACCELERATOR": "cpu"}
    done = subprocess.run([sys.executable, "-c", BACKEND], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1:] == ["ready None"], done.stderr
    assert list(tmp_path.iterdir()) == []
