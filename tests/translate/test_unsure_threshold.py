import pytest

from minitrans.translate.bundle import Threshold
from minitrans.translate.scoring import MIN_CORRECT_CHRF, UnsureScores, choose_threshold, score_unsure
from minitrans.translate.translator import Translation


def make_translations(*scores: float, wrong_marks: str) -> list[Translation]:
    """One for each score; `wrong_marks` says which are, by a letter w."""
    marks = wrong_marks.ljust(len(scores))
    return [Translation("x" if mark == "w" else "right", s) for s, mark in zip(scores, marks, strict=True)]


def chosen_threshold(outputs: list[Translation]) -> Threshold | None:
    return choose_threshold(outputs, [["right", "also right"]] * len(outputs))


@pytest.mark.parametrize(
    ("scores", "wrong", "want"),
    [
        ([-5.0, -4.0, -3.0, -2.0, -1.0], "ww   ", -3.0),
        ([-1.0, -3.0, -5.0, -2.0, -4.0], "  w w", -3.0),  # in any order
        ([-5.0, -4.0, -3.0, -2.0, -1.0], "w w  ", -2.0),  # both of 2, and one of 3 that are right
        ([-5.0, -4.0, -3.0, -2.0, -1.0], "w   w", -4.0),  # to mark the second too would cost three that are right
        ([-3.0, -2.0, -2.0, -1.0, -1.0], "ww   ", -1.0),  # equal scores are marked together
        ([-4.0, -3.0, -2.0, -1.0], "w w ", -3.0),  # of what tells equally well, the one that marks fewer
        ([-3.0, -2.0, -1.0], "   ", -3.0),  # all are right: what is less likely than any of them
        ([-100.0 + i for i in range(100)], " " * 9 + "w", -90.0),  # for the only one, 9 right ones of 99 are marked
    ],
)
def test_the_threshold_is_what_tells_wrong_from_right_best(scores: list[float], wrong: str, want: float) -> None:
    assert chosen_threshold(make_translations(*scores, wrong_marks=wrong)) == Threshold(want, None)


def test_any_reference_is_right() -> None:
    outputs = [Translation("x", -3.0), Translation("also right", -2.0), Translation("right", -1.0)]
    assert chosen_threshold(outputs) == Threshold(-2.0, None)


def test_unknown_words_are_marked_whatever_the_score() -> None:
    known = make_translations(-3.0, -2.0, -1.0, -0.5, wrong_marks="w")
    assert chosen_threshold(known) == Threshold(-2.0, None)
    assert chosen_threshold([*known, Translation("x", -0.1, unknown_words=("y",))]) == Threshold(-2.0, None)
    assert chosen_threshold([Translation("x", -0.1, unknown_words=("y",))]) is None


def test_where_few_are_exact_only_a_low_chrf_is_wrong() -> None:
    far, near, right = (Translation(text, s) for text, s in (("x", -3.0), ("right!", -2.0), ("right", -1.0)))
    assert chosen_threshold([far, near, right]) == Threshold(-2.0, MIN_CORRECT_CHRF)
    assert chosen_threshold([far, near, right, right]) == Threshold(-1.0, None)  # half are exact


@pytest.mark.parametrize(("chrf", "precision", "recall"), [(None, 200 / 3, 50.0), (40.0, 100 / 3, 50.0)])
def test_marks_are_counted(chrf: float | None, precision: float, recall: float) -> None:
    texts = [("x", True), ("right!", True), ("right", True), ("x", False), ("right!", False), ("right", False)]
    outputs = [Translation(text, 0.0, unsure=unsure) for text, unsure in texts]
    marks = score_unsure(outputs, [["zzz", "right"]] * 6, Threshold(-1.0, chrf))
    wrong = "equal to no reference" + ("" if chrf is None else ", chrF below 40")
    assert (marks.unsure, marks.unsure_recall, marks.unsure_wrong) == (50.0, recall, wrong)
    assert marks.unsure_precision == pytest.approx(precision)


def test_nothing_marked_and_nothing_wrong() -> None:
    sure, unsure = Translation("right", 0.0), Translation("right", 0.0, unsure=True)
    for output, percent, precision in ((sure, 0.0, None), (unsure, 100.0, 0.0)):
        expected = UnsureScores(percent, precision, None, "equal to no reference")
        assert score_unsure([output], [["right"]], Threshold(-1.0, None)) == expected
