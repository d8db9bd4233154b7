"""Positions, feed-forward and the two layers, against the reference and against PyTorch's own layers."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from conftest import ATOL, as_numpy, random_tensor, randomize, worst_deviation
from torch import Tensor, nn

from minitrans.model import reference
from minitrans.model.cache import KeyValues, LayerCache
from minitrans.model.layers import DecoderLayer, EncoderLayer, FeedForward, LayerTrace, sinusoidal_positions
from minitrans.model.masks import causal_mask
from minitrans.verify.oracles import torch_layer

B, S, T, H, DH, D, D_FF = 3, 7, 5, 2, 4, 8, 13  # PyTorch's layers need D = H * Dh

SRC_MASK = (torch.arange(S) < torch.tensor([4, 7, 1])[:, None])[:, None, None, :]
X, MEMORY, CAUSAL = random_tensor(5, B, T, D), random_tensor(6, B, S, D), causal_mask(T, T, 0)


def encoder_layer(dropout: float = 0.0, attention_dropout: float = 0.0) -> EncoderLayer:
    return randomize(EncoderLayer(D, H, DH, D_FF, dropout, attention_dropout), 0)


def decoder_layer(dropout: float = 0.0, attention_dropout: float = 0.0) -> DecoderLayer:
    return randomize(DecoderLayer(D, H, DH, D_FF, dropout, attention_dropout), 1)


MakeLayer = Callable[..., EncoderLayer | DecoderLayer]


def run(layer: nn.Module, need_weights: bool = False) -> LayerTrace:
    """What a layer of either kind computes of `MEMORY` or `X`."""
    if isinstance(layer, EncoderLayer):
        return layer(MEMORY, SRC_MASK, need_weights)
    return layer(X, CAUSAL, MEMORY, SRC_MASK, None, 0, need_weights)


@pytest.mark.parametrize("d_model", [1, 2, 5, 6, 7])
def test_positions_equal_the_reference_also_for_odd_sizes(d_model: int) -> None:
    table = sinusoidal_positions(300, d_model)
    assert table.dtype == torch.float64
    assert worst_deviation([table], [torch.from_numpy(reference.positions(300, d_model))]) <= ATOL


def test_feed_forward_equals_the_reference() -> None:
    module = randomize(FeedForward(D, D_FF, 0.0), 2)
    weights = {f"ff.{name}": array for name, array in as_numpy(module).items()}
    want = torch.from_numpy(np.stack([reference.feed_forward(weights, "ff", row.numpy()) for row in X]))
    assert worst_deviation([module(X)], [want]) <= ATOL


def test_feed_forward_begins_with_xavier_and_biases_of_zero() -> None:
    torch.manual_seed(0)
    module = FeedForward(40, 70, 0.0)
    bound = math.sqrt(6 / 110)
    for linear in (module.w_1, module.w_2):
        assert 0.98 * bound < linear.weight.abs().max() <= bound
        assert not linear.bias.any()


def test_feed_forward_drops_hidden_elements_in_training_alone() -> None:
    module = randomize(FeedForward(D, D_FF, 1.0), 2)
    module.train()
    assert torch.equal(module(X), module.w_2.bias.expand(B, T, D))
    module.eval()
    evaluated = module(X)
    module.dropout.p = 0.0
    assert torch.equal(evaluated, module(X))


def test_layers_equal_those_of_pytorch() -> None:
    encoder, decoder = encoder_layer(), decoder_layer()
    padded = ~SRC_MASK[:, 0, 0]
    want = [
        torch_layer(encoder)(MEMORY, src_key_padding_mask=padded),
        torch_layer(decoder)(X, MEMORY, tgt_mask=~CAUSAL[0, 0], memory_key_padding_mask=padded),
    ]
    assert worst_deviation([run(encoder).output, run(decoder).output], want) <= ATOL


@torch.no_grad()
@pytest.mark.parametrize("chunks", [[5], [2, 3], [1, 3, 1], [1, 1, 1, 1, 1]])
def test_a_decoder_layer_with_a_cache_goes_on_where_it_stopped(chunks: list[int]) -> None:
    layer = decoder_layer()
    want = run(layer, need_weights=True)
    assert want.self_weights is not None
    assert want.cross_weights is not None
    source = KeyValues(*layer.cross_attn.project(MEMORY, 1, 3))
    cache, start = LayerCache(source.room_for(T + 1), source), 0
    for n in chunks:
        end = start + n
        got = layer(X[:, start:end], causal_mask(n, end, start), None, SRC_MASK, cache, start, True)
        parts = want.output[:, start:end], want.self_weights[:, :, start:end, :end], want.cross_weights[:, :, start:end]
        assert worst_deviation(got, parts) <= ATOL
        start = end


@pytest.mark.parametrize(("make", "stream"), [(encoder_layer, MEMORY), (decoder_layer, X)])
def test_dropout_of_every_answer_leaves_the_stream_alone(make: MakeLayer, stream: Tensor) -> None:
    layer = make(dropout=1.0)
    assert torch.equal(run(layer.train()).output, stream)
    assert torch.equal(run(layer.eval()).output, run(make()).output)
