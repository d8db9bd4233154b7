import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from minitrans import Translator
from minitrans.decoding import Hypothesis
from minitrans.model import Transformer
from minitrans.translator import Translator as Class

SENTENCES = ["I love you.", "", "The cat is in the kitchen.", "   ", "Machine learning is fun", "I love you."]


@pytest.fixture(scope="module")
def translator(tiny_run: Path) -> Class:
    return Translator.load(tiny_run)


def test_one_line_out_for_each_line_in_and_blank_stays_blank(translator: Class) -> None:
    found = translator.translate(SENTENCES)
    assert [bool(line) for line in found] == [True, False, True, False, True, True]
    assert found[0] == found[5]


def test_a_sentence_does_not_depend_on_its_neighbours(translator: Class) -> None:
    together = translator.translate(SENTENCES)
    assert together == [translator.translate([line])[0] for line in SENTENCES]
    assert together == translator.translate(SENTENCES, batch_tokens=1)
    assert together == translator.translate(SENTENCES[::-1])[::-1]


def test_the_cache_changes_nothing(translator: Class) -> None:
    assert translator.translate(SENTENCES, use_cache=False) == translator.translate(SENTENCES)


def test_nothing_gives_nothing(translator: Class) -> None:
    assert translator.translate([]) == []


@pytest.mark.parametrize(
    "line",
    [
        "a\r",
        "\ufeffa",
        "a\0b",
        "a\u2028b",
        "a\x85b\x0bc",
        "👩‍👩‍👧 🦄",
        "зима ქართული 한국어",
        "a\nb",
        "\ud800",
        "▁",
        "<s> </s> <pad>",
    ],
)
def test_strange_text_gives_one_line(translator: Class, line: str) -> None:
    (found,) = translator.translate([line])
    assert found.splitlines() in ([found], [])
    found.encode()  # raises on a lone surrogate


@given(st.lists(st.text(max_size=20), max_size=4))
def test_any_text_gives_as_many_lines(tiny_run: Path, lines: list[str]) -> None:
    found = loaded(tiny_run).translate(lines)
    assert len(found) == len(lines)
    assert not any("\n" in line or "\r" in line for line in found)


def loaded(run: Path, cache: dict[Path, Class] = {}) -> Class:  # noqa: B006 (one translator for all examples)
    return cache.setdefault(run, Translator.load(run)) if run not in cache else cache[run]


def test_a_long_line_is_cut_with_a_warning_that_names_it(translator: Class, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "minitrans"):
        found = translator.translate(["I love you.", "cat " * 10_000], first_line=41)
    assert found[0] == translator.translate(["I love you."])[0]
    longest = translator.bundle.model.config.max_len - 1
    assert [record.getMessage() for record in caplog.records] == [
        f"line 42 is cut: it has {len(translator.bundle.tokenizer.encode('cat ' * 10_000))} tokens, "
        f"the model takes {longest}"
    ]


def test_one_beam_gives_the_greedy_translations(translator: Class) -> None:
    best = translator.n_best(SENTENCES, beam=1)
    assert [[t.text for t in found] for found in best] == [[line] for line in translator.translate(SENTENCES)]


def test_beam_search_gives_the_best_of_the_n_best(translator: Class) -> None:
    n_best = translator.n_best(SENTENCES, beam=4, length_penalty=0.5)
    assert translator.translate(SENTENCES, beam=4, length_penalty=0.5) == [found[0].text for found in n_best]
    assert [len(found) for found in n_best] == [4, 1, 4, 1, 4, 4]
    assert n_best[1] == [("", 0.0)]
    for found in n_best:
        assert [t.score for t in found] == sorted((t.score for t in found), reverse=True)
    alone = [translator.n_best([line], beam=4, length_penalty=0.5)[0] for line in SENTENCES]
    assert [[t.text for t in found] for found in alone] == [[t.text for t in found] for found in n_best]


def test_a_batch_of_beams_holds_no_more_tokens_than_one_without(
    translator: Class, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = []

    def spy(model: Transformer, src_ids: Tensor, beam: int, length_penalty: float) -> list[list[Hypothesis]]:
        shapes.append(src_ids.shape)
        return [[Hypothesis([], 0.0, 0.0)]] * len(src_ids)

    monkeypatch.setattr("minitrans.translator.beam_search", spy)
    translator.n_best(SENTENCES * 20, beam=5, batch_tokens=200)
    assert len(shapes) > 1
    assert all(rows * width * 5 <= 200 for rows, width in shapes)
