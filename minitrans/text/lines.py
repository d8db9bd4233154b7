"""Lines of text, read unchanged from files, pipes and terminals. Standard library only."""

import codecs
import io
import os
import queue
import re
import stat
import sys
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from minitrans.errors import UserError

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
MAX_LINE_BYTES = 1 << 22  # a longer line is not text, and may be a few kilobytes that unpack to gigabytes
ALL_LINE_NUMBERS = range(1, sys.maxsize)  # numbers of the lines of a whole file
_TWO_LETTER_CODES = {  # for a few common languages, and other names of those that are scored by characters
    "bod": "bo", "bur": "my", "cat": "ca", "ces": "cs", "chi": "zh", "cmn": "zh", "cze": "cs", "dan": "da", "deu": "de",
    "dut": "nl", "dzo": "dz", "ell": "el", "eng": "en", "fin": "fi", "fra": "fr", "fre": "fr", "ger": "de", "gre": "el",
    "ita": "it", "jpn": "ja", "khm": "km", "kor": "ko", "lao": "lo", "mya": "my", "nld": "nl", "pol": "pl", "por": "pt",
    "rus": "ru", "slk": "sk", "spa": "es", "tha": "th", "tib": "bo", "vie": "vi", "zho": "zh",
    "burmese": "my", "chinese": "zh", "cn": "zh", "japanese": "ja", "jp": "ja", "khmer": "km", "korean": "ko",
    "laotian": "lo", "thai": "th", "tibetan": "bo"
}  # fmt: skip


def iter_lines(stream: Iterable[bytes], name: str, numbers: range = ALL_LINE_NUMBERS) -> Iterator[str]:
    r"""Yield the lines of a binary stream one by one, as they arrive.

    Only `\n` ends a line, so line n of a source file stays beside line n of its translation: `str.splitlines` would
    also split at U+2028, U+0085 and others. One `\r` at a line's end and a byte-order mark before line 1 are dropped.

    Args:
        stream: An open binary file, or anything else that yields bytes up to and including each `\n`.
        name: What to call the stream in a message.
        numbers: The numbers of the lines to read; the stream is at the first of them.

    Raises:
        UserError: A line is not valid UTF-8, or longer than any text.
    """
    for number, raw in zip(numbers, raw_lines(stream), strict=False):
        if len(raw) > MAX_LINE_BYTES:
            raise UserError(f"{name}, line {number}: it has more than {MAX_LINE_BYTES} bytes; break it into sentences")
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


def raw_lines(stream: Iterable[bytes]) -> Iterable[bytes]:
    """The lines of a stream; of a file, a line that is too long is read only just beyond the limit."""
    if isinstance(stream, io.IOBase):
        return iter(partial(stream.readline, MAX_LINE_BYTES + 1), b"")
    return stream


def seek_part(stream: BinaryIO, k: int, n: int) -> range:
    """Go to the k-th of n parts of a file, as `split -n l/k/n` divides it, and return the numbers of its lines.

    All parts have the same number of bytes, the last one also the remainder; a line is in the part in which it begins.
    """
    size = stream.seek(0, os.SEEK_END)
    part_size = max(1, size // n)
    last = _count_line_starts_before(stream, size if k == n else min(k * part_size, size))
    before = _count_line_starts_before(stream, min((k - 1) * part_size, size))
    if before:
        any(piece.endswith(b"\n") for piece in raw_lines(stream))  # reads on to the end of the last of these lines
    return range(before + 1, last + 1)


def _count_line_starts_before(stream: BinaryIO, end: int) -> int:
    """How many lines begin before byte `end` of a file. The stream is left at the byte before that."""
    stream.seek(0)
    n_lines = 1 if end else 0
    while block := stream.read(min(1 << 20, max(end - 1, 0) - stream.tell())):
        n_lines += block.count(b"\n")
    return n_lines


def read_ahead(stream: BinaryIO, name: str, most: int, numbers: range = ALL_LINE_NUMBERS) -> Iterator[list[str]]:
    """Yield the lines of an open file in lists, as `iter_lines` reads them.

    A regular file gives full lists, except for the last one. Anything else, such as a pipe, gives the lines that have
    come since the previous list, and makes the caller wait only while there are none. A thread of its own reads the
    stream, up to `most` lines ahead of the caller, and closes it at its end; `most` is also the length of a full list.

    Raises:
        UserError: The stream cannot be read, or a line is not valid UTF-8; all lines before it have been yielded.
    """
    lines: queue.Queue[str | Exception | None] = queue.Queue(most)
    fill = stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    # A daemon, because it may be waiting for a line when the program ends.
    threading.Thread(target=_put_lines, args=(lines, stream, name, numbers), daemon=True).start()
    return _iter_line_batches(lines, most, fill)


def _put_lines(lines: "queue.Queue[str | Exception | None]", stream: BinaryIO, name: str, numbers: range) -> None:
    """Put each line, and then None or the error."""
    try:
        with stream:
            for line in iter_lines(stream, name, numbers):
                lines.put(line)
        lines.put(None)
    except OSError as error:
        lines.put(UserError(f"cannot read {name}: {error.strerror}; give the path of a readable text file"))
    except Exception as error:
        lines.put(error)


def _iter_line_batches(lines: "queue.Queue[str | Exception | None]", most: int, fill: bool) -> Iterator[list[str]]:
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


def base_language(code: str) -> str:
    """The language of a code such as EN, en-US, zh_Hans or zho_Hans: en, zh."""
    base = re.split("[-_]", code.lower())[0]
    return _TWO_LETTER_CODES.get(base, base)


def escape_controls(text: str) -> str:
    r"""Escape, as `\x1b`, characters that move a cursor, break or reverse the line; for messages and labels."""
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
