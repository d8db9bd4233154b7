"""Faults of compiled code: of the training pass and of the decoder."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minitrans import plan
from minitrans.compiled import kernels, probe, training
from minitrans.compiled.stepper import CompiledRows, CompiledStepper
from minitrans.verify.sabotage import Patch, sabotage


@sabotage("compiled.unscaled-gradient", "The gradient of the loss is that of the sum, though the mean is taken.")
def compiled_unscaled_gradient(patch: Patch) -> None:
    backward = training._LinearCrossEntropy.backward
    unscaled = staticmethod(lambda ctx, grad: backward(ctx, torch.ones_like(grad)))
    patch(training._LinearCrossEntropy, "backward", unscaled)


@sabotage("compiled.unmasked", "On compiled kernels every query sees every key.")
def compiled_unmasked(patch: Patch) -> None:
    attention = kernels.attention

    def unmasked(x: Tensor, memory: Tensor | None, mask: Tensor, *rest: Any) -> Tensor:
        return attention(x, memory, torch.ones_like(mask), *rest)

    patch(kernels, "attention", unmasked)


@sabotage("compiled.overwritten-table", "On compiled kernels the embeddings' gradient replaces the output matrix's.")
def compiled_overwritten_table(patch: Patch) -> None:
    add = kernels.add_embed_backward

    def replace(grad: Tensor, ids: Tensor, d_table: Tensor, *rest: Any) -> None:
        add(grad, ids, d_table.zero_(), *rest)

    patch(kernels, "add_embed_backward", replace)


@sabotage("compiled.other-dropout", "On compiled kernels the gradient drops other attention weights than the pass did.")
def compiled_other_dropout(patch: Patch) -> None:
    backward: Callable[..., tuple[Tensor | None, ...]] = kernels.attention_backward

    def other(*arguments: Any) -> tuple[Tensor | None, ...]:
        *others, inside, end = arguments
        return backward(*others, kernels.Dropout(inside.seed + 1, inside.dropped), end)

    patch(kernels, "attention_backward", other)


@sabotage("compiled.no-residual", "On compiled kernels no gradient flows around a feed-forward network.")
def compiled_no_residual(patch: Patch) -> None:
    backward = kernels.feed_forward_backward

    def alone(grad: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        d_x, *d_parameters = backward(grad, *rest)
        return d_x - grad, *d_parameters

    patch(kernels, "feed_forward_backward", alone)


@sabotage("compiled.forgotten-source", "On compiled kernels no gradient flows through cross-attention to the source.")
def compiled_forgotten_source(patch: Patch) -> None:
    backward = kernels.attention_backward

    def forgetful(*arguments: Any) -> tuple[Tensor | None, ...]:
        d_x, d_memory, *d_parameters = backward(*arguments)
        return d_x, None if d_memory is None else torch.zeros_like(d_memory), *d_parameters

    patch(kernels, "attention_backward", forgetful)


@sabotage("compiled.forgotten-rows", "In the compiled decoder, rows that change places leave their past behind.")
def compiled_forgotten_rows(patch: Patch) -> None:
    def sources_alone(self: CompiledRows, rows: Tensor) -> None:
        self.sources, self.slots = self.sources[rows], self.slots[torch.arange(len(rows)) % len(self.slots)]

    patch(CompiledRows, "select_rows", sources_alone)


@sabotage("compiled.cut-source", "The compiled decoder does not read the last token of a source.")
def compiled_cut_source(patch: Patch) -> None:
    begin = CompiledStepper.begin

    def cut(self: CompiledStepper, src_ids: Tensor, capacity: int) -> CompiledRows:
        real = src_ids != self.config.pad_id
        last = real.sum(-1, keepdim=True).sub(1).clamp(min=0)
        return begin(self, src_ids.scatter(1, last, self.config.pad_id), capacity)

    patch(CompiledStepper, "begin", cut)


@sabotage("compiled.admits-all", "The probe that compiled code has to pass never finds a difference.")
def compiled_admits_all(patch: Patch) -> None:
    patch(probe, "_refuse_differences", lambda compared, dtype: None)


@sabotage("compiled.ignores-hooks", "Compiled code is admitted for a model with hooks, which it never calls.")
def compiled_ignores_hooks(patch: Patch) -> None:
    patch(plan, "HOOKS", {})
