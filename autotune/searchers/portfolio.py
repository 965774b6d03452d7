"""The portfolio: a short, ordered list of points that are good across workloads, as data (`portfolio.yaml`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from autotune.trials import Point

FILE = Path(__file__).with_name("portfolio.yaml")
"""Its origin stands at its top."""


def portfolio() -> Sequence[Point]:
    """Return the points in the order in which they are to be tried, as settings of the default space."""
    return tuple(yaml.safe_load(FILE.read_text(encoding="utf-8"))["points"])
