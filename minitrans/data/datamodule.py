"""Feeds batches to Lightning, and lets it stop in the middle of an epoch and resume there."""

import zlib
from collections import Counter, UserList
from typing import Any

import numpy as np
from datasets import DatasetDict
from lightning.pytorch import LightningDataModule

from minitrans.data.batching import Batch, batches_of_rank, collate_rows, plan_batches, row_lengths
from minitrans.data.corpus import find_pair_numbers, load_corpus, read_id_rows, tokenize_corpus
from minitrans.data.loader import EpochLoader
from minitrans.data.noise import Noise
from minitrans.data.settings import DataConfig
from minitrans.data.stream import StreamLoader, add_word_counts
from minitrans.text.tokenizer import Tokenizer


class TranslationDataModule(LightningDataModule):
    """Batches for training and validation, and the text of every split for evaluation.

    Args:
        config: Which corpus, and how large the batches are.
        tokenizer: Encodes both sides, and knows the special ids.
        max_len: Most tokens of either side, EOS (or BOS) counted. Longer pairs are left out of training and of the
            validation loss.
        seed: Seed of the shuffling, 0 or more.
        corpus: What `load_corpus` has returned, if it has been called already.

    Attributes:
        text_checksum: Checksum of the pairs of `valid` and, unless it is a stream, `train`.

    Raises:
        UserError: The corpus is missing or faulty, or none of its pairs is short enough.
    """

    def __init__(
        self, config: DataConfig, tokenizer: Tokenizer, max_len: int, seed: int, corpus: DatasetDict | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.tokenizer = tokenizer
        self._corpus = corpus or load_corpus(config)
        splits = ["valid"] if config.streaming else ["train", "valid"]
        tokenized = tokenize_corpus(DatasetDict({k: self._corpus[k] for k in splits}), tokenizer, config.cache_dir)
        self._valid = read_id_rows(tokenized["valid"], "validation", max_len)
        noise = Noise(config.noise, tokenizer, config.target, max_len, seed) if config.noise else None
        self._train: EpochLoader | StreamLoader
        if config.streaming:
            others = DatasetDict({k: v for k, v in self._corpus.items() if k != "train"})
            self._train = StreamLoader(config, tokenizer, max_len, seed, others, noise)
        else:
            self._src, tgt = read_id_rows(tokenized["train"], "training", max_len, config)
            settings = tokenizer.pad_bos_eos_ids, config.batch_tokens, seed, noise, config.reversed_epochs
            self._train = EpochLoader(self._src, tgt, *settings)
        self.text_checksum = 0
        for rows in self._valid if config.streaming else (*self._valid, self._src, tgt):
            for numbers in (row_lengths(rows), np.asarray(rows.flatten())):
                self.text_checksum = zlib.crc32(numbers.data, self.text_checksum)

    def train_dataloader(self) -> EpochLoader | StreamLoader:
        """Return a loader of `Batch`es, shuffled again in every epoch; a stream has no end."""
        return self._train

    def val_dataloader(self) -> UserList[Batch]:
        """Return this process's `Batch`es, the same in every epoch."""
        src, tgt = self._valid
        plan = plan_batches(row_lengths(src) + 1, row_lengths(tgt) + 1, self.config.batch_tokens, None)
        special_ids = self.tokenizer.pad_bos_eos_ids
        batches = (collate_rows(src.take(rows), tgt.take(rows), *special_ids) for rows in batches_of_rank(plan))
        return UserList(batches)  # Lightning would take a list for several loaders

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the training data, and `text_checksum`, which Lightning saves with a checkpoint."""
        return self._train.state_dict() | {"text": self.text_checksum}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to a saved place in the training data."""
        self._train.load_state_dict(state_dict)

    @property
    def test_splits(self) -> list[str]:
        """Names of the test sets: all splits but `train` and `valid`."""
        return [split for split in self._corpus if split not in ("train", "valid")]

    def texts(self, split: str) -> tuple[list[str], list[str]]:
        """Return the source lines and the target lines of a split, as `load_corpus` gives them."""
        pairs = self._corpus[split]
        return pairs["source"][:], pairs["target"][:]

    def source_words(self) -> list[str] | None:
        """Return the different words of all training sources, or of those that a stream has read so far.

        The most frequent come first. None means that there are too many.
        """
        counts: Counter[str] | None = Counter()
        if isinstance(self._train, StreamLoader):
            counts = self._train.words
        else:
            for start in range(0, len(self._src), 1000):
                rows = self._src[start : start + 1000].to_pylist()
                counts = add_word_counts(counts, map(self.tokenizer.decode, rows))
        return None if counts is None else sorted(counts, key=lambda word: (-counts[word], word))

    def find_line_numbers(self, batch: Batch) -> list[int]:
        """Return the line numbers, see `find_pair_numbers`, of those pairs of a batch that have no noise."""
        src, tgt = ([*map(self.tokenizer.decode, ids.tolist())] for ids in (batch.src_ids, batch.tgt_out))
        pairs = {*zip(src, tgt, strict=True), *zip(tgt, src, strict=True)}  # some may have been reversed
        return find_pair_numbers(self.config, self.tokenizer.reader, pairs)
