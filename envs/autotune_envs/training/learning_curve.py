"""The learning curve of a pre-training: a row for each leg, and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

FIGURES = (1, 4, 8, 16, 32, 64)
"""Trials after which the best is looked at."""
_WIDTH, _HEIGHT = 760, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 650, 20, 350
_COLORS = ("#1d4ed8", "#c2410c", "#0f766e", "#7e22ce", "#a16207", "#475569")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the policy was worth after a leg."""

    HEADER: ClassVar[tuple[str, ...]] = (
        "leg",
        "steps",
        "cpu_s",
        *(f"share_after_{trials}" for trials in FIGURES),
        "failed_after_fourth",
    )

    leg: int
    """From 1: first those of behaviour cloning, then PPO's."""
    steps: int
    """Of PPO's environment so far."""
    cpu_s: float
    """Processor time of the training so far, drawing workloads and measuring included."""
    shares: tuple[float, ...]
    """Mean best R as a share of the best known one, by `FIGURES`."""
    failed_after_fourth: float
    """Share of the trials after the fourth that failed."""

    @property
    def mean_share(self) -> float:
        return sum(self.shares) / len(self.shares)

    @property
    def cells(self) -> list[str]:
        numbers = (*self.shares, self.failed_after_fourth)
        return [str(self.leg), str(self.steps), repr(self.cpu_s), *(repr(number) for number in numbers)]

    @classmethod
    def of(cls, cells: Sequence[str]) -> Row:
        """Read what `cells` wrote."""
        leg, steps, cpu_s, *shares, failed = cells
        return cls(
            leg=int(leg),
            steps=int(steps),
            cpu_s=float(cpu_s),
            shares=tuple(map(float, shares)),
            failed_after_fourth=float(failed),
        )


def picture(rows: Sequence[Row]) -> str:
    """Return the shares by leg as an SVG document."""
    first, last = rows[0].leg, max(rows[-1].leg, rows[0].leg + 1)
    cloning = sum(row.steps == 0 for row in rows)
    low = max(0.0, min(share for row in rows for share in row.shares) // 0.1 * 0.1)

    def x(leg: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (leg - first) / (last - first)

    def y(share: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (share - low) / (1.0 - low)

    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for tenth in range(round(low * 10), 11):
        at = y(tenth / 10)
        parts.append(f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{tenth / 10:.1f}</text>')
    parts += [
        f'<text x="{x(leg):.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{leg}</text>'
        for leg in range(first, last + 1, max(1, (last - first) // 8))
    ]
    title = f"Leg ({cloning} of behaviour cloning, then PPO); mean share of the best known R on held-out workloads"
    parts.append(f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_HEIGHT - 10}" text-anchor="middle">{title}</text>')
    for place, (trials, color) in enumerate(zip(FIGURES, _COLORS, strict=True)):
        points = " ".join(f"{x(row.leg):.1f},{y(row.shares[place]):.1f}" for row in rows)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        label = f"{trials} trial{'s' if trials > 1 else ''}"
        parts.append(f'<text x="{_RIGHT + 10}" y="{_BOTTOM - 20 * place}" fill="{color}">{label}</text>')
    return "\n".join([*parts, "</svg>", ""])
