"""A comparison's curves as SVG files, for Markdown, which holds no charts of its own."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence

from autotune.comparison.contest import Curve
from autotune.comparison.statistics import Estimate

_WIDTH, _HEIGHT = 760, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 740, 40, 350
"""Edges of the plot, in pixels; the legend is above it."""
_COLORS = ("#1d4ed8", "#c2410c", "#0f766e", "#7e22ce", "#a16207", "#be185d", "#475569", "#0e7490")
"""The series' colours of the report's page in its light theme."""
_DASHES = ("none", "9 5", "2 4")
"""Told apart by these where there are more curves than colours."""
_TICKS = 6
"""Of an axis, at most about so many."""


def curves(by_name: Mapping[str, Curve], title: str) -> str:
    """Return best-R-so-far curves with their intervals as an SVG document on white.

    Args:
        by_name: the curves.
        title: of the horizontal axis.
    """
    across = [at for curve in by_name.values() for at in curve.at]
    up = [figure for curve in by_name.values() for best in curve.best for figure in _ends(best)]
    xs, ys = _ticks(min(across), max(across)), _ticks(min(up), max(up))

    def x(value: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (value - xs[0]) / (xs[-1] - xs[0])

    def y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (value - ys[0]) / (ys[-1] - ys[0])

    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for tick in ys:
        parts.append(f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    parts += [f'<text x="{x(tick):.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{tick:g}</text>' for tick in xs]
    parts.append(
        f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_HEIGHT - 10}" text-anchor="middle">{html.escape(title)}</text>'
    )
    parts.append(
        f'<text transform="translate(16 {(_TOP + _BOTTOM) / 2}) rotate(-90)" text-anchor="middle">Best R</text>'
    )
    for position, (name, curve) in enumerate(by_name.items()):
        color, dash = _COLORS[position % len(_COLORS)], _DASHES[position // len(_COLORS) % len(_DASHES)]
        if all(best.low is not None for best in curve.best):
            rim = [
                *((at, _ends(best)[-1]) for at, best in zip(curve.at, curve.best, strict=True)),
                *((at, _ends(best)[0]) for at, best in zip(curve.at[::-1], curve.best[::-1], strict=True)),
            ]
            points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in rim)
            parts.append(f'<polygon points="{points}" fill="{color}" opacity="0.12"/>')
        points = " ".join(f"{x(at):.1f},{y(best.value):.1f}" for at, best in zip(curve.at, curve.best, strict=True))
        line = f'fill="none" stroke="{color}" stroke-width="2.5" stroke-dasharray="{dash}"'
        parts.append(f'<polyline points="{points}" {line}/>')
        left = _LEFT + position * (_RIGHT - _LEFT) / len(by_name)
        parts.append(f'<path d="M{left:.0f} 20h22" {line}/>')
        parts.append(f'<text x="{left + 28:.0f}" y="24">{html.escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _ends(figure: Estimate) -> tuple[float, ...]:
    """Return the ends of an interval; of a figure without one the figure."""
    if figure.low is None or figure.high is None:
        return (figure.value,)
    return figure.low, figure.high


def _ticks(low: float, high: float) -> Sequence[float]:
    """Return round figures, evenly spaced, from `low` or below to `high` or above."""
    width = max(high - low, 1e-3 * max(1.0, abs(high)))
    power = 10.0 ** math.floor(math.log10(width / _TICKS))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if width / (factor * power) <= _TICKS)
    first = math.floor(low / step)
    return [
        round((first + number) * step, 12)
        for number in itertools.takewhile(
            lambda number: number < 2 or (first + number - 1) * step < high, itertools.count()
        )
    ]
