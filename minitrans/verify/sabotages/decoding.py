"""Faults of the cache, of selecting its rows, of positions, and of greedy decoding."""

from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import Embedding
from torch.nn import functional as F

from minitrans.model import decoding
from minitrans.model.attention import attention_weights
from minitrans.model.cache import DecoderCache, KeyValues, LayerCache
from minitrans.model.decoding import CachedStepper, Hypothesis, Stepper, greedy_decode, length_limit, likeliest_tokens
from minitrans.model.transformer import Decoder, Transformer, TransformerConfig
from minitrans.verify.sabotage import Patch, Sabotage, into

SABOTAGES: list[Sabotage] = []
sabotage = into(SABOTAGES)

# The right ones, which wrong ones call.
embed, init_cache, step, decode = Transformer.embed, Transformer.init_cache, Transformer.step, Decoder.forward
write, make_cache, select_rows = KeyValues.write, DecoderCache.__init__, DecoderCache.select_rows
next_tokens = CachedStepper.next_tokens


@sabotage("positions.restart", "Positions begin at 0 again in every step.", Transformer, "embed")
def positions_restart(self: Transformer, embedding: Embedding, ids: Tensor, offset: int) -> Tensor:
    return embed(self, embedding, ids, 0)


@sabotage("positions.ahead", "After the first step positions are one too high.", Transformer, "embed")
def positions_ahead(self: Transformer, embedding: Embedding, ids: Tensor, offset: int) -> Tensor:
    return embed(self, embedding, ids, offset + bool(offset))


@sabotage(
    "cache.wrong-slot", "The keys come back from the cache rolled by one slot against the values.", KeyValues, "write"
)
def cache_wrong_slot(self: KeyValues, k: Tensor, v: Tensor, offset: int) -> tuple[Tensor, Tensor]:
    k, v = write(self, k, v, offset)
    return k.roll(1, dims=2), v


@sabotage("cache.empty-slots", "All slots of the cache are attended to, those that hold nothing yet too.")
def cache_empty_slots(patch: Patch) -> None:
    def all_slots(self: KeyValues, k: Tensor, v: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        if offset == 0:
            self.k.fill_(0.5)
            self.v.fill_(0.5)
        write(self, k, v, offset)
        return self.k, self.v

    def see_empty(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
        n_empty = 0 if mask is None or mask.size(-1) == 1 else k.size(-2) - mask.size(-1)
        return attention_weights(q, k, mask if mask is None else F.pad(mask, (0, n_empty), value=True))

    patch(KeyValues, "write", all_slots)
    patch.everywhere(attention_weights, see_empty)


@sabotage("cache.forgets", "Writing to the cache wipes what it held.", KeyValues, "write")
def cache_forgets(self: KeyValues, k: Tensor, v: Tensor, offset: int) -> tuple[Tensor, Tensor]:
    self.k[:, :, :offset] = 0.0
    return write(self, k, v, offset)


@sabotage(
    "cache.cross-layout",
    "The source's keys are cached as (B, S, H, Dh) and read as (B, H, S, Dh).",
    DecoderCache,
    "__init__",
)
def cache_cross_layout(self: DecoderCache, source: Iterable[KeyValues], *rest: Any) -> None:
    make_cache(self, [KeyValues(each.k.transpose(1, 2).reshape(each.k.shape), each.v) for each in source], *rest)


@sabotage(
    "cache.on-module",
    "The cache lives on the model: two decodes of equal sizes write into the same one.",
    Transformer,
    "init_cache",
)
def cache_on_module(self: Transformer, memory: Tensor, src_mask: Tensor, capacity: int | None = None) -> DecoderCache:
    cache = init_cache(self, memory, src_mask, capacity)
    buffers = self.__dict__.setdefault("buffers_by_size", {})
    for i, layer in enumerate(cache.layers):
        target = layer.target
        target.k, target.v = buffers.setdefault((i, target.k.shape), (target.k, target.v))
    return cache


@sabotage("cache.emptied", "A full pass between two steps resets the cache that the model keeps.")
def cache_emptied(patch: Patch) -> None:
    latest: list[DecoderCache] = []

    def kept(self: Transformer, memory: Tensor, src_mask: Tensor, capacity: int | None = None) -> DecoderCache:
        latest[:] = [init_cache(self, memory, src_mask, capacity)]
        return latest[0]

    def resetting(self: Decoder, x: Tensor, *arguments: Any) -> object:
        if arguments[2:3] in ((), (None,)):
            for cache in latest:
                cache.length = 0
        return decode(self, x, *arguments)

    patch(Transformer, "init_cache", kept)
    patch(Decoder, "forward", resetting)


@sabotage("rows.dropped", "The selection of rows is computed, and its result is dropped.", DecoderCache, "select_rows")
def rows_dropped(self: DecoderCache, rows: Tensor) -> None:
    if len(rows) != len(self.src_mask):
        select_rows(self, rows)


@sabotage(
    "rows.sorted",
    "The right rows are kept in the wrong order: sums and means over the batch are the same.",
    DecoderCache,
    "select_rows",
)
def rows_sorted(self: DecoderCache, rows: Tensor) -> None:
    select_rows(self, rows.sort().values)


@sabotage("rows.inverse", "Rows are selected by the inverse of the order given.", DecoderCache, "select_rows")
def rows_inverse(self: DecoderCache, rows: Tensor) -> None:
    is_permutation = rows.sort().values.equal(torch.arange(len(self.src_mask)))
    select_rows(self, rows.argsort() if is_permutation else rows)


def select_all_but(cache: DecoderCache, rows: Tensor, kept: Callable[[LayerCache], KeyValues], *names: str) -> None:
    """Select rows, but where as many are kept as there were, leave these tensors of a part of the layers alone."""
    before = [{name: getattr(kept(layer), name) for name in names} for layer in cache.layers]
    same_size = len(rows) == len(cache.src_mask)
    select_rows(cache, rows)
    for layer, attributes in zip(cache.layers, before, strict=True):
        for name, tensor in attributes.items() if same_size else ():
            setattr(kept(layer), name, tensor)


@sabotage(
    "rows.not-source", "Selected rows keep their own target, but another row's source.", DecoderCache, "select_rows"
)
def rows_not_source(self: DecoderCache, rows: Tensor) -> None:
    select_all_but(self, rows, lambda layer: layer.source, "k", "v")


@sabotage(
    "rows.not-target", "Selected rows keep their own source, but another row's target.", DecoderCache, "select_rows"
)
def rows_not_target(self: DecoderCache, rows: Tensor) -> None:
    select_all_but(self, rows, lambda layer: layer.target, "k", "v")


@sabotage("rows.first", "Where fewer rows are kept, they are the first ones.", DecoderCache, "select_rows")
def rows_first(self: DecoderCache, rows: Tensor) -> None:
    select_rows(self, torch.arange(len(rows)) if len(rows) < len(self.src_mask) else rows)


@sabotage("rows.not-values", "Keys are selected, values are not.", DecoderCache, "select_rows")
def rows_not_values(self: DecoderCache, rows: Tensor) -> None:
    select_all_but(self, rows, lambda layer: layer.target, "v")


@sabotage("rows.not-mask", "Selected rows keep another row's source mask.", DecoderCache, "select_rows")
def rows_not_mask(self: DecoderCache, rows: Tensor) -> None:
    before = self.src_mask
    select_rows(self, rows)
    if len(rows) == len(before):
        self.src_mask = before


@sabotage("decode.stale-token", "Each step is fed the token before the last one.")
def decode_stale_token(patch: Patch) -> None:
    def stale(self: Transformer, tgt_ids: Tensor, cache: DecoderCache) -> Tensor:
        previous = cache.__dict__.get("fed", tgt_ids)
        cache.__dict__["fed"] = tgt_ids
        return step(self, previous if previous.shape == tgt_ids.shape else tgt_ids, cache)

    def stale_too(self: DecoderCache, rows: Tensor) -> None:
        select_rows(self, rows)
        if "fed" in self.__dict__:
            self.__dict__["fed"] = self.__dict__["fed"][rows]

    patch(Transformer, "step", stale)
    patch(DecoderCache, "select_rows", stale_too)


@sabotage("decode.past-eos", "Decoding continues after EOS.", greedy_decode)
def decode_past_eos(stepper: Stepper[Any], src_ids: Tensor) -> list[Hypothesis]:
    found = greedy_decode(stepper, src_ids)
    return [h._replace(ids=[*h.ids, stepper.config.eos_id, *h.ids]) for h in found]


@sabotage("decode.second-best", "With a cache, the second best token is taken.", CachedStepper, "next_tokens")
def decode_second_best(self: CachedStepper, tokens: Tensor, rows: DecoderCache, n: int) -> tuple[Tensor, Tensor]:
    log_p, ids = next_tokens(self, tokens, rows, n + 1)
    return log_p[:, 1:], ids[:, 1:]


@sabotage("decode.limit-of-batch", "The length limit is that of the longest source in the batch.", greedy_decode)
def decode_limit_of_batch(stepper: Stepper[Any], src_ids: Tensor) -> list[Hypothesis]:
    with mock.patch.object(decoding, "length_limit", lambda n, longest: length_limit(src_ids.size(1), longest)):
        return greedy_decode(stepper, src_ids)


@sabotage("beam.logits", "Beam search adds up logits instead of log-probabilities.", likeliest_tokens)
def beam_logits(logits: Tensor, n: int, config: TransformerConfig) -> tuple[Tensor, Tensor]:
    _, ids = likeliest_tokens(logits, n, config)
    return logits.gather(1, ids), ids


@sabotage("beam.second-best", "Beam search never sees the likeliest token.", likeliest_tokens)
def beam_second_best(logits: Tensor, n: int, config: TransformerConfig) -> tuple[Tensor, Tensor]:
    log_p, ids = likeliest_tokens(logits, n + 1, config)
    return log_p[:, 1:], ids[:, 1:]
