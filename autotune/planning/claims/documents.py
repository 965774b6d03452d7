"""The claims as text for a terminal, and as docs/claims.md."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from autotune.planning.claims.claim import Claim

WIDTH, PAGE_WIDTH = 100, 120
_INTRODUCTION = """\
# Claims met in the field

Figures on training large models that go round, each worked out anew with autotune's performance model
([performance_model.md](performance_model.md)). `make claims` prints them; this page is written by
`python -m autotune.planning.claims --markdown > docs/claims.md`, and a test holds it to what the model says.

What follows from counting parameters, bytes and operations is exact. Speeds, and memory beside the states, are the
model's estimates, with the error that [estimate.md](estimate.md) tells of: no verdict here hangs on ten per cent.
A GB is 10^9 bytes here, as in the claims; elsewhere autotune counts GiB, as nvidia-smi does."""


def to_text(found: Sequence[Claim]) -> str:
    """Return the claims for a terminal."""
    parts = []
    for number, claim in enumerate(found, start=1):
        lines = [f"{number:2}. {claim.said}", f"    {claim.found}", f"    {claim.verdict.upper()}: {claim.why}"]
        parts.append("\n".join(_filled(line, WIDTH, indent="    ") for line in lines))
    return "\n\n".join(parts) + "\n"


def to_markdown(found: Sequence[Claim]) -> str:
    """Return docs/claims.md."""
    parts = [_INTRODUCTION]
    for number, claim in enumerate(found, start=1):
        body = [claim.found, f"**{claim.verdict.capitalize()}.** {claim.why}"]
        parts.append("\n\n".join([f"## {number}. {claim.said}", *(_filled(text, PAGE_WIDTH) for text in body)]))
    return "\n\n".join(parts) + "\n"


def _filled(text: str, width: int, *, indent: str = "") -> str:
    """Return a paragraph whose lines don't part a figure from its percent sign."""
    held = text.replace(" %", "\u00a0%")
    return textwrap.fill(held, width, subsequent_indent=indent).replace("\u00a0%", " %")
