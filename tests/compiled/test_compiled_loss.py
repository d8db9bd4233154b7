"""What the compiled loss does by itself; what it shares with the plain one is tested with that."""

import resource
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from conftest import PAD, assert_close, needs_compiled, random_tensor
from loss_cases import assert_equal, max_logit_rows, plain_loss, random_case, with_gradients

from minitrans.compiled import training
from minitrans.compiled.training import linear_cross_entropy
from minitrans.model.loss import CHUNK_ROWS

pytestmark = needs_compiled

HIDDEN_WEIGHT_DTYPES = [(torch.float32, torch.float32), (torch.float64, torch.float64), (torch.bfloat16, torch.float32)]


@pytest.mark.parametrize("rows", [1, *range(125, 130), 300])
@pytest.mark.parametrize("vocab", [1, 2, 255, 256, 257, 30_000])  # with the last, a block of rows is taken at a time
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_it_is_the_plain_loss(rows: int, vocab: int, smoothing: float) -> None:
    hidden, weight = random_tensor(0, 1, rows, 12).requires_grad_(), random_tensor(1, vocab, 12).requires_grad_()
    target = (torch.arange(rows) * 37 % vocab)[None] + PAD + 1
    of_both = []
    for way in linear_cross_entropy, plain_loss:
        weights = torch.cat([torch.zeros(PAD + 1, 12, dtype=weight.dtype), weight])  # no target is padding
        of_both.append(
            with_gradients(lambda h, w, *rest, way=way: way(h, w, *rest), hidden, weights, target, smoothing)
        )
    assert_close(of_both[0], of_both[1], 1e-11)


def test_the_real_rows_alone_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    compute = Mock(return_value=7.0)
    monkeypatch.setattr(training, "_call_function", compute)
    given = random_case([5, 2], padded=1)
    assert linear_cross_entropy(*given, PAD, 0.1).item() == 7.0
    name, _, hidden, weight, target, _, _, *sizes = compute.call_args.args
    assert (name, compute.call_count, hidden.shape, weight.shape) == ("linear_cross_entropy", 1, (7, 6), (11, 6))
    assert (sizes, target.tolist()) == ([7, 6, 11, 0.1, 1 / 7], [i for i in given[2].flatten().tolist() if i != PAD])


@pytest.mark.parametrize(("dtype", "of_weight"), HIDDEN_WEIGHT_DTYPES)
def test_what_seems_impossible_costs_much_but_no_infinity(dtype: torch.dtype, of_weight: torch.dtype) -> None:
    hidden = torch.ones(1, 2, 1, dtype=dtype, requires_grad=True)
    weight = torch.tensor([[-2048.0], *[[0.0]] * 298, [2048.0]], dtype=of_weight, requires_grad=True)
    loss, by_hidden, by_weight = with_gradients(linear_cross_entropy, hidden, weight, torch.tensor([[299, 0]]), 0.0)
    assert loss.item() == 4096.0
    assert by_hidden.flatten().tolist() == pytest.approx([0.0, 4096.0], abs=1e-30)
    first, *others, last = by_weight.flatten().tolist()
    assert [first, last] == [-1.0, 1.0]
    assert others == pytest.approx([0.0] * 298, abs=1e-30)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_products_in_bfloat16_leave_a_loss_in_float32(smoothing: float) -> None:
    hidden, weight, tgt_out = random_case([CHUNK_ROWS + 3, 70, 9])
    low, high = hidden.detach().bfloat16().requires_grad_(), (0.3 * weight).detach().float().requires_grad_()
    lower = with_gradients(linear_cross_entropy, low, high, tgt_out, smoothing)
    assert [x.dtype for x in lower] == [torch.float32, torch.bfloat16, torch.float32]
    rounded = low.detach().double().requires_grad_(), high.detach().bfloat16().double().requires_grad_()
    want = with_gradients(plain_loss, *rounded, tgt_out, smoothing)
    assert_close(lower[:1], want[:1], 1e-3)
    assert_close(lower[1:], want[1:], 2e-2)


@pytest.mark.parametrize(("dtype", "of_weight"), HIDDEN_WEIGHT_DTYPES)
def test_the_dtype_of_the_hidden_states_decides_and_autocast_does_not(
    dtype: torch.dtype, of_weight: torch.dtype
) -> None:
    hidden, weight, tgt_out = random_case([CHUNK_ROWS + 3, 70])
    case = hidden.detach().to(dtype).requires_grad_(), weight.detach().to(of_weight).requires_grad_(), tgt_out
    want = with_gradients(linear_cross_entropy, *case)
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(*case, PAD, 0.1)
    assert_equal([loss.detach(), *torch.autograd.grad(loss, case[:2])], want)
    assert [x.dtype for x in want] == [of_weight, dtype, of_weight]


def test_no_logits_are_held() -> None:
    assert max_logit_rows(linear_cross_entropy) == 0
    assert max_logit_rows(plain_loss) == 3 * CHUNK_ROWS


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells how much memory is used")
def test_what_is_kept_does_not_grow_with_the_batch() -> None:
    """16 MB of exponentials, and not the 120 MB of all; what the threads keep is still there when it has been done."""
    hidden, weight = torch.ones(3000, 8, requires_grad=True), torch.ones(10_000, 8, requires_grad=True)
    pages = Path("/proc/self/statm").read_text().split()[1]
    with_gradients(linear_cross_entropy, hidden, weight, torch.zeros(3000, dtype=torch.int64), 0.1)
    more = int(Path("/proc/self/statm").read_text().split()[1]) - int(pages)
    assert more * resource.getpagesize() < 40e6
