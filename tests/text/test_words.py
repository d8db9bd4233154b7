import logging
import unicodedata
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrans.data import stream
from minitrans.data.stream import add_word_counts
from minitrans.text.reading import split_words
from minitrans.translate.translator import has_changed_numbers


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("The cat saw THE cat.", "the cat saw the cat"),
        ("Don\u2019t say 'dogs', it's the dogs' rock'n'roll!", "don't say dogs it's the dogs rock'n'roll"),
        ("a well-known 3.14, 4711 and 3pm; 50%", "a well known 3 14 4711 and 3pm 50"),
        ("snake_case -- … '' $ 😀 ❤️ 👩‍👩‍👧", "snake case"),
        ("cafe\u0301 Straße हिन्दी में", "café straße हिन्दी में"),
        ("co\u00adoperate می\u200cخواهم", "cooperate میخواهم"),  # a soft hyphen and a joiner are not seen
        ("한국어 입니다", "한국어 입니다"),
        ("我爱DNA和3D。", "我 爱 dna 和 3d"),
        ("カタカナー々", "カ タ カ ナ ー 々"),
        ("หิว", "ห ว"),
        ("a\x1b[31mb\u202ec\ud800d\u2581e", "a 31mbc d e"),
        ("  ", ""),
    ],
)
def test_a_line_is_split_into_its_words(line: str, want: str) -> None:
    assert split_words(line) == want.split()


@given(st.text())
def test_a_word_is_letters_digits_marks_and_apostrophes(line: str) -> None:
    for word in split_words(line):
        assert {unicodedata.category(character)[0] for character in word.replace("'", "")} <= set("LMN")
        assert word == word.strip("'") != ""


@pytest.mark.parametrize(
    ("line", "translation", "changed"),
    [
        ("Room 508", "508号房间", False),
        ("Room 508", "58号房间", True),
        ("June 8th, 1,374 m at 7:30", "6月8日7:30，1374米", False),
        ("at 11:50 p.m.", "1:150", True),
        ("on May 12, 1977", "1977年5月1日", True),
        ("508 of 512", "508", True),
        ("on June 13", "六月十三号", False),
        ("half past two", "2:30", False),
        ("5 square metres", "五m²", False),
    ],
)
def test_a_translation_changes_numbers(line: str, translation: str, changed: bool) -> None:
    assert has_changed_numbers(line, translation) is changed


@given(st.lists(st.text()))
def test_the_words_of_lines_are_those_of_each(lines: list[str]) -> None:
    assert add_word_counts(Counter(), lines) == Counter(word for line in lines for word in split_words(line))


def test_words_are_counted_until_they_are_too_many(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stream, "MAX_WORDS", 4)
    with caplog.at_level(logging.WARNING, "minitrans"):
        counts = add_word_counts(add_word_counts(Counter(), ["a B c", "b b"]), ["D a"])
        assert counts == {"a": 2, "b": 3, "c": 1, "d": 1}
        assert not caplog.messages
        assert add_word_counts(counts, ["e"]) is None
        assert add_word_counts(None, ["e"]) is None
    assert caplog.messages == ["more than 4 different words are in the training data: the run keeps none of them"]
