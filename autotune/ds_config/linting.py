"""Every rule over one configuration, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from autotune.ds_config import document as documents
from autotune.ds_config.document import Document, Form
from autotune.ds_config.findings import Finding, Rewrite, Severity, Target, mended
from autotune.ds_config.rules import ACCELERATE, ALWAYS, DEEPSPEED
from autotune.ds_config.subject import Subject, installed_deepspeed
from autotune.errors import ConfigError

_MOST_ROUNDS = 8
"""Mending a key can bring another rule to it (a typo's value was quoted, too); four rounds are the most seen."""


class Verdict(StrEnum):
    """What comes of a file."""

    ACCEPTED = "accepted"
    WARNED = "accepted with warnings"
    MENDED = "mended"
    """It is refused as it is, and what `--fix` writes is accepted."""
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class Report:
    """What there is to say about one file."""

    source: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    unreadable: str = ""
    """Why it can't be read; there are no findings then."""
    after: Document | None = None
    """The configuration as `--fix` writes it; None where nothing can be mended."""
    mended: tuple[Finding, ...] = ()
    """What `--fix` does, in order: the mended ones among `findings`, and those that came to light by mending them."""
    left: tuple[Finding, ...] = ()
    """What is left to say about `after`."""


def lint(
    argument: str, *, target: Target | None = None, ranks: int | None = None, deepspeed: str | None = None
) -> Report:
    """Read a configuration and check it; never raises, whatever the file holds.

    Args:
        argument: a file, or DeepSpeed's base64 argument.
        target: who reads it first; without it, what is right for any of them is right.
        ranks: data-parallel ranks; without it, the batch triple is checked for divisibility only.
        deepspeed: the version to check for; the installed one by default.
    """
    try:
        document = documents.load(argument)
    except ConfigError as error:
        return Report(source=argument, verdict=Verdict.REFUSED, findings=(), unreadable=str(error))
    return check(document, target=target, ranks=ranks, deepspeed=deepspeed)


def check(
    document: Document, *, target: Target | None = None, ranks: int | None = None, deepspeed: str | None = None
) -> Report:
    """Check a configuration that has been read."""
    subject = Subject(document=document, target=target, ranks=ranks, deepspeed=deepspeed or installed_deepspeed())
    findings = _findings(subject)
    after, done, left = _mend(subject, findings)
    has_errors = any(finding.severity is Severity.ERROR for finding in findings)
    if not has_errors:
        is_silent = all(finding.severity is Severity.NOTE for finding in findings)
        verdict = Verdict.ACCEPTED if is_silent else Verdict.WARNED
    else:
        is_mended = after is not None and all(finding.severity is not Severity.ERROR for finding in left)
        verdict = Verdict.MENDED if is_mended else Verdict.REFUSED
    return Report(source=document.source, verdict=verdict, findings=findings, after=after, mended=done, left=left)


def _findings(subject: Subject) -> tuple[Finding, ...]:
    special = ACCELERATE if subject.document.form is Form.ACCELERATE else DEEPSPEED
    found = [finding for rule in (*ALWAYS, *special) for finding in rule(subject)]
    return tuple(sorted(found, key=lambda finding: finding.line))


def _is_unwritable(finding: Finding, form: Form) -> bool:
    """Whether a copy would hide it: to write one of two values would be a guess, and JSON has no infinity."""
    if finding.code == "duplicate-key":
        return not finding.mend
    return finding.code == "not-finite" and form is not Form.ACCELERATE


def _mend(
    subject: Subject, findings: tuple[Finding, ...]
) -> tuple[Document | None, tuple[Finding, ...], tuple[Finding, ...]]:
    """Take the findings' steps, again and again until none is left."""
    document, after = subject.document, None
    done: list[Finding] = []
    if any(_is_unwritable(finding, document.form) for finding in findings):
        return None, (), ()
    for _ in range(_MOST_ROUNDS):
        steps = [step for finding in findings for step in finding.mend]
        if not steps:
            break
        form = document.form if document.form is Form.ACCELERATE else Form.JSON
        data = mended(document.data, steps)
        if data == document.data and not any(isinstance(step, Rewrite) for step in steps):
            break
        done += [finding for finding in findings if finding.mend]
        after = document = replace(document, data=data, form=form, duplicates=(), not_json="", not_json_line=1)
        findings = _findings(replace(subject, document=document))
    return after, tuple(done), findings if after is not None else ()
