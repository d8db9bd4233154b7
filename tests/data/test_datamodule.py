import itertools
from pathlib import Path
from typing import Any

import pytest
from corpora import Pairs, data_config, decode_pairs, write_pairs

from minitrans.data.datamodule import TranslationDataModule
from minitrans.errors import UserError
from minitrans.text.tokenizer import Tokenizer, TokenizerConfig

WORDS = ["a", "b", "c", "d"]
TRAIN = [(" ".join(words), " ".join(words[:i] * 2)) for i in (1, 2, 3) for words in itertools.product(WORDS, repeat=3)]
VALID: Pairs = [("a b c d", "d c b a"), ("a", "a " * 30), ("b", ""), *TRAIN[::3]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    splits = {"train": TRAIN, "valid": VALID, "test": VALID[1:], "test_2016": VALID[:1]}
    return write_pairs(tmp_path_factory.mktemp("corpus"), "lines", splits)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([" ".join(WORDS)], TokenizerConfig(vocab_size=268))


def data_module(folder: Path, tokenizer: Tokenizer, **limits: Any) -> TranslationDataModule:
    settings = data_config(folder, batch_tokens=200, cache_dir=str(folder / "cache"), **limits)
    return TranslationDataModule(settings, tokenizer, max_len=20, seed=5)


def test_an_epoch_holds_every_training_pair_once(folder: Path, tokenizer: Tokenizer) -> None:
    batches = list(data_module(folder, tokenizer).train_dataloader())
    assert sorted(decode_pairs(batches, tokenizer)) == sorted(TRAIN)
    for batch in batches:
        assert (batch.tgt_in[:, 0] == tokenizer.bos_id).all()
        for ids in (batch.src_ids, batch.tgt_out):
            assert ((ids == tokenizer.eos_id).sum(dim=1) == 1).all()
    assert 0.7 * 200 < max(ids.numel() for batch in batches for ids in batch) <= 200


def test_validation_holds_pairs_that_fit(folder: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    batches = data_module(folder, tokenizer).val_dataloader()
    left_out = [message for message in caplog.messages if "left out" in message]
    assert left_out == [f"left out 1 of {len(VALID)} validation pairs: longer than max_len, 20 tokens"]
    assert len(batches) > 3
    assert sorted(decode_pairs(batches, tokenizer)) == sorted([VALID[0], *VALID[2:]])


def test_texts_leave_nothing_out(folder: Path, tokenizer: Tokenizer) -> None:
    data = data_module(folder, tokenizer)
    assert data.test_splits == ["test", "test_2016"]
    for split, pairs in {"valid": VALID, "test_2016": VALID[:1], "train": TRAIN}.items():
        assert data.texts(split) == tuple(map(list, zip(*pairs, strict=True)))


@pytest.mark.parametrize("streaming", [False, True])
def test_the_state_has_a_checksum_of_the_text(streaming: bool, tmp_path: Path, tokenizer: Tokenizer) -> None:
    def checksum(train: Pairs, *valid: tuple[str, str]) -> int:
        folder = write_pairs(tmp_path, "lines", {"train": train, "valid": [*VALID, *valid]})
        return data_module(folder, tokenizer, streaming=streaming).state_dict()["text"]

    before = checksum(TRAIN, ("a", "c"), ("b c", "d"))
    assert before == checksum(TRAIN, ("a ", "c"), ("b  c", "d"))
    assert before != checksum(TRAIN, ("a b", "c"), ("c", "d"))  # the same ids in a row
    assert before != checksum(TRAIN, ("d", "c"), ("b c", "a"))  # the same lengths
    assert streaming == (before == checksum(TRAIN[::-1], ("a", "c"), ("b c", "d")))  # but not of all text of a stream


def test_limits_apply_to_training_only(folder: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    lengths = {pair: sorted(1 + len(ids) for ids in tokenizer.encode_batch(pair)) for pair in TRAIN}
    longest = sorted({longer for _, longer in lengths.values()})[-2]
    ratio = sorted({longer / shorter for shorter, longer in lengths.values() if longer <= longest})[-2]
    kept = [pair for pair, (shorter, longer) in lengths.items() if longer <= longest and longer <= ratio * shorter]
    assert 0 < len(kept) < len(TRAIN)
    data = data_module(folder, tokenizer, max_length=longest, max_length_ratio=ratio)
    assert sorted(decode_pairs(data.train_dataloader(), tokenizer)) == sorted(kept)
    assert sum(len(batch.src_ids) for batch in data.val_dataloader()) == len(VALID) - 1
    n_longer = sum(longer > longest for _, longer in lengths.values())
    message = f"left out {n_longer} of {len(TRAIN)} training pairs: longer than data.max_length, {longest} tokens"
    assert message in caplog.messages
    faults = "shorter than data.min_length, 30 tokens"
    with pytest.raises(UserError, match=f"none of {len(TRAIN)} training pairs is left: {faults}; set other limits"):
        data_module(folder, tokenizer, min_length=30)
