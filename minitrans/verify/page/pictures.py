"""Grids as SVG: attention weights, masks, and which check caught which sabotage.

Nothing here names a colour: classes and CSS variables do, which `style.py` sets for light and dark. A page that shows
these pictures holds `HATCH` once, the pattern that they refer to.
"""

import math
import unicodedata
from collections.abc import Mapping, Sequence
from html import escape

from torch import Tensor

CELL = 18  # side of a cell, in pixels
LETTER = 7.5  # width of a letter, of the wider kind; Chinese characters take two
LONGEST_LABEL = 14  # letters of a piece; all of them are in the tooltip

HATCH = (
    '<svg class="defs" width="0" height="0" aria-hidden="true"><pattern id="hatch" width="5" height="5" '
    'patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path class="hatch" d="M2.5 0V5"/></pattern></svg>'
)


def heat_map(weights: Tensor, mask: Tensor, queries: Sequence[str], keys: Sequence[str]) -> str:
    """Attention weights of one sentence: a panel a head, a row a query, a column a key.

    A key that a query may attend to is a `rect` of class `w`, as opaque as its weight; any other is one of class
    `masked`, hatched. Which it is, the mask says and not the weight. Both carry their row and column in `data-q` and
    `data-k`, and stand in the `g` of class `head` that carries the head's number in `data-head`, all from 0.

    Args:
        weights: (H, Tq, Tk), any floating dtype.
        mask: bool (Tq, Tk), True = may attend.
        queries: Labels of the rows.
        keys: Labels of the columns.

    Returns:
        A `div` with one `svg` a head.
    """
    allowed = mask.tolist()
    labels = [_short(query) for query in queries], [_short(key) for key in keys]
    panels = []
    for h, rows in enumerate(weights.tolist()):
        cells = []
        for q, row in enumerate(rows):
            for k, weight in enumerate(row):
                pair = f"{queries[q]} → {keys[k]}"
                if allowed[q][k]:
                    opacity = f' fill-opacity="{weight:.3f}"'
                    cells.append(_cell("w", q, k, f"{pair}: {weight:.3f}", opacity))
                else:
                    cells.append(_cell("masked", q, k, f"{pair}: masked"))
        panels.append(_grid(f"head {h + 1}", *labels, cells, f'class="head" data-head="{h}"'))
    return f'<div class="panels" lang="" translate="no">{"".join(panels)}</div>'


def legend() -> str:
    """What the marks of a heat map mean."""
    ramp = "".join(
        f'<rect class="w" x="{i * CELL}" width="{CELL}" height="{CELL}" fill-opacity="{i / 4:.2f}"/>' for i in range(5)
    )
    hatched = f'<rect class="masked" width="{CELL}" height="{CELL}" fill="url(#hatch)"/>'
    swatch = '<svg class="swatch" width="{0}" height="{1}" viewBox="0 0 {0} {1}" aria-hidden="true">{2}</svg>'
    return (
        f'<p class="legend"><span>weight 0 {swatch.format(5 * CELL, CELL, ramp)} 1: the stronger the colour, the more '
        "weight</span> "
        f"<span>{swatch.format(CELL, CELL, hatched)} hatched: masked, the query may not look at this key</span></p>"
    )


def mask_picture(mask: Tensor, title: str, queries: Sequence[str], keys: Sequence[str]) -> str:
    """A mask: keys that a query may attend to are filled (class `may`), the others hatched (class `masked`).

    Args:
        mask: bool (Tq, Tk), True = may attend.
        title: Stands above the picture.
        queries: Labels of the rows.
        keys: Labels of the columns.
    """
    cells = [
        _cell("may", q, k, f"{queries[q]} → {keys[k]}: may attend")
        if may
        else _cell("masked", q, k, f"{queries[q]} → {keys[k]}: masked")
        for q, row in enumerate(mask.tolist())
        for k, may in enumerate(row)
    ]
    return _grid(title, queries, keys, cells, 'class="mask"')


def catch_matrix(caught_by: Mapping[str, Sequence[str]], checks: Sequence[str]) -> str:
    """A dot for each check (column) that caught a sabotage (row).

    Args:
        caught_by: For each sabotage the ids of the checks that failed.
        checks: Ids of all checks.
    """
    column = {id_: k for k, id_ in enumerate(checks)}
    size = f'width="{len(checks) * CELL}" height="{CELL}"'
    marks = [f'<rect class="band" y="{q * CELL}" {size}/>' for q in range(0, len(caught_by), 2)]
    for q, (sabotage, ids) in enumerate(caught_by.items()):
        marks += [_dot(q, column[id_], f"{sabotage}: caught by {id_}") for id_ in ids]
    return _grid("", list(caught_by), checks, marks, 'class="catches"', angle=90)


def _cell(kind: str, q: int, k: int, text: str, attributes: str = "") -> str:
    """The square of query q and key k."""
    fill = ' fill="url(#hatch)"' if kind == "masked" else attributes
    return (
        f'<rect class="{kind}" data-q="{q}" data-k="{k}" x="{k * CELL}" y="{q * CELL}" '
        f'width="{CELL}" height="{CELL}"{fill}><title>{escape(text)}</title></rect>'
    )


def _dot(q: int, k: int, text: str) -> str:
    """A filled circle in the square of row q and column k."""
    x, y = (k + 0.5) * CELL, (q + 0.5) * CELL
    return f'<circle class="dot" cx="{x:g}" cy="{y:g}" r="4.5"><title>{escape(text)}</title></circle>'


def _grid(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    marks: Sequence[str],
    group: str,
    angle: int = 55,
) -> str:
    """A grid with labels to the left and above.

    Args:
        title: Stands above, at the left.
        rows: Labels of the rows.
        columns: Labels of the columns, which rise to the right by `angle` degrees.
        marks: What is drawn, in pixels from the grid's corner.
        group: Attributes of the group that holds `marks`.
        angle: See above; 90 is upright.
    """
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    left = max(map(_width, rows), default=0) + 8
    top = math.ceil(max((_width(c) for c in columns), default=0) * sin) + (28 if title else 12)
    ends = [(k + 0.5) * CELL + _width(column) * cos + 6 for k, column in enumerate(columns)]
    width = math.ceil(left + max([len(columns) * CELL + 1, *ends]))
    height = top + len(rows) * CELL + 1
    labels = [
        f'<text class="row" x="{left - 6}" y="{top + (q + 0.5) * CELL + 4:g}">{escape(row)}</text>'
        for q, row in enumerate(rows)
    ] + [
        f'<text transform="translate({left + (k + 0.5) * CELL + 4:g} {top - 5}) rotate({-angle})">'
        f"{escape(column)}</text>"
        for k, column in enumerate(columns)
    ]
    heading = f'<text class="title" x="0" y="13" lang="en">{escape(title)}</text>' if title else ""
    return (
        f'<svg class="grid" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title or "matrix")}: {len(rows)} rows, {len(columns)} columns">{heading}{"".join(labels)}'
        f'<g {group} transform="translate({left} {top})">{"".join(marks)}</g></svg>'
    )


def _width(text: str) -> float:
    """About how many pixels a label takes."""
    return LETTER * sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _short(text: str) -> str:
    """The label, cut where it would take more than its share of the picture."""
    return text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 1]}…"
