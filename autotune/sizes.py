"""Amounts of bytes as people read them, for messages of every layer; `autotune.report.units` says why so."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def text(size_bytes: float) -> str:
    """Return bytes in powers of 1,024, two decimals below ten and one from there: 85899345920 -> '80.0 GiB'."""
    power = 0
    while power + 1 < len(_UNITS) and abs(size_bytes) >= 1024 ** (power + 1):
        power += 1
    amount = size_bytes / 1024**power
    decimals = 0 if power == 0 else 2 if abs(amount) < 10 else 1
    return f"{amount:,.{decimals}f} {_UNITS[power]}"
