"""The findings of `autotune lint` on the console."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autotune.cli.console import make_console, write
from autotune.cli.exit_codes import ExitCode
from autotune.cli.formats import print_csv, print_json
from autotune.cli.options import Format
from autotune.ds_config import Finding, Report, Severity, Target, Verdict, fixing, lint
from autotune.errors import ConfigError
from autotune.report import units

_STYLES = {Severity.ERROR: "bad", Severity.WARNING: "yellow", Severity.NOTE: "muted"}
_VERDICT_STYLES = {
    Verdict.ACCEPTED: "good",
    Verdict.WARNED: "good",
    Verdict.MENDED: "yellow",
    Verdict.REFUSED: "bad",
}
_GROUPED_FROM = 3
"""Findings that say the same of so many keys are told once."""
_VALUE_CHARACTERS = 40
_LINE_WIDTH, _SEVERITY_WIDTH = 5, 7
_INDENT = _LINE_WIDTH + _SEVERITY_WIDTH + 4
"""Where a finding's text starts: right of its line and severity, with two blanks after each."""


def print_lint(
    files: Sequence[str], *, ranks: int | None, reader: str | None, fix: bool, to: Path | None, form: Format
) -> int:
    """Check files and print what there is to say; return the exit code.

    Raises:
        ConfigError: when several files are to be mended into one, or a copy can't be written.
    """
    if to is not None and len(files) > 1:
        raise ConfigError(
            f"-o {to}: got {len(files)} files; a mended copy is of one, so give one file, or leave out -o"
        )
    target = Target(reader) if reader is not None else None
    reports = [lint(file, target=target, ranks=ranks) for file in files]
    written = {report.source: _write_copy(report, to) for report in reports if fix and report.after is not None}
    if form is Format.TABLE:
        console = make_console()
        for report in reports:
            _print(console, report, fix=fix, copy=written.get(report.source))
        _print_total(console, reports)
    elif form is Format.JSON:
        print_json([_row(report, written.get(report.source)) for report in reports])
    else:
        print_csv([row for report in reports for row in _flat_rows(report)])
    is_bad = any(_has_errors(report, mended=report.source in written) for report in reports)
    return ExitCode.NO_RESULT if is_bad else ExitCode.OK


def _has_errors(report: Report, *, mended: bool) -> bool:
    if mended:
        return report.verdict is Verdict.REFUSED
    return report.verdict in (Verdict.MENDED, Verdict.REFUSED)


def _write_copy(report: Report, to: Path | None) -> Path | None:
    if report.after is None:
        return None
    path = to if to is not None else fixing.default_path(report.after)
    if path.exists():
        raise ConfigError(
            f"{path} is there already, and --fix overwrites nothing; remove it, or give another name (-o)"
        )
    fixing.write(report.after, path)
    return path


def _print(console: Console, report: Report, *, fix: bool, copy: Path | None) -> None:
    write(console, Text(_printable(report.source), style="name"))
    if report.unreadable:
        _write(console, Text(_printable(report.unreadable).removeprefix("ds_config: ")), indent=_INDENT)
    for group in _groups(report.findings):
        _print_group(console, group, fix=fix)
    _write(console, _summary(report, fix=fix, copy=copy), indent=2)
    if copy is not None:
        _print_left(console, report, copy)
    write(console, "")


def _groups(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Findings that say the same together, in the order of the first; a few stay single."""

    def sameness(finding: Finding) -> tuple[str, ...]:
        fix = "" if finding.code == "auto" else finding.fix
        return (finding.severity, finding.code, finding.rule, fix)

    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        groups.setdefault(sameness(finding), []).append(finding)
    split = [[group] if len(group) >= _GROUPED_FROM else [[one] for one in group] for group in groups.values()]
    return sorted(itertools.chain.from_iterable(split), key=lambda group: group[0].line)


def _print_group(console: Console, group: list[Finding], *, fix: bool) -> None:
    first = group[0]
    head = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    head.add_column(justify="right", width=_LINE_WIDTH, style="muted")
    head.add_column(width=_SEVERITY_WIDTH)
    head.add_column(overflow="fold")
    head.add_row(str(first.line), Text(first.severity, style=_STYLES[first.severity]), _what(group))
    write(console, head)
    lines = [Text(_printable(first.rule))]
    if len(group) > 1:
        lines.append(Text(", ".join(_name(finding, group) for finding in group), style="muted"))
    if first.severity is not Severity.NOTE or len(group) == 1:
        done = "" if not first.is_mended else "  (mended)" if fix else "  (--fix does it)"
        lines.append(Text.assemble(("fix: ", "muted"), _printable(first.fix), (done, "good")))
    for line in lines:
        _write(console, line, indent=_INDENT)


def _what(group: list[Finding]) -> Text:
    first = group[0]
    if len(group) > 1:
        block = _block(group)
        text = Text(f"{len(group)} keys" + (f" of {_printable(block)}" if block else ""), style="name")
        is_same = all(finding.value == first.value for finding in group)
    else:
        text, is_same = Text(_printable(first.key) or "the file", style="name"), first.value is not None
    return text.append(f" = {_shown(first.value)}", style="not bold") if is_same else text


def _block(group: list[Finding]) -> str:
    """The block that all of the keys stand in; empty where they don't, or at the top level."""
    blocks = {finding.path[:-1] for finding in group}
    return ".".join(map(str, blocks.pop())) if len(blocks) == 1 else ""


def _name(finding: Finding, group: list[Finding]) -> str:
    name = str(finding.path[-1]) if _block(group) else finding.key
    return _printable(f"{name} ({finding.line})")


def _summary(report: Report, *, fix: bool, copy: Path | None) -> Text:
    counts = Counter(finding.severity for finding in report.findings)
    told = ", ".join(units.count(counts[kind], str(kind)) for kind in Severity if counts[kind])
    text = Text()
    if report.unreadable:
        return text.append("refused: it can't be read", style="bad")
    said = {
        Verdict.ACCEPTED: "accepted",
        Verdict.WARNED: "accepted",
        Verdict.MENDED: "mended" if copy is not None else "refused as it is, mended by --fix",
        Verdict.REFUSED: "refused",
    }[report.verdict]
    text.append(said, style=_VERDICT_STYLES[report.verdict])
    if told:
        text.append(f": {told}")
    if fix and copy is None and report.findings:
        text.append("; nothing that could be mended without guessing")
    return text


def _print_left(console: Console, report: Report, copy: Path) -> None:
    mended = ", ".join(_printable(finding.key) or finding.code for finding in report.mended)
    _write(console, Text.assemble(("wrote ", "muted"), _printable(str(copy)), f"; mended: {mended}"), indent=2)
    left = [finding for finding in report.left if finding.severity is not Severity.NOTE]
    if left:
        told = ", ".join(f"{finding.severity} {_printable(finding.key) or finding.code}" for finding in left)
        _write(console, Text.assemble(("left: ", "muted"), told), indent=2)


def _print_total(console: Console, reports: Sequence[Report]) -> None:
    if len(reports) < 2:
        return
    counts = Counter(report.verdict for report in reports)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
    write(console, f"{units.count(len(reports), 'file')}: {told}")


def _row(report: Report, copy: Path | None) -> dict[str, Any]:
    return {
        "file": report.source,
        "verdict": report.verdict,
        "unreadable": report.unreadable,
        "written": None if copy is None else str(copy),
        "findings": [_finding_row(finding) for finding in report.findings],
    }


def _flat_rows(report: Report) -> Iterator[dict[str, Any]]:
    for row in [_finding_row(finding) for finding in report.findings] or [{"rule": report.unreadable}]:
        yield {"file": report.source, "verdict": report.verdict, **row}


def _finding_row(finding: Finding) -> dict[str, Any]:
    return {
        "line": finding.line,
        "severity": finding.severity,
        "code": finding.code,
        "key": finding.key,
        "value": finding.value,
        "rule": finding.rule,
        "fix": finding.fix,
        "mended": finding.is_mended,
    }


def _shown(value: Any) -> str:
    text = _printable(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _VALUE_CHARACTERS else text[: _VALUE_CHARACTERS - 3] + "..."


def _write(console: Console, text: Text, *, indent: int) -> None:
    write(console, Padding(text, (0, 0, 0, indent), expand=False))


def _printable(text: str) -> str:
    """Return a text without what a terminal would obey, or can't write."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
