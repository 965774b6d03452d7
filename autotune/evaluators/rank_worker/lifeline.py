"""The lifeline: this process and everything it started die when the host that started it dies."""

from __future__ import annotations

import os
import signal
import sys
import threading

import psutil


def hold_on() -> None:
    """Watch standard input, a pipe that the host holds open; at its end, kill this process's whole group.

    The host starts this process as the leader of a session of its own, so the group holds nobody else.
    """
    threading.Thread(target=_watch, args=(sys.stdin.fileno(),), name="lifeline", daemon=True).start()


def _watch(descriptor: int) -> None:
    while os.read(descriptor, 1024):
        continue
    end_group()


def end_group() -> None:
    """Kill this process's group, itself included, and its descendants in other groups."""
    if os.getpgrp() != os.getpid():
        os._exit(1)  # started by hand, in somebody else's group
    for descendant in psutil.Process().children(recursive=True):
        if os.getpgid(descendant.pid) != os.getpid():
            _kill(descendant)
    os.killpg(os.getpid(), signal.SIGKILL)


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:
        return  # already gone
