"""The training pass on the compiled kernels: each sub-layer is one kernel forward, and one backward.

It computes what `Transformer.hidden` computes, with the same dropout, and keeps of each sub-layer its input alone: the
way back computes the rest again, which takes less time than fetching it from memory.
"""

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from minitrans.compiled import kernels
from minitrans.model.attention import MultiHeadAttention
from minitrans.model.dropout import draw_seed, dropped_of_256
from minitrans.model.layers import DecoderLayer, EncoderLayer
from minitrans.model.masks import causal_mask, padding_mask
from minitrans.model.transformer import Transformer


def training_hidden(model: Transformer, src_ids: Tensor, tgt_in: Tensor) -> tuple[Tensor, Tensor]:
    """What `model.hidden` returns, by the fastest way that there is: int64 (B, S) and (B, T) -> (B, T, D).

    That is the one below in training on a CPU where the kernels have been compiled.

    Returns:
        The hidden states, and the output matrix (V, D) to go on with. Where it is the table of the embeddings too, its
        gradient must come from one function that made it anew: the embeddings add theirs to it in place.
    """
    weight = model.output.weight
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else weight.dtype
    if model.training and torch.is_grad_enabled() and kernels.serve(weight, dtype):
        return _hidden(model, src_ids, tgt_in, dtype)
    return model.hidden(src_ids, tgt_in), weight


def _hidden(model: Transformer, src_ids: Tensor, tgt_in: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    src_ids, tgt_in = src_ids.contiguous(), tgt_in.contiguous()
    src_mask = padding_mask(src_ids, model.config.pad_id)
    x, table = embed(model, model.src_embedding.weight, src_ids, dtype)
    for layer in cast(list[EncoderLayer], model.encoder.layers):
        x = self_attention(x, layer, src_mask)
        x = feed_forward(x, layer)
    memory = norm(x, model.encoder.norm)
    tied = model.config.tie_embeddings
    x, table = embed(model, table if tied else model.tgt_embedding.weight, tgt_in, dtype)
    causal = causal_mask(tgt_in.size(1), tgt_in.size(1), 0)
    for decoder_layer in cast(list[DecoderLayer], model.decoder.layers):
        x = self_attention(x, decoder_layer, causal)
        x = cross_attention(x, memory, decoder_layer, src_mask)
        x = feed_forward(x, decoder_layer)
    return norm(x, model.decoder.norm), table if tied else model.output.weight


def embed(model: Transformer, table: Tensor, ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`model.embed` from position 0 on, in a dtype; and the table, for whatever reads it next.

    The gradient of a table that is read several times then comes back through each of its readers, and none makes
    another one of that size: a vocabulary is the largest thing in a small model.
    """
    model.check_length(ids.size(1))
    positions, scale = model.positions[: ids.size(1)], math.sqrt(model.config.d_model)
    result: tuple[Tensor, Tensor] = _Embed.apply(  # type: ignore[no-untyped-call]
        ids, table, positions, scale, _draw(model.dropout.p), dtype
    )
    return result


def norm(x: Tensor, layer_norm: nn.LayerNorm) -> Tensor:
    """`layer_norm(x)`."""
    return _apply(_Norm, x, layer_norm.weight, layer_norm.bias, layer_norm.eps)


def feed_forward(x: Tensor, layer: EncoderLayer | DecoderLayer) -> Tensor:
    """`x + layer.dropout(layer.ff(layer.ff_norm(x)))` for x (B, T, D)."""
    n, ff = layer.ff_norm, layer.ff
    parameters = kernels.parameters_of(n, ff.w_1, ff.w_2)
    return _apply(_FeedForward, x, n.eps, _draw(ff.dropout.p), _draw(layer.dropout.p), *parameters)


def self_attention(x: Tensor, layer: EncoderLayer | DecoderLayer, mask: Tensor) -> Tensor:
    """`x + layer.dropout(layer.self_attn(h, h, h, mask))`, h = layer.self_norm(x), for x (B, T, D)."""
    return _attention(x, None, layer.self_norm, layer.self_attn, mask, layer.dropout.p)


def cross_attention(x: Tensor, memory: Tensor, layer: DecoderLayer, mask: Tensor) -> Tensor:
    """`x + layer.dropout(layer.cross_attn(layer.cross_norm(x), memory, memory, mask))` for x (B, T, D)."""
    return _attention(x, memory, layer.cross_norm, layer.cross_attn, mask, layer.dropout.p)


def _attention(
    x: Tensor, memory: Tensor | None, n: nn.LayerNorm, attention: MultiHeadAttention, mask: Tensor, p: float
) -> Tensor:
    parameters = kernels.parameters_of(n, attention.w_qkv, attention.w_o)
    settings = mask, attention.n_heads, n.eps, _draw(attention.dropout), _draw(p)
    return _apply(_Attention, x, memory, settings, *parameters)


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
    def forward(ctx: Any, x: Tensor, eps: float, inside: Any, end: Any, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(x, *parameters)
        ctx.settings = eps, inside, end
        return kernels.feed_forward(x, parameters, *ctx.settings)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *parameters = ctx.saved_tensors
        d_x, *d_parameters = kernels.feed_forward_backward(grad.contiguous(), x, parameters, *ctx.settings)
        return d_x, None, None, None, *d_parameters


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, memory: Tensor | None, settings: Any, *parameters: Tensor) -> Tensor:
        mask, n_heads, *rest = settings
        ctx.save_for_backward(x, memory, mask, *parameters)
        ctx.n_heads, ctx.rest = n_heads, rest
        return kernels.attention(x, memory, mask, n_heads, parameters, *rest)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, memory, mask, *parameters = ctx.saved_tensors
        d_x, d_memory, *d_parameters = kernels.attention_backward(
            grad.contiguous(), x, memory, mask, ctx.n_heads, parameters, *ctx.rest
        )
        return d_x, d_memory, None, *d_parameters
