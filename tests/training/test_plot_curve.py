"""The training curve shows what metrics.csv holds."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from train_helpers import read_metrics

from minitrans.training.plot_curve import plot_training_curve

METRICS_HEADER = "epoch,lr-AdamW,step,train_loss,val_bleu,val_chrf,val_exact_match,val_loss\n"
METRICS_ROWS = "0,0.001,4,8.0,,,,\n0,,9,,10.0,20.0,0.0,4.0\n0,0.004,14,2.0,,,,\n1,,19,,40.0,50.0,5.0,1.0\n"


def plotted_points(metrics: Path, kept_step: int) -> dict[str, list[list[list[float]]]]:
    """The points of each panel's lines, by its title; the first line marks the step of the kept weights."""
    panels = plot_training_curve(metrics, kept_step).axes
    return {panel.get_title("left"): [line.get_xydata().tolist() for line in panel.lines] for panel in panels}  # type: ignore[union-attr]


def test_values_are_plotted_at_their_steps_and_a_line_marks_the_kept_weights(tmp_path: Path) -> None:
    (metrics := tmp_path / "metrics.csv").write_text(METRICS_HEADER + METRICS_ROWS, "utf-8")
    kept = [[10.0, 0.0], [10.0, 1.0]]
    assert plotted_points(metrics, kept_step=10) == {
        "loss": [kept, [[5.0, 8.0], [15.0, 2.0]], [[10.0, 4.0], [20.0, 1.0]]],
        "BLEU": [kept, [[10.0, 10.0], [20.0, 40.0]]],
        "learning rate": [kept, [[5.0, 0.001], [15.0, 0.004]]],
    }
    metrics.write_text(METRICS_HEADER + "0,,9,,10.0,20.0,0.0,4.0\n", "utf-8")
    assert plotted_points(metrics, kept_step=10)["loss"] == [kept, [[10.0, 4.0]]]
    metrics.write_text("step,val_loss\n4,1.0\n", "utf-8")  # a run that logs no learning rate has no such column
    assert plotted_points(metrics, kept_step=10) == {"loss": [kept, [[5.0, 1.0]]]}


@pytest.mark.parametrize("loss", ["nan", "inf", ""])
def test_missing_and_nonfinite_values_are_left_out(tmp_path: Path, loss: str) -> None:
    (metrics := tmp_path / "metrics.csv").write_text(METRICS_HEADER + f"0,0.5,4,{loss},,,,\n", "utf-8")
    assert plotted_points(metrics, kept_step=5) == {"learning rate": [[[5.0, 0.0], [5.0, 1.0]], [[5.0, 0.5]]]}


def test_the_model_card_shows_the_curve(tiny_run: Path) -> None:
    assert "](curve.svg)" in (tiny_run / "README.md").read_text("utf-8")
    assert any(row["val_bleu"] for row in read_metrics(tiny_run))
    text = " ".join(ElementTree.parse(tiny_run / "curve.svg").getroot().itertext())
    assert {"loss", "BLEU", "learning", "kept"} <= {*text.split()}
