"""The heart against oracles: the NumPy reference, PyTorch's own attention, and sums written out.

That these comparisons notice the faults that tutorials make is shown by tests/verify/test_self_test.py.
"""

import math

import numpy as np
import pytest
import torch
from conftest import ATOL, as_numpy, generator, random_tensor, randomize, worst_deviation
from torch import Tensor, nn
from torch.nn import functional as F

from minitrans.model import reference
from minitrans.model.attention import (
    MultiHeadAttention,
    attention_scores,
    attention_weights,
    masked_softmax,
    scaled_dot_product_attention,
)
from minitrans.model.cache import KeyValues
from minitrans.model.masks import causal_mask
from minitrans.verify.oracles import as_torch_state, torch_multi_head

B, H, TQ, TK, DH, DV, D = 2, 3, 5, 7, 4, 9, 6
EVERY_KEY = torch.ones(1, 1, 1, 1, dtype=torch.bool)

masked_or_not = pytest.mark.parametrize("masked", [False, True])


def random_qkv(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Q (B, H, Tq, Dh), k (B, H, Tk, Dh), v (B, H, Tk, Dv), spread wide enough that the weights differ much."""
    return (
        2.0 * random_tensor(seed, B, H, TQ, DH),
        random_tensor(seed + 1, B, H, TK, DH),
        random_tensor(seed + 2, B, H, TK, DV),
    )


def random_mask(seed: int, *shape: int) -> Tensor:
    """Bool, (B, H, Tq, Tk) unless told: about half may be attended to, and every query has its first key."""
    mask = torch.rand(shape or (B, H, TQ, TK), generator=generator(seed)) < 0.5
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


# Scores, weights, output


def test_scores_are_dot_products_over_the_root_of_the_size_of_a_head() -> None:
    q, k, _ = random_qkv(1)
    want = torch.einsum("bhic,bhjc->bhij", q, k) / math.sqrt(DH)
    assert worst_deviation([attention_scores(q, k)], [want]) <= ATOL


@masked_or_not
def test_weights_are_the_softmax_of_the_scores_over_the_keys_that_the_mask_admits(masked: bool) -> None:
    q, k, _ = random_qkv(4)
    mask = random_mask(4) if masked else None
    weights, scores = attention_weights(q, k, mask), attention_scores(q, k)
    assert torch.equal(weights, masked_softmax(scores, mask))
    seen = EVERY_KEY.expand_as(scores) if mask is None else mask
    exps = scores.exp() * seen
    assert worst_deviation([weights], [exps / exps.sum(-1, keepdim=True)]) <= ATOL
    assert torch.equal(weights == 0.0, ~seen)  # exactly


@pytest.mark.parametrize("seed", [0, 10, 20])
@pytest.mark.parametrize("shape", [(B, H, TQ, TK), (B, 1, 1, TK), (1, 1, TQ, TK), (B, 1, TQ, TK), (1, H, 1, TK)])
def test_masked_attention_equals_the_reference_however_the_mask_broadcasts(shape: tuple[int, ...], seed: int) -> None:
    q, k, v = random_qkv(seed)
    mask = random_mask(seed, *shape)
    output, weights = scaled_dot_product_attention(q, k, v, mask, need_weights=True)
    assert weights is not None
    want = reference_attention(q, k, v, mask.expand(B, H, TQ, TK))
    assert worst_deviation([output, weights], want) <= ATOL


@masked_or_not
def test_attention_and_its_gradients_equal_those_of_the_fused_kernel(masked: bool) -> None:
    mask = random_mask(3) if masked else None
    both = []
    for fused in (False, True):
        q, k, v = (x.requires_grad_() for x in random_qkv(3))
        output = (F.scaled_dot_product_attention if fused else scaled_dot_product_attention)(q, k, v, mask)
        output = output if isinstance(output, Tensor) else output[0]
        gradients = torch.autograd.grad((output * random_tensor(9, B, H, TQ, DV)).sum(), (q, k, v))
        both.append([output.detach(), *gradients])
    assert worst_deviation(*both) <= ATOL


def test_weights_come_back_only_when_asked_for() -> None:
    q, k, v = random_qkv(8)
    assert scaled_dot_product_attention(q, k, v)[1] is None
    weights = scaled_dot_product_attention(q, k, v, need_weights=True)[1]
    assert weights is not None
    assert torch.equal(weights, attention_weights(q, k))


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (torch.zeros(B, 1, TQ, TK), TypeError, r"torch\.bool"),
        (torch.zeros(1, 1, TQ, TK), TypeError, r"torch\.bool"),
        (torch.ones(TQ, TK, dtype=torch.bool), ValueError, "does not broadcast"),
    ],
)
def test_attention_refuses_a_mask_that_is_not_one(mask: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        scaled_dot_product_attention(*random_qkv(9), mask)


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


# Extreme scores


def test_softmax_of_very_large_scores_stays_finite_and_right() -> None:
    scores = torch.tensor([[1e4, -1e4, 1e4 - 1.0]], dtype=torch.float64)
    weights = attention_weights(scores * math.sqrt(3), torch.eye(3, dtype=torch.float64))
    e = math.exp(-1.0)
    assert worst_deviation([weights], [torch.tensor([[1 / (1 + e), 0.0, e / (1 + e)]], dtype=torch.float64)]) <= 1e-11


@pytest.mark.parametrize(
    ("score", "dtype"),
    [
        *((score, torch.float64) for score in (-1e7, -1e30, -1e38, -1e300)),
        *((0.45 * torch.finfo(torch.float32).min, dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16)),
        *((score, dtype) for score in (-1e30, -1e38) for dtype in (torch.float32, torch.bfloat16)),
        (-6e4, torch.float16),
    ],
)
def test_of_very_low_scores_each_row_still_weighs_what_it_sees_and_that_alone(score: float, dtype: torch.dtype) -> None:
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
@masked_or_not
def test_weights_keep_the_dtype_of_the_queries_and_half_precision_takes_its_softmax_in_float32(
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
    mask = random_mask(10) if masked else EVERY_KEY
    weights = attention_weights(q, k, mask if masked else None)
    assert computed_in == [torch.promote_types(dtype, torch.float32)]
    assert weights.dtype == dtype
    scores = (q @ k.mT / math.sqrt(DH)).to(computed_in[0])
    assert torch.equal(weights, softmax(scores.masked_fill(~mask, -torch.inf), -1).to(dtype))


# Queries that may look at nothing


def test_a_query_that_may_attend_to_nothing_gives_zero_and_spoils_no_gradient() -> None:
    others = [0, 1, 3, 4]
    q, k, v = (x.requires_grad_() for x in random_qkv(12))
    mask, weigh = random_mask(12), random_tensor(13, B, H, TQ, DV)
    mask[:, :, 2] = False
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way back either
        output, weights = scaled_dot_product_attention(q, k, v, mask, need_weights=True)
        gradients = torch.autograd.grad((output * weigh).sum(), (q, k, v))
    assert weights is not None
    assert not any(x[:, :, 2].any() for x in (output, weights, gradients[0]))
    want = F.scaled_dot_product_attention(q[:, :, others], k, v, attn_mask=mask[:, :, others])
    assert worst_deviation([output[:, :, others]], [want]) <= ATOL
    without = torch.autograd.grad((want * weigh[:, :, others]).sum(), (q, k, v))
    assert worst_deviation(gradients, without) <= ATOL


def test_a_query_may_see_nothing_in_one_head_or_row_alone() -> None:
    mask = random_mask(14)
    mask[0, 1, 3] = mask[1, 2, 4] = mask[1, 2, 0] = False
    weights = masked_softmax(random_tensor(14, B, H, TQ, TK), mask)
    assert torch.equal(weights == 0.0, ~mask)
    assert worst_deviation([weights.sum(-1)], [mask.any(-1).double()]) <= ATOL


# Many heads


def multi_head(seed: int, n_heads: int = H, d_head: int | None = DH) -> MultiHeadAttention:
    return randomize(MultiHeadAttention(D, n_heads, d_head), seed)


@torch.no_grad()
@pytest.mark.parametrize("causal", [False, True])
def test_multi_head_attention_equals_single_heads_side_by_side(causal: bool) -> None:
    module = multi_head(0)
    x_kv = random_tensor(1, B, TK, D)
    x_q = x_kv if causal else random_tensor(2, B, TQ, D)
    got = module(x_q, x_kv, x_kv, causal_mask(TK, TK, 0) if causal else None, need_weights=True)
    weights = {f"here.{name}": array for name, array in as_numpy(module).items()}
    rows = [
        reference.multi_head_attention(weights, "here", H, q.numpy(), kv.numpy(), causal)
        for q, kv in zip(x_q, x_kv, strict=True)
    ]
    assert worst_deviation(got, [torch.from_numpy(np.stack([row[part] for row in rows])) for part in (0, 1)]) <= ATOL


@torch.no_grad()
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("same_tokens", [True, False])
def test_multi_head_attention_equals_that_of_pytorch(batch_first: bool, same_tokens: bool) -> None:
    own = multi_head(1, n_heads=3, d_head=None)
    query, key, value = (random_tensor(seed, B, n, D) for seed, n in ((2, TQ), (3, TK), (4, TK)))
    if same_tokens:
        query = value = key
    real = torch.arange(TK) < torch.tensor([TK, 4])[:, None]  # (B, Tk)
    near = torch.arange(TK) <= torch.arange(query.size(1))[:, None] + 2  # (Tq, Tk)
    got = own(query, key, value, near[None, None] & real[:, None, None, :], need_weights=True)
    arguments = [x if batch_first else x.transpose(0, 1) for x in (query, key, value)]
    output, weights = torch_multi_head(own, batch_first)(
        *arguments, key_padding_mask=~real, attn_mask=~near, average_attn_weights=False
    )
    assert worst_deviation(got, [output if batch_first else output.transpose(0, 1), weights]) <= ATOL


def test_pytorchs_weights_can_be_loaded() -> None:
    torch_module = randomize(nn.MultiheadAttention(D, H, batch_first=True), 5)
    own = MultiHeadAttention(D, H).double()
    names = {new: old for old, new in zip(own.state_dict(), as_torch_state(own.state_dict()), strict=True)}
    own.load_state_dict({names[name]: tensor for name, tensor in torch_module.state_dict().items()})
    q, kv = random_tensor(6, B, TQ, D), random_tensor(7, B, TK, D)
    want, _ = torch_module(q, kv, kv, need_weights=False)
    assert worst_deviation([own(q, kv, kv)[0]], [want]) <= ATOL


@pytest.fixture
def n_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each projection's matrix, in order."""
    computed = []
    linear = F.linear

    def spy(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        computed.append(weight.size(0))
        return linear(x, weight, bias)

    monkeypatch.setattr(F, "linear", spy)
    return computed


@pytest.mark.parametrize(("first", "last"), [(0, 3), (0, 1), (1, 3), (1, 2), (2, 3), (0, 2)])
def test_a_projection_is_its_rows_of_the_packed_matrix_and_computes_no_more(
    first: int, last: int, n_rows: list[int]
) -> None:
    module, x = multi_head(3), random_tensor(4, B, TQ, D)
    blocks = zip(module.w_qkv.weight.chunk(3), module.w_qkv.bias.chunk(3), strict=True)
    want = [(x @ rows.T + bias).view(B, TQ, H, DH).transpose(1, 2) for rows, bias in blocks]
    assert worst_deviation(module.project(x, first, last), want[first:last]) <= ATOL
    assert n_rows == [(last - first) * H * DH]


def test_self_attention_is_one_product_and_a_source_in_the_cache_is_not_projected_again(n_rows: list[int]) -> None:
    module = multi_head(3)
    x, memory = random_tensor(4, B, TQ, D), random_tensor(5, B, TK, D)
    source = KeyValues(*module.project(memory, 1, 3))
    n_rows.clear()
    module(x, x, x)
    assert n_rows == [3 * H * DH, D]  # W_o is the last
    n_rows.clear()
    module(x, memory, memory)
    assert n_rows == [H * DH] * 3 + [D]
    n_rows.clear()
    module(x, None, None, cache=source)
    assert n_rows == [H * DH, D]


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
    assert weights is not None
    want = [module.w_o(heads.transpose(1, 2).reshape(B, n, H * DH)), weights]
    assert worst_deviation(module(query, key, value, mask, need_weights=True), want) <= ATOL


def test_multi_head_weights_come_back_only_when_asked_for() -> None:
    module = multi_head(5)
    x = random_tensor(6, B, TQ, D)
    source = KeyValues(*module.project(x, 1, 3))
    assert module(x, x, x)[1] is None
    assert module(x, None, None, cache=source)[1] is None
    assert module(x, None, None, None, True, source)[1].shape == (B, H, TQ, TQ)


# With a cache


@torch.no_grad()
@pytest.mark.parametrize("chunks", [[7], [3, 4], [1, 5, 1], [1] * 7])
def test_attention_in_chunks_from_a_cache_is_that_of_all_tokens_at_once(chunks: list[int]) -> None:
    module = multi_head(8)
    x = random_tensor(9, B, TK, D)
    want, k_v = module(x, x, x, causal_mask(TK, TK, 0), True), module.project(x, 1, 3)
    cache = KeyValues(*k_v).room_for(TK + 2)
    cache.k.fill_(torch.nan), cache.v.fill_(torch.nan)  # what is not filled is not read
    offset = 0
    for new in x.split(chunks, 1):
        end = offset + new.size(1)
        got = module(new, new, new, causal_mask(new.size(1), end, offset), True, cache, offset)
        assert worst_deviation(got, [want[0][:, offset:end], want[1][:, :, offset:end, :end]]) <= ATOL
        offset = end
    assert worst_deviation([cache.k[:, :, :TK], cache.v[:, :, :TK]], k_v) <= ATOL


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
    before = cache.k.clone(), cache.v.clone()
    want = module(query, memory, memory, mask, True)
    assert worst_deviation(module(query, None, None, mask, True, cache), want) <= ATOL
    assert worst_deviation([cache.k, cache.v], before) == 0.0


def test_attention_to_nothing_is_refused() -> None:
    x = random_tensor(5, B, TQ, D)
    for key, value in ((None, None), (None, x), (x, None)):
        with pytest.raises(AssertionError, match="without new keys there has to be a cache"):
            multi_head(8)(x, key, value)


# Parameters


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
