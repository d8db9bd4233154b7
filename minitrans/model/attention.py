"""The heart of the model: scaled dot-product attention and multi-head attention, written out by hand.

One implementation serves training, the full masked pass and stepwise decoding from a cache. Shapes: `B` batch,
`Tq`/`Tk` query and key length, `H` heads, `D` d_model, `Dh` d_head.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minitrans.model.cache import KVCache
from minitrans.model.dropout import dropout
from minitrans.model.masks import check_mask


def attention_scores(q: Tensor, k: Tensor) -> Tensor:
    """How well each query matches each key: q k^T / sqrt(Dh).

    Without the divisor the scores of long vectors are large (their variance is Dh), and the softmax of large scores is
    all but one-hot, where its gradient vanishes.

    Args:
        q: (..., Tq, Dh) queries, a floating dtype.
        k: (..., Tk, Dh) keys, same dtype.

    Returns:
        (..., Tq, Tk), dtype of `q`.

    Source: Vaswani et al. 2017, section 3.2.1.
    """
    return q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))


def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Scores to weights: the softmax of each row, over the keys that the mask admits.

    Args:
        scores: (..., Tq, Tk), a floating dtype; computed in at least float32.
        mask: bool, True = may attend; of as many dimensions as `scores`, and broadcastable to it; None hides nothing.

    Returns:
        (..., Tq, Tk), dtype of `scores`. Every row sums to 1, except that a row that may attend to nothing is all 0
        (and its gradient is finite). Masked entries are exactly 0.

    Raises:
        TypeError: The mask is not bool.
        ValueError: The mask does not broadcast.
    """
    dtype = torch.promote_types(scores.dtype, torch.float32)
    if mask is None:
        return torch.softmax(scores, dim=-1, dtype=dtype).to(scores.dtype)
    check_mask(mask, scores.shape)
    # The lowest finite number, not -inf: the softmax of a row of -inf is NaN, and so is its gradient. Such a row
    # comes out uniform instead, and the second fill makes it 0.
    filled = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(filled, dim=-1, dtype=dtype).masked_fill(~mask, 0.0).to(scores.dtype)


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
    """How much each query looks at each key: (..., Tq, Dh) and (..., Tk, Dh) -> (..., Tq, Tk); see `masked_softmax`."""
    return masked_softmax(attention_scores(q, k), mask)


def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout_p: float = 0.0, need_weights: bool = False
) -> tuple[Tensor, Tensor | None]:
    """A soft look-up: for each query the average of the values, weighted by how well their keys match.

    Args:
        q: (..., Tq, Dh) queries.
        k: (..., Tk, Dh) keys.
        v: (..., Tk, Dv) values; any Dv.
        mask: As in `masked_softmax`, which also names the errors.
        dropout_p: Probability with which each weight is dropped, in [0, 1); 0 outside training.
        need_weights: Whether to return the weights.

    Returns:
        The output (..., Tq, Dv), dtype of `q`, and the weights before dropout (..., Tq, Tk) or None.

    Source: Vaswani et al. 2017, equation 1.
    """
    weights = attention_weights(q, k, mask)
    output = dropout(weights, dropout_p, training=True) @ v
    return output, weights if need_weights else None


class MultiHeadAttention(nn.Module):
    """`n_heads` attentions side by side, each on its own projection of the input.

    The projections W_q, W_k, W_v are packed into one matrix, in this order, as in PyTorch's `in_proj_weight`:
    one product in place of three. Within each, head h owns rows h*Dh to (h+1)*Dh. The products take slices of
    the matrix, so the module `w_qkv` is never called, and neither are hooks on it.

    Source: Vaswani et al. 2017, section 3.2.2.
    """

    def __init__(self, d_model: int, n_heads: int, d_head: int | None = None, dropout: float = 0.0) -> None:
        """Make the projections.

        Args:
            d_model: Size of the vectors that come in and go out.
            n_heads: Number of heads.
            d_head: Size of each head's queries, keys and values; d_model / n_heads when None.
            dropout: Probability with which each attention weight is dropped in training.

        Raises:
            ValueError: d_head is None and d_model is not divisible by n_heads.
        """
        super().__init__()
        if d_head is None:
            if d_model % n_heads:
                raise ValueError(f"d_model ({d_model}) is not divisible by n_heads ({n_heads})")
            d_head = d_model // n_heads
        self.n_heads, self.d_head, self.dropout = n_heads, d_head, dropout
        self.w_qkv = nn.Linear(d_model, 3 * n_heads * d_head)
        self.w_o = nn.Linear(n_heads * d_head, d_model)
        for block in self.w_qkv.weight.chunk(3):  # each projection by its own fan-in and fan-out
            nn.init.xavier_uniform_(block)
        nn.init.xavier_uniform_(self.w_o.weight)
        nn.init.zeros_(self.w_qkv.bias)
        nn.init.zeros_(self.w_o.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        mask: Tensor | None = None,
        need_weights: bool = False,
        cache: KVCache | None = None,
        offset: int = 0,
    ) -> tuple[Tensor, Tensor | None]:
        """Project, attend in every head, and mix the heads.

        Args:
            query: (B, Tq, D).
            key: (B, n, D); None: no new keys and values, use those in the cache (cross-attention).
            value: (B, n, D), or None as `key`.
            mask: bool, 4-D, broadcastable to (B, H, Tq, Tk), True = may attend; errors as in `masked_softmax`.
            need_weights: Whether to return the weights.
            cache: Keys and values of earlier tokens; gains any new ones. With it Tk is all it then holds, else n.
            offset: How many target tokens the cache holds; the first new one has this position.

        Returns:
            The output (B, Tq, D) and the weights of every head (B, H, Tq, Tk) or None.
        """
        if key is None or value is None:
            assert cache is not None, "without new keys there has to be a cache"
            (q,), k, v = self.project(query, 0, 1), cache.k, cache.v
        else:
            if query is key is value:  # self-attention: one product for all three
                q, k, v = self.project(query, 0, 3)
            else:
                (q,), (k,), (v,) = self.project(query, 0, 1), self.project(key, 1, 2), self.project(value, 2, 3)
            if cache is not None:
                k, v = cache.update(k, v, offset)
        dropout_p = self.dropout if self.training else 0.0
        heads, weights = scaled_dot_product_attention(q, k, v, mask, dropout_p, need_weights)
        return self.w_o(heads.transpose(1, 2).flatten(2)), weights  # (B, H, Tq, Dh) -> (B, Tq, H*Dh) -> (B, Tq, D)

    def project(self, x: Tensor, start: int, stop: int) -> tuple[Tensor, ...]:
        """Apply the projections (W_q, W_k, W_v)[start:stop]: (B, T, D) -> (B, H, T, Dh) each."""
        size = self.n_heads * self.d_head
        rows = slice(start * size, stop * size)
        packed = F.linear(x, self.w_qkv.weight[rows], self.w_qkv.bias[rows])  # (B, T, (stop - start)*H*Dh)
        heads = packed.unflatten(-1, (stop - start, self.n_heads, self.d_head))  # (B, T, stop - start, H, Dh)
        return heads.permute(2, 0, 3, 1, 4).unbind(0)  # (stop - start, B, H, T, Dh)
