"""What a study found, as files: the configuration, the report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

from autotune import report
from autotune.cli.console import make_console, write
from autotune.cli.exit_codes import ExitCode
from autotune.cli.formats import print_pairs
from autotune.cli.studies import opened, summary_of
from autotune.cli.validating import kept_validation
from autotune.command import as_argument
from autotune.consumer import Consumer
from autotune.report import page


def write_export(
    name: str,
    path: Path | None,
    *,
    consumer: Consumer,
    number: int | None,
    url: str | None,
    alpha: float | None,
    beta: float | None,
) -> int:
    """Write a trial's configuration; return the exit code."""
    with opened(url) as storage:
        summary = summary_of(storage, name, alpha=alpha, beta=beta)
    exported = report.export(summary, path, consumer=consumer, trial_number=number)
    console = make_console()
    pairs = [("written", str(exported.config_path)), ("figures", str(exported.provenance_path))]
    if exported.launch_path is not None:
        pairs.insert(1, ("launch", str(exported.launch_path)))
    print_pairs(console, pairs)
    for heading, words in _to_paste(exported):
        # Never wrapped: it is there to be copied.
        sys.stdout.write(f"\n{heading}\n\n  {words}\n")
    if exported.notes:
        sys.stdout.write("\n")
    for note in exported.notes:
        write(console, Text(f"note: {note}"))
    return ExitCode.OK


def _to_paste(exported: report.Exported) -> Iterator[tuple[str, str]]:
    if exported.consumer is Consumer.HUGGING_FACE:
        flags = {"--deepspeed": str(exported.config_path), **exported.flags}
        words = " ".join(f"{flag} {shlex.quote(as_argument(value))}" for flag, value in flags.items())
        yield "Give your script these TrainingArguments (the file leaves them to it):", words
    elif exported.launch_path is not None:
        launch = shlex.join(["accelerate", "launch", "--config_file", str(exported.launch_path)])
        yield "Launch with", f"{launch} YOUR_SCRIPT.py"


def write_report(
    name: str, path: Path | None, *, markdown: bool, url: str | None, alpha: float | None, beta: float | None
) -> int:
    """Write a study's report, with its validation where it has one of these weights; return the exit code."""
    with opened(url) as storage:
        summary = summary_of(storage, name, alpha=alpha, beta=beta)
        is_own = alpha is None and beta is None
        validation = kept_validation(storage.open(name), summary) if is_own else None
    if markdown and path is None:
        sys.stdout.write(report.to_markdown(summary, validation))
        return ExitCode.OK
    target = path or Path(f"{name}.html")
    if markdown or target.suffix == ".md":
        page.write(report.to_markdown(summary, validation), target)
    else:
        report.write_html(summary, target, validation)
    write(make_console(), f"written  {target}")
    return ExitCode.OK
