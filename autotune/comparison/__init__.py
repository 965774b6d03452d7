"""Comparison of searchers at an equal budget of executed trials: statistics, words, page and text."""

from autotune.comparison.contest import Comparison, Curve, Duel, Standing, compare
from autotune.comparison.documents import to_markdown, write_html
from autotune.comparison.runs import Contender, Run
from autotune.comparison.statistics import Estimate
from autotune.comparison.tables import rows
from autotune.comparison.wording import headline, verdicts

__all__ = [
    "Comparison",
    "Contender",
    "Curve",
    "Duel",
    "Estimate",
    "Run",
    "Standing",
    "compare",
    "headline",
    "rows",
    "to_markdown",
    "verdicts",
    "write_html",
]
