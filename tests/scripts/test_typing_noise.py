"""Typing noise: what each kind makes of a line, and which translations then count as right."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace

import draw_pictures
import pytest
import typing_noise
from typing_noise import NEIGHBOURS_BY_KEY, SENTENCE_NOISES, TYPING_ERROR_NOISES, WORD_NOISES, TypedLine, normalize

from minitrans.translate.translator import Translation, Translator

EVERYDAY_PAIRS = {
    "Don't go, Tom.": "汤姆，别走。",
    "Whose is it?": "是谁的？",
    "I see.": "我明白。",
    "Unknown words": "生词",
}
# Of lines with values or names
VALUE_LINE_CANDIDATES = ["B就在1931年。", "31年，B。", "1931年，1931年，B。", "1931年，b。", "1930年，B。"]


@pytest.mark.parametrize(
    ("kind", "line", "typed"),
    [
        ("capitals", "I see.", "I SEE."),
        ("title case", "don't do it.", "Don't Do It."),
        ("lower case", "I see.", "i see."),
        ("no end mark", "I see.", "I see"),
        ("blank before end mark", "I see.", "I see ."),
        ("stop for ?", "Who is it?", "Who is it."),
        ("three stops", "I see.", "I see..."),
        ("ellipsis", "I see.", "I see…"),
        ("ellipsis", "see", "see…"),
        ("curly apostrophes", "Don't!", "Don’t!"),
        ("no apostrophes", "Don't!", "Dont!"),
        ("- before", "I see.", "- I see."),
        ("no blank after comma", "No, Tom.", "No,Tom."),
    ],
)
def test_a_kind_changes_a_line_as_its_name_says(kind: str, line: str, typed: str) -> None:
    assert SENTENCE_NOISES[kind](line, Random(1)) == TypedLine(typed)


def draw_variants(kind: typing_noise.TypingNoise, line: str) -> set[TypedLine | None]:
    """All that a kind makes of a line, its additions in tuples."""
    sentences = [kind(line, Random(seed)) for seed in range(500)]
    return {each and each._replace(output_suffixes=tuple(each.output_suffixes)) for each in sentences}


def typed_line_set(*typed: str) -> set[TypedLine]:
    return {TypedLine(line) for line in typed}


def test_a_kind_with_choices_makes_all_of_them() -> None:
    assert draw_variants(SENTENCE_NOISES["!! or ??"], "I see.") == typed_line_set("I see!!", "I see!!!")
    assert draw_variants(SENTENCE_NOISES["!! or ??"], "Why?") == typed_line_set("Why??", "Why???")
    assert draw_variants(SENTENCE_NOISES["quotation marks"], "I see.") == typed_line_set("“I see.”", '"I see."')
    assert draw_variants(SENTENCE_NOISES["more blanks"], "I see it.") == typed_line_set(" I see it. ", "I  see it.")
    assert draw_variants(SENTENCE_NOISES["number before"], "No.") == {
        TypedLine(f"{n}. No.", output_prefix=f"{n}") for n in range(1, 10)
    }
    assert draw_variants(SENTENCE_NOISES["emoji after"], "No.") == {
        TypedLine(f"No. {mark}", output_suffixes=(mark,)) for mark in typing_noise.EMOJI
    }
    right = {"No.": ["不。"], "I see.": ["我明白。", "我懂。"]}
    assert draw_variants(typing_noise.second_sentence_noise(right), "No.") == {
        TypedLine("No. I see.", output_suffixes=("我明白。", "我懂。"))
    }


def test_a_typing_error_is_in_a_word_of_four_letters_or_more() -> None:
    assert draw_variants(TYPING_ERROR_NOISES["letters swapped"], "I seem.") == typed_line_set("I esem.", "I seme.")
    assert draw_variants(TYPING_ERROR_NOISES["letter left out"], "I seem.") == typed_line_set("I eem.", "I sem.")
    assert draw_variants(TYPING_ERROR_NOISES["letter doubled"], "I seem.") == typed_line_set("I sseem.", "I seeem.")
    nearby = [f"I {key}eem." for key in NEIGHBOURS_BY_KEY["s"]] + [f"I se{key}m." for key in NEIGHBOURS_BY_KEY["e"]]
    assert draw_variants(TYPING_ERROR_NOISES["neighbouring key"], "I seem.") == typed_line_set(*nearby)
    assert all(draw_variants(kind, "I see it.") == {None} for kind in TYPING_ERROR_NOISES.values())
    assert draw_variants(TYPING_ERROR_NOISES["neighbouring key"], "PLLL") == typed_line_set("OLLL", "LLLL")


def test_keys_are_neighbours_of_each_other() -> None:
    assert len(NEIGHBOURS_BY_KEY) == 52
    assert all(key in NEIGHBOURS_BY_KEY[other] for key, near in NEIGHBOURS_BY_KEY.items() for other in near)


def test_a_kind_that_does_not_apply_changes_nothing() -> None:
    assert SENTENCE_NOISES["stop for ?"]("I see.", Random(1)) is None
    assert SENTENCE_NOISES["capitals"]("Hello!", Random(1)) == TypedLine("Hello!")
    assert WORD_NOISES["capitals"]("Hello!", Random(1)) == TypedLine("HELLO!")
    assert typing_noise.second_sentence_noise({"No.": ["不。"]})("No.", Random(1)) is None
    assert typing_noise.second_sentence_noise({"No": ["不"], "I see.": ["我明白。"]})("No", Random(1)) is None


def test_normalize_tells_wrong_from_right() -> None:
    assert normalize("- “你好”，Tom !! 👋🏽") == normalize("你好，TOM。👋")
    assert normalize("我爱你 ❤️") == normalize("我爱你。❤")
    assert normalize("1. 你好。") == normalize("1、你好！")
    others = "你好。", "你好。😊", "你好。😂", "1. 你好。", "2. 你好。", "您好。"
    assert len(set(map(normalize, others))) == 6


def fake_translations(sources: Sequence[str]) -> list[Translation]:
    """As of a model that cannot read capitals or a line that ends in ??, and copies emoji and numbers, but not 😊."""
    known = {**EVERYDAY_PAIRS, "hello": "你好", "go": "走"}
    outputs = []
    for source in sources:
        if source == "Unknown words":
            outputs.append(Translation("生", 0.0))
        elif source.endswith("??"):
            outputs.append(Translation("?", 0.0, unsure=True))
        elif source.isupper():
            outputs.append(Translation("大写", 0.0))
        else:
            text = normalize(source.replace("😊", ""))
            for english, chinese in known.items():
                text = text.replace(normalize(english), chinese)
            outputs.append(Translation(known.get(source, text), 0.0))
    return outputs


def test_rows_and_totals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "phrasebook").mkdir()
    copied = {f"line {i}": "1931年，B。" for i in range(len(VALUE_LINE_CANDIDATES))}
    for name, pairs in (
        ("everyday", EVERYDAY_PAIRS),
        ("everyday_dev", {"I see.": "我懂。"}),
        ("phrasebook/formulas", EVERYDAY_PAIRS),
        ("values", copied),
        ("names", copied),
    ):
        (tmp_path / f"{name}.en").write_text("\n".join(pairs), encoding="utf-8")
        (tmp_path / f"{name}.zh").write_text("\n".join(pairs.values()), encoding="utf-8")
    (tmp_path / "values.zh.2").write_text("B，31年。\n" * len(VALUE_LINE_CANDIDATES), encoding="utf-8")
    rows = "# words\nhello\t您好\nrare\t少\nHello!\t你好！\t嗨！\n{animal}\t{animal}\nGo.\t走。\ngo on\t继续\n"
    (tmp_path / "phrasebook" / "words.tsv").write_text(rows, encoding="utf-8")
    (tmp_path / "train.en").write_text("Go, go!\nI say hello.\nGo on, hello!", encoding="utf-8")
    monkeypatch.setattr(typing_noise, "CORPUS_DIR", tmp_path)
    monkeypatch.setattr(typing_noise, "N_SINGLE_WORDS", 2)
    translator = SimpleNamespace(translations=fake_translations, translate=lambda _: VALUE_LINE_CANDIDATES)
    monkeypatch.setattr(Translator, "load", lambda *_, **__: translator)
    assert list(typing_noise.frequent_words().items()) == [("Go.", ["走。"]), ("hello", ["您好", "你好！", "嗨！"])]

    assert typing_noise.main(["run", "--examples", "1"]) == 0
    first, _, *table = capsys.readouterr().out.splitlines()
    assert first == "3 of 4 sentences are right as they stand"
    middle = table.index("")
    shown = {line[:22].strip(): line[22:].split() for line in table[1:middle] if not line.startswith("    ")}
    assert shown["lower case"] == shown["no end mark"] == shown["second sentence"] == ["3", "100.0%", "-"]
    assert shown["capitals"] == ["3", "0.0%", "0.0%"]
    assert shown["!! or ??"] == ["3", "66.7%", "100.0%"]
    assert shown["stop for ?"] == shown["no apostrophes"] == shown["no blank after comma"] == ["1", "100.0%", "-"]
    assert shown["number before"] == ["3", "100.0%", "-"]
    assert all(shown[name] == ["1", "0.0%", "0.0%"] for name in TYPING_ERROR_NOISES)
    assert shown["typing errors"] == ["4", "0.0%", "0.0%"]
    total = shown["all"]
    kinds = {name: cells for name, cells in shown.items() if name not in ("typing errors", "all")}
    assert [*kinds] == [*SENTENCE_NOISES, *TYPING_ERROR_NOISES, "second sentence"]
    assert int(total[0]) == sum(int(n) for n, *_ in kinds.values())
    wrong = sum(round(int(n) * (100 - float(right[:-1])) / 100) for n, right, _ in kinds.values() if right != "-")
    assert total[1] == f"{100 - 100 * wrong / int(total[0]):.1f}%"
    assert total[2] == f"{100 / wrong:.1f}%"
    examples = [line for line in table[:middle] if line.startswith("    ")]
    assert examples[0] == "    DON'T GO, TOM.\t大写"
    assert sum("??" in line for line in examples) == 1

    end = table.index("", middle + 1)
    noises = {line[:22].strip(): line[22:].split() for line in table[middle + 2 : end]}
    assert [*noises] == ["clean", *WORD_NOISES]
    assert noises["clean"] == ["75.0%", "of", "4", "100.0%", "of", "2"]
    assert noises["capitals"] == ["0.0%", "of", "4", "0.0%", "of", "2"]
    assert noises["lower case"] == ["100.0%", "of", "4", "100.0%", "of", "1"]

    wrong_ones = [f"{line}\t{output}" for line, output in zip(copied, VALUE_LINE_CANDIDATES, strict=True)][1:]
    values, names = [*wrong_ones[1:], "values: 2 of 5 copied"], [*wrong_ones, "names: 1 of 5 copied"]
    assert table[end + 1 :] == [*values, *names]


@pytest.mark.parametrize("script", [typing_noise, draw_pictures])
def test_a_folder_that_is_not_a_run_is_refused(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        script.main(["no/such"])
    assert ": error: no/such" in capsys.readouterr().err
