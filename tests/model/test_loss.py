"""Label-smoothed cross entropy against its formula; from hidden states, and of a batch, against the plain one."""

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from conftest import ATOL, PAD, assert_close, needs_compiled, random_ids, random_model, random_tensor, random_tgt_in
from loss_cases import HIDDEN_WEIGHT_DTYPES, LinearLoss, chunked_loss, plain_loss, random_case, with_gradients
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from minitrans.model.loss import CHUNK_ROWS, batch_loss, label_smoothed_cross_entropy, linear_cross_entropy

B, T, V = 3, 5, 11
LENGTHS = [4, 5, 1]


def loss_by_formula(logits: Tensor, tgt_out: Tensor, smoothing: float) -> float:
    """- sum over real positions, sum over pieces, of target probability times log probability."""
    total = 0.0
    for row, ids in zip(logits.tolist(), tgt_out.tolist(), strict=True):
        for scores, right in zip(row, ids, strict=True):
            if right == PAD:
                continue
            log_z = math.log(sum(math.exp(score) for score in scores))
            for piece, score in enumerate(scores):
                wanted = smoothing / V + (1 - smoothing if piece == right else 0.0)
                total -= wanted * (score - log_z)
    return total


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("lengths", [LENGTHS, [T] * B, [0] * B])
def test_the_loss_equals_its_formula_and_ignores_padding(lengths: list[int], smoothing: float) -> None:
    logits, tgt_out = 2.0 * random_tensor(0, B, T, V), random_ids(1, lengths, T)
    loss = label_smoothed_cross_entropy(logits.requires_grad_(), tgt_out, PAD, smoothing)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(loss_by_formula(logits, tgt_out, smoothing), abs=ATOL)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.equal(gradient.ne(0.0), (tgt_out != PAD)[..., None].expand(B, T, V))
    other = torch.where((tgt_out == PAD)[..., None], random_tensor(2, B, T, V), logits)
    assert torch.equal(label_smoothed_cross_entropy(other, tgt_out, PAD, smoothing), loss)


# From the hidden states, a few rows at a time

ROW_COUNTS = [1, CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 1, 2 * CHUNK_ROWS, 2 * CHUNK_ROWS + 1]  # of real positions


@pytest.fixture(params=["plain", pytest.param("compiled", marks=needs_compiled)])
def linear_loss(request: pytest.FixtureRequest) -> LinearLoss:
    """The model's own loss, and the compiled one; what only one of them has to do is tested separately."""
    if request.param == "plain":
        return chunked_loss
    function: LinearLoss = import_module("minitrans.compiled.training").linear_cross_entropy
    return function


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("padded", [0, 3])
@pytest.mark.parametrize("lengths", [*([n] for n in ROW_COUNTS), [4, 5, 1], [1, 9], [CHUNK_ROWS, 3, CHUNK_ROWS - 3]])
def test_a_few_rows_at_a_time_give_the_plain_loss_and_its_gradients(
    lengths: list[int], padded: int, smoothing: float, linear_loss: LinearLoss
) -> None:
    hidden, weight, tgt_out = random_case(lengths, padded)
    got = with_gradients(linear_loss, hidden, weight, tgt_out, smoothing)
    assert_close(got, with_gradients(plain_loss, hidden, weight, tgt_out, smoothing))
    assert torch.equal(got[1].eq(0.0).all(-1), tgt_out == PAD)
    other = torch.where((tgt_out == PAD)[..., None], math.nan, hidden.detach()).requires_grad_()
    for same in (other, hidden):  # and the same every time
        assert all(map(torch.equal, with_gradients(linear_loss, same, weight, tgt_out, smoothing), got))


def test_a_gradient_alone_equals_that_of_both(linear_loss: LinearLoss) -> None:
    hidden, weight, tgt_out = random_case([4, 2])
    _, by_hidden, by_weight = with_gradients(linear_loss, hidden, weight, tgt_out)
    (alone,) = torch.autograd.grad(linear_loss(hidden, weight.detach(), tgt_out, PAD, 0.1), hidden)
    assert torch.equal(alone, by_hidden)
    (alone,) = torch.autograd.grad(linear_loss(hidden.detach(), weight, tgt_out, PAD, 0.1), weight)
    assert torch.equal(alone, by_weight)
    with torch.no_grad():
        loss = linear_loss(hidden, weight, tgt_out, PAD, 0.1)
    assert torch.equal(loss, linear_loss(hidden, weight, tgt_out, PAD, 0.1))


def test_the_chunked_loss_has_a_second_derivative() -> None:
    hidden, weight, tgt_out = random_case([4, 2])

    def second(loss_of: LinearLoss) -> tuple[Tensor, ...]:
        loss = loss_of(hidden, weight, tgt_out, PAD, 0.1) ** 2
        (gradient,) = torch.autograd.grad(loss, hidden, create_graph=True)
        return torch.autograd.grad(gradient.sum(), (hidden, weight))

    assert_close(second(chunked_loss), second(plain_loss), 1e-11)


@pytest.mark.parametrize(("dtype", "of_weight"), HIDDEN_WEIGHT_DTYPES)
def test_an_extremely_unlikely_target_gives_a_large_but_finite_loss(
    dtype: torch.dtype, of_weight: torch.dtype, linear_loss: LinearLoss
) -> None:
    hidden = torch.ones(1, 2, 1, dtype=dtype, requires_grad=True)
    weight = torch.tensor([[-2048.0], *[[0.0]] * 298, [2048.0]], dtype=of_weight, requires_grad=True)
    loss, by_hidden, by_weight = with_gradients(linear_loss, hidden, weight, torch.tensor([[299, 0]]), 0.0)
    assert loss.item() == 4096.0
    assert by_hidden.flatten().tolist() == pytest.approx([0.0, 4096.0], abs=1e-30)
    first, *others, last = by_weight.flatten().tolist()
    assert [first, last] == [-1.0, 1.0]
    assert others == pytest.approx([0.0] * 298, abs=1e-30)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_products_in_half_precision_leave_a_loss_in_float32(smoothing: float, linear_loss: LinearLoss) -> None:
    hidden, weight, tgt_out = random_case([CHUNK_ROWS + 3, 70, 9])
    lower_dtypes = [torch.bfloat16, torch.float16]
    for lower in lower_dtypes if linear_loss is chunked_loss else lower_dtypes[:1]:  # compiled: no float16
        low, high = hidden.detach().to(lower).requires_grad_(), (0.3 * weight).detach().float().requires_grad_()
        got = with_gradients(linear_loss, low, high, tgt_out, smoothing)
        assert [x.dtype for x in got] == [torch.float32, lower, torch.float32]
        rounded = low.detach().double().requires_grad_(), high.detach().to(lower).double().requires_grad_()
        want = with_gradients(plain_loss, *rounded, tgt_out, smoothing)
        assert_close(got[:1], want[:1], 1e-3)
        assert_close(got[1:], want[1:], 2e-2)


@pytest.mark.parametrize(("dtype", "enabled"), [(torch.bfloat16, True), (torch.float16, True), (torch.bfloat16, False)])
def test_under_autocast_the_hidden_states_are_kept_in_its_dtype(
    dtype: torch.dtype, enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []

    def spy(function: Callable[..., Tensor], h: Tensor, y: Tensor, **settings: Any) -> Tensor:
        kept.append(h.dtype)
        return checkpoint(function, h, y, **settings)

    monkeypatch.setattr("minitrans.model.loss.checkpoint", spy)
    hidden, weight, tgt_out = random_case([CHUNK_ROWS + 3])
    with torch.autocast("cpu", dtype, enabled=enabled):
        chunked_loss(hidden.float(), weight.float(), tgt_out, PAD, 0.1)
    assert kept == [dtype if enabled else torch.float32] * 2


def test_under_autocast_the_gradients_of_all_chunks_are_added_up_in_float32() -> None:
    hidden, weight, tgt_out = (x.detach() for x in random_case([CHUNK_ROWS, CHUNK_ROWS, 9]))
    hidden, weight = hidden.float().requires_grad_(), weight.float().requires_grad_()
    autocast_loss = lambda h, w, *rest: linear_cross_entropy(h, lambda rows: F.linear(rows, w), *rest)  # noqa: E731
    with torch.autocast("cpu", torch.bfloat16):
        got, want = (with_gradients(loss_of, hidden, weight, tgt_out) for loss_of in (autocast_loss, chunked_loss))
    assert all(map(torch.equal, got, want))


class ShapeRecorder(TorchDispatchMode):
    """Records the shapes of all tensors that operations return."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.seen |= {tuple(x.shape) for x in tree_leaves(out) if isinstance(x, Tensor)}
        return out


def max_logit_rows(loss_of: LinearLoss) -> int:
    """The most rows of any tensor with a column for each piece, in loss and gradients of 3 * CHUNK_ROWS positions."""
    with ShapeRecorder() as shapes:
        with_gradients(loss_of, *random_case([CHUNK_ROWS, CHUNK_ROWS, 5]))
    return max((math.prod(shape[:-1]) for shape in shapes.seen if shape and shape[-1] == 11), default=0)


def test_logits_exist_for_one_chunk_at_a_time_and_not_at_all_in_compiled_code(linear_loss: LinearLoss) -> None:
    assert max_logit_rows(linear_loss) == (CHUNK_ROWS if linear_loss is chunked_loss else 0)
    assert max_logit_rows(plain_loss) == 3 * CHUNK_ROWS


def test_the_loss_of_a_batch_in_training_applies_the_models_dropout() -> None:
    model = random_model(6, tie_embeddings=False).train()
    model.dropout.p = 0.5
    src_ids, tgt_in, tgt_out = random_ids(7, [4, 7, 2], 7), random_tgt_in(2, B, T), random_ids(8, LENGTHS, T)
    torch.manual_seed(0)
    losses = [batch_loss(model, src_ids, tgt_in, tgt_out, 0.1) for _ in range(2)]
    torch.manual_seed(0)
    want = [plain_loss(model.hidden_states(src_ids, tgt_in), model.output.weight, tgt_out, PAD, 0.1) for _ in range(2)]
    assert_close(losses, want)
    assert abs(losses[0] - losses[1]) > 1e-3
