#!/usr/bin/env python3
"""The survey of Hugging Face's architectures: every check of anyone's model on a small random model of each.

It writes docs/survey.md, in minutes. What is not exact, or not offered, has to be explained in survey_notes.yaml, which
was written after each had been looked into. Code 1: something is not explained, an explanation explains nothing, or a
fault put around a model is caught by no check.
"""

import argparse
import contextlib
import io
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
import yaml

from minitrans.cachecheck import NotOfferedError, run, self_test
from minitrans.cachecheck.cache_checks import CHECKS
from minitrans.cachecheck.hugging_face import small_model
from minitrans.cachecheck.measure import Caught, Result

NOTES = Path(__file__).with_name("survey_notes.yaml")
OUTPUT = Path(__file__).resolve().parents[2] / "docs" / "survey.md"


class Entry(NamedTuple):
    """A row of the table.

    Attributes:
        name: Its own.
        architecture: As `transformers` calls it.
        settings: In place of the small model's.
    """

    name: str
    architecture: str
    settings: Mapping[str, Any]


class Note(NamedTuple):
    """Why some checks of some entries are not exact, or not offered.

    Attributes:
        entries: Names of entries; "all" stands for all.
        checks: Ids of checks; "all" stands for all.
        kind: "theirs", a fault of the library; "meant", documented or intended; "ours", a limit of the adapter.
        words: The cause.
        shown: A program that shows it without our code; empty where there is no need.
    """

    entries: list[str]
    checks: list[str]
    kind: str
    words: str
    shown: str = ""

    def explains(self, entry: str, check: str) -> bool:
        """Whether it is about this check of this entry."""
        return (entry in self.entries or self.entries == ["all"]) and (check in self.checks or self.checks == ["all"])


class Row(NamedTuple):
    """What was found of an entry."""

    entry: Entry
    results: Sequence[Result]
    caught: Sequence[Caught]


INTRODUCTION = """
Every check of [anyone's model](your-model.md), on a small model of each architecture with random weights, in
transformers {version}. A cell has the largest deviation relative to the largest logit, in float64 unless another
dtype is named. A deviation above its limit, 1e-12 in float64, is bold and has a note; so has what is not offered (–).
The last column counts faults put around the model, those it has already left out, and how many the checks caught.
`scripts/dev/survey.py` makes this page again, in minutes.
"""
HEAD = """
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, DynamicCache, EncoderDecoderCache, StaticCache

def new(config, dtype=torch.float64):
    "A model with random weights, none of which is 0 or 1."
    torch.manual_seed(0)
    model = (AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM).from_config(config).eval()
    for p in model.parameters():
        p.data += 0.1 * torch.randn_like(p)
    return model.to(dtype)

def off(a, b):
    "The largest difference, in shares of the largest number."
    return f"{float((a - b).abs().max() / b.abs().max()):.0e}"

def cached(model, ids, chunks, name="past_key_values", cache=None):
    "The logits of a decoder alone, fed in chunks through a cache."
    cache = cache or DynamicCache(config=model.config)
    return torch.cat([model(x, **{name: cache}, use_cache=True).logits for x in ids.split(chunks, 1)], 1)

torch.manual_seed(1)
ids = torch.randint(3, 53, (3, 7))
"""
KINDS = {
    "theirs": "a fault of the library",
    "meant": "documented or intended",
    "ours": "a limit of the adapter or of what is asked",
}


def read_notes(path: Path) -> tuple[dict[str, list[Entry]], list[Note]]:
    """The entries of each kind of model, and the notes."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    entries = {title: [as_entry(each) for each in listed] for title, listed in data["entries"].items()}
    return entries, [Note(**note) for note in data["notes"]]


def as_entry(listed: str | dict[str, Any]) -> Entry:
    """An entry that is a name alone is an architecture as it is."""
    if isinstance(listed, str):
        return Entry(listed, listed, {})
    return Entry(listed["name"], listed["architecture"], listed["settings"])


def measure(entry: Entry) -> Row:
    """Run all checks on a small model, and with each fault put around it."""
    model = small_model(entry.architecture, **entry.settings)
    return Row(entry, run(model).checks, list(self_test(model)))


def columns(rows: Sequence[Row]) -> list[str]:
    """The checks that anything in a table offers: nothing asks a decoder alone for its source."""
    return [check.id for check in CHECKS if any(r.offered for row in rows for r in row.results if r.id == check.id)]


def questions(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """The entries and checks that want an explanation."""
    wanted = columns(rows)
    for row in rows:
        yield from ((row.entry.name, r.id) for r in row.results if r.id in wanted and not r.passed)
        yield from ((row.entry.name, fault.id) for fault in row.caught if not fault.caught_by)


def cell(row: Row, result: Result, notes: Sequence[Note]) -> str:
    """The deviation in float64, or the first dtype there is; with the number of its note where it is too large."""
    number = next((i for i, note in enumerate(notes, 1) if note.explains(row.entry.name, result.id)), None)
    mark = f" [{number if number else '**?**'}](#note-{number})"
    if not result.offered:
        return f"–{mark}"
    first = next(iter(result.by_dtype.values())).measured
    shown = f"{first:.0e}".replace("e-0", "e-").replace("e+00", "") if first == first else "NaN"
    return shown if result.passed else f"**{shown}**{mark}"


def table(rows: Sequence[Row], notes: Sequence[Note]) -> Iterator[str]:
    """The lines of a table: a row for each entry, a column for each check."""
    wanted = columns(rows)
    yield "| | " + " | ".join(f"`{id_}`" for id_ in wanted) + " | faults caught |"
    yield "|---" * (len(wanted) + 2) + "|"
    for row in rows:
        dtype = next(iter(next(result for result in row.results if result.by_dtype).by_dtype))
        name = row.entry.name + ("" if dtype == "float64" else f" ({dtype})")
        n_caught = sum(bool(fault.caught_by) for fault in row.caught)
        cells = " | ".join(cell(row, result, notes) for result in row.results if result.id in wanted)
        yield f"| {name} | {cells} | {n_caught} of {len(row.caught)} |"


def document(tables: Mapping[str, Sequence[Row]], notes: Sequence[Note]) -> str:
    """The page."""
    lines = [
        "# Which architectures decode exactly from their caches",
        "",
        *INTRODUCTION.format(version=transformers.__version__).strip().splitlines(),
    ]
    for title, rows in tables.items():
        lines += ["", f"## {title}", "", *table(rows, notes)]
    lines += ["", "## Notes", "", "Each program below shows one of them without our code. They begin with", ""]
    lines += ["```python", HEAD.strip(), "```", ""]
    for i, note in enumerate(notes, 1):
        lines += [f'<a id="note-{i}"></a>**{i}** ({KINDS[note.kind]}). {" ".join(note.words.split())}', ""]
        if note.shown:
            lines += ["```python", note.shown.strip(), "```", "", "```text", printed_by(note.shown), "```", ""]
    return "\n".join(lines)


def printed_by(program: str) -> str:
    """What a note's program prints after HEAD."""
    with contextlib.redirect_stdout(io.StringIO()) as out, torch.no_grad():
        exec(HEAD + program, {})
    return out.getvalue().strip()


def main(argv: Sequence[str] | None = None, notes_file: Path = NOTES) -> int:
    """Write the page; return 0, or 1 if it leaves a question open."""
    parser = argparse.ArgumentParser(description="Survey Hugging Face's architectures.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="entries to measure, without writing; default: all")
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="FILE")
    arguments = parser.parse_args(argv)
    entries, notes = read_notes(notes_file)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    tables: dict[str, list[Row]] = {}
    for title, listed in entries.items():
        for entry in listed:
            if not arguments.names or entry.name in arguments.names:
                try:
                    tables.setdefault(title, []).append(measure(entry))
                except NotOfferedError as error:
                    print(f"{entry.name}: no full pass: {error}", file=sys.stderr)
                    return 1
                print(entry.name, file=sys.stderr)
    asked = [each for rows in tables.values() for each in questions(rows)]
    open_ = [f"{name}: {check}" for name, check in asked if not any(note.explains(name, check) for note in notes)]
    idle = [] if arguments.names else [note.words for note in notes if not any(note.explains(*each) for each in asked)]
    print(*(f"not explained: {each}" for each in open_), *(f"explains nothing: {each}" for each in idle), sep="\n")
    if arguments.names:
        print("\n".join(line for title, rows in tables.items() for line in table(rows, notes)))
    else:
        arguments.output.write_text(document(tables, notes), encoding="utf-8")
    return int(bool(open_ or idle))


if __name__ == "__main__":
    sys.exit(main())
