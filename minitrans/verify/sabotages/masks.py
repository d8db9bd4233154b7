"""Faults of masks: what may be seen, when, and what the weights of the rest are."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from minitrans.model import transformer
from minitrans.model.attention import attention_weights, masked_softmax
from minitrans.model.cache import DecoderCache
from minitrans.model.layers import LayerTrace
from minitrans.model.masks import causal_mask, padding_mask
from minitrans.model.transformer import Decoder
from minitrans.pages.pictures import heat_map
from minitrans.verify import wrong_formulas
from minitrans.verify.sabotage import Patch, Sabotage, into

SABOTAGES: list[Sabotage] = []
sabotage = into(SABOTAGES)


@sabotage(
    "mask.leak",
    "The causal mask lets every query see every key: training looks 98% right.",
    transformer,
    "causal_mask",
)
def see_everything(q_len: int, kv_len: int, offset: int, device: torch.device | None = None) -> Tensor:
    return torch.ones(1, 1, q_len, kv_len, dtype=torch.bool)


@sabotage(
    "mask.late",
    "The causal mask begins one token too late: each query sees the token that it has to predict.",
    transformer,
    "causal_mask",
)
def mask_late(q_len: int, kv_len: int, offset: int, device: torch.device | None = None) -> Tensor:
    return see_everything(q_len, kv_len, offset).tril(offset + 1)


def causal_only_where(patch: Patch, condition: Callable[[Decoder, DecoderCache | None], bool]) -> None:
    """Leave the causal mask out where the condition does not hold."""
    forward = Decoder.forward
    make_mask = causal_mask

    def decide(
        self: Decoder,
        x: Tensor,
        memory: Tensor | None,
        src_mask: Tensor,
        cache: DecoderCache | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, list[LayerTrace]]:
        nonlocal make_mask
        make_mask = causal_mask if condition(self, cache) else see_everything
        return forward(self, x, memory, src_mask, cache, need_weights)

    patch(Decoder, "forward", decide)
    patch(transformer, "causal_mask", lambda *arguments: make_mask(*arguments))


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


@sabotage(
    "mask.top-left",
    "With more keys than queries the mask is aligned top left, as is_causal=True has it.",
    transformer,
    "causal_mask",
)
def mask_top_left(q_len: int, kv_len: int, offset: int, device: torch.device | None = None) -> Tensor:
    return see_everything(q_len, kv_len, offset).tril()


@sabotage(
    "mask.square",
    "The square mask of the first chunk serves for the second too: it hides the tokens before.",
    transformer,
    "causal_mask",
)
def mask_square(q_len: int, kv_len: int, offset: int, device: torch.device | None = None) -> Tensor:
    return F.pad(causal_mask(q_len, q_len, 0), (kv_len - q_len, 0))


@sabotage("mask.inverted", "True is read as: may not attend.", masked_softmax)
def mask_inverted(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    return masked_softmax(scores, None if mask is None else ~mask)


sabotage("mask.after-softmax", "Masked weights are set to 0 after the softmax.", masked_softmax)(
    wrong_formulas.masked_after_softmax
)


@sabotage(
    "mask.fill-1e6",
    "Masked scores are filled with -1e6, and the weights are left as the softmax gives them.",
    masked_softmax,
)
def mask_fill_1e6(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    return torch.softmax(scores if mask is None else scores.masked_fill(~mask, -1e6), dim=-1)


@sabotage("mask.fill-inf", "Masked scores are filled with -inf: a query that may see nothing gets NaN.", masked_softmax)
def mask_fill_inf(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    return torch.softmax(scores if mask is None else scores.masked_fill(~mask, -torch.inf), dim=-1)


@sabotage(
    "mask.nan-gradient",
    "Masked scores get -inf added and their weights 0 afterwards: the gradient stays NaN.",
    masked_softmax,
)
def mask_nan_gradient(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is None:
        return masked_softmax(scores)
    blocked = torch.where(mask, 0.0, -torch.inf).to(scores.dtype)
    return torch.softmax(scores + blocked, dim=-1).masked_fill(~mask, 0.0)


@sabotage(
    "padding.seen",
    "Padding of the source is not masked: a sentence depends on its neighbours in the batch.",
    transformer,
    "padding_mask",
)
def padding_seen(ids: Tensor, pad_id: int) -> Tensor:
    return torch.ones_like(padding_mask(ids, pad_id))


@sabotage("padding.queries", "Padding is masked on the axis of the queries, not of the keys.", attention_weights)
def padding_queries(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is not None and mask.size(-2) == 1 != q.size(-2):  # a padding mask, (B, 1, 1, S)
        mask = mask.mT if q.size(-2) == mask.size(-1) else torch.ones_like(mask)
    return attention_weights(q, k, mask)


@sabotage("padding.other-id", "Another id than that of padding is masked.", transformer, "padding_mask")
def padding_other_id(ids: Tensor, pad_id: int) -> Tensor:
    return padding_mask(ids, pad_id + 2)


@sabotage("heat-map.unmarked", "A heat map draws masked cells like cells of weight 0.", heat_map)
def heat_map_unmarked(weights: Tensor, mask: Tensor, *labels: Any) -> str:
    return heat_map(weights, torch.ones_like(mask), *labels)
