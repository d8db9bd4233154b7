import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from minitrans.translate import metrics
from minitrans.translate.bundle import Threshold
from minitrans.translate.metrics import choose_threshold, mean_and_std, score, score_systems, score_unsure
from minitrans.translate.translator import Translation

REFERENCES = [f"the {i} cats sat on the mat by the door" for i in range(40)]
GOOD_OUTPUT = [line.replace("mat", "rug") if i % 5 == 0 else line for i, line in enumerate(REFERENCES)]
BAD_OUTPUT = [line.replace("sat on", "lay under") if i % 5 else line for i, line in enumerate(REFERENCES)]


@pytest.mark.parametrize(
    ("tokenizer", "targets"),
    [
        ("zh", "zh zh-CN ZH_Hans zho_Hans chi cmn yue_Hant wuu cn Chinese"),
        ("char", "ja jpn_Jpan ko kor_Hang th tha_Thai lo lao_Laoo km khm_Khmr my mya_Mymr bur bod_Tibt dzo jp"),
        ("13a", "de de-AT deu_Latn en vi vie x"),
    ],
)
def test_languages_without_spaces_are_split_into_characters_however_their_code_is_spelled(
    tokenizer: str, targets: str
) -> None:
    for target in targets.split():
        assert f"|tok:{tokenizer}|" in score(["我"], ["我"], target).bleu_signature
    assert "|tok:char|" in score(["我"], ["我"], "zh", "char").bleu_signature


@given(st.lists(st.tuples(*[st.lists(st.sampled_from("abcd"), max_size=7).map(" ".join)] * 2), min_size=1))
@example([("a b c", "a b c"), ("a", "a"), ("", "b")])
def test_bleu_is_that_of_sacrebleu_but_not_0_where_all_translations_are_short(pairs: list[tuple[str, str]]) -> None:
    translations, references = zip(*pairs, strict=True)
    usual = BLEU().corpus_score(translations, [references])
    assert score(references, references, "en").bleu == pytest.approx(100 if any(references) else 0)
    if usual.totals[-1]:
        assert score(translations, references, "en").bleu == usual.score


def test_exact_match_counts_whole_sentences_after_cleaning_the_reference() -> None:
    scores = score(["a b", "c", "d", "e"], ["a  b ", "c", "D", "e."], "de")
    assert scores.exact_match == 50.0


def test_references_are_unicode_normalized_like_translations() -> None:
    written, typed = "Schöne Grüße, schöne Küsse", "Scho\u0308ne Gru\u0308ße, scho\u0308ne Ku\u0308sse"
    for references in ([typed], ["x"]), (["x"], [typed]):
        scores = score([written], references[0], "de", others=references[1:])
        assert (scores.bleu, scores.chrf, scores.exact_match) == pytest.approx((100, 100, 100))


def test_any_of_several_references_counts_and_blank_extra_ones_do_not() -> None:
    translations, references = ["a b c d", "", "x y z w"], ["a b c e", "p q", "x  y z w"]
    others = [["a b  c d", " ", ""]]
    scores = score(translations, references, "de", others=others)
    assert scores.exact_match == pytest.approx(200 / 3)  # a blank line would have made the second one right
    given = [references, ["a b  c d", None, None]]
    assert scores.bleu == BLEU().corpus_score(translations, given).score  # type: ignore[arg-type]
    assert scores.chrf == CHRF().corpus_score(translations, given).score  # type: ignore[arg-type]
    for signature in (scores.bleu_signature, scores.chrf_signature):
        assert signature.startswith("nrefs:var|")
    assert score(translations, references, "de", others=[references]).bleu_signature.startswith("nrefs:2|")
    with pytest.raises(ValueError, match="cannot score"):
        score(translations, references, "de", others=[["a"]])


def test_the_bootstrap_uses_all_references() -> None:
    others = [[line if i % 2 else "" for i, line in enumerate(REFERENCES)]]
    first, second = score_systems([REFERENCES, GOOD_OUTPUT], BAD_OUTPUT, "en", others=others)
    plain = score(REFERENCES, BAD_OUTPUT, "en", others=others)
    assert (first.bleu, first.chrf, first.exact_match) == (plain.bleu, plain.chrf, plain.exact_match)
    assert first.bleu_interval is not None
    assert first.bleu_interval[0] > score(REFERENCES, BAD_OUTPUT, "en").bleu
    assert second.bleu_p is not None
    assert second.bleu_p < 0.05
    low, _ = score_systems([[*REFERENCES[:1], *["x"] * 39], REFERENCES], REFERENCES, "en")
    assert low.bleu_interval is not None
    assert low.bleu_interval[0] == 0.0 < low.bleu_interval[1]


@pytest.mark.parametrize(("translations", "references"), [([], ["a"]), (["a", "b"], ["a"]), ([], [])])
def test_unequal_or_zero_counts_are_refused(translations: list[str], references: list[str]) -> None:
    message = f"cannot score {len(translations)} translations against {len(references)} references"
    with pytest.raises(ValueError, match=message):
        score(translations, references, "en")
    with pytest.raises(ValueError, match=message):
        score_systems([references, translations], references, "en")


def test_intervals_are_those_of_sacrebleu() -> None:
    systems = [GOOD_OUTPUT, BAD_OUTPUT, ["the 0 dogs sat on the mat by the door", *REFERENCES[1:]]]
    compared = score_systems(systems, REFERENCES, "en")
    for translations, scores in zip(systems, compared, strict=True):
        for metric, interval in ((BLEU(), scores.bleu_interval), (CHRF(), scores.chrf_interval)):
            result = metric.corpus_score(translations, [REFERENCES], n_bootstrap=1000)
            expected = json.loads(result.format(width=6, signature=str(metric.get_signature()), is_json=True))
            mean, half = expected["confidence_mean"], expected["confidence_var"]
            assert half > 0.5
            assert interval == pytest.approx((mean - half, min(100, mean + half)), abs=1e-5)
    assert scores.bleu_interval is not None
    assert scores.bleu < scores.bleu_interval[1] == 100.0  # the end of the scale
    assert score_systems([*systems, REFERENCES], REFERENCES, "en")[:3] == compared  # among any others


def test_only_a_system_that_differs_from_the_first_differs_significantly() -> None:
    almost = [*GOOD_OUTPUT[:-1], REFERENCES[0]]
    first, worse, close, same = score_systems([GOOD_OUTPUT, BAD_OUTPUT, almost, GOOD_OUTPUT], REFERENCES, "en")
    assert (first.bleu_p, first.chrf_p) == (None, None)
    assert (same.bleu_p, same.chrf_p) == (1.0, 1.0)
    for p in (worse.bleu_p, worse.chrf_p):
        assert p is not None
        assert p < 0.05
    for p in (close.bleu_p, close.chrf_p):
        assert p is not None
        assert 0.05 < p < 1
    outputs: list[tuple[str, Sequence[str]]] = [("first", GOOD_OUTPUT), ("close", almost)]
    (_, columns) = PairedTest(outputs, {"BLEU": BLEU(effective_order=True)}, [REFERENCES], test_type="bs")()
    assert close.bleu_p == 2 * cast(Any, columns["BLEU"][1]).p_value  # sacreBLEU counts one tail


def test_many_lines_have_no_intervals(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("minitrans.translate.metrics.MAX_BOOTSTRAP_LINES", len(REFERENCES) - 1)
    systems = [GOOD_OUTPUT, BAD_OUTPUT]
    assert score_systems(systems, REFERENCES, "en") == [score(each, REFERENCES, "en") for each in systems]
    assert caplog.messages == [f"no intervals or p-values: they are for at most {len(REFERENCES) - 1} lines"]


def test_the_tokenizer_none_splits_only_at_spaces(caplog: pytest.LogCaptureFixture) -> None:
    translations, references = ["the cat sat on the mat ."] * 100, ["the cat sat on the mat."] * 100
    (split,) = score_systems([translations], references, "en")
    assert split.bleu == pytest.approx(100)
    caplog.clear()  # of sacreBLEU's warning that the text looks tokenized
    (whole,) = score_systems([translations], references, "en", "none")
    assert whole.bleu < 90
    assert "tok:none" in whole.bleu_signature
    assert not caplog.messages


def test_spread_over_systems() -> None:
    plain = score(GOOD_OUTPUT, REFERENCES, "en")
    systems = [replace(plain, bleu=bleu, chrf=2 * bleu, exact_match=7.0) for bleu in (30.0, 32.0, 37.0)]
    summary = mean_and_std(systems)
    assert summary["mean"] == pytest.approx({"bleu": 33, "chrf": 66, "exact_match": 7})
    assert summary["std"] == pytest.approx({"bleu": 13**0.5, "chrf": 2 * 13**0.5, "exact_match": 0})


# -- Which translations are probably wrong ----------------------------------------------------------------------------


def make_translations(*scores: float, wrong_marks: str) -> list[Translation]:
    """A translation for each score; a "w" in its place in `wrong_marks` makes it a wrong one."""
    marks = wrong_marks.ljust(len(scores))
    return [Translation("x" if mark == "w" else "right", s) for s, mark in zip(scores, marks, strict=True)]


def chosen_threshold(outputs: list[Translation]) -> Threshold | None:
    return choose_threshold(outputs, [["right", "also right"]] * len(outputs))


@pytest.mark.parametrize(
    ("scores", "wrong", "want"),
    [
        ([-5.0, -4.0, -3.0, -2.0, -1.0], "ww   ", -3.0),
        ([-1.0, -3.0, -5.0, -2.0, -4.0], "  w w", -3.0),  # in any order
        ([-5.0, -4.0, -3.0, -2.0, -1.0], "w w  ", -2.0),  # marks both wrong ones and one of 3 right ones
        ([-5.0, -4.0, -3.0, -2.0, -1.0], "w   w", -4.0),  # to mark the second too would cost three that are right
        ([-3.0, -2.0, -2.0, -1.0, -1.0], "ww   ", -1.0),  # equal scores are marked together
        ([-4.0, -3.0, -2.0, -1.0], "w w ", -3.0),  # of equally good thresholds, the one that marks fewer
        ([-3.0, -2.0, -1.0], "   ", -3.0),  # all are right: marks what is below all of them
        ([-100.0 + i for i in range(100)], " " * 9 + "w", -90.0),  # to mark the only wrong one, 9 of 99 right ones are
    ],
)
def test_the_threshold_separates_wrong_from_right_best(scores: list[float], wrong: str, want: float) -> None:
    assert chosen_threshold(make_translations(*scores, wrong_marks=wrong)) == Threshold(want, None)


def test_a_match_with_any_reference_is_right() -> None:
    outputs = [Translation("x", -3.0), Translation("also right", -2.0), Translation("right", -1.0)]
    assert chosen_threshold(outputs) == Threshold(-2.0, None)


def test_unknown_words_are_marked_whatever_the_score() -> None:
    known = make_translations(-3.0, -2.0, -1.0, -0.5, wrong_marks="w")
    assert chosen_threshold(known) == Threshold(-2.0, None)
    assert chosen_threshold([*known, Translation("x", -0.1, unknown_words=("y",))]) == Threshold(-2.0, None)
    assert chosen_threshold([Translation("x", -0.1, unknown_words=("y",))]) is None


def test_where_few_are_exact_only_a_low_chrf_is_wrong() -> None:
    far, near, right = (Translation(text, s) for text, s in (("x", -3.0), ("right!", -2.0), ("right", -1.0)))
    assert chosen_threshold([far, near, right]) == Threshold(-2.0, metrics.MIN_CORRECT_CHRF)
    assert chosen_threshold([far, near, right, right]) == Threshold(-1.0, None)  # half are exact


@pytest.mark.parametrize(("chrf", "precision", "recall"), [(None, 200 / 3, 50.0), (40.0, 100 / 3, 50.0)])
def test_precision_and_recall_of_unsure_marks(chrf: float | None, precision: float, recall: float) -> None:
    texts = [("x", True), ("right!", True), ("right", True), ("x", False), ("right!", False), ("right", False)]
    outputs = [Translation(text, 0.0, unsure=unsure) for text, unsure in texts]
    marks = score_unsure(outputs, [["zzz", "right"]] * 6, Threshold(-1.0, chrf))
    wrong = "equal to no reference" + ("" if chrf is None else ", chrF below 40")
    assert (marks.unsure, marks.unsure_recall, marks.unsure_wrong) == (50.0, recall, wrong)
    assert marks.unsure_precision == pytest.approx(precision)


def test_nothing_marked_and_nothing_wrong() -> None:
    sure, unsure = Translation("right", 0.0), Translation("right", 0.0, unsure=True)
    for output, percent, precision in ((sure, 0.0, None), (unsure, 100.0, 0.0)):
        expected = metrics.UnsureScores(percent, precision, None, "equal to no reference")
        assert score_unsure([output], [["right"]], Threshold(-1.0, None)) == expected
