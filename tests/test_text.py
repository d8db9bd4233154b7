import io
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrans.errors import UserError
from minitrans.text import clean, iter_lines, read_lines

any_text = st.text(st.characters(exclude_categories=()))  # lone surrogates included


def lines_of(content: bytes) -> list[str]:
    return list(iter_lines(io.BytesIO(content), "input"))


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
    ],
)
def test_lines(content: bytes, lines: list[str]) -> None:
    assert lines_of(content) == lines


@given(st.lists(st.text().filter(lambda line: "\n" not in line and not line.endswith("\r"))))
@settings(deadline=None)
def test_only_a_newline_ends_a_line(lines: list[str]) -> None:
    content = "".join(f"{line}\n" for line in lines).encode()
    assert lines_of(b"\xef\xbb\xbf" + content) == lines


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\x85"])
def test_other_line_breaks_do_not_end_a_line(character: str) -> None:
    assert lines_of(f"a{character}b\n".encode()) == [f"a{character}b"]


def test_lines_come_as_they_arrive() -> None:
    def stream() -> Iterator[bytes]:
        yield b"first\n"
        raise AssertionError("read ahead")

    assert next(iter_lines(stream(), "input")) == "first"


def test_invalid_utf8_names_file_line_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("ä\nb".encode() + b"\xff\n")
    with pytest.raises(UserError, match=r"a\.txt, line 2: byte 2 is not valid UTF-8"):
        read_lines(path)


@pytest.mark.parametrize(("name", "why"), [("nowhere.txt", "No such file"), (".", "Is a directory")])
def test_unreadable_path(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(UserError, match=f"cannot read .*{why}"):
        read_lines(tmp_path / name)


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


@given(any_text)
@settings(deadline=None)
def test_a_clean_line_stays_as_it_is(line: str) -> None:
    cleaned = clean(line)
    assert clean(cleaned) == cleaned
    assert cleaned.encode().decode() == cleaned


@given(any_text)
@settings(deadline=None)
def test_a_clean_line_is_one_line(line: str) -> None:
    cleaned = clean(f"{line}\n{line}")
    assert len(cleaned.splitlines()) <= 1
    assert not any(unicodedata.category(character) == "Cc" for character in cleaned)
    assert not set(cleaned) & set("\u2028\u2029")
    assert cleaned == cleaned.strip()
