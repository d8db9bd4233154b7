"""What the loss on the compiled kernels does by itself; what it shares with the plain one is tested with that."""

from unittest.mock import Mock

import pytest
import torch
from conftest import PAD, assert_close, needs_compiled
from losses import assert_equal, logits_made, plain_loss, random_case, with_gradients

from minitrans.compiled import kernels
from minitrans.compiled.training import linear_cross_entropy
from minitrans.model.loss import ROWS

pytestmark = needs_compiled

DTYPES = [(torch.float32, torch.float32), (torch.float64, torch.float64), (torch.bfloat16, torch.float32)]


def test_the_kernel_gets_the_real_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Mock(return_value=(7.0, torch.zeros(7)))
    monkeypatch.setattr(kernels, "linear_cross_entropy", kernel)
    given = random_case([5, 2], padded=1)
    assert linear_cross_entropy(*given, PAD, 0.1).item() == 7.0
    hidden, weight, target, smoothing = kernel.call_args.args
    assert (kernel.call_count, hidden.shape, weight.shape, smoothing) == (1, (7, 6), (11, 6), 0.1)
    assert target.tolist() == [i for i in given[2].flatten().tolist() if i != PAD]


@pytest.mark.parametrize(("dtype", "of_weight"), DTYPES)
def test_what_seems_impossible_costs_much_but_no_infinity(dtype: torch.dtype, of_weight: torch.dtype) -> None:
    hidden = torch.ones(1, 2, 1, dtype=dtype, requires_grad=True)
    weight = torch.tensor([[2048.0], [-2048.0]], dtype=of_weight, requires_grad=True)
    loss, by_hidden, by_weight = with_gradients(linear_cross_entropy, hidden, weight, torch.tensor([[0, 1]]), 0.0)
    assert loss.item() == 4096.0
    assert by_hidden.flatten().tolist() == pytest.approx([0.0, 4096.0], abs=1e-30)
    assert by_weight.flatten().tolist() == [1.0, -1.0]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_products_in_bfloat16_leave_a_loss_in_float32(smoothing: float) -> None:
    hidden, weight, tgt_out = random_case([ROWS + 3, 70, 9])
    low, high = hidden.detach().bfloat16().requires_grad_(), (0.3 * weight).detach().float().requires_grad_()
    lower = with_gradients(linear_cross_entropy, low, high, tgt_out, smoothing)
    assert [x.dtype for x in lower] == [torch.float32, torch.bfloat16, torch.float32]
    rounded = low.detach().double().requires_grad_(), high.detach().bfloat16().double().requires_grad_()
    want = with_gradients(plain_loss, *rounded, tgt_out, smoothing)
    assert_close(lower[:1], want[:1], 1e-3)
    assert_close(lower[1:], want[1:], 2e-2)


@pytest.mark.parametrize(("dtype", "of_weight"), DTYPES)
def test_the_dtype_of_the_hidden_states_decides_and_autocast_does_not(
    dtype: torch.dtype, of_weight: torch.dtype
) -> None:
    hidden, weight, tgt_out = random_case([ROWS + 3, 70])
    case = hidden.detach().to(dtype).requires_grad_(), weight.detach().to(of_weight).requires_grad_(), tgt_out
    want = with_gradients(linear_cross_entropy, *case)
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(*case, PAD, 0.1)
    assert_equal([loss.detach(), *torch.autograd.grad(loss, case[:2])], want)
    assert [x.dtype for x in want] == [of_weight, dtype, of_weight]


def test_no_logits_are_held() -> None:
    assert logits_made(linear_cross_entropy) == 0
    assert logits_made(plain_loss) == 3 * ROWS
