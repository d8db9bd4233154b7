"""Training batches from pairs that are read one after another and not kept: for corpora that do not fit in memory."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset

from minitrans.data.batching import IdRows, id_rows, row_lengths
from minitrans.data.filters import duplicate_pairs, empty_sides, hash_pairs, length_faults, mark_kept, source_overlaps
from minitrans.data.loader import Buffer, ResumableLoader
from minitrans.data.noise import Noise
from minitrans.data.process_group import all_gather, own_slice
from minitrans.data.readers import CHUNK, iter_pair_tables, open_train
from minitrans.data.settings import DataConfig
from minitrans.errors import UserError
from minitrans.text.reading import split_lowercase_words
from minitrans.text.tokenizer import Tokenizer

MAX_WORDS = 1_000_000  # different words of a training text that are kept; usually 10 MB on disk, and 100 in memory

logger = logging.getLogger("minitrans")


class StreamLoader(ResumableLoader):
    """Yields `Batch`es without end: it reads `shuffle_buffer` pairs at a time, and begins again after the last one.

    Several processes all read the same pairs, and tokenize a share each. If `deduplicate` is set, pairs whose source is
    in one of the splits `others` are left out. The other arguments are those of `TranslationDataModule`, and `noise` is
    that of `ResumableLoader`.

    Attributes:
        words: How often each word is in the sources read so far; None if there are too many.

    Raises:
        UserError: There is no training split; while iterating: it cannot be read, or none of its pairs is usable.
    """

    def __init__(
        self,
        config: DataConfig,
        tokenizer: Tokenizer,
        max_len: int,
        seed: int,
        others: Mapping[str, Dataset],
        noise: Noise | None = None,
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._max_len = max_len
        self._others = {split: hash_pairs(pairs.data) for split, pairs in others.items()} if config.deduplicate else {}
        self._split = open_train(config)
        self._beginning = self._split.row_stream.state_dict()
        self.words: Counter[str] | None = Counter()
        super().__init__(tokenizer.pad_bos_eos_ids, config.batch_tokens, seed, noise, config.reversed_epochs)
        self._place |= {"pairs": self._beginning, "epoch": 0, "first": 0}

    def __len__(self) -> int:
        """A number that is never reached: without one, Lightning would fetch a batch ahead of the training."""
        return 1 << 40

    def buffers_from(self, place: dict[str, Any]) -> Iterator[Buffer]:
        """Yield the buffers from `place` on, which says where the text continues, in which epoch, after how many pairs.

        Words are counted once: not again for a buffer of which some batches have been handed out.
        """
        very_first, again = place["buffer"] == 0, place["position"] > 0
        begin = {name: place[name] for name in ("pairs", "epoch", "first")}
        while True:
            self._split.row_stream.load_state_dict(begin["pairs"])
            for pairs in iter_pair_tables(self._split, self._config.shuffle_buffer, self._config):
                after = self._split.row_stream.state_dict()
                src, tgt = self._tokenize_usable_pairs(pairs, very_first, again)
                end = begin | {"pairs": after, "first": begin["first"] + len(src)}
                yield Buffer(src, tgt, begin["epoch"], begin["first"], begin, end)
                begin, very_first, again = end, False, False
            if begin["first"] == 0:
                raise UserError(f"{self._config.path}: no training pair is left; set other limits in data")
            begin = {"pairs": self._beginning, "epoch": begin["epoch"] + 1, "first": 0}

    def _tokenize_usable_pairs(self, pairs: pa.Table, log_left_out: bool, counted: bool) -> tuple[IdRows, IdRows]:
        """Return the usable pairs; log how many are left out if asked, and count words unless they are `counted`."""
        faults = [empty_sides(pairs)]  # of the first pairs, `load_corpus` has counted them and the repeated ones
        if self._config.deduplicate:
            hashes = hash_pairs(pairs)
            faults += [duplicate_pairs(hashes), *source_overlaps(hashes, self._others, ~faults[0]).values()]
        pairs = pairs.filter(pa.array(~np.any(faults, axis=0)))
        sources, targets = list[str](), list[str]()
        for some in (pairs.slice(start, CHUNK) for start in range(0, len(pairs), CHUNK)):
            read = self._tokenizer.reader.preprocess_pairs(*(some[side].to_pylist() for side in ("source", "target")))
            sources += read[0]
            targets += read[1]
        src, tgt = (self._encode_and_gather(lines) for lines in (sources, targets))
        unfit = length_faults(row_lengths(src) + 1, row_lengths(tgt) + 1, self._max_len, self._config)
        fit = mark_kept(unfit, "first training") if log_left_out else ~np.any(list(unfit.values()), axis=0)
        kept = np.flatnonzero(fit)
        self.words = add_word_counts(self.words, () if counted else (sources[i] for i in kept))
        return src.take(kept), tgt.take(kept)

    def _encode_and_gather(self, lines: list[str]) -> IdRows:
        own = lines[own_slice(len(lines))]  # few at a time become lists, which take four times the memory
        rows = [id_rows(self._tokenizer.encode_batch(own[i : i + CHUNK])) for i in range(0, len(own), CHUNK)]
        return pa.concat_arrays([id_rows([]), *chain.from_iterable(all_gather(rows))])

    def state_dict(self) -> dict[str, Any]:
        """Return the place, and `words`."""
        return super().state_dict() | {"words": None if self.words is None else dict(self.words)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a saved place: the next `iter()` continues there."""
        super().load_state_dict(state)
        self.words = None if state["words"] is None else Counter(state["words"])


def add_word_counts(counts: Counter[str] | None, lines: Iterable[str]) -> Counter[str] | None:
    """Add the words of some lines to `counts`; return None if there are too many different ones, now or before."""
    if counts is None:
        return None
    for part, n in Counter(part for line in lines for part in line.split()).items():  # most occur many times
        for word in split_lowercase_words(part):
            counts[word] += n
        if len(counts) > MAX_WORDS:
            logger.warning(
                "more than %d different words are in the training data: the run keeps none of them", MAX_WORDS
            )
            return None
    return counts
