"""One attempt after another at a trial's measurement: start the hosts' processes, supervise them, end them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autotune.evaluators.deadlines import Deadlines
from autotune.evaluators.protocol import RankCommand, RankHost, RankReport
from autotune.evaluators.supervision import Supervision, Verdict, log_paths, with_final_logs
from autotune.trials import Failure, Outcome, Stage, TrialRequest

ADDRESS_ATTEMPTS = 3
DELIVERED_GRACE_S = 2.0
"""A process that delivered its result has this long to leave by itself."""
CLEANUP = "cleanup"
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
        self, *, hosts: Sequence[RankHost], progress: Callable[[Stage], None], cancelled: Callable[[], bool]
    ) -> Outcome:
        """Return what came of it; nothing that was started outlives the call."""
        for _ in range(ADDRESS_ATTEMPTS):
            verdict, outcome = self._attempt(hosts, progress, cancelled)
            if not verdict.address_in_use:
                break
        return outcome

    def _attempt(
        self, hosts: Sequence[RankHost], progress: Callable[[Stage], None], cancelled: Callable[[], bool]
    ) -> tuple[Verdict, Outcome]:
        supervision = Supervision(
            hosts=hosts,
            request=self.request,
            deadlines=self.deadlines,
            slack_s=SLACK_S if self.supervised_there else 0.0,
            progress=progress,
            cancelled=cancelled,
        )
        try:
            address, port = hosts[0].reserve_address()
            for host, command in zip(hosts, self.commands(address, port), strict=True):
                host.start(command)
            verdict = supervision.run()
            decided_s = time.monotonic()
            if verdict.measurement is not None:
                _let_leave(hosts)
        finally:
            reports = [host.stop() for host in hosts]
        ended_s = time.monotonic()
        outcome = Outcome(
            measurement=verdict.measurement,
            failure=self._with_final_logs(verdict.failure, reports) if verdict.failure else None,
            duration_s=ended_s - supervision.started_s,
            stage_s={**supervision.stage_s, CLEANUP: ended_s - decided_s},
            logs=log_paths(reports),
        )
        return verdict, outcome

    def _with_final_logs(self, failure: Failure, reports: Sequence[RankReport]) -> Failure:
        if self.supervised_there:
            return replace(failure, log_tail=reports[0].log_tail or failure.log_tail)
        return with_final_logs(failure, reports)


def _let_leave(hosts: Sequence[RankHost]) -> None:
    deadline_s = time.monotonic() + DELIVERED_GRACE_S
    while time.monotonic() < deadline_s and any(host.poll().running for host in hosts):
        time.sleep(0.02)
