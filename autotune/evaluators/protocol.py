"""The protocols of the evaluator: how one trial is measured, and what it needs of the place where it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from autotune.trials import Intermediate, Outcome, Stage, TrialRequest

ShouldPrune: TypeAlias = Callable[[Sequence[Intermediate]], str | None]
"""Called with all that a running trial has measured on the way, whenever there is more; returns why it is to end early,
None while it is to go on."""


def never_prune(_intermediates: Sequence[Intermediate]) -> None:
    """Let a trial go on, whatever it has measured: a `ShouldPrune`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCommand:
    """One rank's process, as its host is to start it."""

    rank: int
    argv: tuple[str, ...]
    """Without the interpreter: the host runs its own Python with these arguments."""
    environment: Mapping[str, str]
    """Added to the host's own environment."""
    directory: str
    """Folder of this rank in this trial (made by the host); the process runs there."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Text files to write into `directory` before the start, by name."""
    memory_limit_bytes: int | None = None
    """Resident size above which the host kills the process; None: the machine's own limit."""
    fork_of: tuple[str, ...] | None = None
    """Arguments of a fork server that the host keeps, and forks the process from (see
    `autotune.evaluators.rank_worker.fork_server`); None: a process of its own, by `argv`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What a host knows of its rank's process."""

    running: bool
    exit_code: int | None = None
    """As `subprocess.Popen.returncode`: negative is the signal that killed it. None while it runs."""
    stage: Stage | None = None
    """The last stage the process said it entered."""
    intermediates: str | None = None
    """Text of the file of what it measured so far (rank 0 only); None while there is none."""
    result: str | None = None
    """Text of the result file; None while there is none."""
    log_tail: tuple[str, ...] = ()
    """Last lines of the process's output (only once it has ended, or has delivered)."""
    log_path: str | None = None
    memory_exceeded_bytes: int | None = None
    """Resident size at which the host killed the process for its memory limit; None: it did not."""
    memory_limit_bytes: int | None = None
    """That limit; None: there is none."""
    node: str | None = None
    """Address of the node where it runs; None: this machine."""
    host_lost: str | None = None
    """Why the host itself is gone, and the process with it, through no fault of the process; None: it is there."""


class Watched(Protocol):
    """What can be asked how one rank does."""

    def poll(self, wait_s: float = 0.0) -> RankReport:
        """Say how the rank's process does; cheap. A host waits up to `wait_s` until there is news."""
        ...


class RankHost(Watched, Protocol):
    """A place for one rank's process: a bundle of a placement group, or a slot on this machine.

    Called by one thread at a time. A host runs one process at a time, and serves any number of trials in turn.
    """

    def reserve_address(self) -> tuple[str, int]:
        """Return an address of this node that other nodes reach, and a port that is free on it now."""
        ...

    def start(self, command: RankCommand) -> None:
        """Start the process in a process group of its own, tied to the host's life.

        Raises:
            HostLostError: when the host is gone, as `reserve_address` does too.
        """
        ...

    def stop(self) -> RankReport:
        """End the process and everything it started (SIGTERM, then SIGKILL); idempotent. Return the last report."""
        ...


class Evaluator(Protocol):
    """How one trial is measured: one blocking, picklable call. It never raises for a trial that fails.

    Where a host's report says `host_lost`, the failure says so too, and the runner measures the trial elsewhere.
    """

    @property
    def ranks(self) -> int:
        """How many hosts `evaluate` needs; 0 for an evaluator that starts no process."""
        ...

    def prepare(self, ds_configs: Sequence[Mapping[str, object]], progress: Callable[[str], None]) -> None:
        """Do once, before the first trial, what these configurations will need (build ops), telling of progress."""
        ...

    def evaluate(
        self,
        request: TrialRequest,
        *,
        hosts: Sequence[RankHost],
        progress: Callable[[Stage], None],
        cancelled: Callable[[], bool],
        should_prune: ShouldPrune = never_prune,
    ) -> Outcome:
        """Measure one configuration on `hosts` (rank i on hosts[i]); nothing it started outlives the call."""
        ...
