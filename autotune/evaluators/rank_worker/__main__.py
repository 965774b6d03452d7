"""One rank of one trial as a process of its own, in the current folder."""

from __future__ import annotations

from pathlib import Path

from autotune.evaluators.rank_worker import life

if __name__ == "__main__":
    life.end(life.live(Path.cwd()))
