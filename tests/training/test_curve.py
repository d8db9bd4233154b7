"""The training curve shows what metrics.csv holds."""

import csv
from pathlib import Path
from xml.etree import ElementTree

import pytest

from minitrans.training.curve import HEIGHT, WIDTH, training_curve

HEADER = "epoch,lr-AdamW,step,train_loss,val_bleu,val_chrf,val_exact_match,val_loss\n"


def lines(picture: str) -> dict[str, list[list[float]]]:
    """For each panel's title the points of its lines, as shares of the panel's width and height from below."""
    found = {}
    for panel in ElementTree.fromstring(picture).findall("{*}g"):
        title = next(text.text for text in panel.findall("{*}text") if text.get("class") == "title")
        points = [[pair.split(",") for pair in line.attrib["points"].split()] for line in panel.findall("{*}polyline")]
        found[str(title)] = [[round(float(x) / WIDTH, 2) for x, _ in line] for line in points]
        found[f"{title}, heights"] = [[round(1 - float(y) / HEIGHT, 2) for _, y in line] for line in points]
    return found


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.csv"
    path.write_text(
        HEADER + "0,0.001,4,8.0,,,,\n0,,9,,10.0,20.0,0.0,4.0\n0,0.004,14,2.0,,,,\n1,,19,,40.0,50.0,5.0,1.0\n", "utf-8"
    )
    return path


def test_every_value_stands_at_its_step(metrics: Path) -> None:
    assert lines(training_curve(metrics, kept=10)) == {
        "loss": [[0.25, 0.75], [0.5, 1.0]],
        "loss, heights": [[1.0, 0.25], [0.5, 0.12]],
        "BLEU": [[0.5, 1.0]],
        "BLEU, heights": [[0.25, 1.0]],
        "learning rate": [[0.25, 0.75]],
        "learning rate, heights": [[0.25, 1.0]],
    }


def test_the_dashed_line_stands_where_the_weights_were_kept(metrics: Path) -> None:
    picture = ElementTree.fromstring(training_curve(metrics, kept=5))
    assert {path.attrib["d"] for path in picture.findall(".//{*}path[@class='kept']")} == {
        f"M{WIDTH / 4:.1f} 0V{HEIGHT}"
    }
    assert "step 5," in "".join(picture.itertext())


@pytest.mark.parametrize("loss", ["nan", "inf", ""])
def test_what_is_no_number_is_left_out(metrics: Path, loss: str) -> None:
    metrics.write_text(HEADER + f"0,0.0,4,{loss},,,,\n", "utf-8")
    assert lines(training_curve(metrics, kept=5)) == {"learning rate": [[1.0]], "learning rate, heights": [[0.0]]}


def test_the_card_shows_it(tiny_run: Path) -> None:
    assert "](curve.svg)" in (tiny_run / "README.md").read_text("utf-8")
    with (tiny_run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        validated = [int(row["step"]) + 1 for row in csv.DictReader(file) if row["val_bleu"]]
    shown = lines((tiny_run / "curve.svg").read_text("utf-8"))["BLEU"]
    assert shown == [[pytest.approx(step / 200, abs=0.006) for step in validated]]
