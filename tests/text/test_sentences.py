"""Where lines are split into sentences. How well the library knows each language is left to its own tests."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrans.text.reading import clean
from minitrans.text.sentences import split_sentences

PARAGRAPHS = [
    ("en", ["Good morning.", "How are you?", "I am fine.", "Thank you very much."]),
    ("en", ["Mr. Smith came at 5 p.m. today.", "“Go now.”", "He said: “Go. Now!”", "She left."]),
    ("zh", ["早上好。", "你好吗？", "他说：“好。”", "她走了！"]),
    ("zh-Hans", ["早上好。", "你好吗？"]),
    ("ja", ["おはよう。", "元気ですか？"]),
    ("en", ["Are you a doctor?", "No.", "I am a teacher.", "See No. 5.", "See No. A4.", "“No. I stay.”"]),
    ("en", ["Call me.", "i love you.", "OK.", "Thank you.", "I'm ill.", "It is “me. I see” here.", "Art. 5 is new."]),
    ("en", ["Oh no.", "I like art.", "He was fed.", "I need your ID.", "Thank you."]),
    ("en", ["Wait a min.", "I'm busy.", "Help me plz.", "I love u.", "It takes 5 min. by bus.", "The U. S. Army."]),
    ("en", ["Go to www.BBC.co.uk or http://x.com/Report.PDF?Id=5!Go, Ann.", "Give me a sec.", "It is I.", "You go."]),
    ("fr", ["M. Dupont et J. Martin sont là.", "Il y en a.", "Oui."]),
    ("zh", ["请看http://x.com/A。", "我走了。"]),
    ("en", ["See Art. IV and Art. II here.", "Call me.", "I am here."]),
    ("de", ["Peter u. Paul gehen.", "Es gilt Art. IV GG.", "Ja."]),
    ("dan", ["Den 3. maj kom han.", "Ja."]),
    ("es", ["Estoy bien.", "Gracias.", "No.", "Mañana."]),
    ("de_AT", ["Am 12. Mai.", "Gut."]),
    ("xx", ["One.", "Two"]),
    ("en", ["1. Go.", "2. Stay."]),
    ("en", [""]),
    ("en", ["1."]),
    ("en", ["Go.", "Go."] * 2000),  # several windows
    ("en", [f"{'a' * 3000}. Go. Go."]),
]


@pytest.mark.parametrize(("language", "sentences"), PARAGRAPHS)
def test_a_line_is_cut_where_its_sentences_end(language: str, sentences: list[str]) -> None:
    blank = "" if language[:2] in ("zh", "ja") else " "
    assert split_sentences(blank.join(sentences), language) == sentences


@given(st.lists(st.sampled_from([*"aB1 .!?。“”\"'()\n\r\u2028\ud800\u0301", "Mr. ", "“" * 99, "x" * 999])).map("".join))
def test_splitting_loses_no_text(line: str) -> None:
    sentences = split_sentences(line, "en")
    assert " ".join(sentences).replace(" ", "") == clean(line).replace(" ", "")
    assert all(sentence == clean(sentence) for sentence in sentences)


def test_many_numbers_take_no_quadratic_time() -> None:
    began = time.process_time()
    assert split_sentences("12! " * 20_000, "en") == [("12! " * 20_000).strip()]
    assert time.process_time() - began < 5
