"""The border: what leaves the command is a message and an exit code."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from autotune.cli.border import run
from autotune.cli.exit_codes import ExitCode
from autotune.storage import command


@pytest.fixture
def broken(cli):
    """An application with a bug; `cli` restores the logging that `run` sets up."""
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def command(_word: str) -> None:
        logging.getLogger("autotune.x").error("told", exc_info=ValueError("hidden"))
        raise ZeroDivisionError("a bug")

    return app


def test_a_bug_leaves_a_message_and_a_file(broken, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run(broken, ["word"]) == ExitCode.INTERNAL
    error = capsys.readouterr().err
    assert "internal error: ZeroDivisionError: a bug" in error
    assert "Traceback" not in error
    assert "error: told\n" in error
    (log,) = tmp_path.glob("autotune-*.log")
    assert str(log) in error
    assert "Traceback" in log.read_text()
    assert "autotune 0" in log.read_text()


def test_debug_shows_the_traceback(broken, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run(broken, ["word", "--debug"]) == ExitCode.INTERNAL
    assert "Traceback" in capsys.readouterr().err


def test_debug_may_stand_anywhere(cli):
    assert "Traceback" in cli("launch", "nowhere.yaml", "--debug").err
    assert "Traceback" in cli("--debug", "launch", "nowhere.yaml").err
    assert "Traceback" not in cli("launch", "nowhere.yaml").err


def test_unknown_commands_are_refused_like_everything_else(cli):
    answer = cli("lunch")
    assert answer.code == ExitCode.WRONG_INPUT
    assert answer.err.startswith("error: No such command 'lunch'. Did you mean 'launch'?")


def test_a_reader_that_leaves_early_hears_no_complaint(finished: Path):
    program = [sys.executable, "-c", "from autotune.cli import main; main()", "trials", "sim", "--format", "json"]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=finished, env=os.environ)
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=30) in (ExitCode.OK, ExitCode.NO_RESULT)


def test_a_password_in_the_storages_url_is_not_printed(monkeypatch):
    url = "postgresql+psycopg://me:secret@host/studies"
    monkeypatch.delenv("AUTOTUNE_STORAGE", raising=False)
    assert "secret" not in command("resume", "s", url=url)
    assert command("resume", "s", url="sqlite:///a.db") == "autotune resume s --storage sqlite:///a.db"
    monkeypatch.setenv("AUTOTUNE_STORAGE", url)
    assert command("resume", "s", url=url) == "autotune resume s"
    assert command("resume", "s", url="sqlite:///autotune.db") == "autotune resume s --storage sqlite:///autotune.db"
