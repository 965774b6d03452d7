"""The protocol of the runner: where trials run, and how many at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from autotune.trials import Intermediate, Outcome, Stage, TrialRequest

StageListener: TypeAlias = Callable[[int, Stage], None]
"""Called with (trial number, stage entered), from any thread."""

Judge: TypeAlias = Callable[[TrialRequest, Sequence[Intermediate]], str | None]
"""Called with a running trial and what it has measured on the way, from any thread; returns why it is to be pruned,
None while it is to go on."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A request and what came of it."""

    request: TrialRequest
    outcome: Outcome


class TrialRunner(Protocol):
    """Runs trials. One thread calls it: `open`, then `submit` and `collect` in any order, then `close`.

    Law: every submitted request comes back from `collect` exactly once, also when it fails or is cancelled.
    """

    slots: int
    """How many trials may be under way. Known once it is open; it may change in `collect`, as nodes come and go."""

    def open(self, ds_configs: Sequence[Mapping[str, object]], progress: Callable[[str], None]) -> None:
        """Reserve what trials need and prepare the evaluator.

        Raises:
            ResourceError: when it can't be had; the message has the numbers.
        """
        ...

    def submit(self, request: TrialRequest) -> None:
        """Start a trial; at most `slots` are under way."""
        ...

    def collect(self, timeout_s: float) -> Finished | None:
        """Wait up to `timeout_s` for a finished trial; None when there is none by then.

        Raises:
            ResourceError: when trials wait for what can't be had any more; `close` ends them, as CANCELLED.
        """
        ...

    def close(self, *, cancel: bool) -> None:
        """Release everything. With `cancel`, trials under way end as CANCELLED, still to be collected; idempotent."""
        ...
