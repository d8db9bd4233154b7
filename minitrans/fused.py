"""The training pass on the compiled kernels: every sub-layer is one function, its gradient written out by hand.

It computes what `Transformer.hidden` computes, with the same dropout, in fewer passes over memory. Each class below is
one pre-norm sub-layer, x + dropout(f(norm(x))), and reads like the chain rule: what `forward` does from top to bottom,
`backward` undoes from bottom to top, and d_x is the gradient at x. `N` = B T rows.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from minitrans import kernels
from minitrans.attention import MultiHeadAttention
from minitrans.dropout import draw_seed, dropped_of_256
from minitrans.layers import DecoderLayer, EncoderLayer
from minitrans.masks import causal_mask, padding_mask
from minitrans.model import Transformer


def training_hidden(model: Transformer, src_ids: Tensor, tgt_in: Tensor) -> Tensor:
    """What `model.hidden` returns, by the fastest way that there is: int64 (B, S) and (B, T) -> (B, T, D).

    That is the one below in training on a CPU where the kernels have been compiled.
    """
    longest = max(src_ids.size(1), tgt_in.size(1))
    if model.training and torch.is_grad_enabled() and longest <= kernels.LONGEST and kernels.serve(model.output.weight):
        return _hidden(model, src_ids, tgt_in)
    return model.hidden(src_ids, tgt_in)


def _hidden(model: Transformer, src_ids: Tensor, tgt_in: Tensor) -> Tensor:
    src_mask = padding_mask(src_ids, model.config.pad_id)
    x = model.embed(model.src_embedding, src_ids, 0)
    for layer in cast(list[EncoderLayer], model.encoder.layers):
        x = self_attention(x, layer, src_mask)
        x = feed_forward(x, layer)
    memory = norm(x, model.encoder.norm)
    x = model.embed(model.tgt_embedding, tgt_in, 0)
    causal = causal_mask(tgt_in.size(1), tgt_in.size(1), 0)
    for decoder_layer in cast(list[DecoderLayer], model.decoder.layers):
        x = self_attention(x, decoder_layer, causal)
        x = cross_attention(x, memory, decoder_layer, src_mask)
        x = feed_forward(x, decoder_layer)
    return norm(x, model.decoder.norm)


def norm(x: Tensor, layer_norm: nn.LayerNorm) -> Tensor:
    """`layer_norm(x)`."""
    return _apply(_Norm, x, layer_norm.weight, layer_norm.bias, layer_norm.eps)


def feed_forward(x: Tensor, layer: EncoderLayer | DecoderLayer) -> Tensor:
    """`x + layer.dropout(layer.ff(layer.ff_norm(x)))` for x (B, T, D)."""
    n, ff = layer.ff_norm, layer.ff
    dropped = _Dropped(dropped_of_256(ff.dropout.p), dropped_of_256(layer.dropout.p))
    parameters = n.weight, n.bias, ff.w_1.weight, ff.w_1.bias, ff.w_2.weight, ff.w_2.bias
    return _apply(_FeedForward, x, *parameters, n.eps, dropped)


def self_attention(x: Tensor, layer: EncoderLayer | DecoderLayer, mask: Tensor) -> Tensor:
    """`x + layer.dropout(layer.self_attn(h, h, h, mask))`, h = layer.self_norm(x), for x (B, T, D)."""
    return _attention(x, None, layer.self_norm, layer.self_attn, mask, layer.dropout.p)


def cross_attention(x: Tensor, memory: Tensor, layer: DecoderLayer, mask: Tensor) -> Tensor:
    """`x + layer.dropout(layer.cross_attn(layer.cross_norm(x), memory, memory, mask))` for x (B, T, D)."""
    return _attention(x, memory, layer.cross_norm, layer.cross_attn, mask, layer.dropout.p)


def _attention(
    x: Tensor, memory: Tensor | None, n: nn.LayerNorm, attention: MultiHeadAttention, mask: Tensor, p: float
) -> Tensor:
    dropped = _Dropped(dropped_of_256(attention.dropout), dropped_of_256(p))
    qkv, o = attention.w_qkv, attention.w_o
    parameters = n.weight, n.bias, qkv.weight, qkv.bias, o.weight, o.bias
    return _apply(_Attention, x, memory, *parameters, mask, attention.n_heads, n.eps, dropped)


def _apply(function: Any, *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)
    return result


class _Dropped(NamedTuple):
    """Of 256 elements, how many are dropped on average inside a sub-layer and at its end."""

    inside: int
    end: int

    def seeds(self) -> tuple[int, int]:
        """Seeds for both, drawn as `dropout` draws them: none where nothing is dropped."""
        inside, end = (draw_seed() if dropped else 0 for dropped in self)
        return inside, end


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, x, weight.t())


def _linear_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `_linear` at x, weight and bias."""
    return grad @ weight, grad.t() @ x, grad.sum(0)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
        y, *statistics = kernels.norm(x, gamma, beta, eps)
        ctx.save_for_backward(x, gamma, *statistics)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, mean, rstd = ctx.saved_tensors
        return *kernels.norm_backward(grad.contiguous(), x, gamma, mean, rstd, None), None


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, *rest: Any) -> Tensor:
        *linears, eps, dropped = rest
        w_1, b_1, w_2, b_2 = (parameter.to(x.dtype) for parameter in linears)
        x_flat = x.flatten(0, 1)
        h, mean, rstd = kernels.norm(x_flat, gamma, beta, eps)
        seeds = dropped.seeds()
        a = kernels.relu_dropout_(_linear(h, w_1, b_1), seeds[0], dropped.inside)
        f = _linear(a, w_2, b_2)
        ctx.save_for_backward(x_flat, gamma, mean, rstd, h, w_1, a, w_2)
        ctx.dropped, ctx.seeds = dropped, seeds
        return kernels.dropout_add(f, x_flat, seeds[1], dropped.end).view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        shape = grad.shape
        x, gamma, mean, rstd, h, w_1, a, w_2 = ctx.saved_tensors
        grad = grad.contiguous().flatten(0, 1)
        d_f = kernels.dropout_add(grad, None, ctx.seeds[1], ctx.dropped.end)
        d_a, d_w_2, d_b_2 = _linear_backward(d_f, a, w_2)
        kernels.relu_dropout_backward_(d_a, a, ctx.dropped.inside)
        d_h, d_w_1, d_b_1 = _linear_backward(d_a, h, w_1)
        d_x, d_gamma, d_beta = kernels.norm_backward(d_h, x, gamma, mean, rstd, grad)
        return d_x.view(shape), d_gamma, d_beta, d_w_1, d_b_1, d_w_2, d_b_2, None, None


class _Attention(torch.autograd.Function):
    """Self-attention when `memory` is None: keys and values then come from norm(x), as the queries do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, memory: Tensor | None, gamma: Tensor, beta: Tensor, *rest: Any) -> Tensor:
        *linears, mask, n_heads, eps, dropped = rest
        w_qkv, b_qkv, w_o, b_o = (parameter.to(x.dtype) for parameter in linears)
        batch, length, _ = x.shape
        x_flat = x.flatten(0, 1)
        h, mean, rstd = kernels.norm(x_flat, gamma, beta, eps)
        if memory is None:
            source = h
            q, k, v = kernels.split_heads(_linear(h, w_qkv, b_qkv).view(batch, length, -1), 3, n_heads)
        else:
            size, source = w_o.size(1), memory.flatten(0, 1)  # of q, H*Dh
            (q,) = kernels.split_heads(_linear(h, w_qkv[:size], b_qkv[:size]).view(batch, length, -1), 1, n_heads)
            kv = _linear(source, w_qkv[size:], b_qkv[size:]).view(batch, memory.size(1), -1)
            k, v = kernels.split_heads(kv, 2, n_heads)
        seeds = dropped.seeds()
        scale = q.size(-1) ** -0.5
        weights, kept = kernels.masked_softmax(q @ k.transpose(-2, -1), mask, scale, seeds[0], dropped.inside)
        heads = kernels.merge_heads((kept @ v)[None]).flatten(0, 1)  # (N, H*Dh)
        f = _linear(heads, w_o, b_o)
        ctx.save_for_backward(x_flat, gamma, mean, rstd, h, source, w_qkv, q, k, v, weights, kept, heads, w_o)
        ctx.is_self, ctx.dropped, ctx.seeds = memory is None, dropped, seeds
        return kernels.dropout_add(f, x_flat, seeds[1], dropped.end).view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, mean, rstd, h, source, w_qkv, q, k, v, weights, kept, heads, w_o = ctx.saved_tensors
        batch, n_heads, length, d_head = q.shape
        shape = grad.shape
        grad = grad.contiguous().flatten(0, 1)
        d_f = kernels.dropout_add(grad, None, ctx.seeds[1], ctx.dropped.end)
        d_heads, d_w_o, d_b_o = _linear_backward(d_f, heads, w_o)
        (d_heads,) = kernels.split_heads(d_heads.view(batch, length, -1), 1, n_heads)
        d_kept = d_heads @ v.transpose(-2, -1)
        d_scores = kernels.masked_softmax_backward(d_kept, weights, d_head**-0.5, ctx.seeds[0], ctx.dropped.inside)
        if ctx.is_self:
            d_q, d_k, d_v = d_qkv = q.new_empty(3, *q.shape)
        else:
            (d_q,), (d_k, d_v) = d_q_alone, d_kv = q.new_empty(1, *q.shape), k.new_empty(2, *k.shape)
        torch.matmul(d_scores, k, out=d_q)
        torch.matmul(d_scores.transpose(-2, -1), q, out=d_k)
        torch.matmul(kept.transpose(-2, -1), d_heads, out=d_v)
        if ctx.is_self:
            d_h, d_w_qkv, d_b_qkv = _linear_backward(kernels.merge_heads(d_qkv).flatten(0, 1), h, w_qkv)
            d_memory = None
        else:
            size = w_o.size(1)
            d_h, *of_q = _linear_backward(kernels.merge_heads(d_q_alone).flatten(0, 1), h, w_qkv[:size])
            d_memory, *of_kv = _linear_backward(kernels.merge_heads(d_kv).flatten(0, 1), source, w_qkv[size:])
            d_w_qkv, d_b_qkv = (torch.cat(pair) for pair in zip(of_q, of_kv, strict=True))
            d_memory = d_memory.view(batch, -1, d_memory.size(-1))
        d_x, d_gamma, d_beta = kernels.norm_backward(d_h, x, gamma, mean, rstd, grad)
        return d_x.view(shape), d_memory, d_gamma, d_beta, d_w_qkv, d_b_qkv, d_w_o, d_b_o, None, None, None, None
