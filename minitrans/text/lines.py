"""Lines of text: reading them exactly, and cleaning them for the tokenizer. Standard library only."""

import codecs
import os
import queue
import re
import stat
import threading
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

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


def read_ahead(stream: BinaryIO, name: str, most: int) -> Iterator[list[str]]:
    """Yield the lines of an open file in lists, as `iter_lines` reads them.

    A list from a regular file is full, but for the last one. Anything else, such as a pipe, gives the lines that have
    come since the list before, and is waited for only while there is none.

    Args:
        stream: Read, and closed at its end, by a thread of its own, which is up to `most` lines ahead of the caller.
        name: What to call it in a message.
        most: Length of a full list.

    Raises:
        UserError: The stream cannot be read, or a line is not valid UTF-8; all lines before it have been yielded.
    """
    lines: queue.Queue[str | Exception | None] = queue.Queue(most)
    fill = stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    # A daemon, for it may be waiting for a line when the program ends.
    threading.Thread(target=_put_lines, args=(lines, stream, name), daemon=True).start()
    return _take_lines(lines, most, fill)


def _put_lines(lines: "queue.Queue[str | Exception | None]", stream: BinaryIO, name: str) -> None:
    """Put each line, and then None, or what went wrong."""
    end: Exception | None = None
    try:
        with stream:
            for line in iter_lines(stream, name):
                lines.put(line)
    except OSError as error:
        end = UserError(f"cannot read {name}: {error.strerror}; give the path of a readable text file")
    except Exception as error:
        end = error
    lines.put(end)


def _take_lines(lines: "queue.Queue[str | Exception | None]", most: int, fill: bool) -> Iterator[list[str]]:
    taken: list[str] = []
    while True:
        line = lines.get()
        if isinstance(line, str):
            taken.append(line)
            if len(taken) < most and (fill or not lines.empty()):
                continue
        if taken:
            yield taken
            taken = []
        if line is None:
            return
        if isinstance(line, Exception):
            raise line


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
