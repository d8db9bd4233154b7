"""What training minimises: the plain formula, and the same from the hidden states without ever holding all logits."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from minitrans.model.transformer import Transformer

CHUNK_ROWS = 512  # positions whose logits are held at a time: enough for quick products, little memory

# `batch_loss` for a given model: that function, or another implementation with the same values and gradients.
BatchLossFn = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def batch_loss(model: Transformer, src_ids: Tensor, tgt_in: Tensor, tgt_out: Tensor, smoothing: float) -> Tensor:
    """The loss of a batch with teacher forcing: the whole target goes in at once, and each position predicts the next.

    Args:
        model: In training mode, with dropout; or in eval mode.
        src_ids: int64 (B, S), ends with EOS, padded on the right.
        tgt_in: int64 (B, T), begins with BOS, padded on the right.
        tgt_out: int64 (B, T), `tgt_in` shifted by one: ends with EOS.
        smoothing: In [0, 1); see `label_smoothed_cross_entropy`.

    Returns:
        Scalar, at least float32: the sum over the real positions, in nats. Divide by their number for the mean.
    """
    hidden = model.hidden_states(src_ids, tgt_in)
    return linear_cross_entropy(hidden, model.logits, tgt_out, model.config.pad_id, smoothing)


def label_smoothed_cross_entropy(logits: Tensor, tgt_out: Tensor, pad_id: int, smoothing: float) -> Tensor:
    """Cross entropy against (1 - smoothing) on the right piece and smoothing spread evenly over all V.

    Args:
        logits: (..., V).
        tgt_out: int64 (...), as many targets as there are rows of logits.
        pad_id: Positions with this target do not count.
        smoothing: In [0, 1); 0 gives the plain cross entropy.

    Returns:
        Scalar: the sum over the real positions, in nats.

    Source: Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4.
    """
    rows = logits.flatten(0, -2)
    return F.cross_entropy(rows, tgt_out.flatten(), ignore_index=pad_id, reduction="sum", label_smoothing=smoothing)


def linear_cross_entropy(
    hidden: Tensor, logits_of: Callable[[Tensor], Tensor], tgt_out: Tensor, pad_id: int, smoothing: float
) -> Tensor:
    """`label_smoothed_cross_entropy(logits_of(hidden), ...)` with little memory: CHUNK_ROWS positions at a time.

    Args:
        hidden: (B, T, D) what `logits_of` reads, in its dtype or that of autocast.
        logits_of: (CHUNK_ROWS, D) -> (CHUNK_ROWS, V), such as `Transformer.logits`; called again for the gradient.
        tgt_out: int64 (B, T).
        pad_id: Positions with this target do not count.
        smoothing: In [0, 1).

    Returns:
        Scalar, at least float32: the sum over the real positions, in nats.
    """
    device, dtype = hidden.device.type, torch.promote_types(hidden.dtype, torch.float32)
    cast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    hidden = hidden.to(torch.get_autocast_dtype(device)) if cast else hidden  # on a GPU, a norm gives float32

    def loss_of(h: Tensor, y: Tensor) -> Tensor:
        # A cached cast of the weights would add up the gradients of all chunks in the lower dtype.
        with torch.autocast(device, cache_enabled=False) if cast else nullcontext():
            return label_smoothed_cross_entropy(logits_of(h).to(dtype), y, pad_id, smoothing)

    real = (tgt_out != pad_id).flatten().nonzero()[:, 0]
    rows, target = hidden.flatten(0, 1).index_select(0, real), tgt_out.flatten()[real]
    # Always CHUNK_ROWS rows at a time: oneDNN compiles its products again for each shape.
    h, y = F.pad(rows, (0, 0, 0, -len(rows) % CHUNK_ROWS)), F.pad(target, (0, -len(rows) % CHUNK_ROWS), value=pad_id)
    chunks = zip(h.split(CHUNK_ROWS), y.split(CHUNK_ROWS), strict=True)
    losses = [checkpoint(loss_of, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
    return torch.stack(losses).sum()
