"""Figures as text."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import autotune
from autotune.report import units


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1,230"), (12, "12"), (1234567, "1,234,567"), (0.012345, "0.0123"), (0.0, "0"), (9.999, "10.00")],
)
def test_number(value, text):
    assert units.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0042, "4.20 ms"), (3e-5, "30 µs"), (2.0, "2.00 s"), (75, "1 min 15 s"), (59.99, "1 min"), (7300, "2 h 1 min")],
)
def test_seconds(value, text):
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1536, "1.50 KiB"),
        (64 * 2**20, "64.0 MiB"),
        (80 * 2**30, "80.0 GiB"),  # what nvidia-smi calls 81920MiB
        (14_000_000_000, "13.0 GiB"),
        (2**42, "4.00 TiB"),
        (-3 * 2**30, "-3.00 GiB"),
        (None, units.DASH),
    ],
)
def test_memory_is_in_powers_of_1024(value, text):
    assert units.memory(value) == text


def test_no_message_counts_bytes_in_decimal_units():
    root = Path(autotune.__file__).parent
    claims = root / "planning" / "claims"  # it answers claims in the units that they are made in
    messages = {
        f"{path.relative_to(root)}: {line.strip()}"
        for path in root.rglob("*.py")
        if claims not in path.parents
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\} ?[kMGT]B\b", line)
    }
    assert messages == set()


def test_other_figures():
    assert units.times(1.624) == "1.62x"
    assert units.percent(0.342) == "34 %"
    assert units.percent(0.0412) == "4.1 %"
    assert units.count(1, "trial") == "1 trial"
    assert units.count(1200, "trial") == "1,200 trials"
    assert units.listed(["a"]) == "a"
    assert units.listed(["a", "b", "c"]) == "a, b and c"
    assert units.listed([]) == ""


@pytest.mark.parametrize(
    ("value", "text", "short"),
    [
        (500_000_000, "500,000,000", "500M"),
        (3e-4, "0.0003", "0.0003"),
        (5e8, "500,000,000", "500M"),
        (True, "true", "true"),
        (None, "not set", "not set"),
        ("bf16", "bf16", "bf16"),
    ],
)
def test_settings(value, text, short):
    assert units.setting(value) == text
    assert units.short_setting(value) == short


@pytest.mark.parametrize("figure", [None, math.nan, math.inf])
def test_no_figure_is_a_dash(figure):
    for text in (units.number, units.seconds, units.memory, units.times, units.score, units.percent):
        assert text(figure) == units.DASH


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_figure_has_a_text(figure):
    for text in (units.number, units.seconds, units.memory, units.times, units.percent, units.setting):
        assert text(figure)


@given(st.floats(min_value=1e-4, max_value=1e15))
def test_a_number_keeps_three_digits(figure):
    assert float(units.number(figure).replace(",", "")) == pytest.approx(figure, rel=0.0051)
