"""The DeepSpeed evaluator: one configuration measured by a short real training run, one process per rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from autotune.errors import CampaignError
from autotune.evaluators import op_cache
from autotune.evaluators.attempts import Attempts
from autotune.evaluators.deadlines import Deadlines
from autotune.evaluators.protocol import RankCommand, RankHost, ShouldPrune, never_prune
from autotune.evaluators.rank_files import RANK_WORKER, REQUEST_FILE, RankAssignment, folder_name
from autotune.trials import Outcome, Stage, TrialRequest
from autotune.workload import WorkloadReference

FORK_SERVER = ("-P", "-m", "autotune.evaluators.rank_worker.fork_server")


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
    execution: Literal["warm", "cold"] = "cold"
    """'warm': each rank is a fork of a server that has loaded everything, ready in milliseconds; 'cold': a process that
    starts from nothing. What runs in them is the same."""
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
        should_prune: ShouldPrune = never_prune,
    ) -> Outcome:
        if len(hosts) != self.ranks:
            raise CampaignError(f"hosts: got {len(hosts)}; this evaluator runs {self.ranks} ranks, one on each host")
        attempts = Attempts(
            request=request,
            commands=lambda address, port: [
                self._command(request, rank=rank, address=address, port=port) for rank in range(self.ranks)
            ],
            deadlines=self.deadlines,
        )
        return attempts.run(hosts=hosts, progress=progress, cancelled=cancelled, should_prune=should_prune)

    def _command(self, request: TrialRequest, *, rank: int, address: str, port: int) -> RankCommand:
        assignment = RankAssignment(
            request=request,
            workload=self.workload,
            rank=rank,
            world_size=self.ranks,
            device=self.device,
            collective_timeout_s=self.deadlines.collective_timeout_s,
        )
        directory = Path(self.run_directory).absolute() / folder_name(request) / f"rank{rank}"
        return RankCommand(
            rank=rank,
            argv=RANK_WORKER,
            fork_of=FORK_SERVER if self.execution == "warm" and not request.cold else None,
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
