"""What the memory filter would save, and what it refuses wrongly: on simulated studies of random points."""

from __future__ import annotations

import argparse

from tests import filtered_trials

COUNTS = (0, 4, 8, 16, 32)
COLUMNS = ("calibrated to", "judged", "out of memory", "of them refused", "refused though they fit")


def main() -> None:
    """Print one row for each number of trials calibrated to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", type=int, default=24)
    parser.add_argument("--points", type=int, default=400)
    asked = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for count in COUNTS:
        found = [
            filtered_trials.counted(seed, calibrated_to=count, points=asked.points) for seed in range(asked.workloads)
        ]
        judged, out, caught, wrong = (sum(column) for column in zip(*found, strict=True))
        print(f"| {count} | {judged} | {out} | {caught} ({caught / max(out, 1):.0%}) | {wrong} |", flush=True)


if __name__ == "__main__":
    main()
