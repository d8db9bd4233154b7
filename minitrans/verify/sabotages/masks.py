"""Faults of masks: what may be seen, when, and what the weights of the rest are."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from minitrans.model import transformer
from minitrans.model.attention import attention_weights, masked_softmax
from minitrans.model.cache import DecoderCache
from minitrans.model.layers import LayerTrace
from minitrans.model.masks import causal_mask, padding_mask
from minitrans.model.transformer import Decoder
from minitrans.pages import pictures
from minitrans.verify import wrong_formulas
from minitrans.verify.sabotage import Patch, sabotage


def see_everything(q_len: int, kv_len: int, offset: int) -> Tensor:
    """No mask."""
    return torch.ones(1, 1, q_len, kv_len, dtype=torch.bool)


def replace_causal_mask(patch: Patch, make: Callable[[int, int, int], Tensor]) -> None:
    """Make the decoder's causal mask from (q_len, kv_len, offset) in another way."""
    patch(transformer, "causal_mask", lambda q_len, kv_len, offset, device=None: make(q_len, kv_len, offset))


def causal_only_where(patch: Patch, condition: Callable[[Decoder, DecoderCache | None], bool]) -> None:
    """Leave the causal mask out where the condition does not hold."""
    forward = Decoder.forward
    causal = True

    def decide(
        self: Decoder,
        x: Tensor,
        memory: Tensor | None,
        src_mask: Tensor,
        cache: DecoderCache | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, list[LayerTrace]]:
        nonlocal causal
        causal = condition(self, cache)
        return forward(self, x, memory, src_mask, cache, need_weights)

    patch(Decoder, "forward", decide)
    replace_causal_mask(patch, lambda q, kv, offset: (causal_mask if causal else see_everything)(q, kv, offset))


@sabotage("mask.leak", "The causal mask lets every query see every key: training looks 98% right.")
def mask_leak(patch: Patch) -> None:
    replace_causal_mask(patch, see_everything)


@sabotage("mask.late", "The causal mask begins one token too late: each query sees the token that it has to predict.")
def mask_late(patch: Patch) -> None:
    replace_causal_mask(patch, lambda q, kv, offset: see_everything(q, kv, offset).tril(offset + 1))


@sabotage("mask.only-cached", "The causal mask exists only where a cache is set up.")
def mask_only_cached(patch: Patch) -> None:
    causal_only_where(patch, lambda decoder, cache: cache is not None)


@sabotage("mask.only-uncached", "A cache switches the causal mask off: the tokens of a chunk see each other.")
def mask_only_uncached(patch: Patch) -> None:
    causal_only_where(patch, lambda decoder, cache: cache is None)


@sabotage("mask.only-training", "The causal mask exists only in training mode.")
def mask_only_training(patch: Patch) -> None:
    causal_only_where(patch, lambda decoder, cache: decoder.training)


@sabotage("mask.only-eval", "The causal mask exists only in eval mode.")
def mask_only_eval(patch: Patch) -> None:
    causal_only_where(patch, lambda decoder, cache: not decoder.training)


@sabotage("mask.top-left", "With more keys than queries the mask is aligned top left, as is_causal=True has it.")
def mask_top_left(patch: Patch) -> None:
    replace_causal_mask(patch, lambda q, kv, offset: see_everything(q, kv, offset).tril())


@sabotage("mask.square", "The square mask of the first chunk serves for the second too: it hides the tokens before.")
def mask_square(patch: Patch) -> None:
    replace_causal_mask(patch, lambda q, kv, offset: F.pad(causal_mask(q, q, 0), (kv - q, 0)))


@sabotage("mask.inverted", "True is read as: may not attend.")
def mask_inverted(patch: Patch) -> None:
    patch.everywhere(masked_softmax, lambda s, mask=None: masked_softmax(s, None if mask is None else ~mask))


@sabotage("mask.after-softmax", "Masked weights are set to 0 after the softmax.")
def mask_after_softmax(patch: Patch) -> None:
    patch.everywhere(masked_softmax, wrong_formulas.masked_after_softmax)


@sabotage("mask.fill-1e6", "Masked scores are filled with -1e6, and the weights are left as the softmax gives them.")
def mask_fill_1e6(patch: Patch) -> None:
    def lowered(scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return torch.softmax(scores if mask is None else scores.masked_fill(~mask, -1e6), dim=-1)

    patch.everywhere(masked_softmax, lowered)


@sabotage("mask.fill-inf", "Masked scores are filled with -inf: a query that may see nothing gets NaN.")
def mask_fill_inf(patch: Patch) -> None:
    def removed(scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return torch.softmax(scores if mask is None else scores.masked_fill(~mask, -torch.inf), dim=-1)

    patch.everywhere(masked_softmax, removed)


@sabotage("mask.nan-gradient", "Masked scores get -inf added and their weights 0 afterwards: the gradient stays NaN.")
def mask_nan_gradient(patch: Patch) -> None:
    def added(scores: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return masked_softmax(scores)
        blocked = torch.where(mask, 0.0, -torch.inf).to(scores.dtype)
        return torch.softmax(scores + blocked, dim=-1).masked_fill(~mask, 0.0)

    patch.everywhere(masked_softmax, added)


@sabotage("padding.seen", "Padding of the source is not masked: a sentence depends on its neighbours in the batch.")
def padding_seen(patch: Patch) -> None:
    patch(transformer, "padding_mask", lambda ids, pad_id: torch.ones_like(padding_mask(ids, pad_id)))


@sabotage("padding.queries", "Padding is masked on the axis of the queries, not of the keys.")
def padding_queries(patch: Patch) -> None:
    def turned(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None and mask.size(-2) == 1 != q.size(-2):  # a padding mask, (B, 1, 1, S)
            mask = mask.mT if q.size(-2) == mask.size(-1) else torch.ones_like(mask)
        return attention_weights(q, k, mask)

    patch.everywhere(attention_weights, turned)


@sabotage("padding.other-id", "Another id than that of padding is masked.")
def padding_other_id(patch: Patch) -> None:
    patch(transformer, "padding_mask", lambda ids, pad_id: padding_mask(ids, pad_id + 2))


@sabotage("heat-map.unmarked", "A heat map draws masked cells like cells of weight 0.")
def heat_map_unmarked(patch: Patch) -> None:
    def unmarked(weights: Tensor, mask: Tensor, *labels: list[str]) -> str:
        return drawn(weights, torch.ones_like(mask), *labels)

    drawn = pictures.heat_map
    patch.everywhere(pictures.heat_map, unmarked)
