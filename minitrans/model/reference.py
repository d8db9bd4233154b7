"""The same mathematics in plain NumPy: float64, one batch row, one head, one query at a time.

This is the specification and the oracle. It is slow and obvious, shares no code with the model, and reads its weights
from the names in the model's `state_dict`. Nothing here is batched, padded or cached: a sentence is a list of ids, so
there is nothing to mask but the future.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = Mapping[str, Array]


def softmax(x: Array) -> Array:
    """exp(x) / sum(exp(x)) of a vector (n,); the largest entry is subtracted first, so that exp cannot overflow."""
    e = np.exp(x - x.max())
    return e / e.sum()


def attend_one_query(q: Array, keys: Array, values: Array) -> tuple[Array, Array]:
    """One query's look-up: q (Dh,), keys (n, Dh), values (n, Dv) -> output (Dv,) and weights (n,).

    With no keys at all there is nothing to look up, and the output is 0.
    """
    if len(keys) == 0:
        return np.zeros(values.shape[1]), np.zeros(0)
    scores = np.array([q @ key for key in keys]) / np.sqrt(len(q))
    weights = softmax(scores)
    output = np.zeros(values.shape[1])
    for weight, value in zip(weights, values, strict=True):
        output += weight * value
    return output, weights


def multi_head_attention(
    weights: Weights, prefix: str, n_heads: int, x_q: Array, x_kv: Array, causal: bool
) -> tuple[Array, Array]:
    """Every head looks up on its own projection; the heads' outputs are concatenated and mixed by W_o.

    Args:
        weights: The model's weights by name.
        prefix: Where this attention's weights are, say "encoder.layers.0.self_attn".
        n_heads: Number of heads, H.
        x_q: (Tq, D) what the queries are made from.
        x_kv: (Tk, D) what the keys and values are made from.
        causal: Whether query i sees only the keys 0..i.

    Returns:
        The output (Tq, D) and the heads' weights (H, Tq, Tk), 0 where a query may not look.
    """
    w_q, w_k, w_v = np.split(weights[f"{prefix}.w_qkv.weight"], 3)
    b_q, b_k, b_v = np.split(weights[f"{prefix}.w_qkv.bias"], 3)
    d_head = len(w_q) // n_heads
    heads = np.zeros((len(x_q), n_heads * d_head))
    head_weights = np.zeros((n_heads, len(x_q), len(x_kv)))
    for h in range(n_heads):
        rows = slice(h * d_head, (h + 1) * d_head)
        keys = x_kv @ w_k[rows].T + b_k[rows]
        values = x_kv @ w_v[rows].T + b_v[rows]
        for i in range(len(x_q)):
            q = w_q[rows] @ x_q[i] + b_q[rows]
            seen = i + 1 if causal else len(x_kv)
            heads[i, rows], head_weights[h, i, :seen] = attend_one_query(q, keys[:seen], values[:seen])
    return heads @ weights[f"{prefix}.w_o.weight"].T + weights[f"{prefix}.w_o.bias"], head_weights


def layer_norm(weights: Weights, prefix: str, x: Array) -> Array:
    """Normalise each row to mean 0 and variance 1, then scale and shift it: (T, D) -> (T, D)."""
    out = np.zeros_like(x)
    for i, row in enumerate(x):
        out[i] = (row - row.mean()) / np.sqrt(row.var() + 1e-5)
    return out * weights[f"{prefix}.weight"] + weights[f"{prefix}.bias"]


def feed_forward(weights: Weights, prefix: str, x: Array) -> Array:
    """W_2 max(0, W_1 x + b_1) + b_2 at every position: (T, D) -> (T, D)."""
    hidden = np.maximum(0.0, x @ weights[f"{prefix}.w_1.weight"].T + weights[f"{prefix}.w_1.bias"])
    return hidden @ weights[f"{prefix}.w_2.weight"].T + weights[f"{prefix}.w_2.bias"]


def sinusoidal_positions(n: int, d_model: int) -> Array:
    """Sines and cosines, entry by entry: (n, D)."""
    table = np.zeros((n, d_model))
    for pos in range(n):
        for column in range(d_model):
            angle = pos / 10000 ** ((column - column % 2) / d_model)
            table[pos, column] = np.sin(angle) if column % 2 == 0 else np.cos(angle)
    return table


def embed(weights: Weights, name: str, ids: Sequence[int]) -> Array:
    """Token vectors times sqrt(D), plus positions: (T, D)."""
    table = weights[f"{name}.weight"]
    d_model = table.shape[1]
    return table[list(ids)] * np.sqrt(d_model) + sinusoidal_positions(len(ids), d_model)


def count_layers(weights: Weights, stack: str) -> int:
    """How many layers the encoder or decoder has, counted from the names of its weights."""
    return len({name.split(".")[2] for name in weights if name.startswith(f"{stack}.layers.")})


def encode(weights: Weights, n_heads: int, src_ids: Sequence[int]) -> Array:
    """The encoder: a source of S ids -> memory (S, D)."""
    x = embed(weights, "src_embedding", src_ids)
    for i in range(count_layers(weights, "encoder")):
        layer = f"encoder.layers.{i}"
        normed = layer_norm(weights, f"{layer}.self_norm", x)
        x = x + multi_head_attention(weights, f"{layer}.self_attn", n_heads, normed, normed, causal=False)[0]
        x = x + feed_forward(weights, f"{layer}.ff", layer_norm(weights, f"{layer}.ff_norm", x))
    return layer_norm(weights, "encoder.norm", x)


def decode(weights: Weights, n_heads: int, memory: Array, tgt_in: Sequence[int]) -> Array:
    """The decoder: memory (S, D) and T target ids, BOS first -> logits (T, V)."""
    x = embed(weights, "tgt_embedding", tgt_in)
    for i in range(count_layers(weights, "decoder")):
        layer = f"decoder.layers.{i}"
        normed = layer_norm(weights, f"{layer}.self_norm", x)
        x = x + multi_head_attention(weights, f"{layer}.self_attn", n_heads, normed, normed, causal=True)[0]
        normed = layer_norm(weights, f"{layer}.cross_norm", x)
        x = x + multi_head_attention(weights, f"{layer}.cross_attn", n_heads, normed, memory, causal=False)[0]
        x = x + feed_forward(weights, f"{layer}.ff", layer_norm(weights, f"{layer}.ff_norm", x))
    return layer_norm(weights, "decoder.norm", x) @ weights["output.weight"].T


def transformer(weights: Weights, n_heads: int, src_ids: Sequence[int], tgt_in: Sequence[int]) -> Array:
    """The whole model on one sentence pair: logits (T, V)."""
    return decode(weights, n_heads, encode(weights, n_heads, src_ids), tgt_in)
