"""The training curve as a picture: what metrics.csv holds, on paper of its own, so that it suits any page."""

import csv
import math
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

WIDTH, HEIGHT = 620, 130  # of a panel, in pixels
MOST_DOTS = 60  # values of a line whose places are marked
PANELS = (
    ("loss", (("train_loss", "training, with label smoothing"), ("val_loss", "valid, without"))),
    ("BLEU", (("val_bleu", "valid, greedy"),)),
    ("learning rate", (("lr-AdamW", "at this step"),)),
)
Points = list[tuple[int, float]]


def training_curve(metrics: Path, kept: int) -> str:
    """An SVG with a panel each for loss, BLEU and learning rate by optimizer step; what has no value is left out.

    Args:
        metrics: A run's metrics.csv, whose steps count from 0.
        kept: How many steps the weights that were kept had taken; a dashed line shows where.
    """
    with metrics.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    lines = {
        column: [(int(row["step"]) + 1, float(row[column])) for row in rows if row.get(column)]
        for _, columns in PANELS
        for column, _ in columns
    }
    lines = {column: [point for point in points if math.isfinite(point[1])] for column, points in lines.items()}
    last = max([kept, *(step for points in lines.values() for step, _ in points)])
    panels = []
    for title, columns in PANELS:
        shown = [(label, lines[column]) for column, label in columns if lines[column]]
        if shown:
            highest = max(value for _, points in shown for _, value in points) or 1.0
            placed = [(label, _placed(points, last, highest), len(points) <= MOST_DOTS) for label, points in shown]
            panels.append({"title": title, "lines": placed, "highest": highest})
    environment = Environment(
        loader=PackageLoader("minitrans.training"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("curve.svg").render(
        panels=panels, last=last, kept=kept, at=kept / last * WIDTH, width=WIDTH, height=HEIGHT
    )


def _placed(points: Points, last: int, highest: float) -> list[tuple[float, float]]:
    """Steps and values as pixels to the right of the panel's corner and below it."""
    return [(step / last * WIDTH, (1 - value / highest) * HEIGHT) for step, value in points]
