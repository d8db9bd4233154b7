"""Independent answers: PyTorch's own attention with our weights copied in. They share no code with the package."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minitrans.attention import MultiHeadAttention


def torch_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """PyTorch's fused attention; its boolean masks mean the same as ours, True = may attend."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def torch_multi_head(attention: MultiHeadAttention, x_q: Tensor, x_kv: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """`nn.MultiheadAttention` with the weights of ours, whose packed layout it shares.

    Args:
        attention: Ours, with n_heads * d_head = d_model: theirs knows nothing else.
        x_q: (B, Tq, D).
        x_kv: (B, Tk, D).
        mask: bool (B, 1, Tq or 1, Tk), True = may attend.

    Returns:
        The output (B, Tq, D) and every head's weights (B, H, Tq, Tk).
    """
    batch, q_len, d_model = x_q.shape
    theirs = nn.MultiheadAttention(d_model, attention.n_heads, batch_first=True, dtype=x_q.dtype)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(attention.w_qkv.weight)
        theirs.in_proj_bias.copy_(attention.w_qkv.bias)
        theirs.out_proj.weight.copy_(attention.w_o.weight)
        theirs.out_proj.bias.copy_(attention.w_o.bias)
    # Theirs takes one mask for each row and head, (B*H, Tq, Tk), and True = may NOT attend.
    blocked = ~mask.expand(batch, attention.n_heads, q_len, x_kv.size(1)).flatten(0, 1)
    return theirs(x_q, x_kv, x_kv, attn_mask=blocked, need_weights=True, average_attn_weights=False)
