"""The diagnosis of a trial that ended badly: from what its ranks left behind to one `Failure`.

Exit codes and result files tell; words in a log never do (they are shown to the user, no more).
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from autotune import sizes
from autotune.evaluators.deadlines import name_of
from autotune.evaluators.protocol import RankReport
from autotune.evaluators.rank_files import RankResult
from autotune.evaluators.script_files import CANNOT_WRITE
from autotune.trials import Failure, FailureKind, Stage

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO, errno.EFBIG})
"""Errors of a disk or folder that can't be written."""
_ORDER = list(Stage)


class Cause(IntEnum):
    """How likely a rank's end is what ended the trial; the lowest is the one to tell the user of."""

    MEMORY_LIMIT = 0
    """The host killed it for its memory limit."""
    OWN_FAILURE = 1
    """It reported what went wrong in it."""
    KILLED = 2
    """It is gone without a word, by SIGKILL."""
    HOST_LOST = 3
    """Its host is gone, and it with it: a node that died."""
    DIED = 4
    """It is gone without a word, otherwise; a broken connection can do this."""
    LOST = 5
    """It is gone, and nobody knows how: a launcher was quicker to ask for its exit code."""
    ASKED_TO_END = 6
    """It is gone by SIGTERM: launchers send it to the ranks that are left when one has failed."""
    FOLLOWED_A_PEER = 7
    """It reported a broken connection to another rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """One rank's failure and how much it explains."""

    cause: Cause
    failure: Failure
    address_in_use: bool = False


def rank_failure(rank: int, report: RankReport, result: RankResult | None) -> RankFailure | None:
    """Return how this rank failed; None while it runs, and when it did its part whatever its exit code."""
    if report.memory_exceeded_bytes is not None:
        return _of(rank, report, Cause.MEMORY_LIMIT, FailureKind.OUT_OF_MEMORY, _limit_reason(rank, report))
    if result is not None:
        if result.outcome is None or result.outcome.failure is None:
            return None
        cause = Cause.FOLLOWED_A_PEER if result.follows_a_peer else Cause.OWN_FAILURE
        failure = replace(result.outcome.failure, rank=rank, exit_code=report.exit_code, log_tail=report.log_tail)
        return RankFailure(cause=cause, failure=failure, address_in_use=result.address_in_use)
    if report.running:
        return None
    if report.host_lost is not None:
        lost = _of(rank, report, Cause.HOST_LOST, FailureKind.CRASH, report.host_lost)
        return replace(lost, failure=replace(lost.failure, host_lost=True))
    if report.exit_code == -signal.SIGKILL:
        reason = (
            f"rank {rank} was killed by signal 9; on most machines that is the kernel's out-of-memory killer "
            f"(`dmesg` tells). Take a smaller micro-batch, a higher ZeRO stage or a smaller model"
        )
        return _of(rank, report, Cause.KILLED, FailureKind.OUT_OF_MEMORY, reason)
    causes = {None: Cause.LOST, -signal.SIGTERM: Cause.ASKED_TO_END}
    cause = causes.get(report.exit_code, Cause.DIED)
    return _of(rank, report, cause, FailureKind.CRASH, f"rank {rank} {_ending(report.exit_code)}")


def most_telling(failures: Sequence[RankFailure | None]) -> RankFailure | None:
    """Return the failure that explains the others; of equals the lowest rank's."""
    known = [failure for failure in failures if failure is not None]
    return min(known, key=lambda failure: failure.cause, default=None)


def timeout(*, stages: Sequence[Stage], rank: int, limit_s: float, reports: Sequence[RankReport]) -> Failure:
    """Return the failure of a trial in which `rank` overstayed its stage; a rank in an earlier one held it up."""
    stage = stages[rank]
    behind = min(range(len(stages)), key=lambda other: _ORDER.index(stages[other]))
    if _ORDER.index(stages[behind]) < _ORDER.index(stage):
        slow = f"rank {rank} waited {limit_s:g} s in stage '{stage.value}' for rank {behind}, which was still in stage "
        reason = f"{slow}'{stages[behind].value}'; the log shows how far it came"
    else:
        elsewhere = ", ".join(f"rank {i}: {other.value}" for i, other in enumerate(stages) if i != rank)
        others = f" (the others: {elsewhere})" if elsewhere else ""
        reason = (
            f"rank {rank} was still in stage '{stage.value}' after {limit_s:g} s{others}; its log shows how far it came"
        )
    return Failure(
        kind=FailureKind.TIMEOUT,
        reason=f"{reason}. If it was only slow, raise deadlines.{name_of(stage)}",
        stage=stages[behind],
        rank=behind,
        log_tail=reports[behind].log_tail,
    )


def cancelled(stage: Stage) -> Failure:
    """Return the failure of a trial that was told to stop."""
    return Failure(kind=FailureKind.CANCELLED, reason="stopped before its end, as asked", stage=stage)


def supervisor_lost(report: RankReport, *, directory: str) -> Failure:
    """Return the failure of a trial whose supervisor on the ranks' own node ended without a word."""
    if report.exit_code == CANNOT_WRITE:
        reason = cannot_write(
            directory, "the last line of the log tells why (most often, no space is left on its disk)"
        )
    else:
        reason = (
            f"autotune's own process beside the launcher {_ending(report.exit_code)}. The trial's processes were ended "
            "with it; somebody or the kernel's out-of-memory killer (`dmesg` tells) may have taken it for the training"
        )
    return Failure(
        kind=FailureKind.CRASH,
        reason=reason,
        stage=report.stage or Stage.LAUNCH,
        exit_code=report.exit_code,
        log_tail=report.log_tail,
    )


def cannot_start(error: OSError, *, directory: str) -> Failure:
    """Return the failure of a trial whose process could not be started."""
    words = error.strerror or str(error)
    if error.errno in NO_ROOM:
        reason = cannot_write(directory, words)
    else:
        reason = f"the trial's process can't be started in {directory}: {type(error).__name__}: {words}"
    return Failure(kind=FailureKind.CRASH, reason=reason, stage=Stage.LAUNCH)


def cannot_write(directory: str, why: str) -> str:
    """Say that a trial's files have no room, and what to do."""
    return (
        f"autotune can't write the trial's files to {directory}: {why}; "
        "make room there, or set run_directory to a folder on another disk"
    )


def _of(rank: int, report: RankReport, cause: Cause, kind: FailureKind, reason: str) -> RankFailure:
    failure = Failure(
        kind=kind,
        reason=reason,
        stage=report.stage or Stage.LAUNCH,
        rank=rank,
        exit_code=report.exit_code,
        log_tail=report.log_tail,
    )
    return RankFailure(cause=cause, failure=failure)


def _limit_reason(rank: int, report: RankReport) -> str:
    held, limit = (sizes.text(size or 0) for size in (report.memory_exceeded_bytes, report.memory_limit_bytes))
    advice = (
        "that was before deepspeed.initialize, so no configuration changes it: raise the limit"
        if _ORDER.index(report.stage or Stage.LAUNCH) < _ORDER.index(Stage.INITIALIZE)
        else "take a smaller micro-batch, a higher ZeRO stage, or raise the limit"
    )
    return (
        f"rank {rank} held {held} of resident memory, above its limit of {limit} "
        f"(hardware.memory_limit_bytes); {advice}"
    )


def _ending(exit_code: int | None) -> str:
    if exit_code is None:
        return "is gone, and its exit code with it: its launcher kept that to itself"
    if exit_code < 0:
        return f"was killed by signal {-exit_code} ({_signal_name(-exit_code)}) and left no result; its log tells more"
    return f"ended with exit code {exit_code} and left no result; its log tells more"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
