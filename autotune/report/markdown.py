"""A report as Markdown text: the same findings and tables as the HTML page, without the charts."""

from __future__ import annotations

import re

from autotune.report import agreement, finalists, steadiness, tables
from autotune.report.findings import ValidationLike, cautions, headline, tally
from autotune.report.summary import StudySummary
from autotune.report.tables import Table
from autotune.report.thinning import listed, listed_in_words

_SPECIAL = re.compile(r"[\\`*\[\]<>|&]|(?<!\w)_|_(?!\w)")
"""What Markdown reads as more than text; an underscore inside a word is none."""


def to_markdown(summary: StudySummary, validation: ValidationLike | None = None) -> str:
    """Return the report of a study as Markdown.

    Args:
        summary: of the study.
        validation: of its best trial, when it has been measured again.
    """
    first = validation.headline if validation is not None else headline(summary)
    parts = [f"# {escaped(summary.name)}", f"**{escaped(first)}** {escaped(tally(summary))}"]
    parts += [f"> {escaped(caution)}" for caution in cautions(summary, validation)]
    if validation is not None:
        parts += ["## Measured again", escaped(validation.headline), table(tables.validated(validation))]
        parts += [f"- {escaped(note)}" for note in validation.notes]
    if summary.finals is not None:
        parts += section("Finals", tables.finals(summary))
        parts += [f"- {escaped(note)}" for note in (*finalists.notes(summary), finalists.rule(summary.finals))]
    steady = steadiness.sentence(summary)
    parts += [] if steady is None else ["## How steady the machine was", escaped(steady)]
    checked = agreement.sentence(summary)
    parts += [] if checked is None else ["## Warm trials run again cold", escaped(checked)]
    against = section("Your start against the best", tables.against_baseline(summary))
    if against and summary.finals is not None:
        against.insert(1, "As each was measured in the search, by one run. What the finals found is above.")
    parts += against
    parts += section("Settings that differ", tables.changed_settings(summary))
    if len(summary.completed) > 1:
        parts += section("Effect of each dimension on R", tables.level_effects(summary))
    parts += section("Where a training step's time goes", tables.step_times(summary))
    parts += section("Where the trials' time goes", tables.stage_times(summary))
    if summary.pruned:
        parts += section("Pruned: ended early, as clearly dominated", tables.pruned(summary))
    for kind, failed in tables.failures(summary).items():
        parts += section(f"Failures: {kind}", failed)
    parts += section("Trials" if listed_in_words(summary) else "All trials", tables.trials(listed(summary)))
    parts += [escaped(words) for words in (listed_in_words(summary),) if words]
    parts += section("Where the figures come from", tables.provenance(summary))
    return "\n\n".join(parts) + "\n"


def section(title: str, content: Table | None) -> list[str]:
    """Return a heading and its table; nothing where there is none."""
    return [f"## {title}", table(content)] if content is not None and content.rows else []


def table(content: Table) -> str:
    """Return a table in GitHub's Markdown."""
    rule = ["---:" if position in content.figures else "---" for position in range(len(content.columns))]
    lines = [content.columns, rule, *content.rows]
    return "\n".join(f"| {' | '.join(escaped(cell) for cell in line)} |" for line in lines)


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\g<0>", " ".join(text.split()))
