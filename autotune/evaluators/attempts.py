"""One attempt after another at a trial's measurement: start the hosts' processes, supervise them, end them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.evaluators.deadlines import Deadlines
from autotune.evaluators.protocol import RankCommand, RankHost
from autotune.evaluators.supervision import Supervision, Verdict, log_paths, with_final_logs
from autotune.trials import Outcome, Stage, TrialRequest

ADDRESS_ATTEMPTS = 3
DELIVERED_GRACE_S = 2.0
"""A process that delivered its result has this long to leave by itself."""
CLEANUP = "cleanup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """Measures one request; tries another port where the one it reserved was taken meanwhile."""

    request: TrialRequest
    commands: Callable[[str, int], Sequence[RankCommand]]
    """From the address and port where the ranks meet, to one command for each host."""
    deadlines: Deadlines
    slack_s: float = 0.0

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
            slack_s=self.slack_s,
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
            failure=with_final_logs(verdict.failure, reports) if verdict.failure else None,
            duration_s=ended_s - supervision.started_s,
            stage_s={**supervision.stage_s, CLEANUP: ended_s - decided_s},
            logs=log_paths(reports),
        )
        return verdict, outcome


def _let_leave(hosts: Sequence[RankHost]) -> None:
    deadline_s = time.monotonic() + DELIVERED_GRACE_S
    while time.monotonic() < deadline_s and any(host.poll().running for host in hosts):
        time.sleep(0.02)
