"""The DeepSpeed evaluator: one configuration measured by a short real training run, one cold process per rank."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from autotune.errors import CampaignError
from autotune.evaluators import op_cache
from autotune.evaluators.deadlines import Deadlines
from autotune.evaluators.protocol import RankCommand, RankHost
from autotune.evaluators.rank_files import REQUEST_FILE, RankAssignment
from autotune.evaluators.supervision import Supervision, Verdict, log_paths, with_final_logs
from autotune.trials import Outcome, Stage, TrialRequest
from autotune.workload import WorkloadReference

ADDRESS_ATTEMPTS = 3
DELIVERED_GRACE_S = 2.0
"""A rank that delivered its result has this long to leave by itself."""
CLEANUP = "cleanup"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedEvaluator:
    """Measures configurations by real trials. An `autotune.evaluators.protocol.Evaluator`.

    Raises:
        CampaignError: when `ranks` or the memory limit is not above 0.
    """

    workload: WorkloadReference
    ranks: int
    device: Literal["cpu", "cuda"] = "cpu"
    run_directory: str
    """Each rank's files and log go to `<run_directory>/trial-<number>/rank<i>`, on the node where it runs."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    memory_limit_bytes: int | None = None
    """Resident size per rank; above it the trial is OUT_OF_MEMORY. None: only the machine's own limit."""

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise CampaignError(f"ranks: got {self.ranks}; a DeepSpeed trial needs at least 1")
        if self.memory_limit_bytes is not None and self.memory_limit_bytes <= 0:
            raise CampaignError(f"memory_limit_bytes: got {self.memory_limit_bytes}; it must be above 0")

    def prepare(self, ds_configs: Sequence[Mapping[str, object]], progress: Callable[[str], None]) -> None:
        op_cache.prepare(ds_configs, device=self.device, progress=progress)

    def evaluate(
        self,
        request: TrialRequest,
        *,
        hosts: Sequence[RankHost],
        progress: Callable[[Stage], None],
        cancelled: Callable[[], bool],
    ) -> Outcome:
        if len(hosts) != self.ranks:
            raise CampaignError(f"hosts: got {len(hosts)}; this evaluator runs {self.ranks} ranks, one on each host")
        for _ in range(ADDRESS_ATTEMPTS):
            verdict, outcome = self._attempt(request, hosts=hosts, progress=progress, cancelled=cancelled)
            if not verdict.address_in_use:
                break
        return outcome

    def _attempt(
        self,
        request: TrialRequest,
        *,
        hosts: Sequence[RankHost],
        progress: Callable[[Stage], None],
        cancelled: Callable[[], bool],
    ) -> tuple[Verdict, Outcome]:
        supervision = Supervision(
            hosts=hosts, request=request, deadlines=self.deadlines, progress=progress, cancelled=cancelled
        )
        try:
            address, port = hosts[0].reserve_address()
            for rank, host in enumerate(hosts):
                host.start(self._command(request, rank=rank, address=address, port=port))
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

    def _command(self, request: TrialRequest, *, rank: int, address: str, port: int) -> RankCommand:
        assignment = RankAssignment(
            request=request,
            workload=self.workload,
            rank=rank,
            world_size=self.ranks,
            device=self.device,
            collective_timeout_s=self.deadlines.collective_timeout_s,
        )
        trial = f"trial-{request.number:05d}" + (f"-repeat-{request.repeat:03d}" if request.repeat else "")
        directory = Path(self.run_directory).absolute() / trial / f"rank{rank}"
        return RankCommand(
            rank=rank,
            argv=("-P", "-m", "autotune.evaluators.rank_worker"),
            environment=self._environment(rank=rank, address=address, port=port),
            directory=str(directory),
            files={REQUEST_FILE: assignment.to_text()},
            memory_limit_bytes=self.memory_limit_bytes,
        )

    def _environment(self, *, rank: int, address: str, port: int) -> dict[str, str]:
        environment = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank) if self.device == "cpu" else "0",
            "WORLD_SIZE": str(self.ranks),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "DS_ACCELERATOR": self.device,
            "PYTHONUNBUFFERED": "1",
        }
        if self.device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        if address.startswith("127."):
            environment["GLOO_SOCKET_IFNAME"] = "lo"
        if op_cache.ROOT_VARIABLE in os.environ:
            environment[op_cache.ROOT_VARIABLE] = os.environ[op_cache.ROOT_VARIABLE]
        return environment


def _let_leave(hosts: Sequence[RankHost]) -> None:
    deadline_s = time.monotonic() + DELIVERED_GRACE_S
    while time.monotonic() < deadline_s and any(host.poll().running for host in hosts):
        time.sleep(0.02)
