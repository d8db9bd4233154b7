"""Stepwise decoding beside the full masked pass: every number of one against the same number of the other.

Checks and tests measure with the same functions. Shapes: `B` rows, `S` source length, `T` target length. Targets are
int64 (B, T), sources int64 (B, S), padded on the right. Chunks are the sizes of the pieces in which the target is fed.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from minitrans.model.cache import DecoderCache
from minitrans.model.layers import LayerTrace
from minitrans.model.transformer import Transformer
from minitrans.verify.check import deviation, worst
from minitrans.verify.subject import Subject


def numbers(logits: Tensor, traces: list[LayerTrace], width: int) -> list[Tensor]:
    """All that a decoder computes: logits, and every layer's output, self-attention and cross-attention weights.

    Args:
        logits: (B, n, V).
        traces: One for each layer, with weights.
        width: Number of columns for the self-attention weights; those of tokens that do not exist yet are 0.

    Returns:
        (B, n, V), then (B, n, D), (B, H, n, width) and (B, H, n, S) for each layer: the positions are the last but one
        axis of each.
    """
    found = [logits]
    for trace in traces:
        if trace.self_weights is None or trace.cross_weights is None:
            raise ValueError("the layer returned no weights though asked for them")
        seen = trace.self_weights
        found += [trace.output, F.pad(seen, (0, width - seen.size(-1))), trace.cross_weights]
    return found


@torch.no_grad()
def full_pass(model: Transformer, src_ids: Tensor, tgt_in: Tensor) -> list[Tensor]:
    """All numbers of the full masked pass."""
    memory, src_mask = model.encode(src_ids)
    hidden, traces = model.run_decoder(tgt_in, memory, src_mask, need_weights=True)
    return numbers(model.output(hidden), traces, tgt_in.size(1))


@torch.no_grad()
def new_cache(model: Transformer, src_ids: Tensor, capacity: int | None = None) -> DecoderCache:
    """An empty cache for these sources."""
    return model.init_cache(*model.encode(src_ids), capacity)


@torch.no_grad()
def next_numbers(model: Transformer, tgt_ids: Tensor, cache: DecoderCache, width: int) -> list[Tensor]:
    """All numbers of the next tokens, int64 (B, n), which the cache gains."""
    hidden, traces = model.run_decoder(tgt_ids, None, cache.src_mask, cache, need_weights=True)
    return numbers(model.output(hidden), traces, width)


def join(steps: Sequence[list[Tensor]]) -> list[Tensor]:
    """Put the numbers of successive chunks together, along the positions."""
    return [torch.cat(parts, dim=-2) for parts in zip(*steps, strict=True)]


def compare(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    """The worst deviation of any two that belong together."""
    return worst([deviation(a, b) for a, b in zip(got, want, strict=True)])


def chunk_deviation(
    model: Transformer,
    src_ids: Tensor,
    tgt_in: Tensor,
    chunks: Sequence[int],
    spare: int = 0,
    passing: Transformer | None = None,
) -> float:
    """Feed the target in chunks, through a cache with `spare` slots too many, and compare with the full pass.

    That is the full pass of the same model, or of `passing`.
    """
    length = tgt_in.size(1)
    cache = new_cache(model, src_ids, length + spare)
    steps = [next_numbers(model, piece, cache, length) for piece in tgt_in.split(list(chunks), 1)]
    return compare(join(steps), full_pass(passing or model, src_ids, tgt_in))


def step_deviation(model: Transformer, src_ids: Tensor, tgt_in: Tensor, passing: Transformer | None = None) -> float:
    """`chunk_deviation` for one token at a time."""
    return chunk_deviation(model, src_ids, tgt_in, [1] * tgt_in.size(1), passing=passing)


@torch.no_grad()
def selection_deviation(
    model: Transformer, src_ids: Tensor, tgt_in: Tensor, chunks: Sequence[int], selections: Sequence[Sequence[int]]
) -> float:
    """Select rows after every chunk, and compare the next with a full pass over what the selected rows have been fed.

    Rows that a selection repeats go different ways from then on: each is fed the tokens of another row of `tgt_in`.

    Args:
        model: What to measure.
        src_ids: int64 (B, S).
        tgt_in: int64 (B, T).
        chunks: Sizes that sum to T.
        selections: For each chunk the rows to keep after it, indices into those that are left by then.
    """
    cache = new_cache(model, src_ids, tgt_in.size(1))
    fed = tgt_in[:, :0]
    deviations = []
    for piece, rows in zip(tgt_in.split(list(chunks), 1), selections, strict=True):
        new = piece[torch.arange(len(fed)) % len(piece)]
        fed = torch.cat([fed, new], 1)
        got = next_numbers(model, new, cache, fed.size(1))
        want = [x.narrow(-2, fed.size(1) - new.size(1), new.size(1)) for x in full_pass(model, src_ids, fed)]
        deviations.append(compare(got, want))
        index = torch.tensor(rows)
        cache.select_rows(index)
        src_ids, fed = src_ids[index], fed[index]
    return worst(deviations)


@torch.no_grad()
def interleaved_deviation(model: Transformer, src_ids: Tensor, tgt_in: Tensor, chunks: Sequence[int]) -> float:
    """Two decodes that take turns, the second with the rows and the target's tokens in reverse, against full passes."""
    both = [(src_ids, tgt_in), (src_ids.flip(0), tgt_in.flip(0, 1))]
    caches = [new_cache(model, src) for src, _ in both]
    steps: list[list[list[Tensor]]] = [[], []]
    for pieces in zip(*(tgt.split(list(chunks), 1) for _, tgt in both), strict=True):
        for piece, cache, mine in zip(pieces, caches, steps, strict=True):
            mine.append(next_numbers(model, piece, cache, tgt_in.size(1)))
    return worst([compare(join(mine), full_pass(model, *one)) for mine, one in zip(steps, both, strict=True)])


def alternating_deviation(model: Transformer, src_ids: Tensor, tgt_in: Tensor, chunks: Sequence[int]) -> float:
    """A full pass after every chunk: neither may notice the other."""
    want = full_pass(model, src_ids, tgt_in)
    cache = new_cache(model, src_ids, tgt_in.size(1))
    steps, deviations = [], []
    for piece in tgt_in.split(list(chunks), 1):
        steps.append(next_numbers(model, piece, cache, tgt_in.size(1)))
        deviations.append(compare(full_pass(model, src_ids, tgt_in), want))
    return worst([*deviations, compare(join(steps), want)])


def splits(length: int) -> Iterator[list[int]]:
    """Every way to cut `length` tokens into chunks: 2 to the power of length - 1."""
    if length == 0:
        yield []
    for first in range(1, length + 1):
        for rest in splits(length - first):
            yield [first, *rest]


def errors_by_position(subject: Subject) -> list[float]:
    """The worst deviation of single steps from the full pass at each target position, in the dtype of the model."""
    tgt_in = subject.tgt_in
    length = tgt_in.size(1)
    want = full_pass(subject.model, subject.src_ids, tgt_in)
    cache = new_cache(subject.model, subject.src_ids, length)
    errors = []
    for t in range(length):
        got = next_numbers(subject.model, tgt_in[:, t : t + 1], cache, length)
        errors.append(compare(got, [x.narrow(-2, t, 1) for x in want]))
    return errors
