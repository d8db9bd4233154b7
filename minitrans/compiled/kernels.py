"""kernels.cpp as functions of tensors: a whole sub-layer of the Transformer in training each, forward or backward.

All tensors lie on the CPU and are contiguous. Inputs and results have one of the dtypes bfloat16, float32 and float64;
parameters and their gradients are float32, or float64 beside float64.
"""

import ctypes
import functools
from collections.abc import Sequence
from ctypes import c_double, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minitrans.compiled.library import Parameters, call, check_ids, load_library

SOURCE = Path(__file__).with_name("kernels.cpp")


class Dropout(ctypes.Structure):
    """Dropout by the stream of random bytes of a seed, with probability `dropped` / 256."""

    _fields_ = [("seed", c_uint64), ("dropped", c_int32)]


class Settings(NamedTuple):
    """Of a sub-layer.

    Attributes:
        eps: Of the norm.
        inside: Dropout of the hidden layer, or of the attention weights.
        end: Dropout of what is added to x.
    """

    eps: float
    inside: Dropout
    end: Dropout


class _Sizes(ctypes.Structure):
    _fields_ = [(name, c_int64) for name in ("B", "T", "S", "D", "H", "Dh")]


class _Mask(ctypes.Structure):
    _fields_ = [("admits", c_void_p), ("b", c_int64), ("q", c_int64)]


_SUBLAYER: list[Any] = [Parameters, Dropout, Dropout]
_ARGUMENTS: dict[str, list[Any]] = {
    "feed_forward": [c_void_p] * 2 + [c_int64] * 3 + _SUBLAYER,
    "feed_forward_backward": [c_void_p] * 4 + [c_int64] * 3 + _SUBLAYER,
    "attention": [c_void_p] * 3 + [_Sizes, _Mask, *_SUBLAYER],
    "attention_backward": [c_void_p] * 6 + [_Sizes, _Mask, *_SUBLAYER],
    "norm": [c_void_p] * 2 + [c_int64] * 2 + [c_void_p] * 2 + [c_double],
    "norm_backward": [c_void_p] * 4 + [c_int64] * 2 + [c_void_p] * 2 + [c_double],
    "embed": [c_void_p] * 4 + [c_int64] * 3 + [c_double, Dropout],
    "add_embed_backward": [c_void_p] * 3 + [c_int64] * 3 + [c_double, Dropout],
    "linear_cross_entropy": [c_void_p] * 4 + [c_int64] * 3 + [c_double],
    "linear_cross_entropy_backward": [c_void_p] * 6 + [c_int64] * 3 + [c_double] * 2,
}


@functools.cache
def library() -> ctypes.CDLL:
    """The kernels; the first call on a machine compiles them, for some seconds.

    Raises:
        NotAdmittedError: That cannot be done.
    """
    return load_library(SOURCE, _ARGUMENTS, {"linear_cross_entropy": c_double})


def _call(name: str, x: Tensor, *arguments: object) -> Any:
    library().use_threads(torch.get_num_threads())
    return call(library(), x.dtype, name, *arguments)


def feed_forward(x: Tensor, parameters: Sequence[Tensor], settings: Settings) -> Tensor:
    """The sub-layer `x + dropout(feed_forward(norm(x)))`.

    Args:
        x: (..., D).
        parameters: gamma (D,), beta (D,), w_1 (F, D), b_1 (F,), w_2 (D, F), b_2 (D,).
        settings: Of the sub-layer.
    """
    y = torch.empty_like(x)
    rows, d_model = x.shape[:-1].numel(), x.size(-1)
    _call("feed_forward", x, x, y, rows, d_model, len(parameters[3]), *_sublayer_arguments(parameters, settings))
    return y


def feed_forward_backward(
    grad: Tensor, x: Tensor, parameters: Sequence[Tensor], settings: Settings
) -> tuple[Tensor, ...]:
    """Gradients of `feed_forward` at x and at the parameters, for that at its result."""
    dx, (d_flat, d_parameters) = torch.empty_like(x), _gradients(parameters)
    sizes = x.shape[:-1].numel(), x.size(-1), len(parameters[3])
    _call("feed_forward_backward", x, x, grad, dx, d_flat, *sizes, *_sublayer_arguments(parameters, settings))
    return dx, *d_parameters


def attention(
    x: Tensor, memory: Tensor | None, mask: Tensor, n_heads: int, parameters: Sequence[Tensor], settings: Settings
) -> Tensor:
    """The sub-layer `x + dropout(attention(norm(x), memory))`; without a memory, norm(x) attends to itself.

    Args:
        x: (B, T, D).
        memory: (B, S, D), or None; S is T then.
        mask: bool (B or 1, 1, T or 1, S), True = may attend. A query that sees nothing has weights 0.
        n_heads: H.
        parameters: gamma (D,), beta (D,), w_qkv (3 H Dh, D), b_qkv (3 H Dh,), w_o (D, H Dh), b_o (D,).
        settings: Of the sub-layer.
    """
    y = torch.empty_like(x)
    sizes_and_mask = _sizes_and_mask(x, mask, n_heads, parameters)
    _call("attention", x, x, memory, y, *sizes_and_mask, *_sublayer_arguments(parameters, settings))
    return y


def attention_backward(
    grad: Tensor,
    x: Tensor,
    memory: Tensor | None,
    mask: Tensor,
    n_heads: int,
    parameters: Sequence[Tensor],
    settings: Settings,
) -> tuple[Tensor | None, ...]:
    """Gradients of `attention` at x, at the memory (if there is one) and at the parameters, for that at its result."""
    dx, (d_flat, d_parameters) = torch.empty_like(x), _gradients(parameters)
    d_memory = None if memory is None else torch.empty_like(memory)
    sizes_and_mask = _sizes_and_mask(x, mask, n_heads, parameters)
    pointers = x, memory, grad, dx, d_memory, d_flat
    _call("attention_backward", x, *pointers, *sizes_and_mask, *_sublayer_arguments(parameters, settings))
    return dx, d_memory, *d_parameters


def _sizes_and_mask(x: Tensor, mask: Tensor, n_heads: int, parameters: Sequence[Tensor]) -> tuple[_Sizes, _Mask]:
    assert mask.size(1) == mask.stride(3) == 1
    sizes = _Sizes(*x.shape[:2], mask.size(-1), x.size(-1), n_heads, parameters[4].size(1) // n_heads)
    return sizes, _Mask(mask.data_ptr(), *(mask.stride(i) if mask.size(i) > 1 else 0 for i in (0, 2)))


def _sublayer_arguments(parameters: Sequence[Tensor], settings: Settings) -> tuple[Parameters, Dropout, Dropout]:
    assert all(parameter.is_contiguous() for parameter in parameters)
    pointers = (parameter.data_ptr() for parameter in parameters)
    return Parameters(*pointers, settings.eps), settings.inside, settings.end


def _gradients(parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Room for the gradients at all of them, in one piece, and that at each."""
    sizes = [parameter.numel() for parameter in parameters]
    flat = parameters[0].new_empty(sum(sizes))
    return flat, [part.view_as(parameter) for part, parameter in zip(flat.split(sizes), parameters, strict=True)]


def norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
    """Layer norm of (..., D)."""
    y = torch.empty_like(x)
    _call("norm", x, x, y, x.shape[:-1].numel(), x.size(-1), gamma, beta, eps)
    return y


def norm_backward(grad: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> tuple[Tensor, ...]:
    """Gradients of `norm` at x, gamma and beta, for that at its result."""
    dx, (d_flat, d_parameters) = torch.empty_like(x), _gradients((gamma, beta))
    _call("norm_backward", x, x, grad, dx, d_flat, x.shape[:-1].numel(), x.size(-1), gamma, beta, eps)
    return dx, *d_parameters


def embed(ids: Tensor, table: Tensor, positions: Tensor, scale: float, dropout: Dropout, dtype: torch.dtype) -> Tensor:
    """`dropout(scale * table[ids] + positions)` in a dtype: int64 (B, T), (V, D) and (T, D) -> (B, T, D).

    Raises:
        IndexError: An id is not below V, or negative.
    """
    check_ids(ids, len(table))
    y = table.new_empty(*ids.shape, table.size(1), dtype=dtype)
    _call("embed", y, ids, table, positions, y, *y.shape, scale, dropout)
    return y


def add_embed_backward(grad: Tensor, ids: Tensor, d_table: Tensor, scale: float, dropout: Dropout) -> Tensor:
    """Add the gradient of `embed` at the table, for that at its result, to `d_table` (V, D), and return that."""
    _call("add_embed_backward", grad, ids, grad, d_table, ids.numel(), *d_table.shape, scale, dropout)
    return d_table


def linear_cross_entropy(hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float) -> tuple[float, Tensor]:
    """Label-smoothed cross entropy of logits = hidden @ weight.T, summed over the rows.

    Args:
        hidden: (N, D).
        weight: (V, D), float32, or float64 as hidden.
        target: int64 (N,).
        smoothing: In [0, 1).

    Returns:
        The sum, and what the way back needs: (N,) of the dtype of `weight`, the logarithm of each row's sum of
        exponentials.

    Raises:
        IndexError: A target is not below V, or negative.
    """
    check_ids(target, len(weight))
    z = weight.new_empty(len(hidden))
    loss = _call("linear_cross_entropy", hidden, hidden, weight, target, z, *hidden.shape, len(weight), smoothing)
    return loss, z


def linear_cross_entropy_backward(
    hidden: Tensor, weight: Tensor, target: Tensor, z: Tensor, smoothing: float, scale: float
) -> tuple[Tensor, Tensor]:
    """The gradients of `scale` times that loss at hidden and weight."""
    d_hidden, d_weight = torch.empty_like(hidden), torch.empty_like(weight)
    sizes = *hidden.shape, len(weight)
    _call(
        "linear_cross_entropy_backward", hidden, hidden, weight, target, z, d_hidden, d_weight, *sizes, smoothing, scale
    )
    return d_hidden, d_weight
