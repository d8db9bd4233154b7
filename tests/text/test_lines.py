import io
import os
import re
import subprocess
import sys
import threading
import time
import unicodedata
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minitrans.errors import UserError
from minitrans.text.lines import MAX_LINE_BYTES, escape_controls, iter_lines, read_ahead, read_lines, seek_part
from minitrans.text.reading import clean


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"\n\na\n\n", ["", "", "a", ""]),
        (b"a\r\nb\r\r\nc\rd", ["a", "b\r", "c\rd"]),
        (b"a\r", ["a"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\xbf\n", [""]),
        *((f"a{c}b\n".encode(), [f"a{c}b"]) for c in "\u2028\u2029\x0b\x0c\x1c\x85"),  # not line ends
    ],
)
def test_lines(content: bytes, lines: list[str]) -> None:
    assert list(iter_lines(io.BytesIO(content), "input")) == lines


# No final newline, no line, empty lines, carriage returns, one line, a line longer than a part, byte-order marks.
AWKWARD_CONTENTS = [b"a\nb\nc", b"", b"\n\n\na\n\n", b"a\r\n\r\nb\r\n", b"one\n", b"a\n" + b"long " * 50 + b"\nb\n"]
AWKWARD_CONTENTS += [b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n", b"\n"]
byte_pieces = st.lists(st.sampled_from([b"\n", b"\r\n", b"a", b"\xef\xbb\xbf", b"long " * 9]))


@example(b"a\nb\nc", 2)  # the last line begins with the byte that remains
@given(st.sampled_from(AWKWARD_CONTENTS) | byte_pieces.map(b"".join), st.integers(1, 7))
def test_a_line_is_in_the_part_in_which_it_begins(content: bytes, n: int) -> None:
    dealt: list[list[bytes]] = [[] for _ in range(n)]
    for line in re.finditer(rb"[^\n]*\n|[^\n]+", content):
        dealt[min(line.start() // max(1, len(content) // n), n - 1)].append(line[0])
    before, lines = 0, []
    for k, want in enumerate(dealt, 1):
        stream = io.BytesIO(content)
        numbers = seek_part(stream, k, n)
        assert numbers == range(before + 1, before + 1 + len(want))
        start = stream.tell()
        assert list(islice(stream, len(numbers))) == want
        stream.seek(start)
        lines += list(iter_lines(stream, "input", numbers))
        before += len(want)
    assert lines == list(iter_lines(io.BytesIO(content), "input"))


@pytest.mark.skipif(sys.platform != "linux", reason="only GNU's split knows -n l/k/n")
@pytest.mark.parametrize("content", AWKWARD_CONTENTS)
def test_parts_equal_those_of_the_split_command(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for n in range(1, 8):
        path.write_bytes(content * n)  # equal shares: later versions of split give a remainder to the first parts
        for k in range(1, n + 1):
            with path.open("rb") as stream:
                got = b"".join(islice(stream, len(seek_part(stream, k, n))))
            assert got == subprocess.run(["split", "-n", f"l/{k}/{n}", path], capture_output=True, check=True).stdout


def test_an_error_in_a_part_names_the_line_number_in_the_file() -> None:
    stream = io.BytesIO(b"a\n" * 5 + b"\xff\n" + b"a\n" * 4)
    numbers = seek_part(stream, 2, 3)
    with pytest.raises(UserError, match="input, line 6: byte 1 is not valid UTF-8"):
        list(iter_lines(stream, "input", numbers))


def open_self_closing_pipe() -> tuple[BinaryIO, BinaryIO]:
    """The reading end and the unbuffered writing end, which is closed after a minute if nobody closes it."""
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "wb", buffering=0)
    end = threading.Timer(60, stream.close)
    end.daemon = True
    end.start()
    return os.fdopen(reader, "rb"), stream


def test_a_slow_file_gives_full_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(*_: object) -> Iterator[str]:
        for i in range(4):
            time.sleep(0.02)
            yield str(i)

    monkeypatch.setattr("minitrans.text.lines.iter_lines", slowly)
    (tmp_path / "a.txt").touch()
    for most, lists in ((2, [["0", "1"], ["2", "3"]]), (3, [["0", "1", "2"], ["3"]])):
        assert list(read_ahead((tmp_path / "a.txt").open("rb"), "a.txt", most)) == lists


def test_a_pipe_gives_each_line_as_soon_as_it_is_complete() -> None:
    reader, writer = open_self_closing_pipe()
    lists = read_ahead(reader, "pipe", 100)
    writer.write(b"one\ntw")
    assert next(lists) == ["one"]  # the rest is not a whole line yet
    writer.write("o ä".encode()[:-1])
    writer.write("ä".encode()[1:] + b"\n\nfour")
    taken = next(lists)
    if len(taken) < 2:
        taken += next(lists)
    assert taken == ["two ä", ""]
    writer.close()
    assert list(lists) == [["four"]]


def test_lines_that_arrive_quickly_are_grouped() -> None:
    reader, writer = open_self_closing_pipe()
    lines = [str(i) for i in range(10_000)]

    def write() -> None:
        with writer:
            writer.write("".join(f"{line}\n" for line in lines).encode())

    threading.Thread(target=write).start()
    lists = list(read_ahead(reader, "pipe", 70))
    assert 1 < max(map(len, lists)) <= 70
    assert [line for taken in lists for line in taken] == lines


def test_at_most_one_list_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def count(stream: BinaryIO, name: str, numbers: range) -> Iterator[str]:
        for i in range(1000):
            read.append(i)
            yield str(i)

    monkeypatch.setattr("minitrans.text.lines.iter_lines", count)
    taken = 0
    for lines in read_ahead(open_self_closing_pipe()[0], "pipe", 10):
        taken += len(lines)
        if taken < 200:
            time.sleep(0.01)  # in which an unrestrained reader would read on
            assert len(read) <= taken + 10 + 1  # one line waits for a place
    assert taken == 1000


@pytest.mark.parametrize(
    ("fault", "told"), [(OSError(5, "Input/output error"), UserError), (MemoryError(), MemoryError)]
)
def test_reading_errors_are_raised(fault: Exception, told: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(stream: BinaryIO, name: str, numbers: range) -> Iterator[str]:
        yield "a"
        raise fault

    monkeypatch.setattr("minitrans.text.lines.iter_lines", fail)
    lists = read_ahead(open_self_closing_pipe()[0], "pipe", 4)
    assert next(lists) == ["a"]
    with pytest.raises(told):
        next(lists)


@pytest.mark.parametrize(
    ("line", "cleaned"),
    [
        ("", ""),
        (" \t\x00\u3000 ", ""),
        ("a\x00b\rc\td\ne", "a b c d e"),
        ("a\u2028b\u2029c\x85d\x0be", "a b c d e"),
        ("a \u00a0\u2003 b", "a b"),
        ("e\u0301", "é"),
        ("，？！ ｆｕｌｌ ﬁ", "，？！ ｆｕｌｌ ﬁ"),  # NFC, not NFKC
        ("👨\u200d👩\u200d👧", "👨\u200d👩\u200d👧"),
        ("caf\udce9", "caf\ufffd"),
    ],
)
def test_clean(line: str, cleaned: str) -> None:
    assert clean(line) == cleaned


@given(st.text(st.characters(exclude_categories=())))  # lone surrogates included
def test_clean_gives_one_line_and_is_idempotent(line: str) -> None:
    cleaned = clean(f"{line}\n{line}")
    assert len(cleaned.splitlines()) <= 1
    assert not any(unicodedata.category(character) == "Cc" for character in cleaned)
    assert not set(cleaned) & set("\u2028\u2029")
    assert cleaned == cleaned.strip() == clean(cleaned)
    assert cleaned.encode().decode() == cleaned


def test_heaps_of_combining_marks_are_cut_quickly_and_short_lines_keep_theirs() -> None:
    heap = "e" + "\u0301\u0316" * 200_000
    began = time.process_time()
    cleaned = clean(f"a {heap} b")
    assert time.process_time() - began < 10  # uncut, they would take minutes to put in order
    assert clean(cleaned) == cleaned
    assert len(unicodedata.normalize("NFD", cleaned)) == len("a e b") + 30
    short = "e" + "\u0301" * 100
    assert len(clean(short)) == 100
    ordinary = "e\u0301 \u1112\u1161\u11ab \u0958" * 1000
    assert clean(ordinary) == " ".join(unicodedata.normalize("NFC", ordinary).split())


def test_an_overlong_line_is_refused_before_its_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\n" + b"b" * MAX_LINE_BYTES + b"\n")
    with pytest.raises(UserError, match=rf"a.txt, line 2: it has more than {MAX_LINE_BYTES} bytes; break it"):
        read_lines(path)
    path.write_bytes(b"a\n" + b"b" * (MAX_LINE_BYTES - 1) + b"\n")
    assert len(read_lines(path)[1]) == MAX_LINE_BYTES - 1

    longer = io.BytesIO(b"b" * 3 * MAX_LINE_BYTES)
    with pytest.raises(UserError, match="line 1: it has more than"):
        list(iter_lines(longer, "a pipe"))
    assert longer.tell() == MAX_LINE_BYTES + 1


def test_control_characters_are_escaped() -> None:
    assert escape_controls("a\x1b[2J\r\n\x9b\u202eb\u2028\udc80é我\U0001f468\u200d\U0001f469") == (
        "a\\x1b[2J\\r\\n\\x9b\\u202eb\\u2028\\udc80é我\U0001f468\u200d\U0001f469"
    )
