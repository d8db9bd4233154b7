"""The training curve as a chart: what metrics.csv holds."""

import csv
import math
from pathlib import Path

from matplotlib.figure import Figure

MAX_DOTS = 60  # a line with more values has no dots
PANELS = {
    "loss": {"train_loss": "training, with label smoothing", "val_loss": "valid, without"},
    "BLEU": {"val_bleu": "valid, greedy"},
    "learning rate": {"lr-AdamW": "at this step"},
}


def plot_training_curve(metrics: Path, kept: int) -> Figure:
    """One panel each for loss, BLEU and learning rate by optimizer step; what has no values is left out.

    A dashed line marks `kept`, the number of steps after which the weights were kept; in metrics.csv they count from 0.
    (With accumulated gradients, a validation between two batches of a step is drawn one step late.)
    """
    with metrics.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    lines = {
        column: [(int(row["step"]) + 1, y) for row in rows if math.isfinite(y := float(row.get(column) or "nan"))]
        for columns in PANELS.values()
        for column in columns
    }
    shown = {title: columns for title, columns in PANELS.items() if any(lines[column] for column in columns)}
    figure = Figure(figsize=(8, 2 * len(shown)), layout="constrained")
    axes = figure.subplots(len(shown), sharex=True, squeeze=False).flat
    for panel, (title, columns) in zip(axes, shown.items(), strict=True):
        panel.axvline(kept, color="gray", linestyle="--")
        for column, label in columns.items():
            if points := lines[column]:
                panel.plot(*zip(*points, strict=True), label=label, marker="." if len(points) <= MAX_DOTS else "")
        panel.set_title(title, loc="left")
        panel.set(xlim=(0, None), ylim=(0, None))
        panel.legend()
    figure.supxlabel(f"optimizer step; dashed, step {kept:,}, whose weights were kept", fontsize="medium")
    return figure
