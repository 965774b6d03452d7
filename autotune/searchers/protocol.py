"""The protocol of the searcher: it proposes points and learns from their scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from autotune.trials import Point, Trial

FAILED_SCORE = 0.0
"""What a failed trial counts for in a searcher: neither trained nor learnt. R = 1 is the starting configuration."""


class Searcher(Protocol):
    """Proposes points of one `SearchSpace`.

    Law: the study calls `ask`, runs the point, then `tell`s the finished trial. Up to `slots` asks are open at once;
    their trials are told in the order in which they finish, not in that of the asks. It also tells trials that were
    never asked (the baseline, those of a resumed or earlier study): a searcher learns from them all the same. `ask` is
    deterministic given the seed and the calls before it, and never returns a point told before, nor one that is open.

    `restore(state())` on a new searcher of the same space and seed, then telling the same trials, goes on exactly as
    the old one would have, whatever was open. Asks that are open in the state and told neither by the history nor later
    are lost: their trials ran when the controller ended. They were never measured, so `ask` must still reach their
    points; best, it proposes them again first.
    """

    def ask(self) -> Point:
        """Propose a canonical point that is neither told nor open.

        Raises:
            SpaceExhausted: when there is none left.
        """
        ...

    def tell(self, trial: Trial) -> None:
        """Learn from a finished trial (COMPLETE, PRUNED or FAIL)."""
        ...

    def state(self) -> Mapping[str, str]:
        """Return what can't be rebuilt from told trials (JSON-able text values); empty when all can."""
        ...

    def restore(self, state: Mapping[str, str], history: list[Trial]) -> None:
        """Take up where `state` was taken.

        Args:
            state: what `state` returned; empty at the start of a study.
            history: every finished trial of the study by number, which need not be the order they were told in.
        """
        ...
