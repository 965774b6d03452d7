"""What the pruner saves on recorded trials, and whether the winner stays: in random orders, and by searcher."""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Sequence

from autotune import storage
from tests import recorded_trials
from tests.recorded_trials import Replayed

ORDERS = 100
SEEDS = 5
SEARCHERS = ("random", "tpe", "cmaes")
NOISE = 0.05
"""Trials whose R differ by less are a tie: two runs of one configuration differ by as much."""
COLUMNS = ("recording", "order", "runs", "pruned", "of", "time saved", "training time saved", "same winner", "tie")


def main() -> None:
    """Print one row for each recording and way to choose the order of its trials."""
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    for recording in recorded_trials.RECORDINGS:
        whole = recorded_trials.recorded(recording)
        orders = [random.Random(seed).sample(whole.trials[1:], len(whole.trials) - 1) for seed in range(ORDERS)]
        shuffled = [recorded_trials.replay([whole.trials[0], *order], recording) for order in orders]
        _print_row(recording, "shuffled", [(whole, pruned) for pruned in shuffled])
        with tempfile.TemporaryDirectory() as folder:
            opened = storage.connect(f"sqlite:///{folder}/replay.db")
            for searcher in SEARCHERS:
                pairs = [
                    (
                        recorded_trials.study(opened, recording, searcher=searcher, seed=seed, pruner="none"),
                        recorded_trials.study(opened, recording, searcher=searcher, seed=seed, pruner="percentile"),
                    )
                    for seed in range(SEEDS)
                ]
                _print_row(recording, searcher, pairs)
            opened.close()


def _print_row(recording: str, order: str, pairs: Sequence[tuple[Replayed, Replayed]]) -> None:
    same = sum(_figures(whole) == _figures(pruned) for whole, pruned in pairs)
    tied = sum(abs(_score(whole) - _score(pruned)) <= NOISE * _score(whole) for whole, pruned in pairs)
    cells = (
        recording,
        order,
        str(len(pairs)),
        f"{statistics.fmean(len(pruned.pruned) for _, pruned in pairs):.1f}",
        f"{statistics.fmean(len(pruned.trials) for _, pruned in pairs):.0f}",
        f"{1 - sum(p.duration_s for _, p in pairs) / sum(w.duration_s for w, _ in pairs):.1%}",
        f"{1 - sum(p.training_s for _, p in pairs) / sum(w.training_s for w, _ in pairs):.1%}",
        f"{same} of {len(pairs)}",
        f"{tied} of {len(pairs)}",
    )
    print(f"| {' | '.join(cells)} |", flush=True)


def _score(replayed: Replayed) -> float:
    return replayed.best.score or 0.0


def _figures(replayed: Replayed) -> object:
    """Return what tells one recorded trial from another, whatever number it has in a study."""
    return replayed.best.measurement


if __name__ == "__main__":
    main()
