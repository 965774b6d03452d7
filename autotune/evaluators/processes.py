"""The processes of one trial on this machine, wherever they went: found by a mark in their environment, ended whole."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

TOKEN_VARIABLE = "AUTOTUNE_RANK_TOKEN"  # noqa: S105 - a mark, not a secret
"""Marks every process of one rank (or of one launcher), so that one which left the process group is found as well."""
KILL_WAIT_S = 5.0
CLEANER_GRACE_S = 1.0
CLEANERS = ("multiprocessing.resource_tracker", "torch_shm_manager")
"""Helpers that unlink the shared memory of processes that died: they must see the others die first."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - POSIX shared memory on Linux, see shm_overview(7)


def marked(token: str) -> list[psutil.Process]:
    """Return the living processes that carry the mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(TOKEN_VARIABLE) == token and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue  # gone meanwhile, or another user's
    return found


def shared_memory() -> frozenset[str]:
    """Return the names of the shared memory segments that there are on this machine."""
    try:
        return frozenset(os.listdir(SHARED_MEMORY))
    except OSError:
        return frozenset()


def end(token: str, *, there_before: frozenset[str]) -> None:
    """Kill every process that carries the mark, except this one, and free the shared memory that they leave.

    Args:
        token: the mark.
        there_before: names of segments that are not theirs: those of before the start.
    """
    victims = [process for process in marked(token) if process.pid != os.getpid()]
    if not victims:
        return
    segments = _segments(victims) - there_before
    cleaners = [process for process in victims if _is_cleaner(process)]
    _kill([process for process in victims if process not in cleaners])
    psutil.wait_procs(cleaners, timeout=CLEANER_GRACE_S)
    # Once more, and for whatever was started meanwhile.
    deadline_s = time.monotonic() + KILL_WAIT_S
    while (left := [each for each in marked(token) if each.pid != os.getpid()]) and time.monotonic() < deadline_s:
        _kill(left)
    _unlink(segments)


def _is_cleaner(process: psutil.Process) -> bool:
    try:
        return any(name in " ".join(process.cmdline()) for name in CLEANERS)
    except psutil.Error:
        return False


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(list(processes), timeout=KILL_WAIT_S)


def _segments(processes: Iterable[psutil.Process]) -> set[str]:
    """Return the names of the segments that these processes have mapped."""
    prefix = f"{SHARED_MEMORY}/"
    names: set[str] = set()
    for process in processes:
        try:
            lines = Path(f"/proc/{process.pid}/maps").read_text(errors="replace").splitlines()
        except OSError:
            continue
        paths = {line.split(maxsplit=5)[-1] for line in lines if prefix in line}
        names |= {path.removeprefix(prefix) for path in paths if path.startswith(prefix) and "(deleted)" not in path}
    return {name for name in names if "/" not in name}


def _unlink(names: set[str]) -> None:
    """Remove segments, except those that another process still has mapped."""
    left = names & shared_memory()
    if left:
        left -= _segments(psutil.process_iter())
    for name in left:
        try:
            (SHARED_MEMORY / name).unlink(missing_ok=True)
        except OSError:
            continue  # another user's
