"""Attention is a soft look-up in a table of keys and values."""

import math

import numpy as np
import torch
from torch import Tensor

from minitrans.cachecheck.measurement import deviation, new_check_group, worst
from minitrans.model.attention import masked_softmax, scaled_dot_product_attention
from minitrans.verify.model_and_pairs import ModelAndPairs

claim, CHECKS = new_check_group("A soft look-up")


def scalar_attention(q: Tensor, keys: Tensor, values: Tensor) -> float:
    """One look-up in plain Python: query (Dh,), keys (n, Dh), values (n,)."""
    scores = [sum(a * b for a, b in zip(q.tolist(), key, strict=True)) / math.sqrt(len(q)) for key in keys.tolist()]
    exps = [math.exp(score - max(scores)) for score in scores]
    return sum(e * value for e, value in zip(exps, values.tolist(), strict=True)) / sum(exps)


@claim("C1.query", "output for one query, 7 keys and scalar values, against sums written out in plain Python")
def query_averages_values(subject: ModelAndPairs) -> float:
    """Attention is a soft look-up: a query gets the average of all values, weighted by how well their keys match."""
    # A query that matches one key far better than the others gets that key's value: then the look-up is hard.
    q, keys, values = subject.randn(1, 3, seed=1), subject.randn(7, 3, seed=2), subject.randn(7, 1, seed=3)
    output, _ = scaled_dot_product_attention(q, keys, values)
    soft = deviation(output[0], torch.tensor([scalar_attention(q[0], keys, values[:, 0])], dtype=torch.float64))
    unit = torch.eye(3, dtype=subject.dtype)
    hard = deviation(scaled_dot_product_attention(1000 * unit, unit, values[:3])[0], values[:3])
    return worst([soft, hard])


@claim("C1.values", "output with vectors of 9, against 9 look-ups of scalars")
def values_may_be_vectors(subject: ModelAndPairs) -> float:
    """Values may be vectors: every component is looked up with the same weights."""
    q, keys, values = subject.randn(1, 3, seed=1), subject.randn(7, 3, seed=2), subject.randn(7, 9, seed=3)
    output, _ = scaled_dot_product_attention(q, keys, values)
    want = torch.tensor([[scalar_attention(q[0], keys, values[:, c]) for c in range(9)]], dtype=torch.float64)
    return deviation(output, want)


@claim("C1.queries", "output for 5 queries together, against each by itself")
def batched_queries_match_single(subject: ModelAndPairs) -> float:
    """Many queries are looked up at once: row i of attention(Q, K, V) is attention(q_i, K, V)."""
    q, k, v = subject.randn(2, 3, 5, 4, seed=1), subject.randn(2, 3, 7, 4, seed=2), subject.randn(2, 3, 7, 6, seed=3)
    output, _ = scaled_dot_product_attention(q, k, v)
    alone = [scaled_dot_product_attention(q[b, h, i : i + 1], k[b, h], v[b, h])[0] for b, h, i in np.ndindex(2, 3, 5)]
    return deviation(output, torch.stack(alone).view(2, 3, 5, 6))


@claim("C23", "output for d_v from 1 to 9 and 5 queries on 7 keys, against sums written out in plain Python")
def sizes_and_lengths_vary(subject: ModelAndPairs) -> float:
    """Values may have any size, and queries and keys may come from different sequences of different lengths."""
    q, keys, values = subject.randn(5, 3, seed=23), subject.randn(7, 3, seed=24), subject.randn(7, 9, seed=25)
    deviations = []
    for d_v in range(1, 10):
        output, _ = scaled_dot_product_attention(q, keys, values[:, :d_v])
        want = [[scalar_attention(query, keys, values[:, c]) for c in range(d_v)] for query in q]
        deviations.append(deviation(output, torch.tensor(want, dtype=torch.float64)))
    return worst(deviations)


@claim("C2", "softmax(4, -1, 2.1) and softmax(3, 2, 1), against .8648 .0058 .1294 and .6652 .2447 .0900", lower=())
def softmax_gives_known_weights(subject: ModelAndPairs) -> float:
    """The softmax turns scores into weights: positive, in the order of the scores, and with sum 1."""
    scores = torch.tensor([[4.0, -1.0, 2.1], [3.0, 2.0, 1.0]], dtype=subject.dtype)
    expected = torch.tensor([[0.8648, 0.0058, 0.1294], [0.6652, 0.2447, 0.0900]], dtype=subject.dtype)
    weights = masked_softmax(scores)
    in_order = torch.equal(weights.argsort(-1), scores.argsort(-1))
    inside = bool(((weights > 0) & (weights < 1)).all())
    sums_to_one = deviation(weights.sum(-1), torch.ones(2, dtype=subject.dtype)) <= 1e-15
    return deviation(weights.round(decimals=4), expected) if in_order and inside and sums_to_one else math.inf


@claim("C4", "softmax(4, 3, 2, 1), against .64 .24 .09 .03", lower=())
def scores_share_hundred_votes(subject: ModelAndPairs) -> float:
    """Weights are shares of a vote: scores of 4, 3, 2 and 1 share 100 votes as 64, 24, 9 and 3."""
    weights = masked_softmax(torch.tensor([[4.0, 3.0, 2.0, 1.0]], dtype=subject.dtype)).round(decimals=2)
    expected = torch.tensor([[0.64, 0.24, 0.09, 0.03]], dtype=subject.dtype)
    return deviation(weights, expected) if round(float(100 * weights.sum())) == 100 else math.inf


@claim("C3", "weights of (10000, 9999, -10000), against 1/(1 + 1/e), 1/(1 + e) and 0", lower=(torch.float32,))
def softmax_is_stable(subject: ModelAndPairs) -> float:
    """The softmax survives scores of 10,000 and -10,000; exp(x) / sum(exp(x)) computed literally does not."""
    scores = torch.tensor([[1e4, 1e4 - 1, -1e4]], dtype=subject.dtype)
    naive = scores.exp() / scores.exp().sum(-1, keepdim=True)
    if not naive.isnan().any():
        return math.inf
    high = torch.tensor([[1 / (1 + math.exp(-1)), 1 / (1 + math.e), 0.0]], dtype=torch.float64)
    low = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)  # of the scores with their signs flipped
    return worst([deviation(masked_softmax(scores), high), deviation(masked_softmax(-scores), low)])
