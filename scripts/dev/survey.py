#!/usr/bin/env python3
"""The survey of Hugging Face's architectures: every check of anyone's model on a small random model of each.

It writes docs/survey.md. What is not exact has to be explained in NOTES, which were written after it had been looked
into; an entry without an explanation makes this end with code 1, and so does an explanation of nothing.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

OUTPUT = Path(__file__).resolve().parents[2] / "docs" / "survey.md"


class Entry(NamedTuple):
    """A row of the table: a name of its own, an architecture, and settings in place of the small model's."""

    name: str
    architecture: str
    settings: Mapping[str, object] = {}


class Note(NamedTuple):
    """Why some checks of some entries are not exact, or not offered.

    Attributes:
        entries: Names of entries; "*" stands for all.
        checks: Ids of checks; "*" stands for all.
        kind: "theirs", a fault of the library; "meant", documented or intended; "ours", a limit of the adapter.
        words: The cause.
        shown: A few lines that show it without our code; or nothing.
    """

    entries: str
    checks: str
    kind: str
    words: str
    shown: str = ""


ENCODER_DECODERS: list[Entry] = []
DECODERS: list[Entry] = []
NOTES: list[Note] = []


def explanation(entry: str, check: str, notes: Sequence[Note]) -> int | None:
    """The index of the first note on a check of an entry."""
    for i, note in enumerate(notes):
        if all(
            wanted == "*" or name in wanted.split() for name, wanted in ((entry, note.entries), (check, note.checks))
        ):
            return i
    return None
