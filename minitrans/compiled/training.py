"""The loss of a batch on the compiled kernels: each sub-layer is one kernel forward, and one backward.

It computes what `minitrans.model.loss.batch_loss` computes, with the same dropout, and keeps of each sub-layer its
input alone: the way back computes the rest again, which takes less time than fetching it from memory.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from minitrans.compiled import kernels
from minitrans.compiled.plan import Norm, Plan, Sublayer
from minitrans.model.dropout import draw_seed, dropped_of_256
from minitrans.model.masks import causal_mask, padding_mask


def batch_loss(
    plan: Plan, src_ids: Tensor, tgt_in: Tensor, tgt_out: Tensor, smoothing: float, dtype: torch.dtype
) -> Tensor:
    """What `minitrans.model.loss.batch_loss` returns for the model of a plan.

    Args:
        plan: Of a model on the CPU; its parameters are float32, or float64 as `dtype`.
        src_ids: int64 (B, S).
        tgt_in: int64 (B, T).
        tgt_out: int64 (B, T).
        smoothing: In [0, 1).
        dtype: Of the products: bfloat16, float32 or float64.

    Raises:
        ValueError: A sequence is longer than `max_len`.
        IndexError: An id is not below V, or negative.
        RuntimeError: It is differentiated twice.
    """
    hidden, output = hidden_states(plan, src_ids, tgt_in, dtype)
    return linear_cross_entropy(hidden, output, tgt_out, plan.config.pad_id, smoothing)


def hidden_states(plan: Plan, src_ids: Tensor, tgt_in: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What `Transformer.hidden` returns, (B, T, D), and the output matrix (V, D) to go on with.

    Where that is the table of the embeddings too, its gradient must come from one function that made it anew: the
    embeddings add theirs to it in place.
    """
    src_ids, tgt_in = src_ids.contiguous(), tgt_in.contiguous()
    src_mask = padding_mask(src_ids, plan.config.pad_id)
    x, table = embed(plan, plan.source, src_ids, dtype)
    for layer in plan.encoder:
        for part in layer:
            x = sublayer(plan, part, x, src_mask)
    memory = norm(x, plan.encoder_norm)
    x, table = embed(plan, table if plan.tied else plan.target, tgt_in, dtype)
    causal = causal_mask(tgt_in.size(1), tgt_in.size(1), 0)
    for layer in plan.decoder:
        for part in layer:
            if part.kind == "cross-attention":
                x = sublayer(plan, part, x, src_mask, memory)
            else:
                x = sublayer(plan, part, x, causal)
    return norm(x, plan.decoder_norm), table if plan.tied else plan.output


def linear_cross_entropy(hidden: Tensor, weight: Tensor, tgt_out: Tensor, pad_id: int, smoothing: float) -> Tensor:
    """What `minitrans.model.loss.linear_cross_entropy` returns; the arguments are the same."""
    real = (tgt_out != pad_id).flatten().nonzero()[:, 0]
    rows, target = hidden.flatten(0, 1).index_select(0, real), tgt_out.flatten()[real]
    return _apply(_LinearCrossEntropy, rows, weight, target, smoothing)


def embed(plan: Plan, table: Tensor, ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`Transformer.embed` from position 0 on, in a dtype; and the table, for whatever reads it next.

    The gradient of a table that is read several times then comes back through each of its readers, and none makes
    another one of that size: a vocabulary is the largest thing in a small model.
    """
    length, c = ids.size(1), plan.config
    if length > c.max_len:
        raise ValueError(f"{length} tokens are more than model.max_len ({c.max_len})")
    result: tuple[Tensor, Tensor] = _Embed.apply(  # type: ignore[no-untyped-call]
        ids, table, plan.positions[:length], math.sqrt(c.d_model), _draw(plan.dropout), dtype
    )
    return result


def norm(x: Tensor, parameters: Norm) -> Tensor:
    """The layer norm of (B, T, D)."""
    return _apply(_Norm, x, *parameters)


def sublayer(plan: Plan, part: Sublayer, x: Tensor, mask: Tensor, memory: Tensor | None = None) -> Tensor:
    """One sub-layer of x (B, T, D), which attends to `memory` (B, S, D), or to itself, or not at all.

    `mask` is bool, (B or 1, 1, T or 1, S), True = may attend; a feed-forward network has no use for it.
    """
    settings = part.norm.eps, _draw(part.inside), _draw(part.end)
    if part.kind == "feed-forward":
        return _apply(_FeedForward, x, settings, *part.parameters)
    return _apply(_Attention, x, memory, mask, plan.config.n_heads, settings, *part.parameters)


def _draw(p: float) -> kernels.Dropout:
    """Dropout with a seed drawn as `dropout` draws it: none where nothing is dropped."""
    dropped = dropped_of_256(p)
    return kernels.Dropout(draw_seed() if dropped else 0, dropped)


def _apply(function: Any, *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)
    return result


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, ids: Tensor, table: Tensor, positions: Tensor, scale: float, *rest: Any
    ) -> tuple[Tensor, Tensor]:
        dropout, dtype = rest
        ctx.save_for_backward(ids)
        ctx.settings = scale, dropout
        return kernels.embed(ids, table, positions, scale, dropout, dtype), table

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, d_table: Tensor) -> tuple[Tensor | None, ...]:
        (ids,) = ctx.saved_tensors
        d_table = d_table.contiguous()
        kernels.add_embed_backward(grad.contiguous(), ids, d_table, *ctx.settings)
        return None, d_table, None, None, None, None


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, gamma, beta)
        ctx.eps = eps
        return kernels.norm(x, gamma, beta, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, beta = ctx.saved_tensors
        return *kernels.norm_backward(grad.contiguous(), x, gamma, beta, ctx.eps), None


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, settings: Any, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(x, *parameters)
        ctx.settings = settings
        return kernels.feed_forward(x, parameters, *settings)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *parameters = ctx.saved_tensors
        d_x, *d_parameters = kernels.feed_forward_backward(grad.contiguous(), x, parameters, *ctx.settings)
        return d_x, None, *d_parameters


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, memory: Tensor | None, mask: Tensor, n_heads: int, settings: Any, *parameters: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, memory, mask, *parameters)
        ctx.n_heads, ctx.settings = n_heads, settings
        return kernels.attention(x, memory, mask, n_heads, parameters, *settings)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, memory, mask, *parameters = ctx.saved_tensors
        d_x, d_memory, *d_parameters = kernels.attention_backward(
            grad.contiguous(), x, memory, mask, ctx.n_heads, parameters, *ctx.settings
        )
        return d_x, d_memory, None, None, None, *d_parameters


class _LinearCrossEntropy(torch.autograd.Function):
    """Hidden states (N, D), output matrix (V, D), target int64 (N,) -> the loss, summed over the rows."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float) -> Tensor:
        loss, z = kernels.linear_cross_entropy(hidden, weight, target, smoothing)
        ctx.save_for_backward(hidden, weight, target, z)
        ctx.smoothing = smoothing
        return weight.new_tensor(loss)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden, weight, target, z = ctx.saved_tensors
        d_hidden, d_weight = kernels.linear_cross_entropy_backward(
            hidden, weight, target, z, ctx.smoothing, grad.item()
        )
        return d_hidden, d_weight, None, None
