"""The processes of one trial on this machine, wherever they went: found by a mark in their environment, ended whole."""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import psutil

TOKEN_VARIABLE = "AUTOTUNE_RANK_TOKEN"  # noqa: S105 - a mark, not a secret
"""Marks every process of one rank (or of one launcher), so that one which left the process group is found as well."""
KILL_WAIT_S = 5.0
CLEANER_GRACE_S = 1.0
CLEANERS = ("multiprocessing.resource_tracker", "torch_shm_manager")
"""Helpers that unlink the shared memory of processes that died: they must see the others die first."""
PR_SET_CHILD_SUBREAPER = 36
"""See prctl(2)."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - POSIX shared memory on Linux, see shm_overview(7)


def family(token: str) -> list[psutil.Process]:
    """Return the living processes that carry the mark, and those below them, whose environment may be another."""
    parents: dict[int, int] = {}
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            with process.oneshot():
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                parents[process.pid] = process.ppid()
            found[process.pid] = process
        except (psutil.Error, OSError):
            continue
    ours = {pid for pid, process in found.items() if _has_mark(process, token)}
    size = 0
    while ours and size != len(ours):
        size = len(ours)
        ours |= {pid for pid, parent in parents.items() if parent in ours}
    return [found[pid] for pid in sorted(ours)]


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent dies, so that `end` finds it."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def shared_memory() -> frozenset[str]:
    """Return the names of the shared memory segments that there are on this machine."""
    try:
        return frozenset(os.listdir(SHARED_MEMORY))
    except OSError:
        return frozenset()


def end(
    token: str,
    *,
    there_before: frozenset[str],
    numbers: AbstractSet[int] = frozenset(),
    spared: AbstractSet[int] = frozenset(),
) -> None:
    """Kill every process that carries the mark and those below, except this one, and free their shared memory.

    Args:
        token: the mark.
        there_before: names of segments that are not theirs: those of before the start.
        numbers: process numbers and ports that new segments of theirs have in their names, though nobody who mapped
            them may be left.
        spared: process ids that live on though they carry the mark.
    """
    spared = spared | {os.getpid()}
    victims = _others(token, spared)
    named = {name for name in shared_memory() - there_before if _is_segment(name) and numbers & _numbers_in(name)}
    if not victims:
        _unlink(named)
        return
    segments = (_segments(victims) | named) - there_before
    cleaners = [process for process in victims if _is_cleaner(process)]
    _kill([process for process in victims if process not in cleaners])
    psutil.wait_procs(cleaners, timeout=CLEANER_GRACE_S)
    # Once more, and for whatever was started meanwhile.
    deadline_s = time.monotonic() + KILL_WAIT_S
    while (left := _others(token, spared)) and time.monotonic() < deadline_s:
        _kill(left)
    _unlink(segments)


def _others(token: str, spared: AbstractSet[int]) -> list[psutil.Process]:
    return [process for process in family(token) if process.pid not in spared]


def _has_mark(process: psutil.Process, token: str) -> bool:
    try:
        return process.environ().get(TOKEN_VARIABLE) == token
    except (psutil.Error, OSError):
        return False  # gone meanwhile, or another user's


def _numbers_in(name: str) -> set[int]:
    """Return the numbers that are whole words of a name: 57 in torch_57_1_2, none in psm_57ab91cd."""
    return {int(word) for word in re.split(r"[-_]", name) if re.fullmatch(r"[0-9]{1,10}", word)}


def _is_segment(name: str) -> bool:
    """Say whether a name may be a segment's: one with a suffix (tokens.bin) is a file of data that somebody keeps."""
    return "/" not in name and "." not in name.removeprefix("sem.")


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
    return {name for name in names if _is_segment(name)}


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
