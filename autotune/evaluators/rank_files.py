"""The files between a controller and a rank: the assignment it reads, its stage, its figures so far, its result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autotune.trials import Budget, Intermediate, Outcome, TrialRequest
from autotune.workload import WorkloadReference

RANK_WORKER = ("-P", "-m", "autotune.evaluators.rank_worker")
"""Arguments of Python for a rank as a process of its own."""
REQUEST_FILE = "request.json"
STAGE_FILE = "stage"
INTERMEDIATES_FILE = "intermediates.json"
RESULT_FILE = "result.json"
LOG_FILE = "log.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAssignment:
    """What one rank is to do; written by the controller, read once by the rank."""

    request: TrialRequest
    workload: WorkloadReference
    rank: int
    world_size: int
    device: str
    """'cpu' or 'cuda'."""
    collective_timeout_s: float
    """After it a collective raises; a safety net below the controller's own deadlines."""

    def to_text(self) -> str:
        """Return the JSON text that `from_text` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> RankAssignment:
        """Read what `to_text` wrote."""
        data: dict[str, Any] = json.loads(text)
        request, workload = data.pop("request"), data.pop("workload")
        workload["python_path"] = tuple(workload["python_path"])
        return cls(request=request_from_json(request), workload=WorkloadReference(**workload), **data)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """What one rank left behind when it was done."""

    outcome: Outcome | None = None
    """The measurement (rank 0 only) or this rank's failure; None: it did its part, rank 0 tells the rest."""
    follows_a_peer: bool = False
    """The failure is an error of the connection to another rank, which is the one to ask."""
    address_in_use: bool = False
    """The rendezvous port was taken by someone else between its reservation and its use: try another."""

    def to_text(self) -> str:
        """Return the JSON text that `from_text` reads."""
        outcome = self.outcome.to_json() if self.outcome else None
        return json.dumps(
            {"outcome": outcome, "follows_a_peer": self.follows_a_peer, "address_in_use": self.address_in_use}
        )

    @classmethod
    def from_text(cls, text: str) -> RankResult:
        """Read what `to_text` wrote."""
        data: Mapping[str, Any] = json.loads(text)
        return cls(
            outcome=Outcome.from_json(data["outcome"]) if data["outcome"] else None,
            follows_a_peer=data["follows_a_peer"],
            address_in_use=data["address_in_use"],
        )


def folder_name(request: TrialRequest) -> str:
    """Return the name of a trial's folder in the run directory; each repeat has one of its own."""
    return f"trial-{request.number:05d}" + (f"-repeat-{request.repeat:03d}" if request.repeat else "")


def intermediates_to_text(intermediates: Sequence[Intermediate]) -> str:
    """Return the JSON text that `intermediates_from_text` reads."""
    return json.dumps([asdict(intermediate) for intermediate in intermediates])


def intermediates_from_text(text: str) -> tuple[Intermediate, ...]:
    """Read what `intermediates_to_text` wrote."""
    return tuple(Intermediate(**data) for data in json.loads(text))


def request_from_json(data: Mapping[str, Any]) -> TrialRequest:
    """Return the request that `dataclasses.asdict` made plain data of."""
    return TrialRequest(**{**data, "budget": Budget(**data["budget"])})
