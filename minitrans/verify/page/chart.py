"""The error of cached against full decoding as a line chart in SVG.

As in `pictures`, classes stand for colours. Every line has its own marker and its name at its end, so that it can be
told from the others without colour.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

import torch

from minitrans.verify.check import number, rounding

LEFT, TOP, RIGHT = 70, 50, 110  # margins
PLOT = 500  # width between them
DECADE = 22  # height of a factor of ten
LOWEST = -17  # the power of ten that smaller numbers are drawn at; an exact 0 stands below it
ZERO = TOP + (1.5 - LOWEST) * DECADE
MARKERS = ("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z", "M-4-4H4V4H-4Z", "M0-5.5L5.5 4.5H-5.5Z", "M0-5.5L5.5 0L0 5.5L-5.5 0Z")


def error_chart(errors: Mapping[str, Sequence[float]]) -> str:
    """The worst deviation at each target position, a line a dtype, on a scale of powers of ten.

    Each dtype's tolerance is a dashed line. What is 1 or more, infinite or no number stands at the top.

    Args:
        errors: For each dtype, by its name in torch, a deviation for each position.
    """
    length = max(map(len, errors.values()))
    step = PLOT / max(1, length - 1)
    lines = [_line(i, name, values, step) for i, (name, values) in enumerate(errors.items())]
    ends = _apart([_y(values[-1]) for values in errors.values()])
    names = [
        f'<text class="series s{i}" x="{LEFT + PLOT + 12}" y="{y + 4:g}">{escape(name)}</text>'
        for i, (name, y) in enumerate(zip(errors, ends, strict=True))
    ]
    width, height = LEFT + PLOT + RIGHT, ZERO + 60
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height:g}" role="img" aria-label="Worst deviation of cached from '
        f'full decoding at {length} target positions, in {escape(", ".join(errors))}">'
        f"{_axes(length, step)}{''.join(lines)}{''.join(names)}</svg>"
    )


def _y(value: float) -> float:
    """Height of a deviation, in pixels from the top."""
    if value == 0:
        return ZERO
    power = min(0.0, max(LOWEST, math.log10(value))) if math.isfinite(value) else 0.0
    return TOP - power * DECADE


def _line(i: int, name: str, values: Sequence[float], step: float) -> str:
    """The tolerance, the line and the markers of one dtype."""
    points = [(LEFT + t * step, _y(value)) for t, value in enumerate(values)]
    tolerance = rounding(getattr(torch, name))
    allowed = _y(tolerance)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    marks = [
        f'<path class="mark" transform="translate({x:.1f} {y:.1f})" d="{MARKERS[i % len(MARKERS)]}">'
        f"<title>{escape(name)}, position {t}: {number(values[t])}</title></path>"
        for t, (x, y) in enumerate(points)
    ]
    return (
        f'<g class="s{i}"><path class="tolerance" d="M{LEFT} {allowed:.1f}H{LEFT + PLOT}"/>'
        f'<text class="allowed" x="{LEFT + 8}" y="{allowed - 6:.1f}">tolerance of {escape(name)}: '
        f"{number(tolerance)}</text>"
        f'<polyline class="line" points="{path}"/>{"".join(marks)}</g>'
    )


def _axes(length: int, step: float) -> str:
    """Powers of ten at the left, positions below."""
    heights = [(f"1e{power}" if power else "≥ 1", TOP - power * DECADE) for power in range(LOWEST + 1, 1, 2)]
    rows = [
        f'<path class="rule" d="M{LEFT} {y:g}H{LEFT + PLOT}"/>'
        f'<text class="row" x="{LEFT - 12}" y="{y + 4:g}">{label}</text>'
        for label, y in [*heights, ("0", ZERO)]
    ]
    columns = [
        f'<text class="column" x="{LEFT + t * step:.1f}" y="{ZERO + 24:g}">{t}</text>'
        for t in range(0, length, math.ceil(length / 16))
    ]
    return (
        f'<text x="{LEFT}" y="18">worst deviation of a step from the full pass</text>'
        f"{''.join(rows)}{''.join(columns)}"
        f'<text class="column" x="{LEFT + PLOT / 2:g}" y="{ZERO + 50:g}">target position</text>'
    )


def _apart(heights: Sequence[float], gap: float = 22) -> list[float]:
    """The heights, raised where two labels would meet."""
    order = sorted(range(len(heights)), key=lambda i: -heights[i])
    apart = list(heights)
    for below, above in pairwise(order):
        apart[above] = min(apart[above], apart[below] - gap)
    return apart
