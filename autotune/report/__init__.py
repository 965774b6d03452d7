"""Reports of a study: what was found, in words, tables and charts; and the best configuration as a file."""

from autotune.report.changes import Change, changed
from autotune.report.effect import Effect, LevelEffect, effects
from autotune.report.exports import Exported, export
from autotune.report.findings import ValidatedRatio, ValidationLike, headline, tally
from autotune.report.html import write_html
from autotune.report.markdown import to_markdown
from autotune.report.pareto_set import pareto
from autotune.report.summary import StudySummary

__all__ = [
    "Change",
    "Effect",
    "Exported",
    "LevelEffect",
    "StudySummary",
    "ValidatedRatio",
    "ValidationLike",
    "changed",
    "effects",
    "export",
    "headline",
    "pareto",
    "tally",
    "to_markdown",
    "write_html",
]
