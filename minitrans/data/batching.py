"""Batches by tokens: which rows go together, in which order, and how they become tensors.

Shapes: `B` rows of a batch, `S` longest source, `T` longest target, `N` rows of the corpus.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Sampler

from minitrans.errors import UserError

IntArray = npt.NDArray[np.int64]


def plan_batches(
    src_lengths: IntArray, tgt_lengths: IntArray, batch_tokens: int, rng: np.random.Generator | None
) -> list[IntArray]:
    """Group rows of like length, so that padding is rare.

    Rows are sorted by their longer side and cut from the longest downwards: a batch holds as many rows as
    `batch_tokens` allows, counting every row as long as the longest side in the batch. Rows with equally long longer
    sides are shuffled before the cut, and the batches after it. How many rows the batches have, and how long they are,
    is therefore the same for every `rng`; which rows, and the order of the batches, differ. (Sorting by the shorter
    side too would pad less, but the same rows would meet again and again, and a small corpus is learnt more slowly.)

    Args:
        src_lengths: (N,) source lengths in tokens, EOS counted.
        tgt_lengths: (N,) target lengths in tokens, EOS (or BOS) counted.
        batch_tokens: Most tokens of either side in a batch, padding counted. A longer row is a batch by itself.
        rng: Shuffles; None keeps ties in order and the longest batch first.

    Returns:
        Row numbers (int64), one array a batch; every row is in exactly one.
    """
    width = np.maximum(src_lengths, tgt_lengths).astype(np.int64)
    rows = np.arange(len(width)) if rng is None else rng.permutation(len(width))
    rows = rows[np.argsort(-width[rows], kind="stable")]

    sizes = np.maximum(1, batch_tokens // width[rows])  # rows a batch may hold if this is its first, longest one
    starts = [0]
    while starts[-1] < len(rows):
        starts.append(starts[-1] + int(sizes[starts[-1]]))
    batches = [rows[start:stop] for start, stop in pairwise(starts)]
    return batches if rng is None else [batches[i] for i in rng.permutation(len(batches))]


class TokenBatchSampler(Sampler[list[int]]):
    """Yields batches of row numbers, one epoch for each `iter()`, and can go on from where a run stopped.

    The batches of an epoch depend on the seed and the number of the epoch alone. Taking the last batch of an epoch
    moves on to the next epoch.

    Args:
        src_lengths: (N,) source lengths in tokens, EOS counted.
        tgt_lengths: (N,) target lengths in tokens, EOS (or BOS) counted.
        batch_tokens: Most tokens of either side in a batch, padding counted.
        seed: Seed of the shuffling, 0 or more.
        shuffle: False, for validation: the same order in every epoch, and each `iter()` starts at the first batch.
    """

    def __init__(
        self, src_lengths: IntArray, tgt_lengths: IntArray, batch_tokens: int, seed: int, shuffle: bool = True
    ) -> None:
        self._lengths = src_lengths, tgt_lengths
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._shuffle = shuffle
        self._taken = 0  # batches since the start of epoch 0
        self._planned_epoch = 0
        self._batches = self._plan()

    def _plan(self) -> list[IntArray]:
        rng = np.random.default_rng([self._seed, self._planned_epoch]) if self._shuffle else None
        return plan_batches(*self._lengths, self._batch_tokens, rng)

    def __len__(self) -> int:
        """Number of batches in an epoch, the same in all of them."""
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the batches of the current epoch that have not been taken yet."""
        if not self._shuffle:
            self._taken = 0
        epoch, position = divmod(self._taken, len(self))
        if epoch != self._planned_epoch:
            self._planned_epoch = epoch
            self._batches = self._plan()
        for batch in self._batches[position:]:
            self._taken += 1  # before the yield: whoever is given the batch may save the state
            yield batch.tolist()

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and how many of its batches have been taken, both from 0."""
        epoch, position = divmod(self._taken, len(self))
        return {"epoch": epoch, "position": position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a saved place: the next `iter()` yields the rest of that epoch.

        Raises:
            UserError: There is no such place: the data or `batch_tokens` are not those of the saved run.
        """
        if state["position"] >= len(self):
            raise UserError(
                f"the checkpoint was written after {state['position']} batches of an epoch, which has {len(self)} "
                "now; resume with the data and the data.batch_tokens of the first run"
            )
        self._taken = state["epoch"] * len(self) + state["position"]


class Batch(NamedTuple):
    """What the model trains on: int64 tensors, padded on the right.

    Attributes:
        src_ids: (B, S) source pieces, then EOS.
        tgt_in: (B, T) BOS, then target pieces: what the decoder reads.
        tgt_out: (B, T) target pieces, then EOS: what it has to say.
    """

    src_ids: Tensor
    tgt_in: Tensor
    tgt_out: Tensor


def pad_sequences(rows: Sequence[Sequence[int]], pad_id: int) -> Tensor:
    """Stack rows of ids into one tensor (B, longest row), int64, filled up with `pad_id` on the right."""
    padded = np.full((len(rows), max(map(len, rows), default=0)), pad_id, dtype=np.int64)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return torch.from_numpy(padded)


def collate(src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]], pad_id: int, bos_id: int, eos_id: int) -> Batch:
    """Make a batch of pairs of rows of piece ids, which have no special ids yet."""
    return Batch(
        src_ids=pad_sequences([[*row, eos_id] for row in src], pad_id),
        tgt_in=pad_sequences([[bos_id, *row] for row in tgt], pad_id),
        tgt_out=pad_sequences([[*row, eos_id] for row in tgt], pad_id),
    )
