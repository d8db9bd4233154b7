"""How good translations are: BLEU and chrF by sacreBLEU, and exact match; and which are often wrong."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import cast

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest, Result

from minitrans.text.lines import base_language
from minitrans.text.reading import clean
from minitrans.translate.bundle import Threshold
from minitrans.translate.translator import Translation

logger = logging.getLogger("minitrans")
# These languages have no spaces or, like Korean, too few; others get sacreBLEU's default, 13a, which splits there.
BLEU_TOKENIZERS = dict.fromkeys(("zh", "yue", "wuu", "nan", "hak", "gan", "hsn", "lzh"), "zh")
BLEU_TOKENIZERS |= dict.fromkeys(("ja", "ko", "th", "lo", "km", "my", "shn", "bo", "dz"), "char")
MIN_EXACT_MATCH_SHARE = 0.5  # if at least this share of translations equals a reference, all others are called wrong
MIN_CORRECT_CHRF = 40.0  # if a smaller share does, only those others with a lower sentence chrF are
MAX_BOOTSTRAP_LINES = 10_000  # sacreBLEU's bootstrap holds 80 KB for each


@dataclass(frozen=True)
class Scores:
    """The scores of a set of translations; the field names are those of `minitrans evaluate --json`.

    Attributes:
        bleu, chrf: Corpus BLEU and chrF2, 0 to 100.
        bleu_signature, chrf_signature: sacreBLEU's account of how they were computed.
        exact_match: Percent of translations equal to a reference.
        sentences: How many translations were scored.
        bleu_interval, chrf_interval: Ends of the 95% bootstrap interval; None without a bootstrap, as from `score`.
        bleu_p, chrf_p: How probable a difference at least as large, either way, is if this system and the first one,
            which it is compared with, are equally good; None for the first one itself, and without a bootstrap.
    """

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    exact_match: float
    sentences: int
    bleu_interval: tuple[float, float] | None = None
    chrf_interval: tuple[float, float] | None = None
    bleu_p: float | None = None
    chrf_p: float | None = None


def score(
    translations: Sequence[str],
    references: Sequence[str],
    target: str,
    tokenize: str | None = None,
    others: Sequence[Sequence[str]] = (),
) -> Scores:
    """Compare translations with references, one to one.

    Args:
        translations: What the model wrote.
        references: What it should have written; as many.
        target: Language of both ("zh"), which decides how BLEU splits words.
        tokenize: How BLEU splits words instead: the name of a sacreBLEU tokenizer; "none" splits at spaces alone.
        others: Further references, each of as many lines; a blank line is no reference.

    Raises:
        ValueError: There is nothing to score, or the counts differ.
    """
    if not references or {len(translations), *map(len, others)} != {len(references)}:
        raise ValueError(f"cannot score {len(translations)} translations against {len(references)} references")
    bleu, chrf = _metrics(target, tokenize)
    equal = sum(t in right for t, right in zip(translations, references_by_line(references, others), strict=True))
    return Scores(
        bleu=bleu.corpus_score(translations, _reference_streams(references, others)).score,
        bleu_signature=str(bleu.get_signature()),
        chrf=chrf.corpus_score(translations, _reference_streams(references, others)).score,
        chrf_signature=str(chrf.get_signature()),
        exact_match=100 * equal / len(references),
        sentences=len(references),
    )


def references_by_line(references: Sequence[str], others: Sequence[Sequence[str]] = ()) -> list[list[str]]:
    """The references of each line, clean: one at least, and those of the others that are not blank."""
    rows = zip(references, *others, strict=True)
    return [[clean(first), *filter(None, map(clean, further))] for first, *further in rows]


def score_systems(
    systems: Sequence[Sequence[str]],
    references: Sequence[str],
    target: str,
    tokenize: str | None = None,
    others: Sequence[Sequence[str]] = (),
) -> list[Scores]:
    """Score the translations of each system, with intervals, and test each against the first.

    Intervals and p-values come from sacreBLEU's paired bootstrap with 1,000 resamples (Koehn 2004). They are the same
    every time: its seed is fixed, by the environment variable SACREBLEU_SEED if that is a number other than 0. There
    are none of more than MAX_BOOTSTRAP_LINES lines, which would take gigabytes.

    All but `systems`, which is what each of them wrote, is as for `score`.

    Raises:
        ValueError: There is nothing to score, or the counts differ.
    """
    scores = [score(translations, references, target, tokenize, others) for translations in systems]
    if len(references) > MAX_BOOTSTRAP_LINES:
        logger.warning("no intervals or p-values: they are for at most %d lines", MAX_BOOTSTRAP_LINES)
        return scores
    bleu, chrf = _metrics(target, tokenize)
    named = [(str(i), translations) for i, translations in enumerate(systems)]
    streams = _reference_streams(references, others)
    signatures, columns = PairedTest(named, {"BLEU": bleu, "chrF2": chrf}, streams, test_type="bs")()
    bleus, chrfs = (cast(list[Result], columns[name]) for name in ("BLEU", "chrF2"))
    return [
        replace(
            plain,
            bleu_signature=str(signatures["BLEU"]),
            chrf_signature=str(signatures["chrF2"]),
            bleu_interval=_interval_bounds(bleu_result),
            chrf_interval=_interval_bounds(chrf_result),
            bleu_p=_p_value(bleu_result, bleus[0]),
            chrf_p=_p_value(chrf_result, chrfs[0]),
        )
        for plain, bleu_result, chrf_result in zip(scores, bleus, chrfs, strict=True)
    ]


def mean_and_std(scores: Sequence[Scores]) -> dict[str, dict[str, float]]:
    """`mean` and `std`, the sample standard deviation, of BLEU, chrF and exact match over two or more systems."""
    columns = {name: [getattr(s, name) for s in scores] for name in ("bleu", "chrf", "exact_match")}
    return {
        "mean": {name: mean(values) for name, values in columns.items()},
        "std": {name: stdev(values) for name, values in columns.items()},
    }


def _reference_streams(references: Sequence[str], others: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """All references, clean, as sacreBLEU takes them: None for a missing one, although its annotations lack that."""
    return [[*map(clean, references)], *([clean(line) or cast(str, None) for line in lines] for lines in others)]


def _metrics(target: str, tokenize: str | None) -> tuple[BLEU, CHRF]:
    tokenize = tokenize or BLEU_TOKENIZERS.get(base_language(target), "13a")
    # The order is 4, as usual, if any translation has 4 tokens. `force` stops a warning that the text looks tokenized.
    return BLEU(tokenize=tokenize, effective_order=True, force=tokenize == "none"), CHRF()


def _interval_bounds(result: Result) -> tuple[float, float]:
    # sacreBLEU gives the resamples' mean and half the interval's width; their sum may pass the end of the scale.
    assert result.mean is not None
    assert result.ci is not None
    return max(0.0, float(result.mean - result.ci)), min(100.0, float(result.mean + result.ci))


def _p_value(result: Result, first: Result) -> float | None:
    # Of a clear difference sacreBLEU counts one tail. It gives 0.001 to equal systems, whose difference is all chance.
    if result.p_value is None:  # the first itself
        return None
    return 1.0 if result.score == first.score else min(1.0, 2 * result.p_value)


@dataclass(frozen=True)
class UnsureScores:
    """How well the mark "unsure" fits; the field names are those of `minitrans evaluate --json`.

    Attributes:
        unsure: Percent of translations that are marked.
        unsure_precision: Percent of the marked translations that are wrong; None where none is marked.
        unsure_recall: Percent of the wrong translations that are marked; None where none is wrong.
        unsure_wrong: What counts as wrong, in words.
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
    wrong = _wrong_mask(translations, references, chrf)
    scores = np.array([-np.inf if t.unknown_words else t.score for t in translations])
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
    wrong, unsure = _wrong_mask(translations, references, threshold.chrf), np.array([t.unsure for t in translations])
    both = (wrong & unsure).sum()
    return UnsureScores(
        unsure=100 * float(unsure.mean()),
        unsure_precision=100 * float(both / unsure.sum()) if unsure.any() else None,
        unsure_recall=100 * float(both / wrong.sum()) if wrong.any() else None,
        unsure_wrong="equal to no reference" + ("" if threshold.chrf is None else f", chrF below {threshold.chrf:g}"),
    )


def _wrong_mask(
    translations: Sequence[Translation], references: Sequence[Sequence[str]], chrf: float | None
) -> "np.typing.NDArray[np.bool_]":
    """Which translations equal no reference, and have a sentence chrF below `chrf` if that is given."""
    metric = CHRF()
    wrong = [
        text not in right and (chrf is None or metric.sentence_score(text, right).score < chrf)
        for (text, *_), right in zip(translations, references, strict=True)
    ]
    return np.array(wrong)
