#!/usr/bin/env python3
"""Writes docs/claims.md: every claim that `minitrans verify` measures, and every sabotage, from the code."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from minitrans.cachecheck.measurement import FLOAT64_TOLERANCE, dtype_name, to_str
from minitrans.verify.checks import CHECKS
from minitrans.verify.sabotage import SABOTAGES

PAGE_FILE = Path(__file__).resolve().parents[2] / "docs" / "claims.md"
INTRODUCTION = """
# The claims, and the sabotages

This is what `minitrans verify` measures, in an order that teaches attention. C1 to C26 number what texts on attention
claim or get wrong; the other ids are names. In float64, the number measured may be at most 1e-12, or the number in
brackets; float32 and bfloat16 have [other limits](verification.md). `scripts/dev/claims_page.py` writes this page.
"""


def render_page() -> str:
    """The page."""
    return "\n".join([INTRODUCTION.strip(), "", *verify_check_tables(), *sabotage_table()])


def verify_check_tables() -> Iterator[str]:
    """A table for each chapter."""
    for title, checks in groupby(CHECKS, lambda check: check.group):
        yield from (f"## {title}", "", "| id | claim | what is measured | also in |", "|---|---|---|---|")
        for check in checks:
            at_most = "" if check.tolerance == FLOAT64_TOLERANCE else f" [{to_str(check.tolerance)}]"
            also = ", ".join(map(dtype_name, check.lower_dtypes))
            yield f"| `{check.id}` | {check.claim} | {check.what}{at_most} | {also} |"
        yield ""


def sabotage_table() -> Iterator[str]:
    """The table of what can be broken."""
    yield from (
        "## The sabotages",
        "",
        "`minitrans verify --sabotage ID` breaks one thing and shows what fails, often more than is named here. "
        "[To train with it](change-the-model.md), edit the code.",
        "",
    )
    yield from ("| id | what is broken | what must notice |", "|---|---|---|")
    for sabotage in SABOTAGES:
        yield f"| `{sabotage.id}` | {sabotage.fault} | {', '.join(sabotage.noticed_by)} |"
    yield ""


if __name__ == "__main__":
    PAGE_FILE.write_text(render_page(), encoding="utf-8")
