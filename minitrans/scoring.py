"""How good translations are: BLEU and chrF by sacreBLEU, and exact match."""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from minitrans.text import clean

BLEU_TOKENIZERS = {"zh": "zh", "ja": "char", "ko": "char", "th": "char"}  # 13a, sacreBLEU's default, splits at spaces


@dataclass(frozen=True)
class Scores:
    """The scores of a set of translations; the field names are those of `minitrans evaluate --json`.

    Attributes:
        bleu: Corpus BLEU, 0 to 100.
        bleu_signature: sacreBLEU's account of how BLEU was computed.
        chrf: Corpus chrF2, 0 to 100.
        chrf_signature: The same for chrF.
        exact_match: Percent of translations equal to their reference.
        sentences: How many translations were scored.
    """

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    exact_match: float
    sentences: int


def score(translations: Sequence[str], references: Sequence[str], target: str) -> Scores:
    """Compare translations with references, one to one.

    Args:
        translations: What the model wrote.
        references: What it should have written; as many.
        target: Language of both ("zh"), which decides how BLEU splits words.

    Raises:
        ValueError: There is nothing to score, or the counts differ.
    """
    if not references or len(translations) != len(references):
        raise ValueError(f"cannot score {len(translations)} translations against {len(references)} references")
    bleu, chrf = BLEU(tokenize=BLEU_TOKENIZERS.get(target, "13a")), CHRF()
    equal = sum(t == clean(r) for t, r in zip(translations, references, strict=True))
    return Scores(
        bleu=bleu.corpus_score(translations, [references]).score,
        bleu_signature=str(bleu.get_signature()),
        chrf=chrf.corpus_score(translations, [references]).score,
        chrf_signature=str(chrf.get_signature()),
        exact_match=100 * equal / len(references),
        sentences=len(references),
    )
