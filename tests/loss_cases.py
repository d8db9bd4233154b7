"""The loss from hidden states: test cases, and the plain loss that every implementation has to equal."""

from collections.abc import Callable, Sequence

import torch
from conftest import PAD, random_ids, random_tensor, random_tgt_in
from torch import Tensor
from torch.nn import functional as F

from minitrans.model.loss import BatchLossFn, label_smoothed_cross_entropy, linear_cross_entropy
from minitrans.model.transformer import Transformer
from minitrans.translate.backend import CompiledMode, make_batch_loss

LinearLoss = Callable[[Tensor, Tensor, Tensor, int, float], Tensor]
HIDDEN_WEIGHT_DTYPES = [(torch.float32, torch.float32), (torch.float64, torch.float64), (torch.bfloat16, torch.float32)]
BATCH_IDS = random_ids(1, [4, 7, 1], 7), random_tgt_in(2, 3, 7), random_ids(3, [4, 7, 1], 7)


def plain_loss(hidden: Tensor, weight: Tensor, tgt_out: Tensor, pad_id: int, smoothing: float) -> Tensor:
    """What every implementation of the loss from hidden states has to equal."""
    return label_smoothed_cross_entropy(hidden @ weight.T, tgt_out, pad_id, smoothing)


def chunked_loss(hidden: Tensor, weight: Tensor, tgt_out: Tensor, pad_id: int, smoothing: float) -> Tensor:
    """The model's own implementation, with logits in the dtype of the hidden states."""
    return linear_cross_entropy(hidden, lambda h: F.linear(h, weight.to(h.dtype)), tgt_out, pad_id, smoothing)


def random_case(lengths: Sequence[int], padded: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states (B, T, 6) and a matrix (11, 6) that require a gradient, and targets (B, T); float64."""
    length = max(lengths) + padded
    hidden, weight = random_tensor(3, len(lengths), length, 6), random_tensor(4, 11, 6)
    return hidden.requires_grad_(), weight.requires_grad_(), random_ids(5, lengths, length)


def with_gradients(
    loss_of: LinearLoss, hidden: Tensor, weight: Tensor, tgt_out: Tensor, smoothing: float = 0.1
) -> tuple[Tensor, ...]:
    """The loss, and its gradients by hidden states and matrix."""
    loss = loss_of(hidden, weight, tgt_out, PAD, smoothing)
    return loss.detach(), *torch.autograd.grad(loss, (hidden, weight))


def loss_and_gradients(loss_of: BatchLossFn, model: Transformer, ids: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
    """The loss of a batch, and its gradients by the parameters; with the same dropout every time."""
    torch.manual_seed(7)
    loss = loss_of(*ids, 0.1)
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def make_loss(model: Transformer, mode: CompiledMode = "auto", dtype: torch.dtype | None = None) -> BatchLossFn:
    """What computes the loss of a model's batches, on its device and, unless another is given, in its dtype."""
    weight = model.output.weight
    return make_batch_loss(model, mode, weight.device, dtype or weight.dtype)
