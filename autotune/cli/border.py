"""The outer border of the command: errors become one message on standard error and an exit code."""

from __future__ import annotations

import logging
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import typer

from autotune import __version__
from autotune.cli.exit_codes import ExitCode
from autotune.errors import AutotuneError, ResourceError, StudyError

DEBUG = "--debug"


class Interrupted(Exception):  # noqa: N818 - what happened, and no error
    """Ctrl-C ended a session where it stood; the message says how to go on.

    Typer turns a bare KeyboardInterrupt into an exit code without a word.
    """


def run(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run the application; return the exit code. Nothing but a message leaves it, whatever happens inside.

    Args:
        app: whose commands raise `AutotuneError`, or return an exit code.
        arguments: without the program's name; `--debug` may stand anywhere before a user's own command.
    """
    theirs = arguments.index("--") if "--" in arguments else len(arguments)  # what follows is a user's own command
    ours = arguments[:theirs]
    debug = DEBUG in ours
    _log_to_stderr(debug=debug)
    try:
        rest = [argument for argument in ours if argument != DEBUG] + list(arguments[theirs:]) or ["--help"]
        code = app(rest, prog_name="autotune", standalone_mode=False)
        sys.stdout.flush()
    except AutotuneError as error:
        return _refuse(error, debug=debug)
    except typer.TyperException as error:
        complain(f"{error.format_message()}\n`autotune --help` and `autotune COMMAND --help` tell more")
        return ExitCode.WRONG_INPUT
    except Interrupted as interruption:
        complain(str(interruption), kind="stopped")
        return ExitCode.STOPPED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter's last flush complains
        return ExitCode.NO_RESULT  # as Typer ends when it finds out earlier
    except Exception as error:  # noqa: BLE001 - the border: a bug is told of, and its traceback kept
        return _confess(error, arguments, debug=debug)
    return int(code or ExitCode.OK)


def _refuse(error: AutotuneError, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    complain(str(error))
    if isinstance(error, StudyError):
        return ExitCode.STUDY
    return ExitCode.RESOURCES if isinstance(error, ResourceError) else ExitCode.WRONG_INPUT


def _confess(error: Exception, arguments: Sequence[str], *, debug: bool) -> int:
    text = "".join(traceback.format_exception(error))
    if debug:
        sys.stderr.write(text)
    where = Path(tempfile.gettempdir()) / f"autotune-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.log"
    header = f"autotune {__version__}, Python {platform.python_version()}, {platform.platform()}\n{list(arguments)}\n\n"
    try:
        where.write_text(header + text, encoding="utf-8")
        kept = f"the traceback is in {where}"
    except OSError as unwritable:
        kept = f"the traceback can't be written to {where} ({unwritable}); {DEBUG} shows it"
    last = "".join(traceback.format_exception_only(error)).strip()
    complain(f"{last}\nThis is a bug in autotune; {kept}", kind="internal error")
    return ExitCode.INTERNAL


def complain(message: str, *, kind: str = "error") -> None:
    """Write a message to stderr, behind what kind of message it is."""
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    head = f"\033[31m{kind}:\033[0m" if coloured else f"{kind}:"
    sys.stderr.write(f"{head} {message}\n")


class _ToStderr(logging.Handler):
    """Writes where `sys.stderr` points at the moment: a live line on the terminal moves out of the way."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(self.format(record) + "\n")


class _OneLine(logging.Formatter):
    """The message without its traceback: what failed is recorded with its trial."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {record.getMessage()}"


def _log_to_stderr(*, debug: bool) -> None:
    handler = _ToStderr()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s") if debug else _OneLine())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("autotune").setLevel(logging.DEBUG if debug else logging.WARNING)
