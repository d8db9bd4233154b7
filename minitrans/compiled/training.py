"""The loss of a batch by training.cpp: what `minitrans.model.loss.batch_loss` computes, with the same dropout.

Two functions for PyTorch's autograd: the pass to the hidden states, and their loss. All tensors are on the CPU.
"""

import ctypes
import functools
import weakref
from collections.abc import Iterator, Sequence
from ctypes import POINTER, c_double, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import increment_version

from minitrans.compiled.library import SublayerParameters, call_function, check_token_ids, load_library
from minitrans.compiled.plan import HasDropout, Plan, Sublayer, dropout_probability
from minitrans.model.dropout import draw_seed, dropout_byte_threshold

CPP_PATH = Path(__file__).with_name("training.cpp")
KINDS = ("self-attention", "causal self-attention", "cross-attention", "feed-forward", "norm")


class _Dropout(ctypes.Structure):
    _fields_ = [("seed", c_uint64), ("dropped", c_int32)]


class _Part(ctypes.Structure):
    _fields_ = [("kind", c_int64), ("parameters", SublayerParameters), ("inside", _Dropout), ("end", _Dropout)]


class _Model(ctypes.Structure):
    _fields_ = [
        ("parts", POINTER(_Part)),
        *((name, c_int64) for name in ("n_parts", "encoder_end", "D", "H", "Dh", "F", "V")),
        *((name, c_void_p) for name in ("source", "target", "positions")),
        *((name, _Dropout) for name in ("of_source", "of_target")),
    ]


class _Batch(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("src_ids", "tgt_in", "tgt_lengths")),
        *((name, c_int64) for name in ("B", "S", "T", "pad")),
    ]


_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {  # what each returns, and its arguments
    "forward": (c_void_p, [POINTER(_Model), _Batch, c_void_p]),
    "backward": (None, [POINTER(_Model)] + [c_void_p] * 5),
    "release": (None, [c_void_p]),
    "linear_cross_entropy": (c_double, [c_void_p] * 5 + [c_int64] * 3 + [c_double] * 2),
}
training_library = functools.cache(functools.partial(load_library, CPP_PATH, _FUNCTIONS))


def _call_function(name: str, dtype: torch.dtype, *arguments: object) -> Any:
    training_library().use_threads(torch.get_num_threads())
    return call_function(training_library(), dtype, name, *arguments)


def batch_loss(
    plan: Plan, src_ids: Tensor, tgt_in: Tensor, tgt_out: Tensor, smoothing: float, dtype: torch.dtype
) -> Tensor:
    """What `minitrans.model.loss.batch_loss` returns for the model of a plan; the ids and `smoothing` are the same.

    The model is on the CPU; its parameters are float32, or float64 if `dtype` is. Products are computed in `dtype`:
    bfloat16, float32 or float64.

    Raises:
        ValueError: A sequence is longer than `max_len`, or the numbers of rows or of target tokens differ.
        IndexError, TypeError: An id is not below V, or negative; ids are not int64, or not on the CPU.
        RuntimeError: The loss is differentiated twice or, with tied embeddings, the mean loss is backpropagated twice.
    """
    pad_id = plan.config.pad_id
    kept = (tgt_out != pad_id).flip(1).cummax(1).values.flip(1)  # up to the last real token of each row
    hidden, output = hidden_states(plan, src_ids, tgt_in, kept, dtype)
    return linear_cross_entropy(hidden, output, tgt_out[kept], pad_id, smoothing)


def hidden_states(
    plan: Plan, src_ids: Tensor, tgt_in: Tensor, kept: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """What `Transformer.hidden_states` returns at the kept positions; and the output matrix (V, D), for the loss.

    If that is the table of the embeddings too, its gradient must come newly made from a single function: the embeddings
    add theirs to it in place.

    `kept`, bool (B, T), marks the positions of `tgt_in` to compute: in each row, all up to some position, or none.
    Padding of `src_ids` is not computed. The other arguments, and the exceptions, are those of `batch_loss`.

    Returns:
        (N, D) for the N positions kept, row after row; and (V, D).
    """
    if len(src_ids) != len(tgt_in) or kept.shape != tgt_in.shape:
        raise ValueError(f"ids of {list(src_ids.shape)}, {list(tgt_in.shape)} and {list(kept.shape)} do not match")
    for ids in (src_ids, tgt_in):
        if ids.size(1) > plan.config.max_len:
            raise ValueError(f"{ids.size(1)} tokens are more than model.max_len ({plan.config.max_len})")
        check_token_ids(ids, plan.config.vocab_size)
    batch = src_ids.contiguous(), tgt_in.contiguous(), kept.sum(1)
    tables = (plan.src_embedding,) if plan.tied else (plan.src_embedding, plan.tgt_embedding, plan.output)
    parameters = (parameter for part in (*plan.encoder, *plan.decoder) for parameter in part.parameters)
    return cast("tuple[Tensor, Tensor]", _HiddenStates.apply(plan, batch, dtype, *tables, *parameters))  # type: ignore[no-untyped-call]


def linear_cross_entropy(hidden: Tensor, weight: Tensor, tgt_out: Tensor, pad_id: int, smoothing: float) -> Tensor:
    """What `minitrans.model.loss.linear_cross_entropy` returns, for logits `hidden @ weight.T`; with any dimensions."""
    rows, target = hidden.reshape(-1, hidden.size(-1)), tgt_out.flatten()
    real = target != pad_id
    if not real.all():
        rows, target = rows[real], target[real]
    check_token_ids(target, len(weight))
    return cast(Tensor, _LinearCrossEntropy.apply(rows, weight, target, smoothing))  # type: ignore[no-untyped-call]


def _model_struct(plan: Plan) -> _Model:
    """A plan as training.cpp takes it. Seeds of dropout are drawn in the order of the plain pass."""
    of_source = _draw_dropout(plan.dropout)
    parts = [*_part_structs(plan.encoder, "self-attention")]
    of_target = _draw_dropout(plan.dropout)
    parts += _part_structs(plan.decoder, "causal self-attention")
    c, pointers = plan.config, (table.data_ptr() for table in (plan.src_embedding, plan.tgt_embedding, plan.positions))
    sizes = c.d_model, c.n_heads, c.head_size, c.d_ff, len(plan.output)
    encoder_end = len(plan.encoder) - 1
    return _Model((_Part * len(parts))(*parts), len(parts), encoder_end, *sizes, *pointers, of_source, of_target)


def _part_structs(sublayers: Sequence[Sublayer], self_attention: str) -> Iterator[_Part]:
    for kind, parameters, eps, inside, end in sublayers:
        pointers = SublayerParameters(*(parameter.data_ptr() for parameter in parameters), eps=eps)
        number = KINDS.index(self_attention if kind == "self-attention" else kind)
        yield _Part(number, pointers, _draw_dropout(inside), _draw_dropout(end))


def _draw_dropout(module: HasDropout | None) -> _Dropout:
    """A module's current dropout, with a seed drawn as `dropout` draws it: none where nothing is dropped."""
    dropped = dropout_byte_threshold(dropout_probability(module))
    return _Dropout(draw_seed() if dropped else 0, dropped)


class _HiddenStates(torch.autograd.Function):
    """A plan's tables and parameters -> what `hidden_states` returns."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, batch: tuple[Tensor, Tensor, Tensor], dtype: torch.dtype, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        assert all(tensor.is_contiguous() for tensor in (plan.positions, *tensors))
        src_ids, tgt_in, lengths = batch
        sizes = *src_ids.shape, tgt_in.size(1), plan.config.pad_id
        hidden = plan.output.new_empty(int(lengths.sum()), plan.config.d_model, dtype=dtype)
        ctx.model, ctx.alive = _model_struct(plan), [tensor.detach() for tensor in tensors]  # what it points to
        pointers = ctx.model, _Batch(*(ids.data_ptr() for ids in batch), *sizes), hidden
        ctx.tape = _call_function("forward", dtype, *pointers)  # what the backward pass needs, in the library's memory
        owner = hidden.new_empty(0)  # as what is saved, it goes after the backward pass, even if the loss is kept
        weakref.finalize(owner, _call_function, "release", dtype, ctx.tape).atexit = False
        ctx.n_tables = 1 if plan.tied else 3
        ctx.save_for_backward(*tensors, owner)
        return hidden, tensors[ctx.n_tables - 1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, d_output: Tensor) -> tuple[Tensor | None, ...]:
        tables, parameters = ctx.saved_tensors[: ctx.n_tables], ctx.saved_tensors[ctx.n_tables : -1]
        d_tables = [*(torch.zeros_like(table) for table in tables[:-1]), d_output.contiguous()]
        sizes = [parameter.numel() for parameter in parameters]
        flat = d_output.new_empty(sum(sizes))
        pointers = ctx.tape, grad.contiguous(), flat, d_tables[0], d_tables[len(d_tables) // 2]
        _call_function("backward", grad.dtype, ctx.model, *pointers)
        increment_version(d_tables[0])  # where that is d_output, the loss may not return it again
        d_parameters = (part.view_as(p) for part, p in zip(flat.split(sizes), parameters, strict=True))
        return None, None, None, *d_tables, *d_parameters


class _LinearCrossEntropy(torch.autograd.Function):
    """Hidden states (N, D), output matrix (V, D), target int64 (N,) -> the summed loss; computes its gradients too."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float) -> Tensor:
        hidden, wanted = hidden.contiguous(), any(ctx.needs_input_grad)
        gradients = [torch.empty_like(tensor) if wanted else None for tensor in (hidden, weight)]
        ctx.save_for_backward(*gradients)
        ctx.scale = 1 / max(1, len(hidden))  # the gradients of the mean, which training asks for
        arguments = hidden, weight, target, *gradients, *hidden.shape, len(weight), smoothing, ctx.scale
        return weight.new_tensor(_call_function("linear_cross_entropy", hidden.dtype, *arguments))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        factor = grad / ctx.scale
        return *(gradient if factor == 1 else gradient * factor for gradient in ctx.saved_tensors), None, None
