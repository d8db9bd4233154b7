"""The error of cached against full decoding as a line chart."""

import math
from collections.abc import Mapping, Sequence

import torch
from matplotlib.figure import Figure

from minitrans.cachecheck.measure import dtype_tolerance, to_str
from minitrans.pages.charts import make_stacked_panels

PLOTTED_MIN, PLOTTED_ZERO = 1e-17, 1e-19  # what smaller numbers are drawn at, and where an exact 0 stands
MARKERS = "os^D"  # lines can be told apart without colour


def error_chart(errors: Mapping[str, Sequence[float]]) -> Figure:
    """The worst deviation at each target position, a line a dtype, on a scale of powers of ten.

    Each dtype's tolerance is a dashed line. Values of 1 or more, infinity and NaN are drawn at the top.

    Args:
        errors: For each dtype, by its name in torch, a deviation for each position.
    """
    figure, (panel,) = make_stacked_panels(1, height=4.5)
    for (name, values), marker in zip(errors.items(), MARKERS, strict=False):
        tolerance = dtype_tolerance(getattr(torch, name))
        label = f"{name}, at most {to_str(tolerance)} (dashed)"
        (line,) = panel.plot([_plotted_value(value) for value in values], marker=marker, label=label)
        panel.axhline(tolerance, color=line.get_color(), linestyle="--")
    powers = [10.0**power for power in range(-16, 0, 2)]
    panel.set_yscale("log")
    panel.set_yticks([PLOTTED_ZERO, *powers, 1.0], ["0", *map(to_str, powers), "≥ 1"])
    panel.set_yticks([], minor=True)
    panel.set_title("worst deviation of a step from the full pass", loc="left")
    panel.set_xlabel("target position")
    panel.legend(loc="center right")
    return figure


def _plotted_value(value: float) -> float:
    """What is drawn for a deviation."""
    return PLOTTED_ZERO if value == 0 else min(1.0, max(PLOTTED_MIN, value)) if math.isfinite(value) else 1.0
