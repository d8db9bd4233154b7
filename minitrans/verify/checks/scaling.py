"""Why scores are divided by the square root of the queries' size, and where."""

import math

import torch

from minitrans.cachecheck.measurement import MIN_FAULT, deviation, new_check_group, worst
from minitrans.model.attention import attention_scores, attention_weights, masked_softmax
from minitrans.verify.model_and_pairs import ModelAndPairs

claim, CHECKS = new_check_group("Scaled")

N_PAIRS = 4_000  # pairs of a random query and a random key


@claim(
    "C5.variance",
    "variance of 4,000 scaled scores for d_k = 64 and 456, and of the unscaled ones over d_k, against 1",
    tolerance=0.1,
    lower=(),
)
def scores_have_unit_variance(subject: ModelAndPairs) -> float:
    """The dot product of random vectors of size d_k has variance d_k; divided by sqrt(d_k) it has variance 1."""
    deviations = []
    for d_k in (64, 456):  # the variance of N numbers is uncertain by about sqrt(2/N) = 0.022
        q, k = subject.randn(N_PAIRS, 1, d_k, seed=d_k), subject.randn(N_PAIRS, 1, d_k, seed=d_k + 1)
        deviations.append(abs(float(attention_scores(q, k).var()) - 1.0))
        deviations.append(abs(float((q * k).sum(-1).var()) / d_k - 1.0))
    return worst(deviations)


@claim(
    "C5.gradient",
    "median gradient of the weights through unscaled scores over that through scaled scores, 200 queries, 16 keys",
    tolerance=1e-2,
    lower=(),
)
@torch.enable_grad()
def unscaled_softmax_saturates(subject: ModelAndPairs) -> float:
    """Without the scaling the softmax saturates: at d_k = 512 its gradient is smaller by orders of magnitude."""
    # The gradient of the largest weight with respect to the scores, which are of order 0.1 if all is well.
    q, k = subject.randn(200, 1, 512, seed=5), subject.randn(200, 16, 512, seed=6)
    medians = []
    for factor in (1.0, math.sqrt(512)):
        scores = (attention_scores(q, k) * factor).requires_grad_()
        (gradient,) = torch.autograd.grad(masked_softmax(scores).amax(-1).sum(), scores)
        medians.append(float(gradient.norm(dim=-1).median()))
    scaled, unscaled = medians
    return unscaled / scaled if scaled > 0.1 else math.inf


@claim("C6", "sum of the weights of 5 queries on 7 keys, against 1; softmax(Q K^T) / sqrt(d_k) must not pass")
def scaled_before_softmax(subject: ModelAndPairs) -> float:
    """The scaling belongs inside the softmax: the weights of every query sum to 1."""
    q, k = subject.randn(2, 3, 5, 4, seed=7), subject.randn(2, 3, 7, 4, seed=8)
    ones = torch.ones(2, 3, 5, dtype=subject.dtype)
    scaled_after = torch.softmax(q @ k.mT, -1) / math.sqrt(4)
    if deviation(scaled_after.sum(-1), ones) < MIN_FAULT:
        return math.inf
    return deviation(attention_weights(q, k).sum(-1), ones)
