"""The heart against oracles: the NumPy reference, PyTorch's own attention, and each fault that tutorials make."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from conftest import ATOL, as_numpy, as_torch_state, generator, random_tensor, randomize, worst_deviation
from torch import Tensor, nn
from torch.nn import functional as F

from minitrans.model import attention, reference
from minitrans.model.attention import (
    MultiHeadAttention,
    attention_scores,
    attention_weights,
    masked_softmax,
    scaled_dot_product_attention,
)
from minitrans.model.cache import KeyValues
from minitrans.model.masks import causal_mask

B, H, TQ, TK, DH, DV, D = 2, 3, 5, 7, 4, 9, 6

Weigh = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def random_qkv(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Q (B, H, Tq, Dh), k (B, H, Tk, Dh), v (B, H, Tk, Dv), spread wide enough that the weights differ much."""
    return (
        2.0 * random_tensor(seed, B, H, TQ, DH),
        random_tensor(seed + 1, B, H, TK, DH),
        random_tensor(seed + 2, B, H, TK, DV),
    )


def random_mask(seed: int) -> Tensor:
    """Bool (B, H, Tq, Tk): about half may be attended to, and every query has its first key."""
    mask = torch.rand(B, H, TQ, TK, generator=generator(seed)) < 0.5
    mask[..., 0] = True
    return mask


def reference_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Output and weights, one query at a time over the keys that it may see."""
    output, weights = q.new_zeros(B, H, TQ, DV), q.new_zeros(B, H, TQ, TK)
    for b, h, i in np.ndindex(B, H, TQ):
        seen = mask[b, h, i]
        one, w = reference.attend(q[b, h, i].numpy(), k[b, h, seen].numpy(), v[b, h, seen].numpy())
        output[b, h, i] = torch.from_numpy(one)
        weights[b, h, i, seen] = torch.from_numpy(w)
    return output, weights


def deviation_from_reference(seed: int) -> float:
    """How far the masked attention is from the reference: output and weights."""
    q, k, v = random_qkv(seed)
    mask = random_mask(seed)
    output, weights = scaled_dot_product_attention(q, k, v, mask, need_weights=True)
    assert weights is not None
    return worst_deviation([output, weights], reference_attention(q, k, v, mask))


# One query, many keys


def test_one_query_looks_up_scalar_values() -> None:
    q, k = random_tensor(0, 1, DH), random_tensor(1, TK, DH)
    v = random_tensor(2, TK, 1)
    output, _ = scaled_dot_product_attention(q, k, v)
    scores = [sum(q[0, c].item() * k[j, c].item() for c in range(DH)) / math.sqrt(DH) for j in range(TK)]
    exps = [math.exp(s) for s in scores]
    want = sum(e * v[j, 0].item() for j, e in enumerate(exps)) / sum(exps)
    assert output.item() == pytest.approx(want, abs=ATOL)


def test_many_queries_at_once_equal_each_alone() -> None:
    q, k, v = random_qkv(0)
    whole, _ = scaled_dot_product_attention(q, k, v)
    alone = [scaled_dot_product_attention(q[:, :, i : i + 1], k, v)[0] for i in range(TQ)]
    assert worst_deviation([whole], [torch.cat(alone, 2)]) <= ATOL


# The two steps to the weights


def test_scores_are_dot_products_over_the_root_of_the_size_of_a_head() -> None:
    q, k, _ = random_qkv(1)
    scores = attention_scores(q, k)
    assert scores.shape == (B, H, TQ, TK)
    assert worst_deviation([scores], [torch.einsum("bhic,bhjc->bhij", q, k) / math.sqrt(DH)]) <= ATOL


def test_each_row_is_the_softmax_over_the_keys_that_the_mask_admits() -> None:
    scores, mask = random_tensor(2, B, H, TQ, TK), random_mask(2)
    want = torch.zeros_like(scores)
    for row in np.ndindex(B, H, TQ):
        exps = scores[row][mask[row]].exp()
        want[row][mask[row]] = exps / exps.sum()
    assert worst_deviation([masked_softmax(scores, mask)], [want]) <= ATOL


def test_softmax_without_a_mask_admits_every_key() -> None:
    scores = random_tensor(3, B, H, TQ, TK)
    everything = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    assert worst_deviation([masked_softmax(scores)], [masked_softmax(scores, everything)]) <= ATOL


@pytest.mark.parametrize("masked", [False, True])
def test_weights_are_the_softmax_of_the_scores(masked: bool) -> None:
    q, k, _ = random_qkv(4)
    mask = random_mask(4) if masked else None
    assert torch.equal(attention_weights(q, k, mask), masked_softmax(attention_scores(q, k), mask))


# Against other implementations


@pytest.mark.parametrize("seed", [0, 10, 20])
def test_masked_attention_equals_the_reference(seed: int) -> None:
    assert deviation_from_reference(seed) <= ATOL


@pytest.mark.parametrize("masked", [False, True])
def test_attention_equals_the_fused_kernel(masked: bool) -> None:
    q, k, v = random_qkv(3)
    mask = random_mask(3) if masked else None
    output, _ = scaled_dot_product_attention(q, k, v, mask)
    assert worst_deviation([output], [F.scaled_dot_product_attention(q, k, v, attn_mask=mask)]) <= ATOL


def test_gradients_equal_those_of_the_fused_kernel() -> None:
    mask = random_mask(4)
    grads = []
    for fused in (False, True):
        q, k, v = (x.requires_grad_() for x in random_qkv(4))
        if fused:
            output = F.scaled_dot_product_attention(q, k, v, mask)
        else:
            output = scaled_dot_product_attention(q, k, v, mask)[0]
        grads.append(torch.autograd.grad((output * random_tensor(9, B, H, TQ, DV)).sum(), (q, k, v)))
    assert worst_deviation(*grads) <= ATOL


@pytest.mark.parametrize("shape", [(B, 1, 1, TK), (1, 1, TQ, TK), (B, 1, TQ, TK), (1, H, 1, TK)])
def test_a_mask_broadcasts_over_rows_heads_and_queries(shape: tuple[int, ...]) -> None:
    q, k, v = random_qkv(5)
    mask = torch.rand(shape, generator=generator(5)) < 0.6
    mask[..., 0] = True
    output, _ = scaled_dot_product_attention(q, k, v, mask)
    want, _ = reference_attention(q, k, v, mask.expand(B, H, TQ, TK))
    assert worst_deviation([output], [want]) <= ATOL


# The weights


def test_rows_of_weights_sum_to_one_and_lie_between_zero_and_one() -> None:
    q, k, _ = random_qkv(6)
    weights = attention_weights(q, k, random_mask(6))
    assert weights.shape == (B, H, TQ, TK)
    assert worst_deviation([weights.sum(-1)], [torch.ones(B, H, TQ, dtype=torch.float64)]) <= ATOL
    assert weights.min() >= 0.0
    assert weights.max() <= 1.0


def test_masked_weights_are_exactly_zero_and_the_others_are_not() -> None:
    q, k, _ = random_qkv(7)
    mask = random_mask(7)
    assert torch.equal(attention_weights(q, k, mask) == 0.0, ~mask)


def test_weights_come_back_only_when_asked_for() -> None:
    q, k, v = random_qkv(8)
    assert scaled_dot_product_attention(q, k, v)[1] is None
    weights = scaled_dot_product_attention(q, k, v, need_weights=True)[1]
    assert weights is not None
    assert torch.equal(weights, attention_weights(q, k))


@pytest.mark.parametrize("mask_rows", [False, True])
def test_attention_refuses_a_float_mask(mask_rows: bool) -> None:
    q, k, v = random_qkv(9)
    mask = torch.zeros(B if mask_rows else 1, 1, TQ, TK)
    with pytest.raises(TypeError, match=r"torch\.bool"):
        scaled_dot_product_attention(q, k, v, mask)


def test_attention_refuses_a_mask_of_rows_by_keys() -> None:
    q, k, v = random_qkv(9)
    with pytest.raises(ValueError, match="does not broadcast"):
        scaled_dot_product_attention(q, k, v, torch.ones(TQ, TK, dtype=torch.bool))


# Extreme scores


def test_softmax_of_very_large_scores_stays_finite_and_right() -> None:
    scores = torch.tensor([[1e4, -1e4, 1e4 - 1.0]], dtype=torch.float64)
    weights = attention_weights(scores * math.sqrt(3), torch.eye(3, dtype=torch.float64))
    e = math.exp(-1.0)
    assert worst_deviation([weights], [torch.tensor([[1 / (1 + e), 0.0, e / (1 + e)]], dtype=torch.float64)]) <= 1e-11


def test_the_naive_softmax_does_not_survive_very_large_scores() -> None:
    exps = torch.tensor([1e4, -1e4, 1e4 - 1.0], dtype=torch.float64).exp()
    assert (exps / exps.sum()).isnan().any()


def leak_beside_very_negative_scores(real_score: float, dtype: torch.dtype) -> float:
    """The weight that a masked key gets when the only key that may be seen scores `real_score`."""
    q = torch.tensor([[1.0]], dtype=dtype)
    k = torch.tensor([[real_score], [5.0]], dtype=dtype)
    weights = attention_weights(q, k, torch.tensor([[True, False]]))
    assert weights[0, 0].item() + weights[0, 1].item() == 1.0
    return weights[0, 1].item()


@pytest.mark.parametrize(
    ("real_score", "dtype"),
    [(-1e7, torch.float64), (-1e300, torch.float64), (-1e30, torch.float32), (-6e4, torch.float16)],
)
def test_masked_keys_get_nothing_beside_very_negative_scores(real_score: float, dtype: torch.dtype) -> None:
    assert leak_beside_very_negative_scores(real_score, dtype) == 0.0


@pytest.mark.parametrize("score", [-1e30, -1e38, 0.45 * torch.finfo(torch.float32).min])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_of_very_low_scores_each_row_still_weighs_what_it_sees_and_that_alone(score: float, dtype: torch.dtype) -> None:
    scores = torch.full((4, 3), score, dtype=dtype)
    scores[1] = torch.tensor([score, 5.0, 9.0])
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False], [True, True, True]])
    scores.requires_grad_()
    weights = masked_softmax(scores, mask)
    third = torch.tensor(1 / 3, dtype=dtype).item()
    assert weights.tolist() == [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [third, third, third]]
    (gradient,) = torch.autograd.grad(weights[:, 0].sum(), scores)
    assert gradient.isfinite().all()
    assert not gradient[1:3].any()
    assert gradient[0, :2].all()


def test_control_a_fill_of_minus_a_million_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    def weigh(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax((q @ k.mT / math.sqrt(q.size(-1))).masked_fill(~mask, -1e6), -1)

    monkeypatch.setitem(globals(), "attention_weights", weigh)
    assert leak_beside_very_negative_scores(-1e7, torch.float64) == 1.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("masked", [False, True])
def test_half_precision_takes_its_softmax_in_float32(
    dtype: torch.dtype, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed_in = []
    softmax = torch.softmax

    def spy(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        out = softmax(x, dim, dtype=dtype)
        computed_in.append(out.dtype)
        return out

    monkeypatch.setattr(torch, "softmax", spy)
    q, k, _ = (x.to(dtype) for x in random_qkv(10))
    mask = random_mask(10) if masked else torch.ones(1, 1, 1, 1, dtype=torch.bool)
    weights = attention_weights(q, k, mask if masked else None)
    assert computed_in == [torch.float32]
    assert weights.dtype == dtype
    scores = (q @ k.mT / math.sqrt(DH)).float()
    want = softmax(scores.masked_fill(~mask, -torch.inf), -1).to(dtype)
    assert torch.equal(weights, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("masked", [False, True])
def test_weights_keep_the_dtype_of_the_queries(dtype: torch.dtype, masked: bool) -> None:
    q, k, _ = (x.to(dtype) for x in random_qkv(11))
    assert attention_weights(q, k, random_mask(11) if masked else None).dtype == dtype


# Queries that may look at nothing


def gradients_with_an_empty_row() -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Output, weights and the gradients of q, k, v, where query 2 of every head may attend to nothing."""
    q, k, v = (x.requires_grad_() for x in random_qkv(12))
    mask = random_mask(12)
    mask[:, :, 2] = False
    output, weights = scaled_dot_product_attention(q, k, v, mask, need_weights=True)
    assert weights is not None
    gradients = torch.autograd.grad((output * random_tensor(13, B, H, TQ, DV)).sum(), (q, k, v))
    return output.detach(), weights.detach(), gradients


def test_a_query_that_may_attend_to_nothing_gives_zero() -> None:
    output, weights, _ = gradients_with_an_empty_row()
    assert not output[:, :, 2].any()
    assert not weights[:, :, 2].any()
    assert output[:, :, [0, 1, 3, 4]].all()


def test_a_query_may_see_nothing_in_one_head_or_row_alone() -> None:
    mask = random_mask(14)
    mask[0, 1, 3] = mask[1, 2, 4] = mask[1, 2, 0] = False
    weights = masked_softmax(random_tensor(14, B, H, TQ, TK), mask)
    assert torch.equal(weights == 0.0, ~mask)
    assert worst_deviation([weights.sum(-1)], [mask.any(-1).double()]) <= ATOL


def test_a_query_that_may_attend_to_nothing_has_gradient_zero_and_spoils_no_other() -> None:
    gradients = gradients_with_an_empty_row()[2]
    assert not gradients[0][:, :, 2].any()
    others = [0, 1, 3, 4]
    q, k, v = (x.requires_grad_() for x in random_qkv(12))
    want = F.scaled_dot_product_attention(q[:, :, others], k, v, attn_mask=random_mask(12)[:, :, others])
    loss = (want * random_tensor(13, B, H, TQ, DV)[:, :, others]).sum()
    assert worst_deviation(gradients, torch.autograd.grad(loss, (q, k, v))) <= ATOL


def test_no_nan_arises_on_the_way_back_either() -> None:
    with torch.autograd.set_detect_anomaly(True):
        gradients_with_an_empty_row()


def test_control_a_fill_of_minus_infinity_makes_nan_on_the_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def weigh(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        scores = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(~mask, -torch.inf)
        return torch.softmax(scores, -1).masked_fill(~mask, 0.0)

    monkeypatch.setattr(attention, "attention_weights", weigh)
    with (
        torch.autograd.set_detect_anomaly(True),
        pytest.warns(UserWarning, match="Error detected in SoftmaxBackward"),
        pytest.raises(RuntimeError, match="returned nan values"),
    ):
        gradients_with_an_empty_row()


def test_control_an_added_minus_infinity_spoils_the_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    def weigh(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        scores = q @ k.mT / math.sqrt(q.size(-1)) + torch.where(mask, 0.0, -torch.inf)
        return torch.softmax(scores, -1).masked_fill(~mask, 0.0)

    monkeypatch.setattr(attention, "attention_weights", weigh)
    output, _, gradients = gradients_with_an_empty_row()
    assert output.isfinite().all()  # zeroed afterwards, and still:
    assert any(gradient.isnan().any() for gradient in gradients)


# Faults of tutorials, which the comparison with the reference has to report


def scaled_by_d_model(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT / math.sqrt(H * DH)).masked_fill(~mask, -torch.inf), -1)


def not_scaled(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT).masked_fill(~mask, -torch.inf), -1)


def scaled_after_softmax(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT).masked_fill(~mask, -torch.inf), -1) / math.sqrt(DH)


def masked_after_softmax(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / math.sqrt(DH), -1).masked_fill(~mask, 0.0)


def masked_the_other_way_round(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT / math.sqrt(DH)).masked_fill(mask, -1e300), -1)


def not_masked(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / math.sqrt(DH), -1)


@pytest.mark.parametrize(
    "weigh",
    [
        scaled_by_d_model,
        not_scaled,
        scaled_after_softmax,
        masked_after_softmax,
        masked_the_other_way_round,
        not_masked,
    ],
)
def test_control_the_reference_reports(
    weigh: Callable[[Tensor, Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "attention_weights", weigh)
    assert deviation_from_reference(0) > 1e-3


# Dropout of weights


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


# Many heads


def multi_head(seed: int, n_heads: int = H, d_head: int | None = DH) -> MultiHeadAttention:
    return randomize(MultiHeadAttention(D, n_heads, d_head), seed)


@torch.no_grad()
def deviation_from_single_heads(seed: int, causal: bool) -> float:
    """How far multi-head attention is from the reference's loop over heads and queries."""
    module = multi_head(seed)
    x_kv = random_tensor(seed + 1, B, TK, D)
    x_q = x_kv if causal else random_tensor(seed + 2, B, TQ, D)
    mask = torch.ones(TK, TK).tril().bool()[None, None] if causal else None
    got = module(x_q, x_kv, x_kv, mask, need_weights=True)
    weights = {f"here.{name}": array for name, array in as_numpy(module).items()}
    rows = [
        reference.multi_head_attention(weights, "here", H, q.numpy(), kv.numpy(), causal)
        for q, kv in zip(x_q, x_kv, strict=True)
    ]
    want = [torch.from_numpy(np.stack([row[part] for row in rows])) for part in (0, 1)]
    return worst_deviation(got, want)


@pytest.mark.parametrize("causal", [False, True])
def test_multi_head_attention_equals_single_heads_side_by_side(causal: bool) -> None:
    assert deviation_from_single_heads(0, causal) <= ATOL


def test_control_single_heads_report_a_scale_by_the_models_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def weigh(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        return attention_weights(q * math.sqrt(DH / D), k, mask)

    monkeypatch.setattr(attention, "attention_weights", weigh)
    assert deviation_from_single_heads(0, causal=False) > 1e-4


def test_control_single_heads_report_heads_split_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    project = MultiHeadAttention.project

    def interleaved(self: MultiHeadAttention, x: Tensor, first: int, last: int) -> tuple[Tensor, ...]:
        # (B, H, T, Dh) as if row h + H*i belonged to head h
        flat = [part.transpose(1, 2).flatten(2) for part in project(self, x, first, last)]
        return tuple(part.unflatten(-1, (self.d_head, self.n_heads)).permute(0, 3, 1, 2) for part in flat)

    monkeypatch.setattr(MultiHeadAttention, "project", interleaved)
    assert deviation_from_single_heads(0, causal=False) > 1e-3


def their_attention(ours: MultiHeadAttention, batch_first: bool) -> nn.MultiheadAttention:
    """PyTorch's module with our weights."""
    theirs = nn.MultiheadAttention(ours.w_o.out_features, ours.n_heads, batch_first=batch_first, dtype=torch.float64)
    theirs.load_state_dict(as_torch_state(ours.state_dict()))
    return theirs


@torch.no_grad()
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("same_tokens", [True, False])
def test_multi_head_attention_equals_that_of_pytorch(batch_first: bool, same_tokens: bool) -> None:
    ours = multi_head(1, n_heads=3, d_head=None)
    query, key, value = (random_tensor(seed, B, n, D) for seed, n in ((2, TQ), (3, TK), (4, TK)))
    if same_tokens:
        query = value = key
    real = torch.arange(TK) < torch.tensor([TK, 4])[:, None]  # (B, Tk)
    near = torch.arange(TK) <= torch.arange(query.size(1))[:, None] + 2  # (Tq, Tk)
    got = ours(query, key, value, near[None, None] & real[:, None, None, :], need_weights=True)
    arguments = [x if batch_first else x.transpose(0, 1) for x in (query, key, value)]
    output, weights = their_attention(ours, batch_first)(
        *arguments, key_padding_mask=~real, attn_mask=~near, average_attn_weights=False
    )
    assert worst_deviation(got, [output if batch_first else output.transpose(0, 1), weights]) <= ATOL


def test_the_packed_layout_is_that_of_pytorch() -> None:
    ours = multi_head(2, d_head=None)
    theirs = nn.MultiheadAttention(D, H, dtype=torch.float64)
    size = D  # n_heads * d_head
    q, k, v = (ours.w_qkv.weight[i * size : (i + 1) * size] for i in range(3))
    x = random_tensor(3, B, TQ, D)
    assert ours.w_qkv.weight.shape == theirs.in_proj_weight.shape
    for rows, bias, got in zip((q, k, v), ours.w_qkv.bias.chunk(3), ours.project(x, 0, 3), strict=True):
        want = (x @ rows.T + bias).view(B, TQ, H, D // H).transpose(1, 2)
        assert worst_deviation([got], [want]) <= ATOL


def test_pytorchs_weights_can_be_loaded() -> None:
    theirs = randomize(nn.MultiheadAttention(D, H, batch_first=True), 5)
    ours = MultiHeadAttention(D, H).double()
    names = {new: old for old, new in zip(ours.state_dict(), as_torch_state(ours.state_dict()), strict=True)}
    ours.load_state_dict({names[name]: tensor for name, tensor in theirs.state_dict().items()})
    q, kv = random_tensor(6, B, TQ, D), random_tensor(7, B, TK, D)
    want, _ = theirs(q, kv, kv, need_weights=False)
    assert worst_deviation([ours(q, kv, kv)[0]], [want]) <= ATOL


def test_the_packed_projection_equals_separate_ones() -> None:
    module = multi_head(3)
    x = random_tensor(4, B, TQ, D)
    packed = module.project(x, 0, 3)
    assert len(packed) == 3
    assert all(part.shape == (B, H, TQ, DH) for part in packed)
    assert worst_deviation(packed, [*module.project(x, 0, 1), *module.project(x, 1, 3)]) <= ATOL
    assert worst_deviation(packed[1:], [*module.project(x, 1, 2), *module.project(x, 2, 3)]) <= ATOL
    assert worst_deviation(packed[:2], module.project(x, 0, 2)) <= ATOL


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each projection's matrix, in order."""
    computed = []
    linear = F.linear

    def spy(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        computed.append(weight.size(0))
        return linear(x, weight, bias)

    monkeypatch.setattr(F, "linear", spy)
    return computed


def test_a_projection_computes_what_it_gives_and_no_more(products: list[int]) -> None:
    module = multi_head(3)
    x = random_tensor(4, B, TQ, D)
    module.project(x, 0, 1), module.project(x, 1, 3), module.project(x, 0, 3)
    assert products == [H * DH, 2 * H * DH, 3 * H * DH]


def test_self_attention_is_one_product_and_a_source_in_the_cache_is_not_projected_again(products: list[int]) -> None:
    module = multi_head(3)
    x, memory = random_tensor(4, B, TQ, D), random_tensor(5, B, TK, D)
    source = KeyValues(*module.project(memory, 1, 3))
    products.clear()
    module(x, x, x)
    assert products == [3 * H * DH, D]  # W_o is the last
    products.clear()
    module(x, memory, memory)
    assert products == [H * DH] * 3 + [D]
    products.clear()
    module(x, None, None, cache=source)
    assert products == [H * DH, D]


@pytest.mark.parametrize("same", ["query and key", "key and value", "query and value", "none"])
def test_forward_projects_each_of_three_inputs_by_its_own_matrix(same: str) -> None:
    module = multi_head(4)
    n = TK if "query" in same else TQ
    query, key, value = random_tensor(5, B, n, D), random_tensor(6, B, TK, D), random_tensor(7, B, TK, D)
    match same:
        case "query and key":
            key = query
        case "key and value":
            value = key
        case "query and value":
            value = query
    mask = torch.arange(TK)[None, None, None] < torch.tensor([TK, 3])[:, None, None, None]
    (q,), (k,), (v,) = module.project(query, 0, 1), module.project(key, 1, 2), module.project(value, 2, 3)
    heads, weights = scaled_dot_product_attention(q, k, v, mask, need_weights=True)
    want = [module.w_o(heads.transpose(1, 2).reshape(B, n, H * DH)), weights]
    got = module(query, key, value, mask, need_weights=True)
    assert got[1].shape == (B, H, n, TK)
    assert worst_deviation(got, [x for x in want if x is not None]) <= ATOL


def test_multi_head_weights_come_back_only_when_asked_for() -> None:
    module = multi_head(5)
    x = random_tensor(6, B, TQ, D)
    source = KeyValues(*module.project(x, 1, 3))
    assert module(x, x, x)[1] is None
    assert module(x, None, None, cache=source)[1] is None
    assert module(x, None, None, None, True, source)[1].shape == (B, H, TQ, TQ)


# With a cache


@torch.no_grad()
def chunked_deviation(chunks: list[int]) -> float:
    """How far causal attention in chunks from a cache is from that of all tokens at once: outputs and weights."""
    module = multi_head(8)
    x = random_tensor(9, B, TK, D)
    want = module(x, x, x, causal_mask(TK, TK, 0), True)
    cache = KeyValues(*module.project(x, 1, 3)).room_for(TK + 2)
    cache.k.fill_(torch.nan), cache.v.fill_(torch.nan)  # what is not filled is not read
    deviations, offset = [], 0
    for new in x.split(chunks, 1):
        n = new.size(1)
        got = module(new, new, new, causal_mask(n, offset + n, offset), True, cache, offset)
        rows = slice(offset, offset + n)
        deviations.append(worst_deviation(got, [want[0][:, rows], want[1][:, :, rows, : offset + n]]))
        offset += n
    filled = KeyValues(cache.k[:, :, :TK], cache.v[:, :, :TK])
    k_v = module.project(x, 1, 3)
    return max(*deviations, worst_deviation([filled.k, filled.v], k_v))


@pytest.mark.parametrize("chunks", [[7], [3, 4], [1, 5, 1], [1] * 7])
def test_attention_in_chunks_from_a_cache_is_that_of_all_tokens_at_once(chunks: list[int]) -> None:
    assert chunked_deviation(chunks) <= ATOL


def test_control_chunks_that_all_begin_at_0_are_refused_by_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    write = KeyValues.write
    monkeypatch.setattr(KeyValues, "write", lambda self, k, v, offset: write(self, k, v, 0))
    with pytest.raises(ValueError, match="does not broadcast to scores"):
        chunked_deviation([3, 4])


@torch.no_grad()
def test_other_keys_and_values_than_the_queries_can_be_cached_too() -> None:
    module = multi_head(8)
    query, key, value = random_tensor(5, B, TQ, D), random_tensor(6, B, TK, D), random_tensor(7, B, TK, D)
    want = module(query, key, value, need_weights=True)
    cache = KeyValues(*module.project(key, 1, 3)).room_for(TK)
    module(query, key[:, :3], value[:, :3], cache=cache)
    got = module(query, key[:, 3:], value[:, 3:], need_weights=True, cache=cache, offset=3)
    assert worst_deviation(got, want) <= ATOL


@torch.no_grad()
def test_without_new_keys_all_that_the_cache_holds_is_attended_to_and_stays_as_it_is() -> None:
    module = multi_head(8)
    query, memory = random_tensor(5, B, TQ, D), random_tensor(6, B, TK, D)
    mask = torch.arange(TK)[None, None, None] < torch.tensor([TK, 3])[:, None, None, None]
    cache = KeyValues(*module.project(memory, 1, 3))
    k, v = cache.k.clone(), cache.v.clone()
    assert (
        worst_deviation(module(query, None, None, mask, True, cache), module(query, memory, memory, mask, True)) <= ATOL
    )
    assert torch.equal(cache.k, k)
    assert torch.equal(cache.v, v)


def test_attention_to_nothing_is_refused() -> None:
    x = random_tensor(5, B, TQ, D)
    for key, value in ((None, None), (None, x), (x, None)):
        with pytest.raises(AssertionError, match="without new keys there has to be a cache"):
            multi_head(8)(x, key, value)


def test_one_projection_split_by_columns_equals_one_matrix_a_head() -> None:
    """A worked example: X = 1..12 as (3, 4), two heads of size 2."""
    x = torch.arange(1.0, 13.0, dtype=torch.float64).view(1, 3, 4)
    w_1 = torch.tensor([[1, 0], [0, 1], [1, 0], [0, 1]], dtype=torch.float64)
    w_2 = torch.tensor([[2, 1], [1, 2], [2, 1], [1, 2]], dtype=torch.float64)
    module = randomize(MultiHeadAttention(4, 2), 0)
    with torch.no_grad():
        module.w_qkv.weight[:4] = torch.cat([w_1, w_2], 1).T
        module.w_qkv.bias[:4] = 0.0
    q = module.project(x, 0, 1)[0][0]
    assert q[0].tolist() == [[4, 6], [12, 14], [20, 22]]
    assert q[1].tolist() == [[14, 16], [38, 40], [62, 64]]
    assert (q[0] @ q[0].T).tolist() == [[52, 132, 212], [132, 340, 548], [212, 548, 884]]
    assert (q[1] @ q[1].T).tolist() == [[452, 1172, 1892], [1172, 3044, 4916], [1892, 4916, 7940]]


def test_one_head_with_an_identity_for_w_o_is_plain_attention() -> None:
    module = multi_head(6, n_heads=1, d_head=D)
    x = random_tensor(7, B, TQ, D)
    q, k, v = (part.squeeze(1) for part in module.project(x, 0, 3))
    plain, _ = scaled_dot_product_attention(q, k, v)
    mixed = plain @ module.w_o.weight.T + module.w_o.bias
    assert worst_deviation([module(x, x, x)[0]], [mixed]) <= ATOL
    nn.init.eye_(module.w_o.weight)
    nn.init.zeros_(module.w_o.bias)
    assert worst_deviation([module(x, x, x)[0]], [plain]) <= ATOL


@pytest.mark.parametrize("n_heads", [1, 2, 4, 8])
def test_the_number_of_parameters_does_not_depend_on_the_number_of_heads(n_heads: int) -> None:
    module = MultiHeadAttention(64, n_heads, 128 // n_heads)
    assert module.w_o.weight.numel() == 64 * 128
    assert sum(p.numel() for p in module.parameters()) == 4 * 64 * 128 + 3 * 128 + 64


def test_every_parameter_is_registered_and_gets_a_gradient() -> None:
    module = multi_head(7)
    x = random_tensor(8, B, TQ, D)
    (module(x, x, x)[0] * random_tensor(9, B, TQ, D)).sum().backward()
    gradients = {name: p.grad for name, p in module.named_parameters()}
    assert set(gradients) == {"w_qkv.weight", "w_qkv.bias", "w_o.weight", "w_o.bias"}
    for name, gradient in gradients.items():
        assert gradient is not None
        key_bias = slice(H * DH, 2 * H * DH) if name == "w_qkv.bias" else slice(0, 0)
        assert gradient[key_bias].abs().le(ATOL).all()  # a shift of all scores of a query changes nothing
        gradient[key_bias] = 1.0
        assert gradient.ne(0.0).all()


def test_projections_begin_with_xavier_each_by_its_own_fan_and_biases_with_zero() -> None:
    torch.manual_seed(0)
    module = MultiHeadAttention(40, 3, 17)
    bound = math.sqrt(6 / (40 + 51))
    for block in (*module.w_qkv.weight.chunk(3), module.w_o.weight):
        assert 0.98 * bound < block.abs().max() <= bound
    assert not module.w_qkv.bias.any()
    assert not module.w_o.bias.any()


def test_the_size_of_a_head_is_a_share_of_the_model_unless_given() -> None:
    assert MultiHeadAttention(12, 3).d_head == 4
    assert MultiHeadAttention(12, 3, 5).d_head == 5


def test_a_model_that_does_not_divide_into_heads_is_refused() -> None:
    with pytest.raises(ValueError, match=r"d_model \(7\) is not divisible by n_heads \(3\)"):
        MultiHeadAttention(7, 3)


def test_attention_dropout_acts_only_in_training() -> None:
    torch.manual_seed(0)
    module = MultiHeadAttention(D, H, DH, dropout=0.5).double()
    x = random_tensor(8, B, TQ, D)
    trained, evaluated = module.train()(x, x, x)[0], module.eval()(x, x, x)[0]
    module.dropout = 0.0
    assert worst_deviation([evaluated], [module(x, x, x)[0]]) == 0.0
    assert worst_deviation([trained], [evaluated]) > 1e-3
