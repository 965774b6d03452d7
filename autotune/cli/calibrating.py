"""What the performance model learnt of a study: coefficients, noise, and how well it foretells trials left out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from autotune.campaign.calibrating import calibrate_study, check_study, earlier_study, prior_of
from autotune.cli.console import make_console, write
from autotune.cli.exit_codes import ExitCode
from autotune.cli.formats import Column, print_csv, print_json, print_pairs, print_table
from autotune.cli.options import Format
from autotune.cli.studies import opened
from autotune.performance import Prior
from autotune.performance.calibration import Calibration, Check, Foretold, calibration_priors
from autotune.performance.calibration.checking import FOLDS
from autotune.report import units
from autotune.report.units import DASH

_MOVED = 10
"""Coefficients in the table; JSON has all."""
_LAST_TRIALS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class _Coefficient:
    """One of the model's, before and after."""

    prior: Prior
    now: float
    spread: float
    """Standard deviation of the logarithm, as the prior's."""

    @property
    def moved(self) -> float:
        """How far, in the prior's standard deviations."""
        return abs(math.log(self.now / self.prior.mean)) / self.prior.spread


def print_calibration(name: str, *, url: str | None, form: Format) -> int:
    """Calibrate a study, keep the calibration with it, and say what came of it; return the exit code."""
    with opened(url) as storage:
        stored = storage.open(name)
        found, earlier = calibrate_study(stored), earlier_study(stored)
        checks = check_study(stored)
        priors = prior_of(stored) or calibration_priors(is_cpu=bool(found.cluster.device.is_cpu))
    coefficients = [
        _Coefficient(prior=priors[each], now=math.exp(mean), spread=float(spread))
        for each, mean, spread in zip(found.names, found.mean, found.spreads(), strict=True)
    ]
    if form is Format.JSON:
        print_json(_record(name, found, earlier, coefficients, checks))
    elif form is Format.CSV:
        print_csv([_row(check) for check in checks])
    else:
        _print(make_console(), name, found, earlier, coefficients, checks)
    return ExitCode.OK


def _record(
    name: str, found: Calibration, earlier: str | None, coefficients: Sequence[_Coefficient], checks: Sequence[Check]
) -> dict[str, Any]:
    return {
        "study": name,
        "device": found.fitted.device_name,
        "ranks": found.fitted.ranks,
        "fitted_trials": found.fitted.trials,
        "observations": dict(found.fitted.observations),
        "calibrated_from": earlier,
        "noise": dict(found.noise),
        "coefficients": [
            {
                "name": each.prior.name,
                "unit": each.prior.unit,
                "part": each.prior.part,
                "prior": each.prior.mean,
                "prior_spread": each.prior.spread,
                "value": each.now,
                "spread": each.spread,
                "source_of_prior": each.prior.source,
            }
            for each in coefficients
        ],
        "checks": [_row(check) for check in checks],
    }


def _row(check: Check) -> dict[str, Any]:
    """Return one flat row; a figure that there isn't is None."""
    row: dict[str, Any] = {"number": check.trial}
    kinds = {"step_time_s": check.step_time_s, "peak_memory_bytes": check.peak_memory_bytes}
    for kind, figure in kinds.items():
        for name in ("measured", "before", "after", "error_before", "error_after"):
            value = getattr(figure, name) if figure is not None else math.nan
            row[f"{kind}_{name}"] = value if math.isfinite(value) else None
    return row


def _print(
    console: Console,
    name: str,
    found: Calibration,
    earlier: str | None,
    coefficients: Sequence[_Coefficient],
    checks: Sequence[Check],
) -> None:
    seen = [f"{count} {kind.replace('_', ' ')}" for kind, count in found.fitted.observations.items() if count]
    priors = "the table's" if earlier is None else f"study {earlier}'s calibration, for what is the machine's"
    how = "each left out by itself" if len(checks) <= FOLDS else f"left out in {FOLDS} folds"
    print_pairs(
        console,
        [
            ("study", Text(name, style="name")),
            ("fitted to", f"{units.count(found.fitted.trials, 'trial')}: {', '.join(seen)}"),
            ("hardware", f"{found.fitted.device_name}, {units.count(found.fitted.ranks, 'rank')}"),
            ("priors", priors),
            *((f"{title} error", _errors(figures)) for title, figures in _figures(checks).items()),
            ("", f"median, before: by the priors; after: by calibrations to the other trials ({how})"),
            ("noise", ", ".join(f"{kind.replace('_', ' ')} {units.percent(of)}" for kind, of in found.noise.items())),
        ],
    )
    moved = sorted(coefficients, key=lambda each: -each.moved)[:_MOVED]
    write(console, Text("\nCoefficients that moved most, of their priors' own spread", style="muted"))
    print_table(console, _COEFFICIENTS, moved)
    write(console, Text("\nTrials, as foretold before and after", style="muted"))
    print_table(console, _CHECKS, checks[-_LAST_TRIALS:])


def _figures(checks: Sequence[Check]) -> Mapping[str, Sequence[Foretold]]:
    memory = [check.peak_memory_bytes for check in checks if check.peak_memory_bytes is not None]
    return {"step time": [check.step_time_s for check in checks], "memory": memory}


def _errors(figures: Sequence[Foretold]) -> str:
    if not figures:
        return "none measured"
    before, after = (
        statistics.median(getattr(figure, name) for figure in figures) for name in ("error_before", "error_after")
    )
    return f"{units.percent(before)} before, {_percent(after)} after ({units.count(len(figures), 'trial')})"


def _percent(value: float) -> str:
    return units.percent(value) if math.isfinite(value) else DASH


def _spread(logarithms: float) -> str:
    """Return a standard deviation of a logarithm: in percent, as a factor where that says more."""
    factor = math.exp(logarithms)
    return f"+-{units.percent(factor - 1)}" if factor < 2 else f"x or / {factor:.2g}"


_COEFFICIENTS: list[Column[_Coefficient]] = [
    Column(title="Coefficient", cell=lambda each: Text(each.prior.name, style="name")),
    Column(title="Unit", cell=lambda each: each.prior.unit, from_width=90),
    Column(title="Prior", cell=lambda each: f"{each.prior.mean:.3g}", right=True),
    Column(title="+-", cell=lambda each: _spread(each.prior.spread), right=True, from_width=90),
    Column(title="Now", cell=lambda each: f"{each.now:.3g}", right=True),
    Column(title="+-", cell=lambda each: _spread(each.spread), right=True),
    Column(title="Moved by", cell=lambda each: f"{each.moved:.1f}", right=True),
]


def _memory(check: Check, name: str) -> float | None:
    return getattr(check.peak_memory_bytes, name) if check.peak_memory_bytes is not None else None


def _error(value: float | None) -> str:
    return DASH if value is None else _percent(value)


_CHECKS: list[Column[Check]] = [
    Column(title="#", cell=lambda check: str(check.trial), right=True),
    Column(title="Step time", cell=lambda check: units.seconds(check.step_time_s.measured), right=True),
    Column(title="Before", cell=lambda check: units.seconds(check.step_time_s.before), right=True),
    Column(title="After", cell=lambda check: units.seconds(check.step_time_s.after), right=True),
    Column(title="Off before", cell=lambda check: _error(check.step_time_s.error_before), right=True, from_width=105),
    Column(title="Off after", cell=lambda check: _error(check.step_time_s.error_after), right=True),
    Column(title="Memory", cell=lambda check: units.memory(_memory(check, "measured")), right=True),
    Column(title="Before", cell=lambda check: units.memory(_memory(check, "before")), right=True),
    Column(title="After", cell=lambda check: units.memory(_memory(check, "after")), right=True),
    Column(title="Off before", cell=lambda check: _error(_memory(check, "error_before")), right=True, from_width=105),
    Column(title="Off after", cell=lambda check: _error(_memory(check, "error_after")), right=True),
]
