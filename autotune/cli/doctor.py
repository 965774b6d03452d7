"""The doctor: can trials run on this machine, does this campaign run, and if not, what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.text import Text

from autotune import campaign as campaigns
from autotune.cli.checks import machine, op_caches, place, software
from autotune.cli.checks.finding import Finding, Status
from autotune.cli.console import make_console, write
from autotune.cli.exit_codes import ExitCode
from autotune.cli.formats import Column, print_csv, print_json, print_table
from autotune.cli.options import Format
from autotune.cli.probing import probe
from autotune.errors import AutotuneError
from autotune.report import units

_STYLES = {Status.OK: "good", Status.WARN: "yellow", Status.FAIL: "bad"}


def examine(
    campaign: Path | None, *, overrides: Sequence[str], url: str | None, start_ray: bool, fix: bool, form: Format
) -> int:
    """Print every check; return the exit code."""
    place_url = url or _storage_of(campaign, overrides)
    findings = [finding for check in _checks(place_url, start_ray=start_ray, fix=fix) for finding in check()]
    if campaign is not None:
        findings += probe(campaign, overrides=overrides, url=url, shows_stages=form is Format.TABLE)
    failures = sum(finding.status is Status.FAIL for finding in findings)
    if form is Format.TABLE:
        _print(findings, failures)
    else:
        rows = [asdict(finding) for finding in findings]
        print_json(rows) if form is Format.JSON else print_csv(rows)
    return ExitCode.NO_RESULT if failures else ExitCode.OK


def _storage_of(campaign: Path | None, overrides: Sequence[str]) -> str | None:
    """Return where a campaign keeps its study; a campaign that can't be used is told of by the probe."""
    if campaign is None:
        return None
    try:
        return campaigns.load(campaign, overrides).storage
    except AutotuneError:
        return None


def _checks(url: str | None, *, start_ray: bool, fix: bool) -> list[Callable[[], Iterator[Finding]]]:
    return [
        software.python,
        software.packages,
        software.combinations,
        machine.processors,
        machine.gpus,
        software.torch_build,
        software.compiler,
        software.cuda_toolkit,
        op_caches.own_cache,
        lambda: op_caches.locks(fix=fix),
        lambda: place.storage(url),
        machine.disk,
        machine.shared_memory,
        machine.open_files,
        machine.network,
        lambda: software.ray(start=start_ray),
    ]


def _print(findings: list[Finding], failures: int) -> None:
    console = make_console()
    columns: list[Column[Finding]] = [
        Column(title="", cell=lambda finding: Text(finding.status, style=_STYLES[finding.status])),
        Column(title="Check", cell=lambda finding: finding.check),
        Column(title="Found", cell=lambda finding: finding.detail, wraps=True),
        Column(title="What to do", cell=lambda finding: finding.advice, wraps=True),
    ]
    print_table(console, columns, findings)
    write(console, "")
    warnings = sum(finding.status is Status.WARN for finding in findings)
    if failures:
        write(console, Text(f"{units.count(failures, 'failure')}, {units.count(warnings, 'warning')}", style="bad"))
    else:
        write(console, f"no failure, {units.count(warnings, 'warning')}")
    for finding in findings:
        if finding.lines:
            write(console, Text(f"\n{finding.check}: last lines of the log", style="muted"))
            for line in finding.lines:
                write(console, f"  {line}")
