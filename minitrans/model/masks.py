"""Attention masks: `torch.bool`, True = may attend, broadcastable to (B, H, Tq, Tk).

A mask answers one question for each query (row) and key (column): may this query look at this key? Masks combine
with `&`. Padding is on the right, so a row of real tokens always finds at least one key.
"""

import torch
from torch import Tensor


def causal_mask(q_len: int, kv_len: int, offset: int, device: torch.device | None = None) -> Tensor:
    """Let every query see the keys up to its own position, and none after it.

    Query `i` stands at position `offset + i`: with `q_len=2, kv_len=5, offset=3` (three tokens in the cache, two new)

        keys      0 1 2 3 4
        query 3   x x x x .
        query 4   x x x x x

    Args:
        q_len: Number of queries, Tq.
        kv_len: Number of keys, Tk.
        offset: Position of the first query among the keys; 0 when queries and keys are the same tokens.
        device: Where the mask is made.

    Returns:
        bool (1, 1, Tq, Tk), True = may attend.

    Raises:
        ValueError: The queries do not lie among the keys.

    Source: Vaswani et al. 2017, section 3.2.3 ("masking out all values which correspond to illegal connections").
    """
    if q_len < 0 or offset < 0 or offset + q_len > kv_len:
        raise ValueError(f"queries {offset}..{offset + q_len - 1} do not lie among {kv_len} keys")
    q_pos = torch.arange(offset, offset + q_len, device=device)
    k_pos = torch.arange(kv_len, device=device)
    return (k_pos[None, :] <= q_pos[:, None])[None, None]  # (1, 1, Tq, Tk)


def padding_mask(ids: Tensor, pad_id: int) -> Tensor:
    """Let every query see the real tokens, and none of the padding.

    Args:
        ids: int64 (B, Tk), padded on the right.
        pad_id: The id that stands for "no token".

    Returns:
        bool (B, 1, 1, Tk), True = may attend.

    Raises:
        ValueError: `ids` is not (B, Tk).
    """
    if ids.dim() != 2:
        raise ValueError(f"padding_mask needs ids of shape (B, Tk), got {tuple(ids.shape)}")
    return (ids != pad_id)[:, None, None, :]


def check_mask(mask: Tensor, scores_shape: torch.Size) -> None:
    """Raise unless `mask` is bool, has as many dimensions as the scores, (..., Tq, Tk), and broadcasts to them.

    A mask with fewer dimensions is refused because it could be misread: (B, Tk) broadcasts as (Tq, Tk)
    whenever B happens to equal Tq.

    Raises:
        TypeError: The mask is not `torch.bool`: a float or integer mask has no single meaning.
        ValueError: The mask does not broadcast to `scores_shape`, or has a different number of dimensions.
    """
    if mask.dtype != torch.bool:
        raise TypeError(f"an attention mask is torch.bool (True = may attend), got {mask.dtype}")
    if mask.dim() != len(scores_shape) or any(m not in (1, s) for m, s in zip(mask.shape, scores_shape, strict=True)):
        raise ValueError(f"mask {tuple(mask.shape)} does not broadcast to scores {tuple(scores_shape)}")
