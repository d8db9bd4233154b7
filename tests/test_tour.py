"""The notebook: its cells run in order, what they assert holds, and no outputs are stored in it."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

TOUR_NOTEBOOK = json.loads((Path(__file__).parents[1] / "docs/tour.ipynb").read_text(encoding="utf-8"))
CELLS = [cell for cell in TOUR_NOTEBOOK["cells"] if cell["cell_type"] == "code"]
FULL_RUN_SIZES, SHORT_RUN_SIZES = '800, "train", "valid"', '2, "train[:3000]", "valid[:4]"'


def test_the_notebook_is_stored_without_outputs() -> None:
    assert {(*cell["outputs"], cell["execution_count"]) for cell in CELLS} == {(None,)}
    assert len({cell["id"] for cell in TOUR_NOTEBOOK["cells"]}) == len(TOUR_NOTEBOOK["cells"])


def test_the_cells_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    plt.switch_backend("agg")
    scope: dict[str, object] = {}
    for cell in CELLS:
        exec(compile("".join(cell["source"]).replace(FULL_RUN_SIZES, SHORT_RUN_SIZES), cell["id"], "exec"), scope)
    assert scope["STEPS"] == 2
