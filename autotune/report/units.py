"""Figures as people read them: rates, times, memory, ratios, settings; None reads as a dash.

Amounts of bytes, of memory and of disks, are in powers of 1,024 everywhere (KiB, MiB, GiB): so nvidia-smi, torch's own
out-of-memory messages, free, df and container limits count them, which one reads beside ours, and a card sold as 80 GB
has about 80 GiB. Decimal units are left to rates (GB/s, Gb/s), as datasheets give them, to names of devices
(A100-SXM-80GB), and to docs/claims.md, which answers claims in the units that they are made in. Layers below this one
format bytes by `autotune.sizes`.
"""

from __future__ import annotations

import math
from typing import Any

from autotune import sizes

DASH = "–"  # noqa: RUF001 (the sign for "no figure")


def number(value: float | None, digits: int = 3) -> str:
    """Return a figure with so many significant digits, thousands parted: 1234.5 -> '1,230'; a count has them all."""
    if value is None or not math.isfinite(value):
        return DASH
    if value == 0 or isinstance(value, int):
        return f"{value:,.0f}"
    magnitude = math.floor(math.log10(abs(value)))
    if not -4 <= magnitude <= 14:
        return f"{value:.{digits - 1}e}"
    rounded = round(value, digits - 1 - magnitude)
    return f"{rounded:,.{max(0, digits - 1 - magnitude)}f}"


def seconds(value: float | None) -> str:
    """Return a time: 0.0042 -> '4.2 ms', 75 -> '1 min 15 s', 7300 -> '2 h 2 min'."""
    if value is None or not math.isfinite(value):
        return DASH
    if abs(value) < 1e-3:
        return "0 s" if value == 0 else f"{number(value * 1e6, 2)} µs"
    if abs(value) < 1:
        return f"{number(value * 1e3)} ms"
    if abs(value) < 59.95:
        return f"{number(value)} s"
    minutes, rest_s = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s} s" if rest_s else f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def memory(value: float | None) -> str:
    """Return bytes in powers of 1,024: 14_000_000_000 -> '13.0 GiB'."""
    return DASH if value is None or not math.isfinite(value) else sizes.text(value)


def times(value: float | None) -> str:
    """Return a ratio: 1.624 -> '1.62x'."""
    return DASH if value is None or not math.isfinite(value) else f"{value:.2f}x"


def score(value: float | None) -> str:
    """Return an R: 1.4142 -> '1.414'."""
    return DASH if value is None or not math.isfinite(value) else f"{value:.3f}"


def percent(value: float | None) -> str:
    """Return a share: 0.342 -> '34 %'."""
    if value is None or not math.isfinite(value):
        return DASH
    return f"{value * 100:.0f} %" if abs(value) >= 0.1 or value == 0 else f"{value * 100:.1f} %"


def count(amount: int, noun: str) -> str:
    """Return an amount with its noun: (1, 'trial') -> '1 trial', (3, 'trial') -> '3 trials'."""
    return f"{amount:,} {noun if amount == 1 else noun + 's'}"


def setting(value: Any) -> str:
    """Return a configuration's value as DeepSpeed's file writes it, whole numbers with thousands parted."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{int(value):,}" if value.is_integer() and abs(value) >= 1 else f"{value:g}"
    return str(value)


def short_setting(value: Any) -> str:
    """Return a configuration's value for a narrow place: 500000000 -> '500M'."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) < 10_000:
        return setting(value)
    power = min(3, int(math.log10(abs(value)) / 3))
    return f"{value / 1000**power:g}{' kMB'[power]}"


def listed(words: list[str]) -> str:
    """Return words in a sentence: ['a', 'b', 'c'] -> 'a, b and c'."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""
