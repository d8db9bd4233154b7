"""What tutorials get wrong is off by what is said, and by nothing else; that it is off at all, the checks show."""

import math

import torch
from conftest import random_tensor

from minitrans.cachecheck.measure import TOLERANCE, deviation
from minitrans.model.attention import attention_scores, masked_softmax
from minitrans.verify import wrong_formulas

Q, K, SMALL = random_tensor(0, 2, 3, 5, 4), random_tensor(1, 2, 3, 7, 4), random_tensor(0, 3, 4)
MASK = torch.tensor([[True, True, False, True], [True, False, False, False], [True, True, True, True]])


def test_each_wrong_formula_is_wrong_in_the_way_that_is_said() -> None:
    scores, late = attention_scores(Q, K), wrong_formulas.masked_after_softmax(SMALL, MASK)
    for got, want in (
        (wrong_formulas.naive_softmax(SMALL), masked_softmax(SMALL)),
        (late / late.sum(-1, keepdim=True), masked_softmax(SMALL, MASK)),
        (wrong_formulas.scaled_after_softmax(Q, K).sum(-1), torch.full((2, 3, 5), 0.5, dtype=torch.float64)),
        (wrong_formulas.scaled_by_d_model(Q, K) * math.sqrt(3), scores),
        (wrong_formulas.unsplit_scores(Q, K), scores.sum(1, keepdim=True).expand_as(scores)),
    ):
        assert deviation(got, want) <= TOLERANCE
