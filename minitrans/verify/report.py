"""The checks, and what the self-test caught, as tables in the terminal and as JSON."""

import json
from dataclasses import asdict
from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from minitrans.cachecheck.measurement import LOWER_DTYPES, Report, dtype_name, dtype_tolerance, to_str

LEGEND = (
    "Each number is the largest deviation that was found. In float64 it may be as large as the number beside it, in "
    "the other columns as the one at their head. docs/verification.md says who chose these limits, and how."
)
NARROW_TERMINAL_WIDTH = 120  # columns: below, an id in a column of its own leaves too little for the claim


def print_report(report: Report, console: Console) -> None:
    """Print one row for each check, and the verdict; plain text when the console is not a terminal.

    On a narrow one, a check's id stands above its claim.
    """
    narrow = console.width < NARROW_TERMINAL_WIDTH
    table = Table(box=None, pad_edge=False, header_style="bold")
    if not narrow:
        table.add_column("check", no_wrap=True)
    table.add_column("claim, and what is measured", overflow="fold")
    table.add_column("float64", justify="right", no_wrap=True)
    table.add_column("at most", justify="right", no_wrap=True)
    lower = [dtype_name(dtype) for dtype in LOWER_DTYPES]
    for dtype in LOWER_DTYPES:
        table.add_column(f"{dtype_name(dtype)}\n<= {to_str(dtype_tolerance(dtype))}", justify="right", no_wrap=True)
    table.add_column("")
    for title, results in groupby(report.checks, key=lambda result: result.group):
        table.add_row(end_section=True)
        table.add_row(*([] if narrow else [""]), f"[bold]{title}[/]")
        for r in results:
            lines = [f"[bold]{r.id}[/]"] if narrow else []
            lines += [escape(r.claim), f"[dim]{escape(r.what)}[/]", *([escape(r.detail)] if r.detail else [])]
            table.add_row(
                *([] if narrow else [r.id]),
                "\n".join(lines),
                to_str(r.measured),
                to_str(r.tolerance),
                *(to_str(r.lower[name].measured) if name in r.lower else "" for name in lower),
                "[green]pass[/]" if r.passed else "[bold red]FAIL[/]" if r.offered else "not offered",
            )
    console.print(table)
    console.print(f"\n{LEGEND}", highlight=False)
    if report.sabotages is not None:
        print_sabotages(report, console)
    n_passed, n_offered = (sum(getattr(r, name) for r in report.checks) for name in ("passed", "offered"))
    lacking = f", {len(report.checks) - n_offered} not offered" if n_offered < len(report.checks) else ""
    lacking += " (but steps are required)" if report.missing_steps else ""
    seconds = sum(result.seconds for result in report.checks)
    console.print(f"\n{n_passed} passed, {n_offered - n_passed} failed{lacking} in {seconds:.1f} s", highlight=False)


def print_sabotages(report: Report, console: Console) -> None:
    """Print one row for each sabotage: the fault, and the checks that noticed it."""
    sabotages, blind = report.sabotages or [], report.blind_checks
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("sabotage", no_wrap=True)
    table.add_column("fault", ratio=1)
    table.add_column("caught by", ratio=1)
    for s in sabotages:
        table.add_row(s.id, escape(s.fault), ", ".join(s.caught_by) or "[bold red]NOTHING[/]")
    n_caught = sum(bool(s.caught_by) for s in sabotages)
    console.print()
    console.print(table)
    every = f"checks that caught none: {', '.join(blind)}" if blind else "every check caught at least one"
    line = f"\n{len(sabotages)} sabotage{'s' if len(sabotages) != 1 else ''}, {n_caught} caught"
    line += f"; {every}" if report.each_must_catch else ""
    console.print(line, highlight=False)


def as_json(report: Report) -> str:
    """The object that `minitrans verify --json` prints. JSON has no NaN and no infinity: they become null."""
    fields: dict[str, object] = {"passed": report.passed, "checks": [asdict(r) for r in report.checks]}
    if report.sabotages is not None:
        fields["sabotages"] = [asdict(s) for s in report.sabotages]
    return json.dumps(json.loads(json.dumps(fields), parse_constant=lambda _: None))
