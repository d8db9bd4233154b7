"""Faults of compiled code: of the training pass and of the decoder."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minitrans.compiled import kernels, plan, probe, training
from minitrans.compiled.stepper import CompiledRows, CompiledStepper
from minitrans.verify.sabotage import Patch, Sabotage, into

SABOTAGES: list[Sabotage] = []
sabotage = into(SABOTAGES)

# The right ones, which wrong ones call.
attention, begin, add_embed_backward = kernels.attention, CompiledStepper.begin, kernels.add_embed_backward
attention_backward: Callable[..., tuple[Tensor | None, ...]] = kernels.attention_backward
feed_forward_backward = kernels.feed_forward_backward


@sabotage("compiled.unscaled-gradient", "The gradient of the loss is that of the sum, though the mean is taken.")
def compiled_unscaled_gradient(patch: Patch) -> None:
    backward = training._LinearCrossEntropy.backward
    unscaled = staticmethod(lambda ctx, grad: backward(ctx, torch.ones_like(grad)))
    patch(training._LinearCrossEntropy, "backward", unscaled)


@sabotage("compiled.unmasked", "On compiled kernels every query sees every key.", kernels, "attention")
def compiled_unmasked(x: Tensor, memory: Tensor | None, mask: Tensor, *rest: Any) -> Tensor:
    return attention(x, memory, torch.ones_like(mask), *rest)


@sabotage(
    "compiled.overwritten-table",
    "On compiled kernels the embeddings' gradient replaces the output matrix's.",
    kernels,
    "add_embed_backward",
)
def compiled_overwritten_table(grad: Tensor, ids: Tensor, d_table: Tensor, *rest: Any) -> None:
    add_embed_backward(grad, ids, d_table.zero_(), *rest)


@sabotage(
    "compiled.other-dropout",
    "On compiled kernels the gradient drops other attention weights than the pass did.",
    kernels,
    "attention_backward",
)
def compiled_other_dropout(*arguments: Any) -> tuple[Tensor | None, ...]:
    *others, inside, end = arguments
    return attention_backward(*others, kernels.Dropout(inside.seed + 1, inside.dropped), end)


@sabotage(
    "compiled.no-residual",
    "On compiled kernels no gradient flows around a feed-forward network.",
    kernels,
    "feed_forward_backward",
)
def compiled_no_residual(grad: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    d_x, *d_parameters = feed_forward_backward(grad, *rest)
    return d_x - grad, *d_parameters


@sabotage(
    "compiled.forgotten-source",
    "On compiled kernels no gradient flows through cross-attention to the source.",
    kernels,
    "attention_backward",
)
def compiled_forgotten_source(*arguments: Any) -> tuple[Tensor | None, ...]:
    d_x, d_memory, *d_parameters = attention_backward(*arguments)
    return d_x, None if d_memory is None else torch.zeros_like(d_memory), *d_parameters


@sabotage(
    "compiled.forgotten-rows",
    "In the compiled decoder, rows that change places leave their past behind.",
    CompiledRows,
    "select_rows",
)
def compiled_forgotten_rows(self: CompiledRows, rows: Tensor) -> None:
    self.sources, self.slots = self.sources[rows], self.slots[torch.arange(len(rows)) % len(self.slots)]


@sabotage(
    "compiled.cut-source", "The compiled decoder does not read the last token of a source.", CompiledStepper, "begin"
)
def compiled_cut_source(self: CompiledStepper, src_ids: Tensor, capacity: int) -> CompiledRows:
    real = src_ids != self.config.pad_id
    last = real.sum(-1, keepdim=True).sub(1).clamp(min=0)
    return begin(self, src_ids.scatter(1, last, self.config.pad_id), capacity)


@sabotage(
    "compiled.admits-all",
    "The probe that compiled code has to pass never finds a difference.",
    probe,
    "_refuse_differences",
)
def compiled_admits_all(compared: object, dtype: torch.dtype) -> None:
    return None


@sabotage("compiled.ignores-hooks", "Compiled code is admitted for a model with hooks, which it never calls.")
def compiled_ignores_hooks(patch: Patch) -> None:
    patch(plan, "HOOKS", {})
