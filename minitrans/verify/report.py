"""The checks as a table in the terminal."""

from rich.console import Console
from rich.table import Table

from minitrans.verify.check import Report


def print_report(report: Report, console: Console) -> None:
    """Print one row for each check, and the verdict; plain text when the console is not a terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("check", no_wrap=True)
    table.add_column("claim")
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("tolerance", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for result in report.checks:
        verdict = "[green]pass[/]" if result.passed else "[bold red]FAIL[/]"
        table.add_row(result.id, result.claim, f"{result.measured:.1e}", f"{result.tolerance:.0e}", verdict)
    console.print(table)
    n_failed = sum(not result.passed for result in report.checks)
    seconds = sum(result.seconds for result in report.checks)
    console.print(f"{len(report.checks) - n_failed} passed, {n_failed} failed in {seconds:.1f} s")
