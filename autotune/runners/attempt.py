"""An attempt: one call of an evaluator, kept from taking the runner down with it."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Sequence

from autotune.errors import AutotuneError, HostLostError
from autotune.evaluators.protocol import Evaluator, RankHost, ShouldPrune
from autotune.trials import Failure, FailureKind, Intermediate, Outcome, Stage, TrialRequest

logger = logging.getLogger(__name__)


def ignore_stage(_number: int, _stage: Stage) -> None:
    """Be the `StageListener` of a runner that nobody listens to."""


def prune_none(_request: TrialRequest, _intermediates: Sequence[Intermediate]) -> None:
    """Be the `Judge` of a runner whose trials all go on to their ends."""


def attempt(
    evaluator: Evaluator,
    request: TrialRequest,
    *,
    hosts: Sequence[RankHost],
    progress: Callable[[Stage], None],
    cancelled: Callable[[], bool],
    should_prune: ShouldPrune,
) -> Outcome:
    """Evaluate a request; an exception of the evaluator (a bug) becomes a CRASH.

    Its traceback is the log's tail, and whatever the hosts still run is stopped.
    """
    started = time.monotonic()
    try:
        return evaluator.evaluate(
            request, hosts=hosts, progress=progress, cancelled=cancelled, should_prune=should_prune
        )
    except HostLostError as error:  # before the trial began
        stop_all(hosts)
        failure = Failure(kind=FailureKind.CRASH, reason=str(error), stage=Stage.LAUNCH, host_lost=True)
        return Outcome(failure=failure, duration_s=time.monotonic() - started)
    except Exception as error:  # the border to evaluators, which may be plug-ins: one trial fails, not the study
        logger.exception("trial %d: the evaluator %s raised", request.number, type(evaluator).__name__)
        failure = Failure(
            kind=FailureKind.CRASH,
            reason=_reason(evaluator, error),
            log_tail=tuple(traceback.format_exc().splitlines()),
        )
        stop_all(hosts)
        return Outcome(failure=failure, duration_s=time.monotonic() - started)


def cancelled_outcome(reason: str) -> Outcome:
    """Return the outcome of a trial that was stopped, or never began, for `reason`."""
    return Outcome(failure=Failure(kind=FailureKind.CANCELLED, reason=reason))


def stop_all(hosts: Sequence[RankHost]) -> None:
    """Stop every host's process, going on after a host that can't be reached."""
    for rank, host in enumerate(hosts):
        try:
            host.stop()
        except Exception:  # one lost host must not keep the others' processes alive
            logger.exception("rank %d: its host could not stop the process", rank)


def _reason(evaluator: Evaluator, error: Exception) -> str:
    if isinstance(error, AutotuneError):
        return str(error)
    return f"the evaluator {type(evaluator).__name__} raised {type(error).__name__}: {error}"
