"""What training minimises: the plain formula, and the same from the hidden states without ever holding all logits."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from minitrans import kernels

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
        RuntimeError: It is differentiated twice.
    """
    device = hidden.device.type
    if torch.is_autocast_enabled(device):  # which on a GPU leaves what a norm gives in float32
        hidden = hidden.to(torch.get_autocast_dtype(device))
    real = (tgt_out != pad_id).flatten().nonzero()[:, 0]
    rows = hidden.flatten(0, 1).index_select(0, real)
    with torch.autocast(device, enabled=False):
        loss: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            rows, weight, tgt_out.flatten()[real], smoothing
        )
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    """Loss and both gradients at once, by the compiled kernel, or ROWS rows at a time: no others have logits meanwhile.

    With p = softmax(h W^T), the loss of a row is -(1 - e) log p_y - e mean_j log p_j. As log p_j is a logit less a
    constant of the row, that is -log p_y + e (h W_y - mean_j h W_j), two inner products. Its derivative by the logits
    is p - (1 - e) onehot(y) - e / V: the first term costs two matrix products, the other two a vector each.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float) -> Tensor:
        """Compute the loss, a scalar: hidden (N, D), weight (V, D), target int64 (N,)."""
        if kernels.serve(weight, hidden.dtype):
            value, *gradients = kernels.linear_cross_entropy(hidden, weight, target, smoothing)
            ctx.save_for_backward(*gradients)
            return weight.new_tensor(value)
        n = len(hidden)
        w = weight.to(hidden.dtype)
        # Always ROWS rows at a time: oneDNN compiles its products anew for each shape. Rows of 0 add 0 to the gradient.
        h, y = F.pad(hidden, (0, 0, 0, -n % ROWS)), F.pad(target, (0, -n % ROWS))
        d_hidden, d_weight = torch.empty_like(h), torch.zeros_like(weight)
        right = h.new_empty(len(h), 1)  # the probability of the right piece
        for start in range(0, n, ROWS):
            rows = slice(start, start + ROWS)
            logits = h[rows] @ w.T  # (ROWS, V)
            p = torch.softmax(logits, dim=-1)
            torch.gather(p, 1, y[rows, None], out=right[rows])
            torch.mm(p, w, out=d_hidden[rows])
            d_weight += p.T @ h[rows]

        h, d_hidden = hidden.to(weight.dtype), d_hidden[:n]
        w_y, w_mean = weight[target], weight.mean(0)
        dtype = torch.finfo(right.dtype)  # its smallest number makes the loss of what seems impossible finite
        log_p = right[:n].clamp_min(dtype.smallest_normal * dtype.eps).to(weight.dtype).log()
        loss = smoothing * ((h * w_y).sum() - h.sum(0) @ w_mean) - log_p.sum()
        d_hidden -= (1 - smoothing) * w_y + smoothing * w_mean
        d_weight -= smoothing / len(weight) * h.sum(0)
        d_weight.index_add_(0, target, h, alpha=smoothing - 1)
        ctx.save_for_backward(d_hidden, d_weight)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Scale the gradients that the forward pass has left."""
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden * grad, d_weight * grad, None, None
