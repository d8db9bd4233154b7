import pytest

from minitrans.scoring import score


def test_equal_texts_score_100() -> None:
    scores = score(["我爱你。", "这是一本书。"], ["我爱你。", "这是一本书。"], "zh")
    assert scores.bleu == pytest.approx(100)
    assert scores.chrf == pytest.approx(100)
    assert (scores.exact_match, scores.sentences) == (100.0, 2)


def test_chinese_is_split_into_characters_and_german_into_words() -> None:
    assert "tok:zh" in score(["我"], ["我"], "zh").bleu_signature
    assert "tok:13a" in score(["ich"], ["ich"], "de").bleu_signature


def test_exact_match_counts_whole_sentences_after_cleaning_the_reference() -> None:
    scores = score(["a b", "c", "d", "e"], ["a  b ", "c", "D", "e."], "de")
    assert scores.exact_match == 50.0


def test_a_worse_translation_scores_lower() -> None:
    reference = ["the cat sat on the mat today"]
    good, bad = score(["the cat sat on the mat"], reference, "en"), score(["a dog sat on the rug"], reference, "en")
    assert good.bleu > bad.bleu
    assert good.chrf > bad.chrf


@pytest.mark.parametrize("translations", [[], ["a", "b"]])
def test_counts_have_to_agree(translations: list[str]) -> None:
    with pytest.raises(ValueError, match=rf"cannot score {len(translations)} translations against 1 references"):
        score(translations, ["a"], "en")


def test_nothing_cannot_be_scored() -> None:
    with pytest.raises(ValueError, match="0 references"):
        score([], [], "en")
