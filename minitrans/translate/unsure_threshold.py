"""Which translations are probably wrong: the score below which they are marked, and how often the mark is right."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sacrebleu.metrics.chrf import CHRF

from minitrans.translate.bundle import Threshold
from minitrans.translate.translator import Translation

MIN_EXACT_MATCH_SHARE = 0.5  # if at least this share of translations equals a reference, all others are called wrong
MIN_CORRECT_CHRF = 40.0  # if a smaller share does, only those others with a lower sentence chrF are


@dataclass(frozen=True)
class UnsureScores:
    """How the mark "unsure" fits; the field names are those of `minitrans evaluate --json`.

    Attributes:
        unsure: Percent of translations that are marked.
        unsure_precision: Percent of the marked that are wrong; None where none is marked.
        unsure_recall: Percent of the wrong that are marked; None where none is wrong.
        unsure_wrong: Which are wrong, in words.
    """

    unsure: float
    unsure_precision: float | None
    unsure_recall: float | None
    unsure_wrong: str


def choose_threshold(translations: Sequence[Translation], references: Sequence[Sequence[str]]) -> Threshold | None:
    """Choose the score that best tells wrong translations from right ones.

    A translation that equals no reference is wrong. If more than half equal none, that says little, and only those with
    a sentence chrF below MIN_CORRECT_CHRF are wrong. The score maximises the share of wrong translations that are
    marked plus the share of right ones that are not; it does not depend on how many are wrong, which differs from text
    to text. A translation of unknown words is marked whatever its score.

    Args:
        translations: Of a validation set, with scores of length penalty 1.
        references: All right translations of each, clean.

    Returns:
        None if each translation has an unknown word.

    Source: Youden 1950, the index J.
    """
    equal = [t.text in right for t, right in zip(translations, references, strict=True)]
    chrf = None if np.mean(equal) >= MIN_EXACT_MATCH_SHARE else MIN_CORRECT_CHRF
    wrong = _error_labels(translations, references, chrf)
    scores = np.array([-np.inf if t.unknown else t.score for t in translations])
    candidates = np.unique(scores[np.isfinite(scores)])
    if not candidates.size:
        return None
    wrong_below, right_below = (
        np.searchsorted(np.sort(scores[which]), candidates) / max(1, which.sum()) for which in (wrong, ~wrong)
    )
    return Threshold(float(candidates[np.argmax(wrong_below - right_below)]), chrf)


def score_unsure(
    translations: Sequence[Translation], references: Sequence[Sequence[str]], threshold: Threshold
) -> UnsureScores:
    """Compare the marks of one or more translations with their references, clean; `threshold` says what is wrong."""
    wrong, unsure = _error_labels(translations, references, threshold.chrf), np.array([t.unsure for t in translations])
    both = (wrong & unsure).sum()
    return UnsureScores(
        unsure=100 * float(unsure.mean()),
        unsure_precision=100 * float(both / unsure.sum()) if unsure.any() else None,
        unsure_recall=100 * float(both / wrong.sum()) if wrong.any() else None,
        unsure_wrong="equal to no reference" + ("" if threshold.chrf is None else f", chrF below {threshold.chrf:g}"),
    )


def _error_labels(
    translations: Sequence[Translation], references: Sequence[Sequence[str]], chrf: float | None
) -> "np.typing.NDArray[np.bool_]":
    """Which translations equal no reference, and have a sentence chrF below `chrf` if that is given."""
    metric = CHRF()
    return np.array(
        [
            text not in right and (chrf is None or metric.sentence_score(text, right).score < chrf)
            for (text, *_), right in zip(translations, references, strict=True)
        ]
    )
