"""The error of cached against full decoding as a line chart in SVG.

Every line has its own marker and its name at its end, so that it can be told from the others without colour.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from markupsafe import Markup

from minitrans.cachecheck.check import rounding
from minitrans.pages.render import renderer

render = renderer("minitrans.verify.page")
WIDTH = 500  # of the plot, in pixels; heights are from its top, where 1 stands
DECADE = 22  # height of a factor of ten
LOWEST = -17  # the power of ten that smaller numbers are drawn at; an exact 0 stands below it
ZERO = (1.5 - LOWEST) * DECADE
MARKERS = ("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z", "M-4-4H4V4H-4Z", "M0-5.5L5.5 4.5H-5.5Z", "M0-5.5L5.5 0L0 5.5L-5.5 0Z")


def error_chart(errors: Mapping[str, Sequence[float]]) -> Markup:
    """The worst deviation at each target position, a line a dtype, on a scale of powers of ten.

    Each dtype's tolerance is a dashed line. What is 1 or more, infinite or no number stands at the top.

    Args:
        errors: For each dtype, by its name in torch, a deviation for each position.
    """
    length = max(map(len, errors.values()))
    step = WIDTH / max(1, length - 1)
    ends = _apart([_y(values[-1]) for values in errors.values()])
    lines = []
    for i, (name, values) in enumerate(errors.items()):
        tolerance = rounding(getattr(torch, name))
        lines.append(
            {
                "name": name,
                "end": ends[i],
                "tolerance": tolerance,
                "allowed": _y(tolerance),
                "points": [(t * step, _y(value), value) for t, value in enumerate(values)],
                "marker": MARKERS[i % len(MARKERS)],
            }
        )
    powers = [(f"1e{power}" if power else "≥ 1", -power * DECADE) for power in range(LOWEST + 1, 1, 2)]
    columns = [(t, t * step) for t in range(0, length, math.ceil(length / 16))]
    return render(
        "chart.svg",
        lines=lines,
        length=length,
        rows=[*powers, ("0", ZERO)],
        columns=columns,
        width=WIDTH,
        zero=ZERO,
    )


def _y(value: float) -> float:
    """Height of a deviation, in pixels from the top."""
    if value == 0:
        return ZERO
    power = min(0.0, max(LOWEST, math.log10(value))) if math.isfinite(value) else 0.0
    return -power * DECADE


def _apart(heights: Sequence[float]) -> list[float]:
    """The heights, raised where two labels, 22 pixels high, would meet."""
    order = sorted(range(len(heights)), key=lambda i: -heights[i])
    apart = list(heights)
    for below, above in pairwise(order):
        apart[above] = min(apart[above], apart[below] - 22)
    return apart
