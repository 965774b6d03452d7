"""One attempt after another at a trial's measurement: start the hosts' processes, supervise them, end them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from autotune.evaluators import diagnosis
from autotune.evaluators.deadlines import Deadlines
from autotune.evaluators.protocol import RankCommand, RankHost, RankReport, ShouldPrune, never_prune
from autotune.evaluators.rank_files import RankResult, intermediates_from_text
from autotune.evaluators.supervision import Supervision, Verdict, log_paths, node_addresses, with_final_logs
from autotune.trials import Failure, FailureKind, Outcome, Stage, TrialRequest

ADDRESS_ATTEMPTS = 3
DELIVERED_GRACE_S = 2.0
"""A process that delivered its result has this long to leave by itself."""
LEAVING_POLL_S = 0.02
CLEANUP = "cleanup"
ENDED_FROM_HERE = (FailureKind.TIMEOUT, FailureKind.CANCELLED)
"""Kinds of failure that this process decides on, whatever the other side still says."""
SLACK_S = 15.0
"""How much later than the ranks' own supervision this one gives them up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """Measures one request; tries another port where the one it reserved was taken meanwhile."""

    request: TrialRequest
    commands: Callable[[str, int], Sequence[RankCommand]]
    """From the address and port where the ranks meet, to one command for each host."""
    deadlines: Deadlines
    supervised_there: bool = False
    """Whether each host's process supervises the ranks itself: it gets the same deadlines and is the first to tell."""

    def run(
        self,
        *,
        hosts: Sequence[RankHost],
        progress: Callable[[Stage], None],
        cancelled: Callable[[], bool],
        should_prune: ShouldPrune = never_prune,
    ) -> Outcome:
        """Return what came of it; nothing that was started outlives the call."""
        for _ in range(ADDRESS_ATTEMPTS):
            verdict, outcome = self._attempt(hosts, progress, cancelled, should_prune)
            if not verdict.address_in_use:
                break
        return outcome

    def _attempt(
        self,
        hosts: Sequence[RankHost],
        progress: Callable[[Stage], None],
        cancelled: Callable[[], bool],
        should_prune: ShouldPrune,
    ) -> tuple[Verdict, Outcome]:
        supervision = Supervision(
            hosts=hosts,
            request=self.request,
            deadlines=self.deadlines,
            slack_s=SLACK_S if self.supervised_there else 0.0,
            progress=progress,
            cancelled=cancelled,
            should_prune=should_prune,
        )
        try:
            address, port = hosts[0].reserve_address()
            commands = self.commands(address, port)
            verdict = _start(hosts, commands) or supervision.run()
            decided_s = time.monotonic()
            if verdict.measurement is not None or self._ends_by_itself(verdict):
                _let_leave(hosts)
        finally:
            reports = [host.stop() for host in hosts]
        ended_s = time.monotonic()
        last = reports[0].intermediates if verdict.pruned is None else None
        outcome = Outcome(
            measurement=verdict.measurement,
            failure=self._with_final_logs(verdict.failure, reports, commands) if verdict.failure else None,
            pruned=verdict.pruned,
            intermediates=intermediates_from_text(last) if last else supervision.intermediates,
            duration_s=ended_s - supervision.started_s,
            stage_s={**supervision.stage_s, CLEANUP: ended_s - decided_s},
            logs=log_paths(reports),
            nodes=node_addresses(reports),
        )
        return verdict, outcome

    def _ends_by_itself(self, verdict: Verdict) -> bool:
        """Say whether the other side is on its way out: it knows best what is to be cleared away there."""
        return (
            self.supervised_there and verdict.failure is not None and verdict.failure.kind is not FailureKind.CANCELLED
        )

    def _with_final_logs(
        self, failure: Failure, reports: Sequence[RankReport], commands: Sequence[RankCommand]
    ) -> Failure:
        if not self.supervised_there:
            return with_final_logs(failure, reports)
        report = reports[0]
        if failure.host_lost:
            return with_final_logs(failure, reports)
        if failure.rank is not None and report.result is None and failure.kind not in ENDED_FROM_HERE:
            return diagnosis.supervisor_lost(report, directory=commands[0].directory)
        told = RankResult.from_text(report.result).outcome if report.result else None
        if told is not None and told.failure is not None and told.failure.reason == failure.reason:
            failure = told.failure  # with the rank that it names: the host's number is none
        return replace(failure, log_tail=report.log_tail or failure.log_tail)


def _start(hosts: Sequence[RankHost], commands: Sequence[RankCommand]) -> Verdict | None:
    """Start the processes, all at once; return a verdict where that fails already."""

    def start(host: RankHost, command: RankCommand) -> Verdict | None:
        try:
            host.start(command)
        except OSError as error:
            return Verdict(failure=diagnosis.cannot_start(error, directory=command.directory))
        return None

    if len(hosts) == 1:
        return start(hosts[0], commands[0])
    with ThreadPoolExecutor(len(hosts), thread_name_prefix="start") as pool:
        verdicts = list(pool.map(start, hosts, commands))
    return next((verdict for verdict in verdicts if verdict is not None), None)


def _let_leave(hosts: Sequence[RankHost]) -> None:
    deadline_s = time.monotonic() + DELIVERED_GRACE_S
    for host in hosts:
        while host.poll().running and time.monotonic() < deadline_s:
            host.poll(LEAVING_POLL_S)
