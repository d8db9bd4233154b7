"""What tutorials get wrong is wrong in the way that is said, and right where it should be."""

import math

import torch
from conftest import random_tensor

from minitrans.cachecheck.measure import TOLERANCE, deviation
from minitrans.model.attention import attention_scores, attention_weights, masked_softmax
from minitrans.verify import wrong_formulas

Q, K = random_tensor(0, 2, 3, 5, 4), random_tensor(1, 2, 3, 7, 4)
SCORES = random_tensor(0, 3, 4)
MASK = torch.tensor([[True, True, False, True], [True, False, False, False], [True, True, True, True]])


def test_the_naive_softmax_is_right_for_small_scores_and_overflows_for_large_ones() -> None:
    assert deviation(wrong_formulas.naive_softmax(SCORES), masked_softmax(SCORES)) <= TOLERANCE
    assert deviation(wrong_formulas.naive_softmax(SCORES, MASK), masked_softmax(SCORES, MASK)) <= TOLERANCE
    assert wrong_formulas.naive_softmax(SCORES + 1000.0).isnan().all()


def test_a_mask_after_the_softmax_takes_weight_away() -> None:
    late = wrong_formulas.masked_after_softmax(SCORES, MASK)
    assert not late[~MASK].any()
    assert torch.equal((late.sum(-1) < 1.0 - 1e-3), ~MASK.all(-1))
    assert deviation(late / late.sum(-1, keepdim=True), masked_softmax(SCORES, MASK)) <= TOLERANCE
    assert deviation(wrong_formulas.masked_after_softmax(SCORES), masked_softmax(SCORES)) == 0.0


def test_scaled_after_the_softmax_the_rows_sum_to_one_over_the_square_root() -> None:
    weights = wrong_formulas.scaled_after_softmax(Q, K)
    assert deviation(weights.sum(-1), torch.full((2, 3, 5), 0.5, dtype=torch.float64)) <= TOLERANCE
    assert deviation(2.0 * weights, attention_weights(Q, K)) > 1e-3


def test_scaled_by_the_models_size_the_scores_are_too_small_by_the_root_of_the_number_of_heads() -> None:
    assert deviation(wrong_formulas.scaled_by_d_model(Q, K) * math.sqrt(3), attention_scores(Q, K)) <= TOLERANCE
    one_head = Q[:, :1], K[:, :1]
    assert deviation(wrong_formulas.scaled_by_d_model(*one_head), attention_scores(*one_head)) == 0.0


def test_unsplit_scores_are_those_of_the_whole_vectors_and_the_same_for_every_head() -> None:
    whole = attention_scores(*(x.transpose(1, 2).flatten(2) for x in (Q, K))) * math.sqrt(12 / 4)
    unsplit = wrong_formulas.unsplit_scores(Q, K)
    assert unsplit.shape == (2, 3, 5, 7)
    for h in range(3):
        assert deviation(unsplit[:, h], whole) <= TOLERANCE
        assert deviation(unsplit[:, h], attention_scores(Q, K)[:, h]) > 1e-3


def test_layers_in_a_list_are_neither_trained_nor_saved() -> None:
    module = wrong_formulas.ListOfLinears(6)
    assert [tuple(linear.weight.shape) for linear in module.linears] == [(6, 6)] * 4
    assert list(module.parameters()) == []
    assert module.state_dict() == {}
