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
    attention_weights,
    masked_softmax,
    scaled_dot_product_attention,
)
from minitrans.model.attention import attention_scores as scores_of
from minitrans.verify import wrong_formulas
from minitrans.verify.sabotage import Patch, sabotage


@sabotage("softmax.hard", "The look-up is hard: all the weight goes to the best key.")
def softmax_hard(patch: Patch) -> None:
    def hard(scores: Tensor, mask: Tensor | None = None) -> Tensor:
        weights = masked_softmax(scores, mask)
        return F.one_hot(weights.argmax(-1), weights.size(-1)).to(weights.dtype) * (weights > 0)

    patch.everywhere(masked_softmax, hard)


@sabotage("softmax.naive", "exp(x) / sum(exp(x)) is computed literally: large scores overflow.")
def softmax_naive(patch: Patch) -> None:
    patch.everywhere(masked_softmax, wrong_formulas.naive_softmax)


@sabotage("softmax.base-2", "Powers of 2 in place of powers of e.")
def softmax_base_2(patch: Patch) -> None:
    patch.everywhere(masked_softmax, lambda scores, mask=None: masked_softmax(scores * math.log(2), mask))


@sabotage("softmax.axis", "The weights sum to 1 over the queries, not over the keys.")
def softmax_axis(patch: Patch) -> None:
    def over_queries(scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return torch.softmax(scores if mask is None else scores.masked_fill(~mask, -1e30), dim=-2)

    patch.everywhere(masked_softmax, over_queries)


@sabotage("values.cut", "Values are cut to the size of the keys.")
def values_cut(patch: Patch) -> None:
    def cut(q: Tensor, k: Tensor, v: Tensor, *rest: object, **options: object) -> tuple[Tensor, Tensor | None]:
        return scaled_dot_product_attention(q, k, v[..., : q.size(-1)], *rest, **options)  # type: ignore[arg-type]

    patch.everywhere(scaled_dot_product_attention, cut)


@sabotage("scale.missing", "Scores are not divided by sqrt(d_k).")
def scale_missing(patch: Patch) -> None:
    patch.everywhere(scores_of, lambda q, k: q @ k.mT)


@sabotage("scale.outside", "The division by sqrt(d_k) stands outside the softmax.")
def scale_outside(patch: Patch) -> None:
    def outside(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
        return (
            wrong_formulas.scaled_after_softmax(q, k)
            if mask is None
            else masked_softmax(q @ k.mT, mask) / q.size(-1) ** 0.5
        )

    patch.everywhere(attention_weights, outside)


@sabotage("scale.d_model", "Scores are divided by sqrt(d_model) instead of sqrt(d_head).")
def scale_d_model(patch: Patch) -> None:
    patch.everywhere(
        scores_of, lambda q, k: wrong_formulas.scaled_by_d_model(q, k) if q.dim() == 4 else scores_of(q, k)
    )


@sabotage("heads.unsplit", "Scores are computed before the heads are split, so that all heads have the same.")
def heads_unsplit(patch: Patch) -> None:
    patch.everywhere(scores_of, lambda q, k: wrong_formulas.unsplit_scores(q, k) if q.dim() == 4 else scores_of(q, k))


@sabotage("heads.rolled", "Each head's queries meet the next head's keys.")
def heads_rolled(patch: Patch) -> None:
    patch.everywhere(scores_of, lambda q, k: scores_of(q, k.roll(1, -3) if q.dim() == 4 else k))


@sabotage("heads.interleaved", "Head h takes every h-th column of the projection instead of a block of columns.")
def heads_interleaved(patch: Patch) -> None:
    project = MultiHeadAttention.project

    def interleaved(self: MultiHeadAttention, x: Tensor, first: int, last: int) -> tuple[Tensor, ...]:
        columns = (t.transpose(1, 2).flatten(2) for t in project(self, x, first, last))  # (B, T, H*Dh)
        return tuple(t.unflatten(2, (self.d_head, self.n_heads)).permute(0, 3, 1, 2) for t in columns)

    patch(MultiHeadAttention, "project", interleaved)


@sabotage("heads.mixed", "The heads' outputs are put together without turning (B, H, T, Dh) into (B, T, H, Dh) first.")
def heads_mixed(patch: Patch) -> None:
    def mixed(q: Tensor, *rest: object) -> tuple[Tensor, Tensor | None]:
        heads, weights = scaled_dot_product_attention(q, *rest)  # type: ignore[arg-type]
        if heads.dim() == 4:  # (B, H, T, Dh), which will be turned: so that it ends where it would without
            heads = heads.reshape(len(heads), heads.size(2), heads.size(1), -1).transpose(1, 2)
        return heads, weights

    patch.everywhere(scaled_dot_product_attention, mixed)


@sabotage("heads.wide", "Every head is as large as all heads should be together.")
def heads_wide(patch: Patch) -> None:
    init = MultiHeadAttention.__init__

    def wide(
        self: MultiHeadAttention, d_model: int, n_heads: int, d_head: int | None = None, dropout: float = 0.0
    ) -> None:
        init(self, d_model, n_heads, n_heads * (d_head or d_model // n_heads), dropout)

    patch(MultiHeadAttention, "__init__", wide)


@sabotage("heads.no-w_o", "The heads' outputs are not mixed by W_o.")
def heads_no_w_o(patch: Patch) -> None:
    forward = MultiHeadAttention.forward

    def unmixed(self: MultiHeadAttention, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        with mock.patch.object(self.w_o, "forward", lambda heads: heads):
            return forward(self, *arguments, **options)

    patch(MultiHeadAttention, "forward", unmixed)


@sabotage("projections.swapped", "Queries are projected by W_k and keys by W_q.")
def projections_swapped(patch: Patch) -> None:
    project = MultiHeadAttention.project

    def swapped(self: MultiHeadAttention, x: Tensor, first: int, last: int) -> tuple[Tensor, ...]:
        q, k, v = project(self, x, 0, 3)
        return (k, q, v)[first:last]

    patch(MultiHeadAttention, "project", swapped)


@sabotage("projections.list", "W_o is kept where PyTorch does not look, as in a plain list of layers.")
def projections_list(patch: Patch) -> None:
    init, convert = MultiHeadAttention.__init__, MultiHeadAttention._apply

    def unregistered(self: MultiHeadAttention, *sizes: int, **options: float) -> None:
        init(self, *sizes, **options)  # type: ignore[arg-type]
        self.__dict__["w_o"] = self._modules.pop("w_o")

    def convert_both(self: MultiHeadAttention, *arguments: Callable[[Tensor], Tensor]) -> MultiHeadAttention:
        self.w_o._apply(*arguments)  # or all would end in a mismatch of dtypes, and nothing be counted
        return convert(self, *arguments)  # type: ignore[no-untyped-call]

    patch(MultiHeadAttention, "__init__", unregistered)
    patch(MultiHeadAttention, "_apply", convert_both)


@sabotage("cross.own-keys", "Cross-attention takes its keys and values from the queries' own sequence.")
def cross_own_keys(patch: Patch) -> None:
    forward = MultiHeadAttention.forward

    def own(
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

    patch(MultiHeadAttention, "forward", own)


@sabotage("batch.second", "Attention runs over the rows of the batch, as if sequences lay first.")
def batch_second(patch: Patch) -> None:
    forward = MultiHeadAttention.forward

    def over_rows(
        self: MultiHeadAttention, query: Tensor, key: Tensor, value: Tensor, *rest: Any
    ) -> tuple[Tensor, Tensor | None]:
        output, weights = forward(self, query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), *rest)
        return output.transpose(0, 1), weights

    patch(MultiHeadAttention, "forward", over_rows)
