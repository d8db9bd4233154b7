"""Positions of odd sizes, initial weights, dropout. What layers compute is tested in test_verify_checks.py."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import ATOL, random_tensor, randomize, worst_deviation
from torch import nn

from minitrans.model import reference
from minitrans.model.attention import MultiHeadAttention
from minitrans.model.layers import DecoderLayer, EncoderLayer, FeedForward, sinusoidal_positions
from minitrans.model.masks import causal_mask

B, S, T, H, DH, D, D_FF = 3, 7, 5, 2, 4, 8, 13

SRC_MASK = (torch.arange(S) < torch.tensor([4, 7, 1])[:, None])[:, None, None, :]
X, MEMORY, CAUSAL_MASK = random_tensor(5, B, T, D), random_tensor(6, B, S, D), causal_mask(T, T, 0)


@pytest.mark.parametrize("d_model", [1, 2, 5, 6, 7])
def test_positions_equal_the_reference_also_for_odd_sizes(d_model: int) -> None:
    with torch.device("meta"):  # the default device of new tensors, on which nothing can be computed
        table = sinusoidal_positions(300, d_model)
    assert table.dtype == torch.float64
    assert worst_deviation([table], [torch.from_numpy(reference.sinusoidal_positions(300, d_model))]) <= ATOL


@pytest.mark.parametrize(
    ("make", "fans"), [(lambda: MultiHeadAttention(40, 3, 17), 40 + 51), (lambda: FeedForward(40, 70, 0.0), 40 + 70)]
)
def test_initial_weights_are_xavier_and_initial_biases_zero(make: Callable[[], nn.Module], fans: int) -> None:
    torch.manual_seed(0)
    for name, parameter in make().named_parameters():
        bound = math.sqrt(6 / fans) if name.endswith("weight") else 0.0
        for block in parameter.chunk(3 if "w_qkv" in name else 1):
            assert 0.98 * bound <= block.abs().max() <= bound


def test_feed_forward_drops_hidden_elements() -> None:
    module = randomize(FeedForward(D, D_FF, 1.0), 2).train()
    assert torch.equal(module(X), module.w_2.bias.expand(B, T, D))


@pytest.mark.parametrize(
    ("kind", "given"),
    [(EncoderLayer, (MEMORY, SRC_MASK, False)), (DecoderLayer, (X, CAUSAL_MASK, MEMORY, SRC_MASK, None, 0, False))],
)
def test_dropping_every_sublayer_output_leaves_the_input_unchanged(kind: Callable[..., nn.Module], given: Any) -> None:
    layer, without = (randomize(kind(D, H, DH, D_FF, p, 0.0), 0) for p in (1.0, 0.0))
    assert torch.equal(layer.train()(*given).output, given[0])
    assert torch.equal(layer.eval()(*given).output, without(*given).output)
