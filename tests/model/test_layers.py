"""Positions, feed-forward and the two layers, against the reference and against PyTorch's own layers."""

import math

import numpy as np
import pytest
import torch
from conftest import ATOL, as_numpy, as_torch_state, random_tensor, randomize, worst_deviation
from torch import Tensor, nn

from minitrans.model import reference
from minitrans.model.cache import KeyValues, LayerCache
from minitrans.model.layers import DecoderLayer, EncoderLayer, FeedForward, sinusoidal_positions
from minitrans.model.masks import causal_mask

B, S, T, H, DH, D, D_FF = 3, 7, 5, 2, 4, 8, 13  # PyTorch's layers need D = H * Dh

SRC_MASK = (torch.arange(S) < torch.tensor([4, 7, 1])[:, None])[:, None, None, :]


def encoder_layer(dropout: float = 0.0, attention_dropout: float = 0.0) -> EncoderLayer:
    return randomize(EncoderLayer(D, H, DH, D_FF, dropout, attention_dropout), 0)


def decoder_layer(dropout: float = 0.0, attention_dropout: float = 0.0) -> DecoderLayer:
    return randomize(DecoderLayer(D, H, DH, D_FF, dropout, attention_dropout), 1)


@pytest.mark.parametrize("d_model", [1, 2, 5, 6, 7])
def test_positions_equal_the_reference_also_for_odd_sizes(d_model: int) -> None:
    table = sinusoidal_positions(300, d_model)
    assert table.dtype == torch.float64
    assert worst_deviation([table], [torch.from_numpy(reference.positions(300, d_model))]) <= ATOL


def test_positions_begin_with_the_papers_numbers() -> None:
    table = sinusoidal_positions(3, 4)
    assert table[0].tolist() == [0.0, 1.0, 0.0, 1.0]
    want = [math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)]
    assert table[2].tolist() == pytest.approx(want, abs=ATOL)


def test_feed_forward_equals_the_reference() -> None:
    module = randomize(FeedForward(D, D_FF, 0.0), 2)
    x = random_tensor(3, B, T, D)
    weights = {f"ff.{name}": array for name, array in as_numpy(module).items()}
    want = torch.from_numpy(np.stack([reference.feed_forward(weights, "ff", row.numpy()) for row in x]))
    assert worst_deviation([module(x)], [want]) <= ATOL


def test_feed_forward_begins_with_xavier_and_biases_of_zero() -> None:
    torch.manual_seed(0)
    module = FeedForward(40, 70, 0.0)
    bound = math.sqrt(6 / 110)
    for linear in (module.w_1, module.w_2):
        assert 0.98 * bound < linear.weight.abs().max() <= bound
        assert not linear.bias.any()


def test_feed_forward_drops_hidden_elements_in_training_alone() -> None:
    module = randomize(FeedForward(D, D_FF, 1.0), 2)
    x = random_tensor(3, B, T, D)
    module.train()
    assert torch.equal(module(x), module.w_2.bias.expand(B, T, D))
    module.eval()
    evaluated = module(x)
    module.dropout.p = 0.0
    assert torch.equal(evaluated, module(x))


def test_encoder_layer_equals_that_of_pytorch() -> None:
    ours = encoder_layer()
    theirs = nn.TransformerEncoderLayer(D, H, D_FF, dropout=0.0, batch_first=True, norm_first=True, dtype=torch.float64)
    theirs.load_state_dict(as_torch_state(ours.state_dict()))
    x = random_tensor(4, B, S, D)
    got = ours(x, SRC_MASK, need_weights=False).output
    want = theirs(x, src_key_padding_mask=~SRC_MASK[:, 0, 0])
    assert worst_deviation([got], [want]) <= ATOL


def test_decoder_layer_equals_that_of_pytorch() -> None:
    ours = decoder_layer()
    theirs = nn.TransformerDecoderLayer(D, H, D_FF, dropout=0.0, batch_first=True, norm_first=True, dtype=torch.float64)
    theirs.load_state_dict(as_torch_state(ours.state_dict()))
    x, memory = random_tensor(5, B, T, D), random_tensor(6, B, S, D)
    causal = causal_mask(T, T, 0)
    got = ours(x, causal, memory, SRC_MASK, None, 0, need_weights=False).output
    want = theirs(x, memory, tgt_mask=~causal[0, 0], memory_key_padding_mask=~SRC_MASK[:, 0, 0])
    assert worst_deviation([got], [want]) <= ATOL


def empty_cache(layer: DecoderLayer, memory: Tensor, room: int) -> LayerCache:
    """What the layer remembers of the source, and room for target tokens."""
    source = KeyValues(*layer.cross_attn.project(memory, 1, 3))
    return LayerCache(source.room_for(room), source)


@torch.no_grad()
@pytest.mark.parametrize("chunks", [[5], [2, 3], [1, 3, 1], [1, 1, 1, 1, 1]])
def test_a_decoder_layer_with_a_cache_goes_on_where_it_stopped(chunks: list[int]) -> None:
    layer = decoder_layer()
    x, memory = random_tensor(5, B, T, D), random_tensor(6, B, S, D)
    want = layer(x, causal_mask(T, T, 0), memory, SRC_MASK, None, 0, True)
    cache = empty_cache(layer, memory, T + 1)
    offset = 0
    for n in chunks:
        new = slice(offset, offset + n)
        causal = causal_mask(n, offset + n, offset)
        got = layer(x[:, new], causal, None, SRC_MASK, cache, offset, True)
        parts = [want.output[:, new], want.self_weights[:, :, new, : offset + n], want.cross_weights[:, :, new]]
        assert worst_deviation(got, parts) <= ATOL
        offset += n


@pytest.mark.parametrize("need", [False, True])
def test_layers_return_weights_only_when_asked_for(need: bool) -> None:
    x, memory = random_tensor(5, B, T, D), random_tensor(6, B, S, D)
    encoder, decoder = encoder_layer(), decoder_layer()
    read = encoder(memory, SRC_MASK, need)
    written = decoder(x, causal_mask(T, T, 0), memory, SRC_MASK, None, 0, need)
    shapes = [w if w is None else tuple(w.shape) for w in (read.self_weights, *written[1:])]
    assert shapes == ([(B, H, S, S), (B, H, T, T), (B, H, T, S)] if need else [None, None, None])
    assert read.cross_weights is None


def test_dropout_of_every_answer_leaves_the_encoders_stream_alone() -> None:
    x = random_tensor(4, B, S, D)
    layer = encoder_layer(dropout=1.0)
    assert torch.equal(layer.train()(x, SRC_MASK, False).output, x)
    evaluated = layer.eval()(x, SRC_MASK, False).output
    assert torch.equal(evaluated, encoder_layer()(x, SRC_MASK, False).output)


def test_dropout_of_every_answer_leaves_the_decoders_stream_alone() -> None:
    x, memory = random_tensor(5, B, T, D), random_tensor(6, B, S, D)
    layer = decoder_layer(dropout=1.0)
    arguments = (x, causal_mask(T, T, 0), memory, SRC_MASK, None, 0, False)
    assert torch.equal(layer.train()(*arguments).output, x)
    assert torch.equal(layer.eval()(*arguments).output, decoder_layer()(*arguments).output)


def test_the_two_kinds_of_dropout_reach_what_they_are_for() -> None:
    for layer in (encoder_layer(0.25, 0.5), decoder_layer(0.25, 0.5)):
        attentions = [module.dropout for name, module in layer.named_children() if name.endswith("attn")]
        assert set(attentions) == {0.5}
        assert layer.dropout.p == 0.25
        assert layer.ff.dropout.p == 0.25
