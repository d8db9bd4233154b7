"""Dropout from random bytes that depend only on a seed, so that another implementation can drop the same elements."""

import torch
from torch import Tensor, nn

_GOLDEN, _MIX_1, _MIX_2 = (c - 2**64 for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))  # as int64


def draw_seed() -> int:
    """Draw the seed for one call of `dropout` from PyTorch's generator."""
    return int(torch.empty((), dtype=torch.int64).random_())


def random_bytes(n: int, seed: int, device: torch.device | None = None) -> Tensor:
    """The first `n` bytes of the stream of a seed, uniform and independent: uint8 (n,).

    Source: SplitMix64 (Steele, Lea, Flood 2014), which needs no state: word j is a hash of seed and j.
    """
    z = torch.arange(1, (n + 7) // 8 + 1, device=device).mul_(_GOLDEN).add_(seed)
    for shift, factor in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
        z = (z ^ (z >> shift & 2 ** (64 - shift) - 1)).mul_(factor)  # >> of int64 copies the sign
    return z.view(torch.uint8)[:n]


def dropout_byte_threshold(p: float) -> int:
    """How many of the 256 values of a byte mean "dropped": p is rounded to a multiple of 1/256."""
    return round(256 * p)


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Set each element to 0 with probability p, and scale up the others to keep the mean.

    A random byte decides for each element; p is therefore rounded to a multiple of 1/256. Which elements are dropped
    depends only on a seed drawn from PyTorch's generator. PyTorch's own dropout draws a number for each element, which
    costs more than a quarter of a training step on a CPU.

    Args:
        x: Any shape, a floating dtype.
        p: Probability of dropping an element, in [0, 1].
        training: False returns `x` unchanged.

    Returns:
        Shape and dtype of `x`.

    Source: Srivastava et al. 2014, in the "inverted" form, scaled in training rather than at inference.
    """
    dropped = dropout_byte_threshold(p)
    if not training or dropped == 0:
        return x
    keep = random_bytes(x.numel(), draw_seed(), x.device).view(x.shape) > dropped - 1  # 256 itself is no byte
    return x * keep.to(x.dtype).mul_(256 / max(1, 256 - dropped))


class Dropout(nn.Module):
    """`dropout` as a module: active only in training mode."""

    def __init__(self, p: float) -> None:
        """Take the probability of dropping an element, in [0, 1]."""
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Any shape; see `dropout`."""
        return dropout(x, self.p, self.training)
