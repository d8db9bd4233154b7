#!/usr/bin/env python3
"""The survey of Hugging Face's architectures: every check for any model, on a small random model of each.

It writes docs/survey.md, in ten minutes on two cores. What is not exact has to be explained in survey_notes.yaml,
whose notes were written after each case was looked into. Exit code 1: something is not explained, a note explains
nothing, or a fault put around a model is caught by no check.
"""

import argparse
import contextlib
import io
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
import yaml

from minitrans.cachecheck import LoadError, NotOfferedError, run, self_test
from minitrans.cachecheck.hugging_face import adapter_by_name, small_model
from minitrans.cachecheck.measurement import Caught, Result, dtype_tolerance, to_str

NOTES_FILE = Path(__file__).with_name("survey_notes.yaml")
PAGE_FILE = Path(__file__).resolve().parents[2] / "docs" / "survey.md"
MAX_SHOWN = 5  # failing checks that are named; the others are counted


class Entry(NamedTuple):
    """An architecture to measure."""

    name: str
    architecture: str  # as `transformers` calls it
    settings: Mapping[str, Any]  # in place of the small model's
    runs_self_test: bool  # whether faults are put around it too


class Note(NamedTuple):
    """Why some checks of some entries are not exact."""

    entries: list[str]  # their names; "all" stands for all
    checks: list[str]  # their ids; "all" stands for all
    kind: str  # of `NOTE_KINDS`
    words: str  # the cause
    shown: str = ""  # a program that shows it without our code, where there is need

    def explains(self, entry: str, check: str) -> bool:
        """Whether it is about this check of this entry."""
        return (entry in self.entries or self.entries == ["all"]) and (check in self.checks or self.checks == ["all"])


class Finding(NamedTuple):
    """What was found of an entry; `no_model_reason` says why there is no small model: then there is nothing else."""

    entry: Entry
    results: Sequence[Result] = ()
    fault_results: Sequence[Caught] = ()
    no_model_reason: str = ""

    @property
    def clear_failures(self) -> list[Result]:
        """The checks that fail by more than rounding in float32, which many a model does inside whatever its dtype."""
        return [
            r for r in self.results if r.failed and not r.failed_measurement.measured <= dtype_tolerance(torch.float32)
        ]


INTRODUCTION = """
Every check [for any model](your-model.md) was run on a small model of each decoder in the lists of transformers
{version} (of two of them, in two variants), with random weights alone. Of {n} models {measured} were measured: {exact}
decode exactly, {rounded} do but for what they compute in float32 whatever their dtype, {differing} differ by more, and
{unstepped} differ in nothing, but did not decode from a cache ({names}). Deviations are shares of the largest logit,
in float64 if possible. Faults of {kinds} kinds, {faults} in all, were put around {faulty} of the models; the checks
caught {caught}. `scripts/dev/hf_survey.py` made this page.
"""
PROGRAM_PREAMBLE = """
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
NOTE_KINDS = {
    "theirs": "a fault of the library",
    "meant": "documented or intended",
    "ours": "a limit of the adapter or of what is asked",
    "open": "not yet reduced to a cause",
}


def read_entries_and_notes(path: Path) -> tuple[list[Entry], list[Note]]:
    """What to measure, all architectures and some with other settings; and the notes."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    names = sorted({name for name, _ in adapter_by_name().values()})
    entries = [Entry(name, name, {}, name in data["with_faults"]) for name in names]
    entries += [Entry(**entry, runs_self_test=False) for entry in data["with_settings"]]
    return entries, [Note(**note) for note in data["notes"]]


def check_entry(entry: Entry) -> Finding:
    """Run all checks on a small model, and with each fault put around it if the entry says so."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    try:
        model = small_model(entry.architecture, **entry.settings)
        return Finding(entry, run(model).checks, list(self_test(model)) if entry.runs_self_test else [])
    except (LoadError, NotOfferedError) as error:
        return Finding(entry, no_model_reason=str(error).rpartition("give a folder with a model: ")[2])


def failure_keys(finding: Finding) -> Iterator[tuple[str, str]]:
    """What needs an explanation in an entry: each check that fails, and each fault that nothing caught."""
    yield from ((finding.entry.name, result.id) for result in finding.clear_failures)
    yield from ((finding.entry.name, fault.id) for fault in finding.fault_results if not fault.caught_by)


def failure_table(rows: Iterable[Finding], notes: Sequence[Note]) -> Iterator[str]:
    """A line for all entries in which the same checks fail and that have the same notes: the worst of each check."""
    groups: defaultdict[tuple[tuple[str, ...], str], list[Finding]] = defaultdict(list)
    for row in rows:
        numbers = [i for i, note in enumerate(notes, 1) if any(note.explains(*each) for each in failure_keys(row))]
        open_ = not all(any(note.explains(*each) for note in notes) for each in failure_keys(row))
        marks = " ".join([f"[{i}](#note-{i})" for i in numbers] + ["**?**"] * open_)
        groups[tuple(r.id for r in row.clear_failures), marks].append(row)
    yield from ("| architectures | checks that fail, and the largest deviation | notes |", "|---|---|---|")
    for (ids, marks), alike in sorted(groups.items(), key=lambda group: -len(group[1])):
        worst = {
            id_: max(
                (r.failed_measurement.measured for row in alike for r in row.clear_failures if r.id == id_),
                key=sort_key,
            )
            for id_ in ids
        }
        shown = [f"`{id_}` {to_str(worst[id_])}" for id_ in sorted(ids, key=lambda id_: -sort_key(worst[id_]))]
        shown[MAX_SHOWN:] = [f"{len(ids) - MAX_SHOWN} more"] * (len(ids) > MAX_SHOWN)
        yield f"| {', '.join(row.entry.name for row in alike)} | {', '.join(shown)} | {marks} |"


def sort_key(deviation: float) -> float:
    """What deviations are compared by: NaN is the worst."""
    return deviation if deviation == deviation else torch.inf


def join_names(rows: Iterable[Finding]) -> str:
    """Names in a line; with the dtype of those that do not compute in float64."""
    names = []
    for row in rows:
        dtype = next(iter(next(r for r in row.results if r.by_dtype).by_dtype))
        names.append(row.entry.name + ("" if dtype == "float64" else f" ({dtype})"))
    return ", ".join(names) + "."


def unoffered_checks_table(rows: Iterable[Finding]) -> Iterator[str]:
    """A line for each reason, whatever class and numbers it names, the commonest first: the checks, and who says so."""
    by_reason: defaultdict[str, tuple[set[str], list[str]]] = defaultdict(lambda: (set(), []))
    for row in rows:
        for result in row.results:
            if not result.offered:
                checks, names = by_reason[re.sub(r"\w*For\w+|\b\d+\b", "…", result.detail)]
                checks.add(result.id)
                names += [row.entry.name] * (row.entry.name not in names)
    yield from ("| why | checks | architectures |", "|---|---|---|")
    for why, (checks, names) in sorted(by_reason.items(), key=lambda item: -len(item[1][1])):
        who = ", ".join(names) if len(names) <= MAX_SHOWN else f"{len(names)}"
        yield f"| {why.replace('|', '/')} | {', '.join(f'`{id_}`' for id_ in sorted(checks))} | {who} |"


def render_page(rows: Sequence[Finding], notes: Sequence[Note]) -> str:
    """The page."""
    measured = [row for row in rows if not row.no_model_reason]
    differing = [row for row in measured if row.clear_failures]
    others = [row for row in measured if not row.clear_failures]
    unstepped = [row for row in others if any(r.id == "steps" and not r.offered for r in row.results)]
    stepped = [row for row in others if row not in unstepped]
    rounded = [row for row in stepped if any(r.failed for r in row.results)]
    exact = [row for row in stepped if row not in rounded]
    caught = [each for row in measured for each in row.fault_results]
    introduction = INTRODUCTION.format(
        version=transformers.__version__, n=len(rows), measured=len(measured), exact=len(exact), rounded=len(rounded),
        differing=len(differing), unstepped=len(unstepped), names=", ".join(row.entry.name for row in unstepped),
        faults=len(caught), kinds=len({each.id for each in caught}),
        faulty=sum(row.entry.runs_self_test for row in measured),
        caught="all" if all(each.caught_by for each in caught) else sum(bool(each.caught_by) for each in caught),
    )  # fmt: skip
    lines = ["# Which architectures decode exactly from their caches", introduction, "## Exact", "", join_names(exact)]
    lines += ["", "## Exact but for what is computed in float32", "", join_names(rounded)]
    lines += ["", "## Different", "", *failure_table(differing, notes)]
    lines += ["", "## Not offered", "", "What a model cannot do is not checked; errors are the model's own.", ""]
    lines += [*unoffered_checks_table(measured), "", "## Without a small model", "", "| name | why |", "|---|---|"]
    lines += [f"| {row.entry.name} | {row.no_model_reason.replace('|', '/')} |" for row in rows if row.no_model_reason]
    lines += ["", "## Notes", "", "Each program below shows what its note says, without our code. All begin with", ""]
    lines += ["```python", PROGRAM_PREAMBLE.strip(), "```", ""]
    for i, note in enumerate(notes, 1):
        lines += [f'<a id="note-{i}"></a>**{i}** ({NOTE_KINDS[note.kind]}). {" ".join(note.words.split())}', ""]
        if note.shown:
            lines += ["```python", note.shown.strip(), "```", "", "```text", printed_by(note.shown), "```", ""]
    return "\n".join(lines)


def printed_by(program: str) -> str:
    """What a note's program prints after PROGRAM_PREAMBLE."""
    with contextlib.redirect_stdout(io.StringIO()) as out, torch.no_grad():
        exec(PROGRAM_PREAMBLE + program, {})
    return out.getvalue().strip()


def main(argv: Sequence[str] | None = None, notes_file: Path = NOTES_FILE) -> int:
    """Write the page; return 0, or 1 if it leaves a question open."""
    parser = argparse.ArgumentParser(description="Survey Hugging Face's architectures.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="entries to measure, without writing; default: all")
    parser.add_argument("--output", type=Path, default=PAGE_FILE, metavar="FILE")
    arguments = parser.parse_args(argv)
    entries, notes = read_entries_and_notes(notes_file)
    if unknown := {*arguments.names} - {entry.name for entry in entries}:
        parser.error(f"there is no entry {min(unknown)}")
    rows = []
    with ProcessPoolExecutor(2) as processes:
        for row in processes.map(check_entry, [e for e in entries if not arguments.names or e.name in arguments.names]):
            print(row.entry.name, file=sys.stderr)
            rows.append(row)
    pairs = [each for row in rows for each in failure_keys(row)]
    open_ = [f"{name}: {check}" for name, check in pairs if not any(note.explains(name, check) for note in notes)]
    open_ += [f"{row.entry.name}: {row.no_model_reason}" for row in rows if arguments.names and row.no_model_reason]
    idle = [] if arguments.names else [note.words for note in notes if not any(note.explains(*each) for each in pairs)]
    print(*(f"not explained: {each}" for each in open_), *(f"explains nothing: {each}" for each in idle), sep="\n")
    if arguments.names:
        print(*failure_table(rows, notes), sep="\n")
    else:
        arguments.output.write_text(render_page(rows, notes), encoding="utf-8")
    return int(bool(open_ or idle))


if __name__ == "__main__":
    sys.exit(main())
