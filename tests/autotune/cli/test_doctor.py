"""The doctor looks at this machine and says what to do."""

from __future__ import annotations

import importlib.metadata
import json
import os

import pytest

from autotune import file_systems, hardware
from autotune.cli.checks import machine, place, software
from autotune.cli.checks.finding import Status
from autotune.cli.exit_codes import ExitCode
from autotune.evaluators import op_cache
from autotune.hardware import Gpu


def findings(answer):
    return {finding["check"]: finding for finding in json.loads(answer.out)}


def test_this_machine(cli):
    answer = cli("doctor", "--format", "json")
    found = findings(answer)
    assert answer.code == ExitCode.OK
    for check in ("python", "packages", "hardware", "C++ compiler", "op cache", "storage", "disk here", "ports", "ray"):
        assert check in found
    assert all(finding["status"] in ("ok", "warn") for finding in found.values())
    assert "the first launch makes it" in found["storage"]["detail"]


def test_a_storage_that_cannot_be_reached_is_a_failure(cli):
    answer = cli("doctor", "--format", "json", "--storage", "sqlite:////nowhere/at/all.db")
    assert answer.code == ExitCode.NO_RESULT
    assert findings(answer)["storage"]["status"] == "fail"
    assert "1 failure" in cli("doctor", "--storage", "sqlite:////nowhere/at/all.db").out


def test_what_is_missing_is_named_with_what_to_do(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(op_cache.ROOT_VARIABLE, str(tmp_path / "ops"))
    folder = op_cache.directory("cpu") / "fused_adam"
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    found = findings(cli("doctor", "--format", "json"))
    assert found["C++ compiler"]["status"] == "warn"
    assert "install g++" in found["C++ compiler"]["advice"]
    assert str(folder / "lock") in found["op lock"]["detail"]
    assert (folder / "lock").exists()


class TestLocks:
    """A lock whose builder is gone stops whoever loads the op, in autotune's cache and in torch's own folders."""

    @pytest.fixture
    def locks(self, monkeypatch, tmp_path):
        monkeypatch.setenv(op_cache.ROOT_VARIABLE, str(tmp_path / "ours"))
        monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "theirs"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        folders = [
            op_cache.directory("cpu"),
            tmp_path / "theirs",
            tmp_path / "cache" / "torch_extensions" / "py311_cpu",
        ]
        made = [folder / "fused_adam" / "lock" for folder in folders]
        for lock in made:
            lock.parent.mkdir(parents=True)
            lock.touch()
        return made

    def test_they_are_told_and_kept(self, cli, locks):
        rows = [row for row in json.loads(cli("doctor", "--format", "json").out) if row["check"] == "op lock"]
        assert {row["detail"].partition(":")[0] for row in rows} == {str(lock) for lock in locks}
        assert {(row["status"], row["advice"]) for row in rows} == {("warn", "autotune doctor --fix")}
        assert all(lock.exists() for lock in locks)

    def test_they_are_removed_on_demand_but_one_that_is_held(self, cli, locks):
        held, *stale = locks
        with held.open():
            answer = cli("doctor", "--fix", "--format", "json")
        assert answer.code == ExitCode.OK
        assert held.exists()
        assert not any(lock.exists() for lock in stale)
        assert "a build is under way" in answer.out
        assert not [
            row for row in json.loads(cli("doctor", "--format", "json").out) if "its builder was gone" in row["detail"]
        ]


def test_a_storage_on_a_network_is_a_failure_with_a_way_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mounts = file_systems.mounts(f"1 0 0:1 / {tmp_path} rw - nfs4 server:/x rw")
    (finding,) = place.storage(None, mounts)
    assert finding.status is Status.FAIL
    assert "PostgreSQL" in finding.detail
    assert not [*tmp_path.iterdir()]


def test_gpus_that_others_use():
    busy = Gpu(index=1, name="H100", memory_bytes=80 * 10**9, free_bytes=70 * 10**9, pids=(4711,))
    idle = Gpu(index=0, name="H100", memory_bytes=80 * 10**9, free_bytes=79 * 10**9)
    first, second = machine.gpus([idle, busy])
    assert (first.status, second.status) == (Status.OK, Status.WARN)
    assert "used by process 4711" in second.detail
    assert "CUDA_VISIBLE_DEVICES" in second.advice


SMI = """#!/bin/sh
case "$1" in
  --query-gpu=uuid*) echo "GPU-a, 0, 81559, 80000, NVIDIA H100, 80GB"; echo "GPU-b, 1, 81559, [N/A], NVIDIA H100" ;;
  --query-compute*) echo "GPU-a, 4711"; echo "GPU-a, 4712" ;;
  --query-gpu=memory*) echo "81559, 9.0, NVIDIA H100, 80GB" ;;
esac
"""


def test_gpus_by_nvidia_smi(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (gpu,) = hardware.gpus()
    assert (gpu.name, gpu.index, gpu.pids) == ("NVIDIA H100, 80GB", 0, (4711, 4712))
    assert (gpu.memory_bytes, gpu.free_bytes) == (81559 * 2**20, 80000 * 2**20)
    detected = hardware.detect()
    assert (detected.device_name, detected.compute_capability) == ("NVIDIA H100, 80GB", 9.0)


@pytest.mark.parametrize(
    ("versions", "complaint"),
    [
        ({"deepspeed": "0.14.0", "torch": "2.4.0", "numpy": "1.26.4"}, "cannot import name 'log'"),
        ({"deepspeed": "0.14.0", "torch": "2.3.1", "numpy": "2.0.0"}, "cannot import name 'BUFSIZE'"),
        ({"deepspeed": "0.16.0", "torch": "2.6.0+cu124", "numpy": "2.0.0"}, None),
    ],
)
def test_versions_that_do_not_go_together(monkeypatch, versions, complaint):
    def version(name):
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: [])
    found = list(software.combinations())
    assert [complaint in finding.detail for finding in found] == ([True] if complaint else [])


def test_what_a_package_asks_for_is_looked_at(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0")
    wishes = ["accelerate>=1.1.0; extra == 'accelerate'", "torch>=2; extra == 'torch'", "numpy>=99", "!nonsense"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: wishes if name == "transformers" else None)
    found = [finding for finding in software.combinations() if finding.check == "versions"]
    details = [finding.detail for finding in found if finding.status is Status.WARN]
    assert len(details) == 2
    assert details[0] == "transformers 1.0 asks for accelerate>=1.1.0; here: 1.0"


class TestProbe:
    """`autotune doctor CAMPAIGN.yaml` runs the campaign's own configuration for two steps and leaves nothing."""

    def test_a_campaign_that_runs(self, cli, folder):
        before = sorted(path.name for path in folder.iterdir())
        answer = cli("doctor", "c.yaml")
        assert answer.code == ExitCode.OK
        assert "it trains: 16 samples a step" in answer.out
        assert "autotune launch c.yaml" in answer.out
        assert sorted(path.name for path in folder.iterdir()) == before

    def test_the_launch_it_suggests_is_of_the_campaign_that_it_tried(self, cli):
        changed = ("--set", "trials=7", "--set", "finals={candidates: 0}", "--storage", "sqlite:///other.db")
        found = findings(cli("doctor", "c.yaml", *changed, "--format", "json"))
        said = "autotune launch c.yaml --set trials=7 --set 'finals={candidates: 0}' --storage sqlite:///other.db"
        assert found["probe"]["advice"] == said

    def test_the_campaigns_own_storage_is_checked(self, cli):
        found = findings(cli("doctor", "c.yaml", "--set", "storage=sqlite:////nowhere/at/all.db", "--format", "json"))
        assert found["storage"]["status"] == "fail"

    def test_the_campaigns_folder_of_logs_is_checked(self, folder):
        assert list(place.logs(folder / "runs")) == []
        (finding,) = place.logs(folder / "c.yaml" / "runs")
        assert (finding.check, finding.status) == ("run directory", "fail")
        assert finding.detail == f"{folder}/c.yaml/runs can't be written to: Not a directory"
        assert "run_directory" in finding.advice

    @pytest.mark.parametrize("override", ["trials=none", "ds_config.train_batch_size=7", "space.remove=[nothing]"])
    def test_a_campaign_that_can_not_be_used(self, cli, override):
        answer = cli("doctor", "c.yaml", "--set", override, "--format", "json")
        assert answer.code == ExitCode.NO_RESULT
        found = findings(answer)
        assert found["campaign"]["status"] == "fail"
        assert "probe" not in found

    @pytest.mark.real
    def test_a_trial_that_fails_shows_its_log(self, cli, folder):
        (folder / "broken.py").write_text("def workload(context):\n    raise ValueError('no data here')\n")
        torch_adam = ["--set", "ds_config.optimizer.params.torch_adam=true"]  # nothing to compile
        set_ = ["--set", "evaluator=deepspeed", "--set", "workload.function=broken:workload"]
        answer = cli("doctor", "c.yaml", *set_, "--set", "hardware.ranks=1", *torch_adam)
        assert answer.code == ExitCode.NO_RESULT
        assert "no data here" in answer.out
        assert "probe: last lines of the log" in answer.out
        assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == ["broken.py", "c.yaml"]
