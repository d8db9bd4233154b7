"""The tables of the page: the claims with what was measured, and the sabotages with the checks that caught them."""

from html import escape
from itertools import groupby

from minitrans.verify.check import LOWER, Caught, Measurement, Result, name_of, number
from minitrans.verify.page.pictures import catch_matrix

DTYPES = ["float64", *map(name_of, LOWER)]


def claims(checks: list[Result]) -> str:
    """One row a check, chapter by chapter."""
    head = "".join(f'<th scope="col" class="measure">{name}</th>' for name in DTYPES)
    chapters = (_chapter(title, list(results)) for title, results in groupby(checks, lambda check: check.group))
    return (
        '<table class="cards claims"><thead><tr><th scope="col">check</th>'
        '<th scope="col">claim, and what is measured</th>'
        f'{head}<th scope="col" class="verdict">verdict</th></tr></thead>{"".join(chapters)}</table>'
    )


def sabotages(caught: list[Caught], checks: list[Result]) -> str:
    """One row a sabotage with all that caught it, and the same as a picture."""
    matrix = catch_matrix({one.id: one.caught_by for one in caught}, [check.id for check in checks])
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Which check caught which sabotage">{matrix}</div>'
        '<table class="cards sabotages"><thead><tr><th scope="col">sabotage</th>'
        '<th scope="col">what was done to the code</th>'
        '<th scope="col" class="measure">checks</th><th scope="col">caught by</th></tr></thead>'
        f"<tbody>{''.join(map(_sabotage, caught))}</tbody></table>"
    )


def links(kind: str, ids: list[str]) -> str:
    """Names that lead to their rows; `kind` is check or sabotage."""
    return " ".join(f'<a href="#{kind}.{escape(id_)}">{escape(id_)}</a>' for id_ in ids)


def _chapter(title: str, results: list[Result]) -> str:
    """A chapter's heading and its checks."""
    count = f"{len(results)} check{'s' if len(results) > 1 else ''}"
    return (
        f'<tbody><tr class="chapter"><th scope="rowgroup" colspan="{3 + len(DTYPES)}">{escape(title)}'
        f"<span>{count}</span></th></tr>{''.join(map(_row, results))}</tbody>"
    )


def _row_head(kind: str, id_: str, good: bool) -> str:
    """The start of a row, with what it is about."""
    name = escape(id_)
    return f'<tr id="{kind}.{name}"{"" if good else " class=failed"}><th scope="row" class="id">{name}</th>'


def _sabotage(one: Caught) -> str:
    """A sabotage."""
    caught = bool(one.caught_by)
    return (
        f'{_row_head("sabotage", one.id, caught)}<td class="claim">{escape(one.fault)}</td>'
        f'<td class="measure{"" if caught else " bad"}">{len(one.caught_by) or "none"}</td>'
        f'<td class="ids">{links("check", one.caught_by)}</td></tr>'
    )


def _row(result: Result) -> str:
    """A check."""
    found = {"float64": Measurement(result.measured, result.tolerance), **result.lower}
    verdict = '<span class="pass">✓ pass</span>' if result.passed else '<span class="fail">✗ FAIL</span>'
    return (
        f"{_row_head('check', result.id, result.passed)}"
        f'<td class="claim">{escape(result.claim)}<small>{escape(result.what)}</small></td>'
        f"{''.join(_measure(name, found.get(name)) for name in DTYPES)}"
        f'<td class="verdict">{verdict}</td></tr>'
    )


def _measure(dtype: str, found: Measurement | None) -> str:
    """What was measured in one dtype, above what is allowed; empty where it was not."""
    if found is None:
        return '<td class="measure"></td>'
    return (
        f'<td class="measure{"" if found.passed else " bad"}" data-label="{dtype}">{number(found.measured)}'
        f"<small>≤ {number(found.tolerance)}</small></td>"
    )
