import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrans.text.reading import split_lowercase_words


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("The cat saw THE cat.", "the cat saw the cat"),
        ("Don\u2019t say 'dogs', it's the dogs' rock'n'roll!", "don't say dogs it's the dogs rock'n'roll"),
        ("a well-known 3.14, 4711 and 3pm; 50%", "a well known 3 14 4711 and 3pm 50"),
        ("snake_case -- … '' $ 😀 ❤️ 👩‍👩‍👧 1️⃣", "snake case 1"),
        ("cafe\u0301 Straße हिन्दी में İyi", "café straße हिन्दी में iyi"),
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
    assert split_lowercase_words(line) == want.split()


@given(st.text())
def test_a_word_is_letters_digits_marks_and_apostrophes(line: str) -> None:
    for word in split_lowercase_words(line):
        assert {unicodedata.category(character)[0] for character in word.replace("'", "")} <= set("LMN")
        assert word == word.strip("'") != ""
