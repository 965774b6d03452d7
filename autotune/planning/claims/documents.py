"""The claims as text for a terminal, and as docs/claims.md."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from autotune.planning.claims.claim import Claim

WIDTH = 100
_INTRODUCTION = """\
# Claims met in the field

Figures on training large models that go round, each worked out anew with autotune's performance model
([performance_model.md](performance_model.md)). `make claims` prints them; this page is written by
`python -m autotune.planning.claims --markdown > docs/claims.md`, and a test holds it to what the model says.

What follows from counting parameters, bytes and operations is exact. Speeds, and memory beside the states, are the
model's estimates, with the error that [estimate.md](estimate.md) tells of: no verdict here hangs on ten per cent."""


def to_text(found: Sequence[Claim]) -> str:
    """Return the claims for a terminal."""
    parts = []
    for number, claim in enumerate(found, start=1):
        lines = [f"{number:2}. {claim.said}", f"    {claim.found}", f"    {claim.verdict.upper()}: {claim.why}"]
        parts.append("\n".join(textwrap.fill(line, WIDTH, subsequent_indent="    ") for line in lines))
    return "\n\n".join(parts) + "\n"


def to_markdown(found: Sequence[Claim]) -> str:
    """Return docs/claims.md."""
    parts = [_INTRODUCTION]
    for number, claim in enumerate(found, start=1):
        said = textwrap.fill(f"## {number}. {claim.said}", 100_000)
        body = [f"{claim.found}", f"**{claim.verdict.capitalize()}.** {claim.why}"]
        parts.append("\n\n".join([said, *(textwrap.fill(text, 120) for text in body)]))
    return "\n\n".join(parts) + "\n"
