"""Training batches from pairs that are read one after another and not kept: for corpora that do not fit in memory."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset

from minitrans.data.batching import Batch, Rows, batches_of_rank, collate_rows, plan_batches
from minitrans.data.filters import copies, empty_sides, hash_pairs, leave_out, repeated_sources, wrong_lengths
from minitrans.data.noise import Noise
from minitrans.data.processes import gather, slice_of_rank
from minitrans.data.readers import CHUNK, open_train, read_tables
from minitrans.data.settings import DataConfig
from minitrans.errors import UserError
from minitrans.text.tokenizer import Tokenizer
from minitrans.text.words import count_words


class StreamLoader:
    """Yields `Batch`es without end, over the pairs again and again, and can resume where a run stopped.

    `shuffle_buffer` pairs at a time are read, tokenized, and cut into batches by `plan_batches`, whose batches come in
    random order. They depend on the text, the settings, the seed and the number of the buffer alone.

    Several processes all read the same pairs, tokenize a share each, and take the batches in turn.

    Args:
        config: The corpus, its filters, and how large batches and buffers are.
        tokenizer: Encodes both sides, and knows the special ids.
        max_len: Most tokens of either side, EOS (or BOS) counted.
        seed: Seed of the shuffling, 0 or more.
        others: The splits whose sources training is not to see, if `deduplicate` says so.
        noise: Changes some of the pairs.

    Attributes:
        words: How often each word is in the sources read so far; None if they are too many.

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
        self._special_ids = tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id
        self._max_len = max_len
        self._seed = seed
        self._noise = noise
        self._others = {split: hash_pairs(pairs.data) for split, pairs in others.items()} if config.deduplicate else {}
        self._split = open_train(config)
        self._beginning = self._split.rows.state_dict()
        self._place = {"buffer": 0, "position": 0, "pairs": self._beginning, "epoch": 0, "number": 0}
        self.words: Counter[str] | None = Counter()

    def __len__(self) -> int:
        """A number that is never reached: of loaders without one Lightning takes a batch ahead of the training."""
        return 1 << 40

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches that have not been handed out yet."""
        buffer, position, before, epoch, first = self._place.values()
        while True:
            from_beginning, any_batch = before == self._beginning, False
            self._split.rows.load_state_dict(before)
            for pairs in read_tables(self._split, self._config.shuffle_buffer, self._config):
                after = self._split.rows.state_dict()
                src, tgt = self._tokenize(pairs, first=buffer == 0, again=position > 0)
                rng = np.random.default_rng([self._seed, buffer])
                batches = batches_of_rank(
                    plan_batches(src.lengths + 1, tgt.lengths + 1, self._config.batch_tokens, rng)
                )
                any_batch |= bool(batches)
                for number, rows in enumerate(batches[position:], start=position + 1):
                    # Before the yield: whoever is given the batch may save the state.
                    place = buffer, number, before, epoch, first
                    self._place = dict(zip(self._place, place, strict=True))
                    sides = src.take(rows), tgt.take(rows)
                    if self._noise is not None:
                        sides = self._noise(*sides, epoch, first + rows)
                    yield collate_rows(*sides, *self._special_ids)
                buffer, position, before, first = buffer + 1, 0, after, first + len(src.lengths)
            if from_beginning and not any_batch:
                raise UserError(f"{self._config.path}: no training pair is left; set other limits in data")
            before, epoch, first = self._beginning, epoch + 1, 0

    def _tokenize(self, pairs: pa.Table, first: bool, again: bool) -> tuple[Rows, Rows]:
        """Return the usable pairs; those of a first buffer that are not go into the log; words count but once."""
        wrong = empty_sides(pairs)  # counted by `load_corpus` already, as are the repeated ones
        if self._config.deduplicate:
            hashes = hash_pairs(pairs)
            wrong |= copies(hashes)
            for repeated in repeated_sources(hashes, self._others).values():
                wrong |= repeated
        pairs = pairs.filter(pa.array(~wrong))
        sources, targets = list[str](), list[str]()
        for some in (pairs.slice(start, CHUNK) for start in range(0, len(pairs), CHUNK)):
            read = self._tokenizer.reader.read_pairs(*(some[side].to_pylist() for side in ("source", "target")))
            sources += read[0]
            targets += read[1]
        src, tgt = (self._encode(lines) for lines in (sources, targets))
        faults = wrong_lengths(src.lengths + 1, tgt.lengths + 1, self._max_len, self._config)
        kept = np.flatnonzero(leave_out(faults, "first training") if first else ~np.any(list(faults.values()), axis=0))
        self.words = count_words(self.words, () if again else (sources[i] for i in kept))
        return src.take(kept), tgt.take(kept)

    def _encode(self, lines: list[str]) -> Rows:
        own = lines[slice_of_rank(len(lines))]  # and few at a time as lists, which take four times the memory
        rows = [Rows.of(self._tokenizer.encode_batch(own[i : i + CHUNK])) for i in range(0, len(own), CHUNK)]
        return Rows.joined([*chain.from_iterable(gather(rows))])

    def state_dict(self) -> dict[str, Any]:
        """Return the place, and `words`.

        The place is the number of a buffer, how many of its batches are handed out, where its pairs begin in the text,
        how often the text has been read before, and how many pairs of it in this epoch.
        """
        return self._place | {"words": None if self.words is None else dict(self.words)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a saved place: the next `iter()` continues there."""
        self._place = {name: state[name] for name in self._place}
        self.words = None if state["words"] is None else Counter(state["words"])
