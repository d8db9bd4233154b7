"""Attention where test_verify_checks.py does not test it: dropout, dtypes, refusals, what is computed and returned."""

import math

import pytest
import torch
from conftest import ATOL, generator, random_tensor, randomize, record_calls, worst_deviation
from torch import Tensor
from torch.nn import functional as F

from minitrans import MultiHeadAttention
from minitrans.model.attention import attention_weights, masked_softmax, scaled_dot_product_attention
from minitrans.model.cache import KVCache

B, H, TQ, TK, DH, DV, D = 2, 3, 5, 7, 4, 9, 6


def random_qkv(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Q (B, H, Tq, Dh), k (B, H, Tk, Dh), v (B, H, Tk, Dv), spread wide enough that the weights differ much."""
    return (
        2.0 * random_tensor(seed, B, H, TQ, DH),
        random_tensor(seed + 1, B, H, TK, DH),
        random_tensor(seed + 2, B, H, TK, DV),
    )


# Scores, weights, output


def test_attention_refuses_a_mask_of_the_wrong_dtype_or_shape() -> None:
    mask = torch.ones(B, 1, TQ, TK)
    with pytest.raises(TypeError, match=r"torch\.bool"):
        scaled_dot_product_attention(*random_qkv(9), mask)
    with pytest.raises(ValueError, match="does not broadcast"):
        scaled_dot_product_attention(*random_qkv(9), mask[0, 0].bool())


def test_dropout_drops_and_rescales_weights_and_reports_them_undropped() -> None:
    torch.manual_seed(0)
    q, k, _ = random_qkv(14)
    v = torch.eye(TK, dtype=torch.float64).expand(B, H, TK, TK)  # so that the output is the weights used
    used, weights = scaled_dot_product_attention(q, k, v, dropout_p=0.25, need_weights=True)
    assert weights is not None
    assert torch.equal(weights, attention_weights(q, k))
    kept = used != 0.0
    assert 0.65 < kept.double().mean() < 0.85
    assert worst_deviation([used], [torch.where(kept, weights / 0.75, 0.0)]) <= ATOL


@pytest.mark.parametrize("training", [True, False])
def test_weights_are_dropped_only_in_training(training: bool) -> None:
    module, x = MultiHeadAttention(D, H, dropout=0.5).train(training), random_tensor(15, B, TQ, D).float()
    once, again = (module(x, x, x)[0] for _ in range(2))
    assert torch.equal(once, again) != training


# Extreme scores


@pytest.mark.parametrize(
    ("score", "dtype"),
    [
        *((score, torch.float64) for score in (-1e7, -1e30, -1e38, -1e300)),
        *((0.45 * torch.finfo(torch.float32).min, dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16)),
        *((score, dtype) for score in (-1e30, -1e38) for dtype in (torch.float32, torch.bfloat16)),
        (-6e4, torch.float16),
    ],
)
def test_very_low_scores_still_give_weight_to_unmasked_keys_and_no_others(score: float, dtype: torch.dtype) -> None:
    scores = torch.full((4, 3), score, dtype=dtype)
    scores[1] = torch.tensor([score, 5.0, 9.0], dtype=dtype)
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False], [True, True, True]])
    scores.requires_grad_()
    weights = masked_softmax(scores, mask)
    third = torch.tensor(1 / 3, dtype=dtype).item()
    assert weights.tolist() == [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [third, third, third]]
    (gradient,) = torch.autograd.grad(weights[:, 0].sum(), scores)
    assert gradient.isfinite().all()
    assert not gradient[1:3].any()
    assert gradient[0, :2].all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("masked", [False, True])
def test_weights_have_the_dtype_of_the_queries_and_half_precision_has_its_softmax_in_float32(
    dtype: torch.dtype, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounding_dtype = []
    softmax = torch.softmax

    def spy(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        out = softmax(x, dim, dtype=dtype)
        rounding_dtype.append(out.dtype)
        return out

    monkeypatch.setattr(torch, "softmax", spy)
    q, k, _ = (x.to(dtype) for x in random_qkv(10))
    mask = torch.rand(B, H, TQ, TK, generator=generator(10)) < (0.5 if masked else 1.0)
    mask[..., 0] = True  # every query may attend to its first key
    weights = attention_weights(q, k, mask if masked else None)
    assert rounding_dtype == [torch.promote_types(dtype, torch.float32)]
    assert weights.dtype == dtype
    scores = (q @ k.mT / math.sqrt(DH)).to(rounding_dtype[0])
    assert torch.equal(weights, softmax(scores.masked_fill(~mask, -torch.inf), -1).to(dtype))


# Many heads


def multi_head(seed: int) -> MultiHeadAttention:
    return randomize(MultiHeadAttention(D, H, DH), seed)


def test_self_attention_projects_in_one_product_and_a_cached_source_not_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module = multi_head(3)
    x, memory = random_tensor(4, B, TQ, D), random_tensor(5, B, TK, D)
    source = KVCache(*module.project(memory, 1, 3))
    projected = record_calls(monkeypatch, F, "linear")
    for key, cache, rows in ((x, None, [3 * H * DH]), (memory, None, [H * DH] * 3), (None, source, [H * DH])):
        projected.clear()
        module(x, key, key, cache=cache)
        assert [weight.size(0) for _, weight, _ in projected] == [*rows, D]  # W_o is the last


@pytest.mark.parametrize("names", ["xxy", "xyy", "xyx", "xyz"])  # query, key and value: equal letters are one tensor
def test_forward_projects_each_of_three_inputs_by_its_own_matrix(names: str) -> None:
    module, tensors = multi_head(4), {name: random_tensor(seed, B, TK, D) for seed, name in enumerate("xyz", 5)}
    query, key, value = (tensors[name] for name in names)
    mask = torch.arange(TK)[None, None, None] < torch.tensor([TK, 3])[:, None, None, None]
    (q,), (k,), (v,) = module.project(query, 0, 1), module.project(key, 1, 2), module.project(value, 2, 3)
    heads, weights = scaled_dot_product_attention(q, k, v, mask, need_weights=True)
    assert weights is not None
    want = [module.w_o(heads.transpose(1, 2).reshape(B, TK, H * DH)), weights]
    assert worst_deviation(module(query, key, value, mask, need_weights=True), want) <= ATOL


def test_weights_are_returned_only_when_asked_for() -> None:
    x = random_tensor(6, B, TQ, D)
    assert scaled_dot_product_attention(*random_qkv(8))[1] is None
    assert multi_head(5)(x, x, x)[1] is None


def test_attention_without_new_keys_or_a_cache_is_refused() -> None:
    x = random_tensor(5, B, TQ, D)
    for key, value in ((None, None), (None, x), (x, None)):
        with pytest.raises(AssertionError, match="without new keys there has to be a cache"):
            multi_head(8)(x, key, value)


def test_d_model_must_be_divisible_by_n_heads() -> None:
    with pytest.raises(ValueError, match=r"d_model \(7\) is not divisible by n_heads \(3\)"):
        MultiHeadAttention(7, 3)
