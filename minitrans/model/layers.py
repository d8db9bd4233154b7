"""What surrounds the attention: positions, feed-forward, and the encoder's and decoder's layers.

Pre-norm: every sub-layer reads a normalised copy of x and adds its output to x: x + dropout(f(norm(x))).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minitrans.model.attention import MultiHeadAttention
from minitrans.model.cache import LayerCache
from minitrans.model.dropout import Dropout

Norm = nn.LayerNorm  # what every sub-layer reads x through


class LayerOutput(NamedTuple):
    """What one layer computed.

    Attributes:
        output: (B, T, D) the layer's output.
        self_weights: (B, H, T, Tk) self-attention weights, or None when not asked for.
        cross_weights: (B, H, T, S) cross-attention weights; None in the encoder or when not asked for.
    """

    output: Tensor
    self_weights: Tensor | None
    cross_weights: Tensor | None


def sinusoidal_positions(max_len: int, d_model: int) -> Tensor:
    """A vector for each position: sines in the even columns, cosines in the odd ones, wavelengths 2 pi to 20000 pi.

    Args:
        max_len: Number of positions.
        d_model: Size of each vector.

    Returns:
        float64 (max_len, d_model), on the CPU; exact enough to be cast to any dtype.

    Source: Vaswani et al. 2017, section 3.5.
    """
    position = torch.arange(max_len, dtype=torch.float64, device="cpu")[:, None]
    pair = torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu")
    angle = position * torch.exp(-math.log(10000.0) * pair / d_model)  # (max_len, ceil(d_model / 2))
    table = torch.empty(max_len, d_model, dtype=torch.float64, device="cpu")
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle.cos()[:, : d_model // 2]
    return table


class FeedForward(nn.Module):
    """The same two-layer network at every position: W_2 relu(W_1 x + b_1) + b_2. Vaswani et al. 2017, equation 2."""

    def __init__(self, d_model: int, d_ff: int, dropout: float) -> None:
        super().__init__()
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)
        self.dropout = Dropout(dropout)
        for linear in (self.w_1, self.w_2):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.w_2(self.dropout(F.relu(self.w_1(x))))


class EncoderLayer(nn.Module):
    """Self-attention over the source, then feed-forward."""

    def __init__(self, d_model: int, n_heads: int, d_head: int, d_ff: int, dropout: float, attention_dropout: float):
        """Make the sub-layers; sizes as in `TransformerConfig`."""
        super().__init__()
        self.self_norm = Norm(d_model)
        self.self_attn = MultiHeadAttention(d_model, n_heads, d_head, attention_dropout)
        self.ff_norm = Norm(d_model)
        self.ff = FeedForward(d_model, d_ff, dropout)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, src_mask: Tensor, need_weights: bool) -> LayerOutput:
        """Run the layer.

        Args:
            x: (B, S, D).
            src_mask: bool (B, 1, 1, S), True = may attend.
            need_weights: Whether to return the attention weights.
        """
        h = self.self_norm(x)
        attended, weights = self.self_attn(h, h, h, src_mask, need_weights)
        x = x + self.dropout(attended)
        x = x + self.dropout(self.ff(self.ff_norm(x)))
        return LayerOutput(x, weights, None)


class DecoderLayer(nn.Module):
    """Masked self-attention over the target, attention to the source, then feed-forward."""

    def __init__(self, d_model: int, n_heads: int, d_head: int, d_ff: int, dropout: float, attention_dropout: float):
        """Make the sub-layers; sizes as in `TransformerConfig`."""
        super().__init__()
        self.self_norm = Norm(d_model)
        self.self_attn = MultiHeadAttention(d_model, n_heads, d_head, attention_dropout)
        self.cross_norm = Norm(d_model)
        self.cross_attn = MultiHeadAttention(d_model, n_heads, d_head, attention_dropout)
        self.ff_norm = Norm(d_model)
        self.ff = FeedForward(d_model, d_ff, dropout)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        causal: Tensor,
        memory: Tensor | None,
        src_mask: Tensor,
        cache: LayerCache | None,
        offset: int,
        need_weights: bool,
    ) -> LayerOutput:
        """Run the layer on all target tokens, or on the new ones when a cache holds the earlier ones.

        Args:
            x: (B, T, D) the tokens to compute.
            causal: bool (1, 1, T, offset + T), True = may attend.
            memory: (B, S, D) the encoded source; None where the cache has its keys and values.
            src_mask: bool (B, 1, 1, S), True = may attend.
            cache: What the layer remembers of the source and of the `offset` tokens before `x`; gains those of `x`.
                None: `x` is the whole target.
            offset: How many target tokens the cache holds; 0 without one.
            need_weights: Whether to return the attention weights.
        """
        target, source = cache or (None, None)
        h = self.self_norm(x)
        attended, self_weights = self.self_attn(h, h, h, causal, need_weights, target, offset)
        x = x + self.dropout(attended)
        h = self.cross_norm(x)
        attended, cross_weights = self.cross_attn(h, memory, memory, src_mask, need_weights, source)
        x = x + self.dropout(attended)
        x = x + self.dropout(self.ff(self.ff_norm(x)))
        return LayerOutput(x, self_weights, cross_weights)
