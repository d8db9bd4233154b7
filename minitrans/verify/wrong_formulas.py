"""What tutorials get wrong, as they write it: the checks show that it fails."""

import math

import torch
from torch import Tensor, nn


def naive_softmax(scores: Tensor) -> Tensor:
    """The formula as it stands, exp(x) / sum(exp(x)), of scores (..., Tk): overflows."""
    exp = scores.exp()
    return exp / exp.sum(-1, keepdim=True)


def masked_after_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Weights of keys that may not be seen set to 0 after the softmax: the rows no longer sum to 1."""
    return torch.softmax(scores, dim=-1) * mask


def scaled_after_softmax(q: Tensor, k: Tensor) -> Tensor:
    """softmax(q k^T) * 1/sqrt(Dh), as if the divisor stood outside: the rows sum to 1/sqrt(Dh)."""
    return torch.softmax(q @ k.mT, dim=-1) / math.sqrt(q.size(-1))


def scaled_by_d_model(q: Tensor, k: Tensor) -> Tensor:
    """Scores of (B, H, T, Dh) divided by the square root of H*Dh, the size of the model, not of the head."""
    return q @ k.mT / math.sqrt(q.size(-3) * q.size(-1))


def unsplit_scores(q: Tensor, k: Tensor) -> Tensor:
    """Scores of (B, H, T, Dh) taken before the heads are split, and handed to every head: they are sums over heads."""
    return (q @ k.mT / math.sqrt(q.size(-1))).sum(-3, keepdim=True).expand(*q.shape[:-1], k.size(-2))


class ListOfLinears(nn.Module):
    """Projections in a plain Python list: PyTorch never learns of them, so they are neither trained nor saved."""

    def __init__(self, d_model: int) -> None:
        """Make four projections, d_model -> d_model."""
        super().__init__()
        self.linears = [nn.Linear(d_model, d_model) for _ in range(4)]
