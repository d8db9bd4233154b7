"""The pictures show what they are given: cells are hatched by the mask, and as opaque as their weights."""

import math
from functools import partial
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
import torch
from matplotlib import rc_context

from minitrans.cachecheck.measurement import LOWER_DTYPES, dtype_tolerance, to_str
from minitrans.pages.chart_svg import chart_as_svg
from minitrans.pages.grids import CELL_PIXELS, detection_matrix, head_heat_maps
from minitrans.pages.render import render_template
from minitrans.verify.page.figures import PLOTTED_MIN, PLOTTED_ZERO, plot_step_deviations

N_HEADS, QUERY_LABELS, KEY_LABELS = 3, ["BOS", '<b> & "q"', "猫"], ["我", "a", "b</svg>", "PAD"]

# (H, Tq, Tk): all weights differ, the masked ones too, and one that is not masked is 0; the mask is not symmetric.
WEIGHTS = (torch.arange(36, dtype=torch.float64) / 36).view(N_HEADS, len(QUERY_LABELS), len(KEY_LABELS))
MASK = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 1], [0, 1, 1, 0]], dtype=torch.bool)


def parse_svg(*pictures: str) -> Element:
    return ElementTree.fromstring(f"<div>{''.join(pictures)}</div>")


def elements_of_class(root: Element, name: str) -> list[Element]:
    return [node for node in root.iter() if node.get("class") == name]


def cell_indices(cell: Element) -> tuple[int, int]:
    return int(cell.attrib["data-q"]), int(cell.attrib["data-k"])


def tooltip_text(node: Element) -> str:
    (element,) = node.iter("title")
    assert element.text is not None
    return element.text


def test_each_cell_of_a_head_has_its_position_and_its_tooltip() -> None:
    """Check C22 measures whether cells are hatched, or as opaque as their weights."""
    root = parse_svg(head_heat_maps(WEIGHTS, MASK, QUERY_LABELS, KEY_LABELS))
    assert len(list(root.iter("svg"))) == N_HEADS
    for panel, of_head in zip(elements_of_class(root, "head"), WEIGHTS, strict=True):
        hatched, shaded = elements_of_class(panel, "masked"), elements_of_class(panel, "w")
        assert (len(hatched), len(shaded), len(list(panel.iter("rect")))) == (6, 6, 12)  # by the mask, not the weight
        assert {cell.get("fill") for cell in hatched} == {"url(#hatch)"}
        assert {tooltip_text(cell).rpartition(": ")[2] for cell in hatched} == {"masked"}
        for cell in shaded:
            q, k = cell_indices(cell)
            assert tooltip_text(cell) == f"{QUERY_LABELS[q]} → {KEY_LABELS[k]}: {of_head[q, k]:.3f}"
            assert (float(cell.attrib["y"]), float(cell.attrib["x"])) == (q * CELL_PIXELS, k * CELL_PIXELS)


def test_every_query_and_key_is_labelled_and_long_ones_are_cut() -> None:
    queries = ["a", "Donaudampfschifffahrt", "c"]
    (first, *_) = parse_svg(head_heat_maps(WEIGHTS, MASK, queries, KEY_LABELS)).iter("svg")
    labels = [text.text for text in first.iter("text")]
    assert labels == ["head 1", "a", "Donaudampfsch…", "c", *KEY_LABELS]
    _, top, _, height = map(float, first.attrib["viewBox"].split())
    assert top + height > len(queries) * CELL_PIXELS
    pictures = (head_heat_maps(WEIGHTS, MASK, [label * 6] * 3, KEY_LABELS) for label in ("猫", "a"))
    wide, narrow = (int(next(parse_svg(picture).iter("svg")).attrib["width"]) for picture in pictures)
    assert wide > narrow


def test_the_hatch_pattern_is_defined() -> None:
    root = parse_svg(render_template("hatch.svg"), render_template("legend.html"))
    assert [pattern.get("id") for pattern in root.iter("pattern")] == ["hatch"]
    assert len(elements_of_class(root, "masked")) == 1


def test_the_matrix_has_a_dot_for_each_check_that_caught_a_sabotage() -> None:
    root = parse_svg(detection_matrix({"leak": ["C2"], "none": [], "drop": ["C1", "C3"]}, ["C1", "C2", "C3"]))
    dots = {
        tooltip_text(dot): (float(dot.attrib["cy"]) // CELL_PIXELS, float(dot.attrib["cx"]) // CELL_PIXELS)
        for dot in root.iter("circle")
    }
    assert dots == {"leak: caught by C2": (0, 1), "drop: caught by C1": (2, 0), "drop: caught by C3": (2, 2)}


def test_errors_are_plotted_in_order_with_0_at_the_bottom() -> None:
    (panel,) = plot_step_deviations({"float64": [0.0, 1e-30, 1e-15, 1e-3, 1.0, 7.0, math.inf, math.nan]}).axes
    heights = np.asarray(panel.lines[0].get_ydata()).tolist()
    assert heights == [PLOTTED_ZERO, PLOTTED_MIN, 1e-15, 1e-3, *[1.0] * 4]


def test_each_dtype_has_a_line_a_tolerance_and_a_name() -> None:
    tolerances = {"float64": 1e-12, "float32": 1.5e-5, "bfloat16": 0.062}
    (panel,) = plot_step_deviations({name: [0.0] * 40 for name in tolerances}).axes
    assert panel.get_yscale() == "log"
    drawn, dashed = panel.lines[::2], panel.lines[1::2]
    assert [line.get_label() for line in drawn] == [
        f"{name}, at most {to_str(tolerance)} (dashed)" for name, tolerance in tolerances.items()
    ]
    dtypes = torch.float64, *LOWER_DTYPES
    assert [set(line.get_ydata()) for line in dashed] == [{dtype_tolerance(dtype)} for dtype in dtypes]  # type: ignore[arg-type]
    assert len({line.get_marker() for line in drawn}) == 3


def test_a_chart_is_reproducible_and_its_text_stays_text() -> None:
    plot = partial(plot_step_deviations, {"float64": [1e-15]})
    first = chart_as_svg(plot)
    with rc_context({"text.usetex": True}):
        assert chart_as_svg(plot) == first
    assert "target position" in ElementTree.fromstring(first).itertext()
