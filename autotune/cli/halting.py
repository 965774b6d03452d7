"""Asking the process that runs a study to stop, and waiting a little for it."""

from __future__ import annotations

import time

from autotune import campaign as campaigns
from autotune.cli.console import make_console, write
from autotune.cli.exit_codes import ExitCode
from autotune.cli.studies import opened
from autotune.report.findings import tally
from autotune.storage import StoredStudy, command
from autotune.study import controller_is_alive

_WAIT_S = 20.0
"""The controller looks every 2 s; a cancelled trial takes a few seconds to end its processes."""
_POLL_S = 0.2
_AFTER_TRIAL, _AT_ONCE = 1, 2


def stop(name: str, *, now: bool, url: str | None) -> int:
    """Ask for a stop; return the exit code."""
    with opened(url) as storage:
        stored, console = storage.open(name), make_console()
        controller = stored.attribute("controller")
        if not controller_is_alive(controller):
            write(console, f"{name} isn't being run; nothing to stop. {tally(campaigns.summary(stored))}")
            return ExitCode.OK
        stored.set_attribute("stop_requested", _AT_ONCE if now else _AFTER_TRIAL)
        what = "it cancels the running trial" if now else "it stops after the running trial"
        write(console, f"{name}: asked process {controller['pid']} on {controller['host']} to stop; {what}")
        if _wait(stored):
            write(console, f"{name}: stopped. {tally(campaigns.summary(stored))}")
            write(console, f"Go on with it: {command('resume', name, url=url)}")
        else:
            write(console, f"{name}: the trial still runs. See: {command('status', name, url=url)}")
            if not now:
                write(console, f"To cancel it: {command('stop', name, '--now', url=url)}")
        return ExitCode.OK


def _wait(stored: StoredStudy) -> bool:
    deadline_s = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline_s:
        if not controller_is_alive(stored.attribute("controller")):
            return True
        time.sleep(_POLL_S)
    return False
