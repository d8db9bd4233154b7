"""What training minimises."""

from torch import Tensor
from torch.nn import functional as F


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
