"""What is measured: models whose sizes and parameters hide no fault, and ragged sentences."""

from pathlib import Path

import pytest
import torch
from command_helpers import TEST_CORPUS_DIR, write_corpus

from minitrans.model.decoding import CachedStepper, greedy_decode, length_limit
from minitrans.translate.bundle import Bundle, load_bundle
from minitrans.verify.model_and_pairs import (
    DECODE_BATCH_SIZE,
    N_TEXT_PAIRS,
    RUNNING_EXAMPLE_PAIRS,
    fresh_model,
    load_run_and_pairs,
    model_and_random_pairs,
    model_and_text_pairs,
)


def read_pairs(split: str, n: int | None = None, folder: Path = TEST_CORPUS_DIR) -> list[tuple[str, str]]:
    """Sentence pairs of the tests' corpus, or of another."""
    en, zh = ((folder / f"{split}.{code}").read_text(encoding="utf-8").splitlines()[:n] for code in ("en", "zh"))
    return list(zip(en, zh, strict=True))


# Random models and sentences


def test_no_two_sizes_of_the_fresh_model_and_its_sentences_are_equal() -> None:
    model = fresh_model()
    subject, c = model_and_random_pairs(model), model.config
    batch, src_len = subject.src_ids.shape
    sizes = [batch, src_len, subject.tgt_in.size(1), c.d_model, c.n_heads, c.head_size, c.d_ff, c.n_layers]
    sizes += [c.vocab_size, c.max_len]
    assert len(set(sizes)) == len(sizes)


def test_a_fresh_model_has_no_parameter_of_0_or_1_and_depends_on_its_seed_alone() -> None:
    torch.manual_seed(1)
    one = fresh_model().state_dict()
    torch.manual_seed(2)
    same, other = fresh_model().state_dict(), fresh_model(seed=1).state_dict()
    for name, tensor in one.items():
        assert not ((tensor == 0.0) | (tensor == 1.0)).any(), name
        assert tensor.std() > 0.1, name
        assert torch.equal(tensor, same[name]), name
        assert not torch.equal(tensor, other[name]), name


def test_random_sentences_are_ragged_and_hold_no_special_ids() -> None:
    subject = model_and_random_pairs(fresh_model())
    c = subject.model.config
    special = {c.pad_id, c.bos_id, c.eos_id}
    lengths = []
    for (src, tgt), tgt_out in zip(subject.pairs(), subject.tgt_out.tolist(), strict=True):
        assert src[-1] == c.eos_id
        assert tgt[0] == c.bos_id
        assert tgt_out[: len(tgt)] == [*tgt[1:], c.eos_id]
        assert not special & {*src[:-1], *tgt[1:]}
        lengths.append((len(src), len(tgt)))
    assert len({s for s, _ in lengths}) == len({t for _, t in lengths}) == len(lengths)
    assert {s > t for s, t in lengths} == {True, False}
    first, second = subject.decode_batches
    assert torch.equal(first, subject.src_ids)
    assert second.size(0) == 7


def test_the_fresh_model_ends_some_sentences_early_some_late_and_some_not_at_all() -> None:
    subject = model_and_random_pairs(fresh_model())
    sources, limit = subject.decode_batches[0], subject.model.config.max_len
    lengths = [len(hypothesis.ids) for hypothesis in greedy_decode(CachedStepper(subject.model), sources)]
    limits = [length_limit(int((row != 0).sum()), limit) for row in sources]
    assert len(set(lengths)) > 2
    assert {length == most for length, most in zip(lengths, limits, strict=True)} == {True, False}


# Text


@pytest.fixture(scope="module")
def bundle(tiny_run: Path) -> Bundle:
    return load_bundle(tiny_run)


def test_text_is_cut_to_the_longest_that_the_model_takes(bundle: Bundle) -> None:
    long = " ".join(["I love you,"] * 50)
    subject = model_and_text_pairs(bundle, [(long, long), ("deep", "深")], [long, "deep"], [(long, "")])
    longest = bundle.model.config.max_len
    assert subject.src_ids.shape == subject.tgt_in.shape == (2, longest)
    assert subject.known_pairs == []  # it is too long to be learnt
    assert [batch.shape for batch in subject.decode_batches] == [(2, longest)]
    assert subject.model(subject.src_ids, subject.tgt_in).isfinite().all()


@pytest.mark.parametrize("n", [1, 99])
def test_there_is_padding_even_if_all_sentences_are_equally_long(n: int, bundle: Bundle) -> None:
    subject = model_and_text_pairs(bundle, [("deep learning " * n, "深度学习")], ["deep learning"], [])
    assert (subject.src_ids == bundle.model.config.pad_id).sum() == 1


def test_lines_are_decoded_shortest_first_and_thinned_out_evenly_if_there_are_many(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    pad_id, eos_id, reader = bundle.model.config.pad_id, bundle.model.config.eos_id, bundle.tokenizer.reader

    def encode(line: str) -> list[int]:
        return bundle.tokenizer.encode(reader.preprocess(line)[0])

    alone = [source for source, _ in read_pairs("test") if len(reader.to_sentences(source)) == 1]
    fitting = [source for source in alone if len(encode(source)) < bundle.model.config.max_len]
    lines = fitting[: 2 * DECODE_BATCH_SIZE + 5]
    batches = model_and_text_pairs(bundle, read_pairs("valid", 3), lines, []).decode_batches
    assert [len(batch) for batch in batches] == [DECODE_BATCH_SIZE, DECODE_BATCH_SIZE, 5]
    rows = [[i for i in row if i != pad_id] for batch in batches for row in batch.tolist()]
    assert sorted(rows) == sorted([*encode(line), eos_id] for line in lines)
    assert [len(row) for row in rows] == sorted(len(row) for row in rows)
    monkeypatch.setattr("minitrans.verify.model_and_pairs.MAX_DECODE_LINES", 10)
    (batch,) = model_and_text_pairs(bundle, read_pairs("valid", 3), lines[:25], []).decode_batches
    assert (batch != pad_id).sum(1).tolist() == sorted(len(encode(line)) + 1 for line in lines[:25])[::3]


def test_pairs_of_all_lengths_are_chosen(bundle: Bundle) -> None:
    pairs = read_pairs("valid", 5 * N_TEXT_PAIRS + 1)
    subject = model_and_text_pairs(bundle, pairs, ["deep"], [])
    lengths = sorted(len(bundle.tokenizer.encode(source)) for source, _ in pairs)
    chosen = [len(source) for source, _ in subject.pairs()]
    assert len(chosen) == N_TEXT_PAIRS
    assert min(chosen) <= lengths[5]
    assert max(chosen) >= lengths[-10]
    assert len(model_and_text_pairs(bundle, pairs[:3], ["deep"], []).pairs()) == 3
    several = model_and_text_pairs(bundle, pairs[: 2 * N_TEXT_PAIRS - 1], ["deep"], []).pairs()
    lengths = sorted(len(bundle.tokenizer.encode(source)) for source, _ in pairs[: 2 * N_TEXT_PAIRS - 1])
    assert max(len(source) for source, _ in several) >= lengths[-3]


# Runs


def test_a_run_is_measured_on_its_own_validation_and_test_text(tiny_run: Path, bundle: Bundle) -> None:
    subject = load_run_and_pairs(tiny_run)
    assert subject.dtype == torch.float64
    assert torch.equal(subject.model.output.weight, bundle.model.output.weight.double())
    want = model_and_text_pairs(bundle, read_pairs("valid", 12), [source for source, _ in read_pairs("test", 15)], [])
    assert torch.equal(subject.src_ids, want.src_ids)
    assert torch.equal(subject.tgt_in, want.tgt_in)
    assert [batch.tolist() for batch in subject.decode_batches] == [batch.tolist() for batch in want.decode_batches]
    assert subject.known_pairs == []


def test_without_a_test_set_the_validation_text_is_decoded_and_known_examples_are_used(
    tiny_run: Path, bundle: Bundle, tmp_path: Path
) -> None:
    known = list(RUNNING_EXAMPLE_PAIRS.items())[:2]
    for split, pairs in (("train", [*read_pairs("train", 9), *known]), ("valid", read_pairs("valid", 4))):
        for language, lines in zip(("en", "zh"), zip(*pairs, strict=True), strict=True):
            (tmp_path / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    subject = load_run_and_pairs(tiny_run, str(tmp_path))
    assert [len(batch) for batch in subject.decode_batches] == [4]
    assert subject.known_pairs == [tuple(map(bundle.tokenizer.encode, (en.lower(), zh))) for en, zh in known]
    (source, _), *_ = subject.known_pairs
    assert "".join(subject.piece(i) for i in source).replace("▁", " ").strip() == known[0][0].lower()
    write_corpus(tmp_path, test=3)
    for language in ("en", "zh"):
        (tmp_path / f"more.{language}").write_text("a\nb\n")
    assert sum(map(len, load_run_and_pairs(tiny_run, str(tmp_path)).decode_batches)) == 5  # of both test sets


def test_the_shipped_corpus_contains_the_running_example() -> None:
    shipped = read_pairs("train", folder=Path(__file__).parents[2] / "data" / "en-zh")
    assert set(RUNNING_EXAMPLE_PAIRS.items()) <= set(shipped)
