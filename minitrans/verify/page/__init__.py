"""The report as one page that stands alone: it opens from disk and loads nothing from anywhere."""

from pathlib import Path

from minitrans.errors import UserError
from minitrans.files import write_file
from minitrans.verify.check import Report
from minitrans.verify.page import figures, tables
from minitrans.verify.page.pictures import HATCH
from minitrans.verify.page.style import STYLE
from minitrans.verify.subject import Subject

CLAIMS = """
<p>A claim passes when its measurement is at most the tolerance that stands under it; where that is 0, it has to hold
exactly. In float64 the rounding is so small that only the mathematics is left to differ. In float32 and bfloat16, where
a claim is measured in them too, deviations are relative to the largest number if that is above 1.</p>"""

SABOTAGES = """
<p>A check that has never failed shows nothing. So the code was broken on purpose, one fault at a time, and every check
was run on it: a dot marks each that noticed.</p>"""

MASKS = """
<p>A mask answers one question: may this query (row) look at this key (column)? Filled cells say yes, hatched cells no.
These four are made by the functions that the model uses.</p>"""

ATTENTION = """
<p>The weights that each head gives to the pieces of one sentence pair; every row sums to 1. “␣” is a space, part of the
piece after it. The source is padded, as it is when a longer sentence shares the batch. Point at a cell to read
its weight.</p>"""

DECODING = """
<p>At every target position, one step from the cache is compared with the full masked pass in all that it computes: the
logits, the output of every layer and all attention weights. A line has to stay below the dashed one of its dtype; at 0
both are the same to the last bit.</p>"""


def make_folder(folder: Path) -> None:
    """Make the folder for the page, if need be.

    Raises:
        UserError: It cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}; name another one") from error


def write_page(folder: Path, report: Report, subject: Subject) -> Path:
    """Write `index.html` into a folder; returns its path.

    Args:
        folder: Where to; made by `make_folder`.
        report: What was measured.
        subject: On what; the pictures are made from it. float64.

    Raises:
        UserError: The page cannot be written.
    """
    path = folder / "index.html"
    write_file(path, page(report, subject))
    return path


def page(report: Report, subject: Subject) -> str:
    """The page's HTML; arguments as for `write_page`."""
    chapters = {"claims": ("The claims", CLAIMS + tables.claims(report.checks))}
    if report.sabotages is not None:
        chapters["sabotages"] = ("The sabotages", SABOTAGES + tables.sabotages(report.sabotages, report.checks))
    chapters |= {
        "masks": ("The masks", MASKS + figures.masks()),
        "attention": ("Where the heads look", ATTENTION + figures.attention(subject)),
        "decoding": ("Cached against full decoding", DECODING + figures.decoding(subject)),
    }
    links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, (title, _) in chapters.items())
    sections = "".join(
        f'<section id="{name}"><h2>{title}</h2>{content}</section>' for name, (title, content) in chapters.items()
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>minitrans verify: {summary(report)}</title>
<style>{STYLE}</style>
</head>
<body>
{HATCH}
<header>
<p class="eyebrow">minitrans verify</p>
<h1>The attention of this model, claim by claim</h1>
{verdict(report, subject)}
<p>Each row of the table states one thing that is true of attention, of its masks or of decoding from a cache, and how
far this model was found to be from it. The pictures show the same from inside: who may look at whom, where each head
looks, and how closely decoding step by step follows the full masked pass.</p>
<nav aria-label="Chapters"><ul>{links}</ul></nav>
</header>
<main>{sections}</main>
<footer><p>Written by <code>minitrans verify --report</code>. This page stands alone and loads nothing.</p></footer>
</body>
</html>
"""


def summary(report: Report) -> str:
    """How many checks passed, or how many failed."""
    n, n_failed = len(report.checks), sum(not result.passed for result in report.checks)
    return f"{n_failed} of {n} checks failed" if n_failed else f"{n} checks passed"


def verdict(report: Report, subject: Subject) -> str:
    """The outcome in one line, how long it took and on what model; then what did not go as it should, with links."""
    config, seconds = subject.model.config, sum(result.seconds for result in report.checks)
    outcome = (
        f"{summary(report)} in {seconds:.1f}&nbsp;s on a model of {config.n_layers}+{config.n_layers} layers, "
        f"d_model&nbsp;{config.d_model}, {config.n_heads} heads"
    )
    if report.sabotages is not None:
        outcome += f"; {sum(bool(s.caught_by) for s in report.sabotages)} of {len(report.sabotages)} sabotages caught"
    troubles = {
        "Failed": tables.links("check", [result.id for result in report.checks if not result.passed]),
        "Caught by no check": tables.links("sabotage", [s.id for s in report.sabotages or [] if not s.caught_by]),
        "Caught no sabotage": tables.links("check", report.blind),
    }
    kind, mark = ("pass", "✓") if report.passed else ("fail", "✗")
    return f'<p class="outcome {kind}">{mark} {outcome}</p>' + "".join(
        f'<p class="fail">{what}: {names}</p>' for what, names in troubles.items() if names
    )
