"""Label-smoothed cross entropy against its formula, written out."""

import math

import pytest
import torch
from conftest import ATOL, PAD, random_ids, random_tensor
from torch import Tensor

from minitrans.loss import label_smoothed_cross_entropy

B, T, V = 3, 5, 11
LENGTHS = [4, 5, 1]


def formula(logits: Tensor, tgt_out: Tensor, smoothing: float) -> float:
    """- sum over real positions, sum over pieces, of target probability times log probability."""
    total = 0.0
    for row, ids in zip(logits.tolist(), tgt_out.tolist(), strict=True):
        for scores, right in zip(row, ids, strict=True):
            if right == PAD:
                continue
            log_z = math.log(sum(math.exp(score) for score in scores))
            for piece, score in enumerate(scores):
                wanted = smoothing / V + (1 - smoothing if piece == right else 0.0)
                total -= wanted * (score - log_z)
    return total


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_the_loss_equals_its_formula(smoothing: float) -> None:
    logits, tgt_out = 2.0 * random_tensor(0, B, T, V), random_ids(1, LENGTHS, T)
    loss = label_smoothed_cross_entropy(logits, tgt_out, PAD, smoothing)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(formula(logits, tgt_out, smoothing), abs=ATOL)


def test_without_smoothing_each_position_costs_its_log_probability() -> None:
    logits, tgt_out = random_tensor(0, B, T, V), random_ids(1, [T] * B, T)
    for b in range(B):
        for t in range(T):
            loss = label_smoothed_cross_entropy(logits[b : b + 1, t : t + 1], tgt_out[b : b + 1, t : t + 1], PAD, 0.0)
            assert loss.item() == pytest.approx(-logits[b, t].log_softmax(-1)[tgt_out[b, t]].item(), abs=ATOL)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_padding_has_no_gradient_and_everything_else_has(smoothing: float) -> None:
    logits, tgt_out = random_tensor(0, B, T, V).requires_grad_(), random_ids(1, LENGTHS, T)
    (gradient,) = torch.autograd.grad(label_smoothed_cross_entropy(logits, tgt_out, PAD, smoothing), logits)
    assert torch.equal(gradient.ne(0.0).all(-1), tgt_out != PAD)
    assert torch.equal(gradient.eq(0.0).all(-1), tgt_out == PAD)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_logits_of_padding_do_not_count(smoothing: float) -> None:
    logits, tgt_out = random_tensor(0, B, T, V), random_ids(1, LENGTHS, T)
    other = torch.where((tgt_out == PAD)[..., None], random_tensor(2, B, T, V), logits)
    losses = [label_smoothed_cross_entropy(x, tgt_out, PAD, smoothing) for x in (logits, other)]
    assert torch.equal(*losses)


def test_a_batch_of_padding_alone_costs_nothing() -> None:
    loss = label_smoothed_cross_entropy(random_tensor(0, B, T, V), torch.full((B, T), PAD), PAD, 0.1)
    assert loss.item() == 0.0


def test_smoothing_makes_certainty_cost_more_than_the_smoothed_truth() -> None:
    tgt_out = torch.zeros(1, 1, dtype=torch.int64)
    truth = torch.full((V,), 0.1 / V, dtype=torch.float64)
    truth[0] += 0.9
    certain = torch.zeros(V, dtype=torch.float64)
    certain[0] = 50.0
    costs = [label_smoothed_cross_entropy(x.view(1, 1, V), tgt_out, PAD, 0.1).item() for x in (truth.log(), certain)]
    assert costs[0] == pytest.approx(-(truth * truth.log()).sum().item(), abs=ATOL)
    assert costs[1] > costs[0] + 1.0
