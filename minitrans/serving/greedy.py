"""Greedy decoding that tells how likely each translation is: the numbers are there anyway, and are added up."""

from typing import Generic

import torch
from torch import Tensor

from minitrans.model.decoding import AnyRows, Stepper, greedy_decode


class _Rows(Generic[AnyRows]):
    """Another stepper's rows, and which sources they translate, int64 (R,)."""

    def __init__(self, rows: AnyRows, sources: Tensor) -> None:
        self.rows, self.sources = rows, sources

    def select_rows(self, rows: Tensor) -> None:
        self.rows.select_rows(rows)
        self.sources = self.sources[rows]


class _AddingUp(Generic[AnyRows]):
    """A stepper that keeps the log-probability of every token that another finds likeliest."""

    max_threads = 1

    def __init__(self, stepper: Stepper[AnyRows]) -> None:
        self._stepper, self.config = stepper, stepper.config
        self._found: list[tuple[Tensor, Tensor]] = []  # of each step: sources, log-probabilities

    def begin(self, src_ids: Tensor, capacity: int) -> _Rows[AnyRows]:
        rows = self._stepper.begin(src_ids, capacity)
        return _Rows(rows, torch.arange(len(src_ids), device=src_ids.device))

    def next_tokens(self, tokens: Tensor, rows: _Rows[AnyRows], n: int) -> tuple[Tensor, Tensor]:
        log_p, ids = self._stepper.next_tokens(tokens, rows.rows, n)
        self._found.append((rows.sources, log_p[:, 0]))
        return log_p, ids

    def totals(self, n: int) -> list[float]:
        sources, log_p = map(torch.cat, zip(*self._found, strict=True))
        return torch.zeros(n, dtype=torch.float64).index_add_(0, sources.cpu(), log_p.cpu().double()).tolist()


def scored_greedy_decode(stepper: Stepper[AnyRows], src_ids: Tensor) -> list[tuple[list[int], float]]:
    """Decode as `greedy_decode` does.

    Args:
        stepper: What computes the steps.
        src_ids: int64 (B, S), padded on the right; B is at least 1.

    Returns:
        For each row its target tokens, without BOS and EOS, and their log-probability, that of EOS included where it
        ended them, in nats.

    Raises:
        ValueError: The source is longer than `max_len`.
    """
    adding_up = _AddingUp(stepper)
    outputs = greedy_decode(adding_up, src_ids)
    return list(zip(outputs, adding_up.totals(len(outputs)), strict=True))
