"""What the compiled loss does by itself; what it shares with the plain one is tested with that."""

import resource
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from conftest import PAD, assert_close, needs_compiled, random_tensor
from loss_cases import HIDDEN_WEIGHT_DTYPES, max_logit_rows, plain_loss, random_case, with_gradients

from minitrans.compiled import training
from minitrans.compiled.training import linear_cross_entropy
from minitrans.model.loss import CHUNK_ROWS

pytestmark = needs_compiled


@pytest.mark.parametrize("rows", [1, *range(125, 130), 300])
@pytest.mark.parametrize("vocab", [1, 2, 251, 252, 253, 30_000])  # and PAD + 1 more; of the last, in blocks of rows
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_it_is_the_plain_loss(rows: int, vocab: int, smoothing: float) -> None:
    hidden, zeros = random_tensor(0, 1, rows, 12).requires_grad_(), torch.zeros(PAD + 1, 12, dtype=torch.float64)
    weight = torch.cat([zeros, random_tensor(1, vocab, 12)]).requires_grad_()  # no target is padding
    case = hidden, weight, (torch.arange(rows) * 37 % vocab)[None] + PAD + 1, smoothing
    assert_close(with_gradients(linear_cross_entropy, *case), with_gradients(plain_loss, *case), 1e-11)


def test_the_real_rows_alone_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    compute = Mock(return_value=7.0)
    monkeypatch.setattr(training, "_call_function", compute)
    given = random_case([5, 2], padded=1)
    assert linear_cross_entropy(*given, PAD, 0.1).item() == 7.0
    name, _, hidden, weight, target, _, _, *sizes = compute.call_args.args
    assert (name, compute.call_count, hidden.shape, weight.shape) == ("linear_cross_entropy", 1, (7, 6), (11, 6))
    assert (sizes, target.tolist()) == ([7, 6, 11, 0.1, 1 / 7], [i for i in given[2].flatten().tolist() if i != PAD])


@pytest.mark.parametrize(("dtype", "of_weight"), HIDDEN_WEIGHT_DTYPES)
def test_the_dtype_of_the_hidden_states_decides_not_autocast(dtype: torch.dtype, of_weight: torch.dtype) -> None:
    hidden, weight, tgt_out = random_case([CHUNK_ROWS + 3, 70])
    case = hidden.detach().to(dtype).requires_grad_(), weight.detach().to(of_weight).requires_grad_(), tgt_out
    want = with_gradients(linear_cross_entropy, *case)
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(*case, PAD, 0.1)
    assert all(map(torch.equal, (loss.detach(), *torch.autograd.grad(loss, case[:2])), want))
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
