"""Faults of the look-up, of its scale, and of the heads."""

import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

from minitrans.model.attention import (
    MultiHeadAttention,
    attention_scores,
    attention_weights,
    masked_softmax,
    scaled_dot_product_attention,
)
from minitrans.verify import wrong_formulas
from minitrans.verify.sabotage import Patch, Sabotage, into

SABOTAGES: list[Sabotage] = []
sabotage = into(SABOTAGES)

# The right ones, which wrong ones call.
init, project, forward = MultiHeadAttention.__init__, MultiHeadAttention.project, MultiHeadAttention.forward


@sabotage("softmax.hard", "The look-up is hard: all the weight goes to the best key.", masked_softmax)
def softmax_hard(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    weights = masked_softmax(scores, mask)
    return F.one_hot(weights.argmax(-1), weights.size(-1)).to(weights.dtype) * (weights > 0)


sabotage("softmax.naive", "exp(x) / sum(exp(x)) is computed literally: large scores overflow.", masked_softmax)(
    wrong_formulas.naive_softmax
)


@sabotage("softmax.base-2", "Powers of 2 in place of powers of e.", masked_softmax)
def softmax_base_2(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    return masked_softmax(scores * math.log(2), mask)


@sabotage("softmax.axis", "The weights sum to 1 over the queries, not over the keys.", masked_softmax)
def softmax_axis(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    return torch.softmax(scores if mask is None else scores.masked_fill(~mask, -1e30), dim=-2)


@sabotage("values.cut", "Values are cut to the size of the keys.", scaled_dot_product_attention)
def values_cut(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    return scaled_dot_product_attention(q, k, v[..., : q.size(-1)], *rest, **options)


@sabotage("scale.missing", "Scores are not divided by sqrt(d_k).", attention_scores)
def scale_missing(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT


@sabotage("scale.outside", "The division by sqrt(d_k) stands outside the softmax.", attention_weights)
def scale_outside(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is None:
        return wrong_formulas.scaled_after_softmax(q, k)
    return masked_softmax(q @ k.mT, mask) / q.size(-1) ** 0.5


@sabotage("scale.d_model", "Scores are divided by sqrt(d_model) instead of sqrt(d_head).", attention_scores)
def scale_d_model(q: Tensor, k: Tensor) -> Tensor:
    return wrong_formulas.scaled_by_d_model(q, k) if q.dim() == 4 else attention_scores(q, k)


@sabotage(
    "heads.unsplit",
    "Scores are computed before the heads are split, so that all heads have the same.",
    attention_scores,
)
def heads_unsplit(q: Tensor, k: Tensor) -> Tensor:
    return wrong_formulas.unsplit_scores(q, k) if q.dim() == 4 else attention_scores(q, k)


@sabotage("heads.rolled", "Each head's queries meet the next head's keys.", attention_scores)
def heads_rolled(q: Tensor, k: Tensor) -> Tensor:
    return attention_scores(q, k.roll(1, -3) if q.dim() == 4 else k)


@sabotage(
    "heads.interleaved",
    "Head h takes every h-th column of the projection instead of a block of columns.",
    MultiHeadAttention,
    "project",
)
def heads_interleaved(self: MultiHeadAttention, x: Tensor, first: int, last: int) -> tuple[Tensor, ...]:
    columns = (t.transpose(1, 2).flatten(2) for t in project(self, x, first, last))  # (B, T, H*Dh)
    return tuple(t.unflatten(2, (self.d_head, self.n_heads)).permute(0, 3, 1, 2) for t in columns)


@sabotage(
    "heads.mixed",
    "The heads' outputs are put together without turning (B, H, T, Dh) into (B, T, H, Dh) first.",
    scaled_dot_product_attention,
)
def heads_mixed(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor | None]:
    heads, weights = scaled_dot_product_attention(q, *rest)
    if heads.dim() == 4:  # (B, H, T, Dh), which will be turned: so that it ends where it would without
        heads = heads.reshape(len(heads), heads.size(2), heads.size(1), -1).transpose(1, 2)
    return heads, weights


@sabotage("heads.wide", "Every head is as large as all heads should be together.", MultiHeadAttention, "__init__")
def heads_wide(
    self: MultiHeadAttention, d_model: int, n_heads: int, d_head: int | None = None, dropout: float = 0.0
) -> None:
    init(self, d_model, n_heads, n_heads * (d_head or d_model // n_heads), dropout)


@sabotage("heads.no-w_o", "The heads' outputs are not mixed by W_o.", MultiHeadAttention, "forward")
def heads_no_w_o(self: MultiHeadAttention, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    with mock.patch.object(self.w_o, "forward", lambda heads: heads):
        return forward(self, *arguments, **options)


@sabotage("projections.swapped", "Queries are projected by W_k and keys by W_q.", MultiHeadAttention, "project")
def projections_swapped(self: MultiHeadAttention, x: Tensor, first: int, last: int) -> tuple[Tensor, ...]:
    q, k, v = project(self, x, 0, 3)
    return (k, q, v)[first:last]


@sabotage("projections.list", "W_o is kept where PyTorch does not look, as in a plain list of layers.")
def projections_list(patch: Patch) -> None:
    convert = MultiHeadAttention._apply

    def unregistered(self: MultiHeadAttention, *sizes: int, **options: float) -> None:
        init(self, *sizes, **options)  # type: ignore[arg-type]
        self.__dict__["w_o"] = self._modules.pop("w_o")

    def convert_both(self: MultiHeadAttention, *arguments: Callable[[Tensor], Tensor]) -> MultiHeadAttention:
        self.w_o._apply(*arguments)  # or all would end in a mismatch of dtypes, and nothing be counted
        return convert(self, *arguments)  # type: ignore[no-untyped-call]

    patch(MultiHeadAttention, "__init__", unregistered)
    patch(MultiHeadAttention, "_apply", convert_both)


@sabotage(
    "cross.own-keys",
    "Cross-attention takes its keys and values from the queries' own sequence.",
    MultiHeadAttention,
    "forward",
)
def cross_own_keys(
    self: MultiHeadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = False,
    *rest: Any,
) -> tuple[Tensor, Tensor | None]:
    fits = mask is None or mask.size(-1) in (1, query.size(1))
    return forward(self, query, query, query, mask if fits else None, need_weights)


@sabotage(
    "batch.second",
    "Attention runs over the rows of the batch, as if sequences lay first.",
    MultiHeadAttention,
    "forward",
)
def batch_second(
    self: MultiHeadAttention, query: Tensor, key: Tensor, value: Tensor, *rest: Any
) -> tuple[Tensor, Tensor | None]:
    output, weights = forward(self, query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), *rest)
    return output.transpose(0, 1), weights
