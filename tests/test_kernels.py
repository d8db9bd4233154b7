"""Each compiled kernel against the plain formula in float64; and what happens where none can be compiled."""

import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import ATOL, random_tensor
from torch import Tensor
from torch.nn import functional as F

from minitrans import kernels
from minitrans.dropout import random_bytes

SCALAR = torch.zeros(())
pytestmark = pytest.mark.skipif(not kernels.serve(SCALAR), reason="no C++ compiler here")

SIZES = [1, 7, 8, 1023, 1024, 1025, 5000]  # around the kernels' blocks


def keep(n: int, seed: int, dropped: int) -> Tensor:
    """What dropout multiplies by: 0 or 256 / (256 - dropped)."""
    return (random_bytes(n, seed) >= dropped).double() * 256 / (256 - dropped)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dropped", [0, 26, 255])
def test_dropout_add(n: int, dropped: int) -> None:
    x, residual = random_tensor(0, n), random_tensor(1, n)
    dropout = x * keep(n, -5, dropped)
    torch.testing.assert_close(kernels.dropout_add(x, None, -5, dropped), dropout, rtol=0, atol=ATOL)
    torch.testing.assert_close(kernels.dropout_add(x, residual, -5, dropped), residual + dropout, rtol=0, atol=ATOL)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dropped", [0, 77])
def test_relu_dropout_and_its_gradient(n: int, dropped: int) -> None:
    x, grad = random_tensor(0, n).requires_grad_(), random_tensor(1, n)
    y = F.relu(x) * keep(n, 9, dropped)
    (expected,) = torch.autograd.grad(y, x, grad)
    result = kernels.relu_dropout_(x.detach().clone(), 9, dropped)
    torch.testing.assert_close(result, y.detach(), rtol=0, atol=ATOL)
    torch.testing.assert_close(kernels.relu_dropout_backward_(grad, result, dropped), expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 5), (64, 16), (65, 128), (1000, 33)])
def test_norm_and_its_gradients(rows: int, size: int) -> None:
    x, gamma, beta = random_tensor(0, rows, size), random_tensor(1, size), random_tensor(2, size)
    grad, residual = random_tensor(3, rows, size), random_tensor(4, rows, size)
    inputs = [z.requires_grad_() for z in (x, gamma, beta)]
    y = F.layer_norm(x, (size,), gamma, beta, 1e-5)
    expected = torch.autograd.grad(y, inputs, grad)
    result, mean, rstd = kernels.norm(x.detach(), gamma.detach(), beta.detach(), 1e-5)
    torch.testing.assert_close(result, y.detach(), rtol=0, atol=ATOL)
    for extra in (None, residual):
        d_x, d_gamma, d_beta = kernels.norm_backward(grad, x.detach(), gamma.detach(), mean, rstd, extra)
        first = expected[0] if extra is None else expected[0] + extra
        torch.testing.assert_close([d_x, d_gamma, d_beta], [first, *expected[1:]], rtol=1e-12, atol=10 * ATOL)


def masks(batch: int, n_heads: int, tq: int, tk: int) -> Iterator[Tensor]:
    """Every way to broadcast, each with queries that see nothing."""
    for shape in ((1, 1, 1, 1), (batch, 1, 1, tk), (1, 1, tq, tk), (batch, 1, tq, 1), (batch, n_heads, tq, tk)):
        mask = random_tensor(7, *shape) > -0.3
        mask[0, 0, 0] = False
        yield mask


@pytest.mark.parametrize("tk", [1, 2, 15, 16, 17, 32, 40, 65, 130, 257, kernels.LONGEST])
@pytest.mark.parametrize("tq", [1, 3, 20])
def test_masked_softmax_and_its_gradient(tq: int, tk: int) -> None:
    batch, n_heads, scale, dropped = 2, 3, 0.3, 51
    scores, grad = 3 * random_tensor(0, batch, n_heads, tq, tk), random_tensor(1, batch, n_heads, tq, tk)
    scores.requires_grad_()
    for mask in masks(batch, n_heads, tq, tk):
        filled = (scale * scores).masked_fill(~mask, torch.finfo(torch.float64).min)
        weights = filled.softmax(-1).masked_fill(~mask, 0.0)
        kept = weights * keep(scores.numel(), 3, dropped).view_as(scores)
        (expected,) = torch.autograd.grad(kept, scores, grad)
        results = kernels.masked_softmax(scores.detach(), mask, scale, 3, dropped)
        torch.testing.assert_close(results, (weights.detach(), kept.detach()), rtol=0, atol=ATOL)
        assert not results[0].masked_select(~mask).any()
        back = kernels.masked_softmax_backward(grad, results[0], scale, 3, dropped)
        torch.testing.assert_close(back, expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize("score", [1e4, 0.0, -1e4, -1e30])
def test_masked_softmax_of_large_scores(score: float) -> None:
    scores = torch.full((1, 1, 4, 5), score, dtype=torch.float64)
    mask = torch.tensor([False, True, True, True, True]).view(1, 1, 1, 5)
    weights, _ = kernels.masked_softmax(scores, mask, 1.0, 0, 0)
    assert torch.equal(weights, torch.tensor([0.0, 0.25, 0.25, 0.25, 0.25]).double().expand(1, 1, 4, 5))


@pytest.mark.parametrize(("rows", "vocab"), [(1, 1), (3, 17), (40, 1000)])
def test_softmax(rows: int, vocab: int) -> None:
    x = 5 * random_tensor(0, rows, vocab)
    expected = x.softmax(-1)
    torch.testing.assert_close(kernels.softmax_(x), expected, rtol=0, atol=ATOL)


def test_heads_are_split_and_merged() -> None:
    x = random_tensor(0, 2, 5, 3 * 4 * 7)
    split = kernels.split_heads(x, 3, 4)
    assert torch.equal(split, x.view(2, 5, 3, 4, 7).permute(2, 0, 3, 1, 4))
    assert torch.equal(kernels.merge_heads(split), x)


@pytest.mark.parametrize(("dtype", "eps"), [(torch.float32, 2**-23), (torch.bfloat16, 2**-8)])
def test_lower_dtypes_are_rounded_once(dtype: torch.dtype, eps: float) -> None:
    x = random_tensor(0, 50, 40).to(dtype)
    gamma, beta = (random_tensor(i, 40).float() for i in (1, 2))
    exact = F.layer_norm(x.double(), (40,), gamma.double(), beta.double(), 1e-5)
    torch.testing.assert_close(kernels.norm(x, gamma, beta, 1e-5)[0].double(), exact, rtol=eps, atol=8 * 2**-23)
    for result, of in (
        (kernels.dropout_add(x, x, 1, 77), x.double() + x.double() * keep(x.numel(), 1, 77).view_as(x)),
        (kernels.softmax_(x.clone()), x.double().softmax(-1)),
        (
            kernels.masked_softmax(x.view(1, 1, 50, 40), torch.ones(1, 1, 1, 40, dtype=torch.bool), 1.0, 0, 0)[0],
            x.double().softmax(-1).view(1, 1, 50, 40),
        ),
    ):
        assert result.dtype == dtype
        torch.testing.assert_close(result.double(), of, rtol=eps + 8 * 2**-23, atol=0)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x, gamma = random_tensor(0, 999, 65).float(), torch.ones(65)
    threads = torch.get_num_threads()
    results = []
    for n in (1, 2, 3):
        torch.set_num_threads(n)
        y, mean, rstd = kernels.norm(x, gamma, gamma, 1e-5)
        results.append([y, *kernels.norm_backward(x, x, gamma, mean, rstd, x), kernels.dropout_add(x, x, 3, 77)])
    torch.set_num_threads(threads)
    for others in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], others, strict=True))


@pytest.fixture
def _uncached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernels._library.cache_clear()
    yield
    monkeypatch.undo()
    kernels._library.cache_clear()


@pytest.mark.usefixtures("_uncached")
def test_they_are_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert kernels.serve(SCALAR)
    assert [path.suffix for path in (tmp_path / "minitrans").iterdir()] == [".so"]
    kernels._library.cache_clear()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
    assert kernels.serve(SCALAR)


@pytest.mark.usefixtures("_uncached")
@pytest.mark.parametrize("compiler", ["false", "no-such-compiler"])
def test_without_a_compiler_there_are_none_and_one_warning(
    compiler: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", compiler)
    with caplog.at_level(logging.WARNING):
        assert not kernels.serve(SCALAR)
        assert not kernels.serve(SCALAR)
    assert len(caplog.records) == 1
    assert "plain and slower path" in caplog.text
    assert not list((tmp_path / "minitrans").iterdir())
