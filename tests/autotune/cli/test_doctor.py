"""The doctor looks at this machine and says what to do."""

from __future__ import annotations

import json

from autotune.cli.exit_codes import ExitCode
from autotune.evaluators import op_cache


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
    assert str(folder / "lock") in found["op cache"]["detail"]
    assert (folder / "lock").exists()
