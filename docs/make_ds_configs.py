"""Write docs/ds_configs.md: what `autotune lint` makes of the real files in tests/data/ds_configs."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

from autotune.ds_config import Report, Severity, Verdict, lint

ROOT = Path(__file__).parents[1]
FILES = ROOT / "tests" / "data" / "ds_configs"
PAGE = ROOT / "docs" / "ds_configs.md"
DEEPSPEED = "0.19.8"
HEAD = """\
# Real configuration files

What `autotune lint` says of {count} files from public repositories, for DeepSpeed {deepspeed}, not knowing who reads
them (`--for`) and on how many ranks (`--ranks`). The files, with their origin and licences, are in
[tests/data/ds_configs](../tests/data/ds_configs/README.md). `python docs/make_ds_configs.py` writes this page, and a
test holds it against the rules.

- **accepted**: loads as it is; values `"auto"` are for Hugging Face's Trainer or accelerate to fill in.
- **accepted with warnings**: loads, and something in it has no effect or has an old name.
- **mended**: DeepSpeed (or Hugging Face, where the file is for it) refuses it as it is, and takes what `--fix` writes.
- **refused**: only its author can know what was meant.

{counts}.

| file | verdict | why |
|---|---|---|
"""


def reports() -> dict[str, Report]:
    """Lint every file of the index; by name."""
    with (FILES / "index.csv").open(encoding="utf-8", newline="") as file:
        names = sorted(row["file"] for row in csv.DictReader(file))
    return {name: lint(str(FILES / name), deepspeed=DEEPSPEED) for name in names}


def page() -> str:
    """Return the page's text."""
    found = reports()
    counts = Counter(report.verdict for report in found.values())
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
    head = HEAD.format(count=len(found), deepspeed=DEEPSPEED, counts=told)
    return head + "".join(f"| {name} | {report.verdict} | {_why(report)} |\n" for name, report in found.items())


def _why(report: Report) -> str:
    told: dict[str, list[str]] = {}
    for finding in report.findings:
        if finding.severity is not Severity.NOTE:
            told.setdefault(finding.rule, []).append(f"`{finding.key}`" if finding.key else "")
    return "; ".join(f"{_keys(keys)}{rule}".replace("|", "\\|") for rule, keys in told.items())


def _keys(keys: list[str]) -> str:
    named = [key for key in keys if key]
    if not named:
        return ""
    return (", ".join(named) if len(named) < 4 else f"{named[0]} and {len(named) - 1} more keys") + ": "


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
