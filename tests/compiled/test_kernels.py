"""Each compiled kernel against the plain formula in float64."""

import platform
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from conftest import needs_compiled, random_tensor
from torch import Tensor
from torch.nn import functional as F

from minitrans.compiled import kernels, library
from minitrans.compiled.kernels import Dropout, Settings
from minitrans.model.dropout import random_bytes
from minitrans.model.loss import label_smoothed_cross_entropy

pytestmark = needs_compiled

NONE, SOME, MOST = Dropout(0, 0), Dropout(5, 77), Dropout(-9, 255)
EPS = 1e-5
Tensors = Sequence[Tensor | None]


def dropped(x: Tensor, dropout: Dropout) -> Tensor:
    """Dropout by the stream of bytes of dropout.py."""
    keep = (random_bytes(x.numel(), dropout.seed) >= dropout.dropped).view(x.shape)
    return x * keep * 256 / (256 - dropout.dropped)


def parameters(d_model: int, d_in: int, d_out: int) -> list[Tensor]:
    """Of a norm, of a linear layer to `d_in`, and of one from `d_out`."""
    shapes = (d_model,), (d_model,), (d_in, d_model), (d_in,), (d_model, d_out), (d_model,)
    return [random_tensor(10 + i, *shape) for i, shape in enumerate(shapes)]


def assert_close(got: Tensors, want: Tensors, relative: float = 1e-12) -> None:
    """Each is off by no more than that share of 1, or of the largest element that it should have."""
    for one, other in zip(got, want, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.shape == other.shape
            worst = (one.double() - other.double()).abs().max().item() if one.numel() else 0.0
            assert worst <= relative * max(1.0, other.abs().max().item())


def check(
    kernel: Callable[..., Tensor],
    backward: Callable[..., tuple[Tensor | None, ...]],
    formula: Callable[..., Tensor],
    inputs: Tensors,
    relative: float = 1e-12,
) -> None:
    """The kernel and its gradient at every input against the formula in float64 and its gradients."""
    exact = [None if x is None else x.double().requires_grad_() for x in inputs]
    y = formula(*exact)
    grad = random_tensor(99, *y.shape).to(kernel(*inputs).dtype)
    gradients = iter(torch.autograd.grad(y, [x for x in exact if x is not None], grad.double()))
    assert_close([kernel(*inputs)], [y.detach()], relative)
    assert_close(backward(grad, *inputs), [None if x is None else next(gradients) for x in exact], relative)


def norm_of(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return F.layer_norm(x, (x.size(-1),), gamma, beta, EPS)


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 5), (128, 16), (129, 128), (1000, 33)])
def test_norm(rows: int, size: int) -> None:
    check(
        lambda x, gamma, beta: kernels.norm(x, gamma, beta, EPS),
        lambda grad, x, gamma, beta: kernels.norm_backward(grad, x, gamma, beta, EPS),
        norm_of,
        [random_tensor(0, rows, size), random_tensor(1, size), random_tensor(2, size)],
    )


def check_feed_forward(inputs: Sequence[Tensor], inside: Dropout, end: Dropout, relative: float = 1e-12) -> None:
    def formula(x: Tensor, gamma: Tensor, beta: Tensor, *linears: Tensor) -> Tensor:
        w_1, b_1, w_2, b_2 = linears
        hidden = dropped(F.relu(F.linear(norm_of(x, gamma, beta), w_1, b_1)), inside)
        return x + dropped(F.linear(hidden, w_2, b_2), end)

    check(
        lambda x, *p: kernels.feed_forward(x, p, Settings(EPS, inside, end)),
        lambda grad, x, *p: kernels.feed_forward_backward(grad, x, p, Settings(EPS, inside, end)),
        formula,
        inputs,
        relative,
    )


@pytest.mark.parametrize("rows", [1, 2, 31, 127, 128, 129, 400])  # around the rows of a block and of a tile
@pytest.mark.parametrize(("d_model", "d_ff"), [(8, 12), (32, 64), (33, 50), (1, 1)])
@pytest.mark.parametrize(("inside", "end"), [(NONE, NONE), (SOME, MOST), (MOST, SOME)])
def test_feed_forward(rows: int, d_model: int, d_ff: int, inside: Dropout, end: Dropout) -> None:
    check_feed_forward([random_tensor(0, rows, d_model), *parameters(d_model, d_ff, d_ff)], inside, end)


def check_attention(
    inputs: Tensors, mask: Tensor, n_heads: int, inside: Dropout, end: Dropout, relative: float = 1e-12
) -> None:
    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)

    def formula(x: Tensor, memory: Tensor | None, gamma: Tensor, beta: Tensor, *linears: Tensor) -> Tensor:
        w_qkv, b_qkv, w_o, b_o = linears
        h = norm_of(x, gamma, beta)
        (w_q, w_k, w_v), (b_q, b_k, b_v) = w_qkv.chunk(3), b_qkv.chunk(3)
        source = h if memory is None else memory
        q, k, v = heads(F.linear(h, w_q, b_q)), heads(F.linear(source, w_k, b_k)), heads(F.linear(source, w_v, b_v))
        scores = (q @ k.transpose(-2, -1)) / q.size(-1) ** 0.5
        weights = scores.masked_fill(~mask, torch.finfo(torch.float64).min).softmax(-1).masked_fill(~mask, 0.0)
        attended = dropped(weights, inside) @ v
        return x + dropped(F.linear(attended.transpose(1, 2).flatten(2), w_o, b_o), end)

    settings = Settings(EPS, inside, end)
    check(
        lambda x, memory, *p: kernels.attention(x, memory, mask, n_heads, p, settings),
        lambda grad, x, memory, *p: kernels.attention_backward(grad, x, memory, mask, n_heads, p, settings),
        formula,
        inputs,
        relative,
    )


def masks(batch: int, tq: int, tk: int) -> Iterator[Tensor]:
    """Every way to broadcast, each with queries that see nothing, but for the causal one."""
    for shape in (1, 1, 1, tk), (batch, 1, 1, tk), (1, 1, tq, tk), (batch, 1, tq, tk):
        mask = random_tensor(7, *shape) > -0.3
        mask[0, 0, 0] = False
        yield mask


@pytest.mark.parametrize(("batch", "tq", "tk"), [(1, 1, 1), (3, 5, 9), (40, 17, 16), (5, 33, 64), (2, 129, 15)])
@pytest.mark.parametrize(("d_model", "n_heads", "d_head"), [(8, 2, 4), (32, 1, 32), (12, 3, 7)])
@pytest.mark.parametrize("dropout", [NONE, SOME])
def test_cross_attention(
    batch: int, tq: int, tk: int, d_model: int, n_heads: int, d_head: int, dropout: Dropout
) -> None:
    x, memory = random_tensor(0, batch, tq, d_model), random_tensor(1, batch, tk, d_model)
    size = n_heads * d_head
    for mask in masks(batch, tq, tk):
        inputs = [x, memory, *parameters(d_model, 3 * size, size)]
        check_attention(inputs, mask, n_heads, dropout, SOME)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 40, 65, 200, 500])
@pytest.mark.parametrize("dropout", [NONE, SOME])
def test_self_attention(length: int, dropout: Dropout) -> None:
    inputs = [random_tensor(0, 3, length, 8), None, *parameters(8, 24, 8)]
    check_attention(inputs, torch.ones(1, 1, length, length, dtype=torch.bool).tril(), 2, dropout, SOME)
    for mask in masks(3, length, length):
        check_attention(inputs, mask, 2, dropout, SOME)


@pytest.mark.parametrize("size", [1e4, 1e8])
def test_attention_with_large_scores(size: float) -> None:
    gamma, beta, w_qkv, *rest = parameters(8, 24, 8)
    w_qkv[:16] *= size**0.5
    x, seen = random_tensor(0, 2, 6, 8), torch.ones(1, 1, 6, 6, dtype=torch.bool)
    check_attention([x, None, gamma, beta, w_qkv, *rest], seen, 2, NONE, NONE, 1e-6)


@pytest.mark.parametrize("tied", [1, 300])  # tokens of one id; more than a thread's share of the vocabulary
@pytest.mark.parametrize("dropout", [NONE, SOME])
def test_embed(tied: int, dropout: Dropout) -> None:
    table, positions = random_tensor(0, 10, 5), random_tensor(1, 7, 5)
    ids = torch.arange(30 * 7).view(30, 7) // tied % 10
    check(
        lambda table: kernels.embed(ids, table, positions, 3.0, dropout, torch.float64),
        lambda grad, table: (kernels.add_embed_backward(grad, ids, table + 7.0, 3.0, dropout) - table - 7.0,),
        lambda table: dropped(3.0 * table[ids] + positions, dropout),
        [table],
    )


def check_loss(hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float, relative: float) -> None:
    loss, z = kernels.linear_cross_entropy(hidden, weight, target, smoothing)
    gradients = kernels.linear_cross_entropy_backward(hidden, weight, target, z, smoothing, scale=3.0)
    h, w = (x.double().requires_grad_() for x in (hidden, weight))
    plain = label_smoothed_cross_entropy((h @ w.T)[None], target[None], -1, smoothing)
    assert loss == pytest.approx(plain.item(), rel=relative, abs=relative)
    assert_close(gradients, torch.autograd.grad(3.0 * plain, (h, w)), relative)


@pytest.mark.parametrize("rows", [1, 127, 128, 129, 300])
@pytest.mark.parametrize("vocab", [1, 2, 255, 256, 257, 1000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss(rows: int, vocab: int, smoothing: float) -> None:
    target = torch.arange(rows) * 37 % vocab
    check_loss(random_tensor(0, rows, 12), random_tensor(1, vocab, 12), target, smoothing, 1e-11)


def test_a_loss_of_nothing_is_nothing() -> None:
    hidden, weight, target = random_tensor(0, 0, 4), random_tensor(1, 5, 4), torch.empty(0, dtype=torch.int64)
    loss, z = kernels.linear_cross_entropy(hidden, weight, target, 0.1)
    d_hidden, d_weight = kernels.linear_cross_entropy_backward(hidden, weight, target, z, 0.1, 1.0)
    assert (loss, z.numel(), d_hidden.numel(), d_weight.abs().sum().item()) == (0.0, 0, 0, 0.0)


@pytest.mark.parametrize("wrong", [-1, 5])
def test_ids_beyond_the_vocabulary_are_refused(wrong: int) -> None:
    table, ids = random_tensor(0, 5, 3), torch.tensor([[0, wrong]])
    with pytest.raises(
        IndexError, match=f"^ids {min(wrong, 0)} to {max(wrong, 0)} are not all among the 5 of the vocab"
    ):
        kernels.embed(ids, table, random_tensor(1, 2, 3), 1.0, NONE, torch.float64)
    with pytest.raises(IndexError, match="among the 5"):
        kernels.linear_cross_entropy(random_tensor(0, 2, 3), table, ids[0], 0.1)


# bfloat16 has 8 bits: what comes out is off by some roundings of it, whatever the products are computed with.
@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 2e-5), (torch.bfloat16, 4e-2)])
@pytest.mark.parametrize(("rows", "d_model"), [(5, 32), (150, 33), (200, 64)])
def test_lower_dtypes_differ_by_their_rounding(dtype: torch.dtype, relative: float, rows: int, d_model: int) -> None:
    def lower(seed: int, *shape: int) -> Tensor:
        return random_tensor(seed, *shape).to(dtype)

    small = [p / d_model**0.5 if p.dim() == 2 else p for p in parameters(d_model, 40, 40)]
    check_feed_forward([lower(0, rows, d_model), *(p.float() for p in small)], SOME, SOME, relative)
    small = [p / d_model**0.5 if p.dim() == 2 else p for p in parameters(d_model, 60, 20)]
    x, memory = lower(0, rows // 5, 5, d_model), lower(1, rows // 5, 9, d_model)
    mask = next(masks(1, 5, 9)).logical_not()
    check_attention([x, memory, *(p.float() for p in small)], mask, 2, SOME, SOME, relative)
    target = torch.arange(rows) * 37 % 300
    weight = (random_tensor(1, 300, d_model) / d_model**0.5).to(dtype).float()
    check_loss(lower(0, rows, d_model), weight, target, 0.1, relative)


def attention_and_loss(x: Tensor, p: list[Tensor]) -> list[Tensor]:
    """The results of self-attention, and the gradients of it and of the loss."""
    mask, rows = torch.ones(1, 1, x.size(1), x.size(1), dtype=torch.bool), x.flatten(0, 1)
    target, settings = torch.arange(len(rows)) % len(p[2]), Settings(EPS, SOME, SOME)
    _, z = kernels.linear_cross_entropy(rows, p[2], target, 0.1)
    made = [
        kernels.attention(x, None, mask, 2, p, settings),
        *kernels.attention_backward(x, x, None, mask, 2, p, settings),
        *kernels.linear_cross_entropy_backward(rows, p[2], target, z, 0.1, 1.0),
    ]
    return [each for each in made if each is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_nothing_is_left_over_from_another_call(dtype: torch.dtype) -> None:
    """A call that overflows everywhere leaves its threads' memory full of NaN."""
    wide = [p.to(torch.promote_types(dtype, torch.float32)) for p in parameters(64, 192, 64)]
    narrow = [p.to(torch.promote_types(dtype, torch.float32)) for p in parameters(40, 60, 20)]
    x = random_tensor(0, 9, 11, 40).to(dtype)
    before = attention_and_loss(x, narrow)
    assert attention_and_loss(torch.full((50, 20, 64), torch.nan).to(dtype), wide)[0].isnan().all()
    assert all(torch.equal(a, b) for a, b in zip(before, attention_and_loss(x, narrow), strict=True))


def test_the_number_of_threads_changes_no_more_than_the_order_of_sums() -> None:
    threads, results = torch.get_num_threads(), []
    for n in (1, 2, 3):
        torch.set_num_threads(n)
        results.append(attention_and_loss(random_tensor(0, 50, 20, 16), parameters(16, 48, 16)))
    torch.set_num_threads(threads)
    for others in results[1:]:
        assert_close(others, results[0])
        assert not all(map(torch.equal, others, results[0]))  # there were as many


@pytest.mark.usefixtures("as_new", "_compiled_for_tests")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the compiler's flags are those of x86")
@pytest.mark.parametrize("without", ["-mno-amx-tile", "-mno-amx-tile -mno-avx512bf16", "-mno-amx-tile -mno-avx"])
def test_lesser_processors_get_the_same(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"c++ {without}")
    faster = [flag.replace("-O3", "-O1") for flag in library.COMPILE]  # in a fifth of the time
    monkeypatch.setattr(library, "COMPILE", faster)
    test_feed_forward(129, 33, 50, SOME, SOME)
    test_cross_attention(5, 33, 64, 12, 3, 7, SOME)
    test_self_attention(40, SOME)
    test_loss(129, 257, 0.1)
    for dtype, relative in (torch.float32, 2e-5), (torch.bfloat16, 4e-2):
        test_lower_dtypes_differ_by_their_rounding(dtype, relative, 150, 33)
        test_nothing_is_left_over_from_another_call(dtype)
