"""Comparison of searchers at equal budgets of executed trials and of wall time: statistics, words, page and text."""

from autotune.comparison.contest import Comparison, Curve, Duel, Final, Mark, Standing, Unit, compare
from autotune.comparison.documents import to_markdown, write_html, write_markdown
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
    "Final",
    "Mark",
    "Run",
    "Standing",
    "Unit",
    "compare",
    "headline",
    "rows",
    "to_markdown",
    "verdicts",
    "write_html",
    "write_markdown",
]
