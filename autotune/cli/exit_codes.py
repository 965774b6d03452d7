"""The exit codes of the `autotune` command."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a script can tell from how `autotune` ended."""

    OK = 0
    NO_RESULT = 1
    WRONG_INPUT = 2
    STUDY = 3
    RESOURCES = 4
    INTERNAL = 70
    STOPPED = 130


MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.NO_RESULT: "no trial succeeded, the gain does not hold, doctor or lint found a failure, or nothing fits",
    ExitCode.WRONG_INPUT: "wrong input: an option, a campaign file, a configuration, a storage URL",
    ExitCode.STUDY: "no such study or trial, the study exists already, or it is being run",
    ExitCode.RESOURCES: "processors, GPUs or nodes that can't be had",
    ExitCode.INTERNAL: "a bug in autotune; the message names the file with its traceback",
    ExitCode.STOPPED: "stopped before the budget was spent (Ctrl-C, SIGTERM, autotune stop)",
}


def epilog() -> str:
    """Return the text about exit codes that ends `autotune --help`."""
    return "Exit codes: " + "; ".join(f"{code.value} {meaning}" for code, meaning in MEANINGS.items()) + "."
