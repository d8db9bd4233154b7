"""Feeds Lightning with batches, and lets it stop in the middle of an epoch and go on from there."""

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from minitrans.data.batching import Batch, IntArray, TokenBatchSampler, collate
from minitrans.data.corpus import DataConfig, column_arrays, drop_long_pairs, load_corpus, tokenize_corpus
from minitrans.tokenizer import Tokenizer

Pair = tuple[list[int], list[int]]


class PairRows(TorchDataset[Pair]):
    """Pairs of rows of piece ids without special ids, cut from flat arrays in memory.

    Args:
        pairs: A split that `tokenize_corpus` returned.

    Attributes:
        src_lengths: (N,) source lengths in tokens, EOS counted.
        tgt_lengths: (N,) target lengths in tokens, EOS (or BOS) counted.
    """

    def __init__(self, pairs: Dataset) -> None:
        self._src_ids, src_pieces = column_arrays(pairs, "src_ids")
        self._tgt_ids, tgt_pieces = column_arrays(pairs, "tgt_ids")
        self._src_offsets = np.concatenate([[0], np.cumsum(src_pieces)])
        self._tgt_offsets = np.concatenate([[0], np.cumsum(tgt_pieces)])
        self.src_lengths: IntArray = src_pieces + 1
        self.tgt_lengths: IntArray = tgt_pieces + 1

    def __len__(self) -> int:
        """Number of pairs, N."""
        return len(self.src_lengths)

    def __getitem__(self, row: int) -> Pair:
        """Return the source ids and the target ids of one pair."""
        return (
            self._src_ids[self._src_offsets[row] : self._src_offsets[row + 1]].tolist(),
            self._tgt_ids[self._tgt_offsets[row] : self._tgt_offsets[row + 1]].tolist(),
        )


class StatefulLoader(DataLoader[Pair]):
    """A loader whose place in the epoch Lightning saves with a checkpoint and restores in the middle of an epoch.

    That works because batches are made one at a time in this process: the sampler is never ahead of the training. Give
    it a generator of its own: a loader draws a number whenever it is started, and a resumed run starts it once more.
    """

    batch_sampler: TokenBatchSampler

    def state_dict(self) -> dict[str, int]:
        """Return the sampler's place."""
        return self.batch_sampler.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Put the sampler back in its place."""
        self.batch_sampler.load_state_dict(state)


class TranslationDataModule(LightningDataModule):
    """Batches for training and validation, and the text of every split for evaluation.

    The trainer must be made with `use_distributed_sampler=False`, or it would replace the sampler.

    Args:
        config: Which corpus, and how large the batches are.
        tokenizer: Encodes both sides, and knows the special ids.
        max_len: Most tokens of either side, EOS (or BOS) counted. Longer pairs are left out of training and of the
            validation loss.
        seed: Seed of the shuffling, 0 or more.
    """

    def __init__(self, config: DataConfig, tokenizer: Tokenizer, max_len: int, seed: int) -> None:
        super().__init__()
        self._config = config
        self._tokenizer = tokenizer
        self._max_len = max_len
        self._seed = seed
        self._corpus = DatasetDict()

    def setup(self, stage: str | None = None) -> None:
        """Load and tokenize the corpus, the first time it is called.

        Raises:
            UserError: The corpus is not there or faulty, or none of its pairs is short enough.
        """
        if self._corpus:
            return
        self._corpus = load_corpus(self._config)
        tokenized = tokenize_corpus(self._corpus, self._tokenizer, self._max_len, self._config.cache_dir)
        self._train = PairRows(tokenized["train"])
        self._valid = PairRows(drop_long_pairs(tokenized["valid"], "validation", self._max_len))
        self._train_sampler = self._sampler(self._train, shuffle=True)
        self._valid_sampler = self._sampler(self._valid, shuffle=False)

    def train_dataloader(self) -> StatefulLoader:
        """Return a loader of `Batch`es that goes on from epoch to epoch, shuffled anew in each."""
        return StatefulLoader(
            self._train, batch_sampler=self._train_sampler, collate_fn=self._collate, generator=torch.Generator()
        )

    def val_dataloader(self) -> DataLoader[Pair]:
        """Return a loader of `Batch`es, the same in every epoch."""
        return DataLoader(
            self._valid, batch_sampler=self._valid_sampler, collate_fn=self._collate, generator=torch.Generator()
        )

    def state_dict(self) -> dict[str, int]:
        """Return the place in the training data.

        Lightning restores the loader's own state only from a checkpoint of an unfinished epoch, this one from any.
        """
        return self._train_sampler.state_dict()

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go to a saved place in the training data."""
        self._train_sampler.load_state_dict(state_dict)

    @property
    def splits(self) -> list[str]:
        """Names of the test sets: all splits but `train` and `valid`."""
        return [split for split in self._corpus if split not in ("train", "valid")]

    def texts(self, split: str) -> tuple[list[str], list[str]]:
        """Return the source lines and the target lines of a split, none left out but empty ones of `train`."""
        pairs = self._corpus[split]
        return pairs["source"][:], pairs["target"][:]

    def _sampler(self, rows: PairRows, shuffle: bool) -> TokenBatchSampler:
        return TokenBatchSampler(rows.src_lengths, rows.tgt_lengths, self._config.batch_tokens, self._seed, shuffle)

    def _collate(self, pairs: list[Pair]) -> Batch:
        src, tgt = zip(*pairs, strict=True)
        return collate(src, tgt, self._tokenizer.pad_id, self._tokenizer.bos_id, self._tokenizer.eos_id)
