"""Lines of text: reading them exactly, and cleaning them for the tokenizer. Standard library only."""

import codecs
import re
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

from minitrans.errors import UserError

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def iter_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    r"""Yield the lines of a binary stream one by one, as they arrive.

    Only `\n` ends a line, so line n of a source file stays beside line n of its translation: `str.splitlines` would
    also split at U+2028, U+0085 and others. One `\r` before the `\n` and a byte-order mark at the start are dropped.

    Args:
        stream: An open binary file, or anything else that yields bytes up to and including each `\n`.
        name: What to call the stream in a message.

    Raises:
        UserError: A line is not valid UTF-8.
    """
    for number, raw in enumerate(stream, start=1):
        if number == 1:
            raw = raw.removeprefix(codecs.BOM_UTF8)
            if not raw:  # a mark alone is an empty file, not an empty line
                continue
        try:
            yield raw.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name}, line {number}: byte {error.start + 1} is not valid UTF-8; convert the text to UTF-8"
            ) from error


def read_lines(path: str | Path) -> list[str]:
    """Read a text file as `iter_lines` does.

    Raises:
        UserError: The file is missing, unreadable, a folder, or not valid UTF-8.
    """
    try:
        with open(path, "rb") as stream:
            return list(iter_lines(stream, str(path)))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the path of a readable text file") from error


def clean(line: str) -> str:
    """Normalise a sentence, the same way in training, in translation and in what comes out.

    Unicode NFC; control characters and every kind of white space and line break become a space, runs of them one
    space, and none is left at the ends; lone surrogates (undecodable bytes of a command line) become U+FFFD. Format
    characters stay: the zero-width joiner holds an emoji together. Cleaning twice changes nothing more.
    """
    line = _CONTROL.sub(" ", unicodedata.normalize("NFC", line))
    return " ".join(_SURROGATE.sub("\ufffd", line).split())
