"""Training batches, endless or an epoch at a time, which resume where a run stopped."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from minitrans.data.batching import Batch, IdRows, batches_of_rank, collate_rows, plan_batches, row_lengths, swap_sides
from minitrans.data.noise import Noise, draw_bits
from minitrans.data.process_group import n_processes
from minitrans.errors import UserError


class Buffer(NamedTuple):
    """Pairs to make batches of, and their place in the data.

    Attributes:
        src, tgt: Rows of source and of target ids, without special ids.
        epoch: How often the corpus has been read before.
        first_pair_number: Number of the first pair in this epoch.
        begin_state, end_state: What a loader saves to resume where the pairs begin, and where they end.
    """

    src: IdRows
    tgt: IdRows
    epoch: int
    first_pair_number: int
    begin_state: dict[str, Any]
    end_state: dict[str, Any]


class ResumableLoader(ABC):
    """Yields `Batch`es, and can resume where a run stopped.

    A buffer of pairs is cut into batches by `plan_batches`, which come in random order. They depend only on the pairs,
    the settings, the seed and the number of the buffer. Several processes take them in turn and get equally many, so
    the last batch of some may have no rows.

    Args:
        special_ids: PAD, BOS and EOS.
        batch_tokens: Most tokens of either side in a batch, padding counted.
        seed: Seed of the shuffling, 0 or more.
        noise: Changes some of the pairs, but none that are reversed.
        reversed_epochs: For this many epochs at first, half of the pairs have source and target exchanged.
    """

    def __init__(
        self, special_ids: tuple[int, int, int], batch_tokens: int, seed: int, noise: Noise | None, reversed_epochs: int
    ) -> None:
        self._special_ids = special_ids
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._noise = noise
        self._reversed_epochs = reversed_epochs
        self._place: dict[str, Any] = {"buffer": 0, "position": 0}

    @abstractmethod
    def buffers_from(self, place: dict[str, Any]) -> Iterator[Buffer]:
        """Yield the buffers of an `iter()`, starting with the one at `place`."""

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches that have not been handed out yet.

        Raises:
            UserError: There is no such place: the data or `batch_tokens` are not those of the saved run.
        """
        number, position = self._place["buffer"], self._place["position"]
        for buffer in self.buffers_from(self._place):
            rng = np.random.default_rng([self._seed, number])
            plan = plan_batches(row_lengths(buffer.src) + 1, row_lengths(buffer.tgt) + 1, self._batch_tokens, rng)
            batches = batches_of_rank(plan)
            if position and position >= len(batches):
                raise UserError(
                    f"the checkpoint was written after {position} batches of pairs that make {len(batches)} now; "
                    "resume with the data and the data.batch_tokens of the first run"
                )
            for taken, rows in enumerate(batches[position:], start=position + 1):
                # Before the yield: whoever is given the batch may save the state.
                if taken < len(batches):
                    self._place = {"buffer": number, "position": taken} | buffer.begin_state
                else:
                    self._place = {"buffer": number + 1, "position": 0} | buffer.end_state
                sides, numbers = (buffer.src.take(rows), buffer.tgt.take(rows)), buffer.first_pair_number + rows
                is_reversed = np.zeros(len(rows), bool)
                if buffer.epoch < self._reversed_epochs:
                    is_reversed = draw_bits(self._seed, buffer.epoch, numbers) % 2 == 1
                if self._noise is not None:
                    sides = self._noise(*sides, buffer.epoch, numbers, ~is_reversed)
                if is_reversed.any():
                    sides = swap_sides(*sides, is_reversed)
                yield collate_rows(*sides, *self._special_ids)
            number, position = number + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the place: the number of a buffer, how many of its batches are handed out, and where it begins."""
        return self._place

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a saved place: the next `iter()` continues there."""
        self._place = {name: state[name] for name in self._place}


class EpochLoader(ResumableLoader):
    """Yields the `Batch`es of pairs in memory, which are one buffer: an epoch for each `iter()`, or what is left of it.

    Both sides have (N,) rows without special ids; the other arguments are those of `ResumableLoader`.
    """

    def __init__(
        self,
        src: IdRows,
        tgt: IdRows,
        special_ids: tuple[int, int, int],
        batch_tokens: int,
        seed: int,
        noise: Noise | None = None,
        reversed_epochs: int = 0,
    ) -> None:
        super().__init__(special_ids, batch_tokens, seed, noise, reversed_epochs)
        self._sides = src, tgt
        self._n_batches = len(plan_batches(row_lengths(src) + 1, row_lengths(tgt) + 1, batch_tokens, None))

    def __len__(self) -> int:
        """Number of batches that each process takes in an epoch, the same in all processes and epochs."""
        return -(-self._n_batches // n_processes())

    def buffers_from(self, place: dict[str, Any]) -> Iterator[Buffer]:
        """Yield all pairs, as the buffer of an epoch."""
        yield Buffer(*self._sides, epoch=place["buffer"], first_pair_number=0, begin_state={}, end_state={})
