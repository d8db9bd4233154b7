"""What training minimises: the plain formula, and the same from the hidden states without ever holding all logits."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from minitrans.compiled import kernels

ROWS = 512  # positions whose logits are held at a time: enough for quick products, little memory


def label_smoothed_cross_entropy(logits: Tensor, tgt_out: Tensor, pad_id: int, smoothing: float) -> Tensor:
    """Cross entropy against (1 - smoothing) on the right piece and smoothing spread evenly over all V.

    Args:
        logits: (B, T, V).
        tgt_out: int64 (B, T), ends with EOS, padded on the right.
        pad_id: Positions with this target do not count.
        smoothing: In [0, 1); 0 gives the plain cross entropy.

    Returns:
        Scalar: the sum over the real positions, in nats. Divide by their number for the mean.

    Source: Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4.
    """
    return F.cross_entropy(
        logits.flatten(0, 1), tgt_out.flatten(), ignore_index=pad_id, reduction="sum", label_smoothing=smoothing
    )


def linear_cross_entropy(hidden: Tensor, weight: Tensor, tgt_out: Tensor, pad_id: int, smoothing: float) -> Tensor:
    """`label_smoothed_cross_entropy(hidden @ weight.T, ...)`, faster and with little memory; what training uses.

    Args:
        hidden: (B, T, D) what the output projection reads. Its dtype, or that of autocast, is that of the products.
        weight: (V, D) the output projection, in the dtype of the products or a higher one.
        tgt_out: int64 (B, T), ends with EOS, padded on the right.
        pad_id: Positions with this target do not count.
        smoothing: In [0, 1).

    Returns:
        Scalar of the dtype of `weight`: the sum over the real positions, in nats.

    Raises:
        RuntimeError: It is differentiated twice, where there is a compiled kernel for it.
    """
    device = hidden.device.type
    if torch.is_autocast_enabled(device):  # which on a GPU leaves what a norm gives in float32
        hidden = hidden.to(torch.get_autocast_dtype(device))
    real = (tgt_out != pad_id).flatten().nonzero()[:, 0]
    rows, target = hidden.flatten(0, 1).index_select(0, real), tgt_out.flatten()[real]
    if kernels.serve(weight, rows.dtype):
        loss: Tensor = _LinearCrossEntropy.apply(rows, weight, target, smoothing)  # type: ignore[no-untyped-call]
        return loss

    def loss_of(h: Tensor, y: Tensor) -> Tensor:
        logits = (h @ weight.to(h.dtype).T).to(weight.dtype)
        return label_smoothed_cross_entropy(logits[None], y[None], pad_id, smoothing)

    # Always ROWS rows at a time: oneDNN compiles its products anew for each shape.
    h, y = F.pad(rows, (0, 0, 0, -len(rows) % ROWS)), F.pad(target, (0, -len(rows) % ROWS), value=pad_id)
    chunks = zip(h.split(ROWS), y.split(ROWS), strict=True)
    losses = [checkpoint(loss_of, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
    return torch.stack(losses).sum()


class _LinearCrossEntropy(torch.autograd.Function):
    """The compiled kernel: hidden (N, D), weight (V, D), target int64 (N,) -> the sum over the rows."""

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
