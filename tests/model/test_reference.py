"""The specification itself: small enough to check by hand, and independent of what it judges."""

import ast
import inspect
import math

import numpy as np
import pytest
import torch
from conftest import ATOL, as_numpy, random_model, random_tensor
from torch.nn import functional as F

from minitrans.model import reference


def numbers(seed: int, *shape: int) -> reference.Array:
    return random_tensor(seed, *shape).numpy()


@pytest.mark.parametrize(
    ("scores", "weights"),
    [
        ([4.0, -1.0, 2.1], [0.8648, 0.0058, 0.1294]),
        ([4.0, 3.0, 2.0, 1.0], [0.6439, 0.2369, 0.0871, 0.0321]),
        ([1e4, -1e4, 1e4 - 1.0], [0.7311, 0.0, 0.2689]),  # finite though exp(1e4) is not
    ],
)
def test_softmax_gives_known_weights(scores: list[float], weights: list[float]) -> None:
    assert reference.softmax(np.array(scores)).round(4).tolist() == weights


def test_attend_averages_the_values_by_similarity() -> None:
    q, keys = np.array([2.0, 0.0, 0.0, 0.0]), np.eye(4)[:3]
    output, weights = reference.attend(q, keys, np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 3.0]]))
    e = math.e  # q . k / sqrt(4) is 1, 0, 0
    assert weights.tolist() == pytest.approx([e / (e + 2), 1 / (e + 2), 1 / (e + 2)], abs=ATOL)
    assert output.tolist() == pytest.approx([e / (e + 2), 4 / (e + 2)], abs=ATOL)


def test_attend_without_keys_gives_zero() -> None:
    output, weights = reference.attend(np.ones(4), np.zeros((0, 4)), np.zeros((0, 3)))
    assert output.tolist() == [0.0, 0.0, 0.0]
    assert weights.shape == (0,)


@pytest.mark.parametrize("causal", [False, True])
def test_multi_head_attention_equals_the_fused_kernel_on_separate_heads(causal: bool) -> None:
    t, d, h, dh = 5, 6, 2, 4
    weights = {
        "a.w_qkv.weight": numbers(0, 3 * h * dh, d),
        "a.w_qkv.bias": numbers(1, 3 * h * dh),
        "a.w_o.weight": numbers(2, d, h * dh),
        "a.w_o.bias": numbers(3, d),
    }
    x = numbers(4, t, d)
    got, head_weights = reference.multi_head_attention(weights, "a", h, x, x, causal)
    packed = torch.from_numpy(x @ weights["a.w_qkv.weight"].T + weights["a.w_qkv.bias"])
    q, k, v = packed.view(t, 3, h, dh).permute(1, 2, 0, 3)
    heads = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    want = heads.transpose(0, 1).reshape(t, h * dh).numpy() @ weights["a.w_o.weight"].T + weights["a.w_o.bias"]
    np.testing.assert_allclose(got, want, rtol=0.0, atol=ATOL)
    eye = torch.eye(t, dtype=torch.float64).expand(h, t, t)
    want_weights = F.scaled_dot_product_attention(q, k, eye, is_causal=causal).numpy()
    np.testing.assert_allclose(head_weights, want_weights, rtol=0.0, atol=ATOL)
    assert (np.triu(head_weights, 1).any()) == (not causal)


def test_layer_norm_equals_that_of_pytorch() -> None:
    x, weight, bias = numbers(0, 5, 6), numbers(1, 6), numbers(2, 6)
    got = reference.layer_norm({"n.weight": weight, "n.bias": bias}, "n", x)
    want = F.layer_norm(*(torch.from_numpy(x), [6]), torch.from_numpy(weight), torch.from_numpy(bias))
    np.testing.assert_allclose(got, want.numpy(), rtol=0.0, atol=ATOL)


def test_feed_forward_cuts_off_what_is_negative() -> None:
    weights = {
        "f.w_1.weight": np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]),
        "f.w_1.bias": np.array([0.0, 0.5, -4.0]),
        "f.w_2.weight": np.array([[1.0, 10.0, 100.0]]),
        "f.w_2.bias": np.array([0.25]),
    }
    got = reference.feed_forward(weights, "f", np.array([[-1.0, 2.0], [3.0, 3.0]]))
    assert got.tolist() == [[25.25], [3 + 35 + 200 + 0.25]]


def test_positions_alternate_sines_and_cosines() -> None:
    got = reference.positions(2, 3)
    assert got[0].tolist() == [0.0, 1.0, 0.0]
    assert got[1].tolist() == pytest.approx([math.sin(1), math.cos(1), math.sin(10000 ** (-2 / 3))], abs=ATOL)


def test_embed_scales_and_adds_positions() -> None:
    table = numbers(0, 11, 4)
    got = reference.embed({"e.weight": table}, "e", [7, 7])
    np.testing.assert_allclose(got, 2.0 * table[[7, 7]] + reference.positions(2, 4), rtol=0.0, atol=ATOL)


def test_layers_are_counted_beyond_nine_and_for_each_stack() -> None:
    weights = {f"encoder.layers.{i}.ff.w_1.{kind}": np.zeros(1) for i in range(12) for kind in ("weight", "bias")}
    weights |= {"decoder.layers.0.ff.w_1.weight": np.zeros(1), "encoder.norm.weight": np.zeros(1)}
    assert reference.n_layers(weights, "encoder") == 12
    assert reference.n_layers(weights, "decoder") == 1


def test_the_transformer_is_encode_then_decode() -> None:
    weights = as_numpy(random_model(0))
    memory = reference.encode(weights, 2, [4, 0, 1])
    assert memory.shape == (3, 6)
    logits = reference.decode(weights, 2, memory, [5, 2])
    assert logits.shape == (2, 11)
    assert np.array_equal(logits, reference.transformer(weights, 2, [4, 0, 1], [5, 2]))


def test_the_reference_shares_no_code_with_what_it_judges() -> None:
    tree = ast.parse(inspect.getsource(reference))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"collections.abc", "numpy", "numpy.typing"}
