"""The loss of a batch on the compiled kernels: each sub-layer is one kernel forward, and one backward.

It computes what `minitrans.model.loss.batch_loss` computes, with the same dropout, and keeps of each sub-layer its
input alone: the way back computes the rest again, which takes less time than fetching it from memory.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from minitrans.compiled import kernels
from minitrans.compiled.plan import Plan, Sublayer
from minitrans.model.dropout import draw_seed, dropped_of_256
from minitrans.model.masks import causal_mask, padding_mask

Gradients = tuple[Tensor | None, ...]
T = TypeVar("T")


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
    for part in plan.encoder:
        x = sublayer(plan, part, x, src_mask)
    memory = norm(x, plan.encoder_norm)
    x, table = embed(plan, table if plan.tied else plan.target, tgt_in, dtype)
    causal = causal_mask(tgt_in.size(1), tgt_in.size(1), 0)
    for part in plan.decoder:
        if part.kind == "cross-attention":
            x = sublayer(plan, part, x, src_mask, memory)
        else:
            x = sublayer(plan, part, x, causal)
    return norm(x, plan.decoder_norm), table if plan.tied else plan.output


def linear_cross_entropy(hidden: Tensor, weight: Tensor, tgt_out: Tensor, pad_id: int, smoothing: float) -> Tensor:
    """What `minitrans.model.loss.linear_cross_entropy` returns; the arguments are the same."""
    real = (tgt_out != pad_id).flatten().nonzero()[:, 0]
    rows, target = hidden.flatten(0, 1).index_select(0, real), tgt_out.flatten()[real]
    loss: Tensor = _LinearCrossEntropy.apply(rows, weight, target, smoothing)  # type: ignore[no-untyped-call]
    return loss


def embed(plan: Plan, table: Tensor, ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`Transformer.embed` from position 0 on, in a dtype; and the table, for whatever reads it next.

    The gradient of a table that is read several times then comes back through each of its readers, and none makes
    another one of that size: a vocabulary is the largest thing in a small model.
    """
    length, c = ids.size(1), plan.config
    if length > c.max_len:
        raise ValueError(f"{length} tokens are more than model.max_len ({c.max_len})")
    scale, dropout = math.sqrt(c.d_model), _draw(plan.dropout)
    return _apply(
        lambda table: (kernels.embed(ids, table, plan.positions[:length], scale, dropout, dtype), table),
        lambda grad, d_table, _: (kernels.add_embed_backward(grad, ids, d_table, scale, dropout),),
        table,
    )


def norm(x: Tensor, layer: nn.LayerNorm) -> Tensor:
    """The layer norm of (B, T, D)."""
    eps = layer.eps
    return _apply(
        lambda x, gamma, beta: kernels.norm(x, gamma, beta, eps),
        lambda grad, x, gamma, beta: kernels.norm_backward(grad, x, gamma, beta, eps),
        *(x, layer.weight, layer.bias),
    )


def sublayer(plan: Plan, part: Sublayer, x: Tensor, mask: Tensor, memory: Tensor | None = None) -> Tensor:
    """One sub-layer of x (B, T, D), which attends to `memory` (B, S, D), or to itself, or not at all.

    `mask` is bool, (B or 1, 1, T or 1, S), True = may attend; a feed-forward network has no use for it.
    """
    n_heads, settings = plan.config.n_heads, kernels.Settings(part.eps, _draw(part.inside), _draw(part.end))
    if part.kind == "feed-forward":
        return _apply(
            lambda x, *p: kernels.feed_forward(x, p, settings),
            lambda grad, x, *p: kernels.feed_forward_backward(grad, x, p, settings),
            *(x, *part.parameters),
        )
    return _apply(
        lambda x, memory, *p: kernels.attention(x, memory, mask, n_heads, p, settings),
        lambda grad, x, memory, *p: kernels.attention_backward(grad, x, memory, mask, n_heads, p, settings),
        *(x, memory, *part.parameters),
    )


def _draw(p: float) -> kernels.Dropout:
    """Dropout with a seed drawn as `dropout` draws it: none where nothing is dropped."""
    dropped = dropped_of_256(p)
    return kernels.Dropout(draw_seed() if dropped else 0, dropped)


def _apply(kernel: Callable[..., T], backward: Callable[..., Gradients], *tensors: Tensor | None) -> T:
    result: T = _Kernel.apply(kernel, backward, *tensors)  # type: ignore[no-untyped-call]
    return result


class _Kernel(torch.autograd.Function):
    """A function of tensors; `backward` gives its gradients at each of them for those at its results."""

    @staticmethod
    def forward(ctx: Any, kernel: Callable[..., T], backward: Callable[..., Gradients], *tensors: Tensor) -> T:
        ctx.save_for_backward(*tensors)
        ctx.gradients = backward
        return kernel(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        return None, None, *ctx.gradients(*(grad.contiguous() for grad in grads), *ctx.saved_tensors)


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
