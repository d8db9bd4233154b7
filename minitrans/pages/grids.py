"""Grids as SVG: attention weights, masks, and which check caught which sabotage.

A page that shows them must extend `base.html`, which has their colours and the hatching.
"""

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup
from rich.cells import cell_len
from torch import Tensor

from minitrans.pages.render import render_template

CELL_PIXELS = 18  # side of a cell, in pixels
LETTER_PIXELS = 7.5  # width of a wide letter, in pixels; a Chinese character takes two
MAX_LABEL_LETTERS = 14  # letters of a piece that are shown; the tooltip has all of them


def head_heat_maps(weights: Tensor, mask: Tensor, queries: Sequence[str], keys: Sequence[str]) -> Markup:
    """Attention weights of one sentence: a `div` with an `svg` a head, a row a query, a column a key.

    `weights` are (H, Tq, Tk), of any floating dtype. A key that a query may attend to is a `rect` of class `w`, as
    opaque as its weight; any other is one of class `masked`, hatched. The mask decides which, not the weight: it is
    bool (Tq, Tk), True = may attend. Both carry their row and column in `data-q` and `data-k`, and stand in the `g` of
    class `head` that carries the head's number in `data-head`, all from 0.
    """
    grid = _grid_layout([_shorten_label(query) for query in queries], [_shorten_label(key) for key in keys])
    return render_template(
        "heat_map.html", grid=grid, weights=weights.tolist(), mask=mask.tolist(), queries=queries, keys=keys
    )


def mask_picture(mask: Tensor, title: str, queries: Sequence[str], keys: Sequence[str]) -> Markup:
    """A mask under its title: keys that a query may attend to are filled (class `may`), others hatched (`masked`).

    Mask and labels are as for `head_heat_maps`.
    """
    grid = _grid_layout(queries, keys)
    return render_template("mask.svg", grid=grid, mask=mask.tolist(), title=title, queries=queries, keys=keys)


def detection_matrix(caught_by: Mapping[str, Sequence[str]], checks: Sequence[str]) -> Markup:
    """A dot for each of the `checks` (columns) that caught a sabotage (row): `caught_by` has their ids."""
    grid = _grid_layout(list(caught_by), checks, angle=90, above=12)
    return render_template("catches.svg", grid=grid, caught_by=caught_by)


def _grid_layout(rows: Sequence[str], columns: Sequence[str], angle: int = 55, above: int = 28) -> dict[str, object]:
    """What `grid.svg` draws around cells: labels to the left and above. Lengths are in pixels, from the grid's corner.

    Column labels rise to the right by `angle` degrees; the room for a title over them is `above`.
    """
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    left = max(map(_label_width, rows), default=0) + 8
    top = math.ceil(max(map(_label_width, columns), default=0) * sin) + above
    ends = [(k + 0.5) * CELL_PIXELS + _label_width(column) * cos + 6 for k, column in enumerate(columns)]
    return {
        "rows": rows,
        "columns": columns,
        "angle": angle,
        "cell": CELL_PIXELS,
        "left": left,
        "top": top,
        "width": math.ceil(left + max([len(columns) * CELL_PIXELS + 1, *ends])),
        "height": top + len(rows) * CELL_PIXELS + 1,
    }


def _label_width(text: str) -> float:
    """About how many pixels a label takes."""
    return LETTER_PIXELS * cell_len(text)


def _shorten_label(text: str) -> str:
    """The label, cut where it would take more than its share of the picture."""
    return text if len(text) <= MAX_LABEL_LETTERS else f"{text[: MAX_LABEL_LETTERS - 1]}…"
