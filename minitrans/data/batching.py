"""Batches by tokens: which rows go together, in which order, and how they become tensors.

Shapes: `B` rows of a batch, `S` longest source, `T` longest target, `N` rows of the corpus.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from minitrans.data.process_group import n_processes, rank

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
IdRows: TypeAlias = pa.LargeListArray  # rows of ids, one after another: far quicker to batch than a list of lists
ID_ROWS = pa.large_list(pa.int32())  # their type


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
        Row numbers (int64), one array per batch; every row is in exactly one.
    """
    widths = np.maximum(src_lengths, tgt_lengths)
    rows = np.arange(len(widths)) if rng is None else rng.permutation(len(widths))
    rows = rows[np.argsort(-widths[rows], kind="stable")]
    cuts = [0]
    while cuts[-1] < len(rows):
        cuts.append(cuts[-1] + max(1, batch_tokens // int(widths[rows[cuts[-1]]])))
    batches = [rows[start:stop] for start, stop in pairwise(cuts)]
    return batches if rng is None else [batches[i] for i in rng.permutation(len(batches))]


def batches_of_rank(batches: Sequence[IntArray]) -> list[IntArray]:
    """Return the batches of this process. All take turns and get equally many: the last one may have no rows."""
    filled = [*batches, *[np.array([], np.int64)] * (-len(batches) % n_processes())]
    return filled[rank() :: n_processes()]


class Batch(NamedTuple):
    """What the model trains on: int64 tensors, padded on the right.

    Attributes:
        src_ids: (B, S) source pieces, then EOS.
        tgt_in: (B, T) BOS, then target pieces: what the decoder reads.
        tgt_out: (B, T) target pieces, then EOS: what it has to predict.
    """

    src_ids: Tensor
    tgt_in: Tensor
    tgt_out: Tensor


def id_rows(rows: Sequence[Sequence[int]]) -> IdRows:
    """Make rows of ids, int32, from a list of lists."""
    return pa.array(rows, ID_ROWS)


def row_lengths(rows: IdRows) -> IntArray:
    """How many ids each of N rows has: (N,)."""
    return np.asarray(rows.value_lengths())


def to_padded_tensor(rows: IdRows, pad_id: int, bos_id: int | None = None, eos_id: int | None = None) -> Tensor:
    """Stack the rows, at least one, into a tensor (N, longest row), int64, filled up with `pad_id` on the right.

    BOS comes before and EOS after each row, if they are given.
    """
    first = 0 if bos_id is None else 1
    last = first + row_lengths(rows)
    width = last.max() + (eos_id is not None)
    column = np.arange(width)
    padded = np.full((len(last), width), pad_id)
    padded[(column >= first) & (column < last[:, None])] = rows.flatten()
    if bos_id is not None:
        padded[:, 0] = bos_id
    if eos_id is not None:
        padded[np.arange(len(last)), last] = eos_id
    return torch.from_numpy(padded)


def swap_sides(src: IdRows, tgt: IdRows, which: BoolArray) -> tuple[IdRows, IdRows]:
    """Return N sources and N targets, exchanged in the rows that (N,) `which` marks."""
    both, here = pa.concat_arrays([src, tgt]), np.arange(len(which))
    there = here + len(here)
    return both.take(np.where(which, there, here)), both.take(np.where(which, here, there))


def collate(src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]], pad_id: int, bos_id: int, eos_id: int) -> Batch:
    """Make a batch of pairs of rows of piece ids, which have no special ids yet."""
    return collate_rows(id_rows(src), id_rows(tgt), pad_id, bos_id, eos_id)


def collate_rows(src: IdRows, tgt: IdRows, pad_id: int, bos_id: int, eos_id: int) -> Batch:
    """Make a batch of sources and targets, which have no special ids yet; of none, a row of padding, with loss 0."""
    if not len(src):
        return Batch(*(torch.full((1, 1), pad_id) for _ in range(3)))
    return Batch(
        src_ids=to_padded_tensor(src, pad_id, eos_id=eos_id),
        tgt_in=to_padded_tensor(tgt, pad_id, bos_id=bos_id),
        tgt_out=to_padded_tensor(tgt, pad_id, eos_id=eos_id),
    )
