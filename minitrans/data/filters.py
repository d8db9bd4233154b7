"""Which pairs are left out of training, and which occur more than once in the corpus; the log counts both.

Shapes: `N` pairs.
"""

import hashlib
import logging
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from minitrans.data.batching import BoolArray, IntArray
from minitrans.data.settings import DataConfig
from minitrans.text.reading import clean

logger = logging.getLogger("minitrans")


class PairHashes(NamedTuple):
    """(N,) uint64 for N sources and pairs, equal where `clean` makes the texts equal: a million take 16 MB."""

    sources: npt.NDArray[np.uint64]
    pairs: npt.NDArray[np.uint64]


def hash_pairs(pairs: pa.Table) -> PairHashes:
    """Hash the columns `source` and `target`."""
    sources, targets = (_hash_lines(pairs[side]) for side in ("source", "target"))
    return PairHashes(sources, sources * np.uint64(0x9E3779B97F4A7C15) + targets)


def _hash_lines(lines: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    hashes = [np.empty(0, np.uint64)]
    for chunk in lines.chunks:
        digests = b"".join(hashlib.blake2b(clean(line).encode(), digest_size=8).digest() for line in chunk.to_pylist())
        hashes.append(np.frombuffer(digests, np.uint64))
    return np.concatenate(hashes)


def empty_sides(pairs: pa.Table) -> BoolArray:
    """Tell which of the N pairs have a side that `clean` leaves empty: with only control characters and separators."""
    sides = pairs["source"], pairs["target"]
    full = pc.and_(*(pc.match_substring_regex(side, r"[^\x00-\x1f\x7f-\x9f\x{2581}\pZ]") for side in sides))
    return ~full.to_numpy()


def source_overlaps(hashes: PairHashes, others: Mapping[str, PairHashes], counted: BoolArray) -> dict[str, BoolArray]:
    """Tell, for each other split, which of the N pairs are counted and have a source that occurs there too."""
    faults = {}
    for split, other in others.items():
        same = np.isin(hashes.sources, other.sources) & counted
        both = (np.isin(hashes.pairs, other.pairs) & counted).sum()
        faults[f"their source is also in {split} ({both} with the same target)"] = same
    return faults


def duplicate_pairs(hashes: PairHashes) -> BoolArray:
    """Tell which of the N pairs have occurred before, with the same source and target."""
    again = np.ones(len(hashes.pairs), bool)
    again[np.unique(hashes.pairs, return_index=True)[1]] = False
    return again


def length_faults(
    src_lengths: IntArray, tgt_lengths: IntArray, max_len: int, limits: DataConfig | None
) -> dict[str, BoolArray]:
    """Tell which of the N pairs break which length limit; lengths (N,) are in tokens, EOS (or BOS) counted.

    With `limits`, its `min_length`, `max_length` and `max_length_ratio` apply as well, and no side may be empty.
    """
    longer, shorter = np.maximum(src_lengths, tgt_lengths), np.minimum(src_lengths, tgt_lengths)
    wrong = {f"longer than max_len, {max_len} tokens": longer > max_len}
    if limits is None:
        return wrong
    wrong["one side is empty once it is read"] = shorter < 2  # say, of zero-width characters alone
    if limits.max_length is not None:
        wrong[f"longer than data.max_length, {limits.max_length} tokens"] = longer > limits.max_length
    if limits.min_length > 1:
        wrong[f"shorter than data.min_length, {limits.min_length} tokens"] = shorter < limits.min_length
    if (ratio := limits.max_length_ratio) is not None:
        wrong[f"lengths further apart than data.max_length_ratio, {ratio:g}"] = longer > ratio * shorter
    return wrong


def mark_kept(faults: Mapping[str, BoolArray], purpose: str) -> BoolArray:
    """Tell which of the N pairs have none of the faults; the others are counted in the log, each under its first fault.

    Args:
        faults: For each fault, which pairs have it; at least one fault.
        purpose: What the pairs are for, as the message says.
    """
    kept = np.ones_like(next(iter(faults.values())))
    for fault, wrong in faults.items():
        if n_wrong := (kept & wrong).sum():
            logger.warning("left out %d of %d %s pairs: %s", n_wrong, len(kept), purpose, fault)
        kept &= ~wrong
    return kept


def log_kept_faults(faults: Mapping[str, BoolArray], purpose: str) -> None:
    """Count in the log what `mark_kept` would leave out, but keep it."""
    for fault, faulty in faults.items():
        if faulty.any():
            logger.warning("%d of %d %s pairs: %s", faulty.sum(), len(faulty), purpose, fault)
