"""Compiled code one below, at and one above the sizes that it takes at a time, in each dtype, against the plain one."""

from typing import Any

import pytest
import torch
from conftest import BOS, needs_compiled, random_ids, random_model
from losses import loss_of
from torch import Tensor
from torch.nn import functional as F

from minitrans import compiled
from minitrans.model.attention import MultiHeadAttention
from minitrans.model.decoding import CachedStepper, Stepper
from minitrans.model.dropout import Dropout
from minitrans.model.transformer import Transformer
from minitrans.serving.admission import Mode

pytestmark = needs_compiled

FEW = [n + around for n in (16, 32, 64) for around in (-1, 0, 1)]
MANY = [*FEW, *(n + around for n in (128, 256) for around in (-1, 0, 1))]
Case = tuple[dict[str, int], list[int], list[int]]  # sizes of a model, and lengths of sources and of targets
SENTENCES: list[Case] = [
    case
    for n in MANY
    for case in (
        ({"max_len": 260}, [n, 3], [n - 2, n]),
        ({"max_len": 260}, [5, 2, 9], [n, 1, n]),
        ({"max_len": 260}, [n, 1, n - 1, 2], [3, 2, 4, 1]),
        ({}, [1 + i % 3 for i in range(n)], [1 + i % 2 for i in range(n)]),
    )
]
VOCABULARIES: list[Case] = [
    ({"vocab_size": n, "tie_embeddings": tied}, [7, 4, 1], [9, 5, 6])
    for n in (*MANY, 511, 512, 513)
    for tied in (True, False)
]
MODELS: list[Case] = [
    ({name: n}, [5, 3, 1, 9], [4, 6, 2, 5])
    for name in ("d_model", "d_head", "d_ff", "n_heads")
    for n in (2, 7, 8, 9, *FEW)
]
of_all_sizes = pytest.mark.parametrize(
    ("sizes", "src_lengths", "tgt_lengths"),
    [*SENTENCES, *VOCABULARIES, *MODELS],
    ids=lambda value: str(value) if len(value) < 5 else f"{len(value)} rows",
)


def lower_model(vocab_size: int) -> Transformer:
    """Of such small weights that rounding grows no larger on its way through the model."""
    model = random_model(9, d_model=33, n_heads=3, d_head=17, d_ff=65, vocab_size=vocab_size, max_len=140)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.4)
    return model


# -- Training -------------------------------------------------------------------------------------------------------


def batch(src_lengths: list[int], tgt_lengths: list[int], vocab_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sentences of these lengths: src_ids, tgt_in, tgt_out."""
    src_ids = random_ids(1, src_lengths, max(src_lengths), vocab_size)
    tgt_out = random_ids(2, tgt_lengths, max(tgt_lengths), vocab_size)
    return src_ids, F.pad(tgt_out[:, :-1], (1, 0), value=BOS), tgt_out


def results(
    model: Transformer, ids: tuple[Tensor, Tensor, Tensor], mode: Mode, dtype: torch.dtype | None = None
) -> list[Tensor]:
    """The loss, and the gradient at every parameter; the same dropout every time."""
    way = loss_of(model, mode, dtype)
    torch.manual_seed(7)
    total = way(*ids, 0.1)
    return [total.detach(), *torch.autograd.grad(total, list(model.parameters()))]


@of_all_sizes
def test_training_is_the_same(sizes: dict[str, Any], src_lengths: list[int], tgt_lengths: list[int]) -> None:
    model = random_model(1, **{"n_layers": 1} | sizes).train()
    for module in model.modules():
        if isinstance(module, Dropout):
            module.p = 0.3
        if isinstance(module, MultiHeadAttention):
            module.dropout = 0.2
    ids = batch(src_lengths, tgt_lengths, model.config.vocab_size)
    for ours, plain in zip(results(model, ids, "require"), results(model, ids, "off"), strict=True):
        assert (ours - plain).abs().max() <= 1e-9 * plain.abs().max().clamp_min(1.0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.2)])
@pytest.mark.parametrize("n", [15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129])
def test_lower_dtypes_differ_by_their_rounding(dtype: torch.dtype, tolerance: float, n: int) -> None:
    model, ids = lower_model(200 + n).train(), batch([n, 3], [4, n], 200 + n)
    exact = results(model, ids, "off")
    model.float()
    ours = results(model, ids, "require", dtype)
    for one, other in zip(ours, exact, strict=True):
        assert (one.double() - other).norm() <= tolerance * other.norm() + 1e-6


# -- Decoding -------------------------------------------------------------------------------------------------------


def worst_step(
    ours: Stepper[Any], plain: Stepper[Any], lengths: list[int], n_steps: int, n: int | None = None
) -> float:
    """The largest difference of a log-probability; rows are reordered, dropped and repeated after every step.

    Where there is none to speak of, the n likeliest tokens have to be the same in the same order.
    """
    torch.manual_seed(1)
    vocab_size, worst = plain.config.vocab_size, 0.0
    src_ids, n = random_ids(3, lengths, max(lengths), vocab_size), n or vocab_size - 2
    pasts, tokens = [stepper.begin(src_ids, n_steps) for stepper in (ours, plain)], torch.full((len(lengths),), BOS)
    for _ in range(n_steps):
        (log_p, ids), (plain_log_p, plain_ids) = (
            stepper.next_tokens(tokens, past, n) for stepper, past in zip((ours, plain), pasts, strict=True)
        )
        assert log_p.shape == ids.shape == (len(lengths), n)
        if n == vocab_size - 2:
            log_p, plain_log_p = log_p.gather(1, ids.argsort()), plain_log_p.gather(1, plain_ids.argsort())
        difference = (log_p - plain_log_p).abs().max().item()
        assert difference > 1e-9 or torch.equal(ids, plain_ids)
        worst, tokens = max(worst, difference), torch.randint(vocab_size, (len(lengths),))
        rows = torch.randint(len(lengths), (len(lengths),))
        for past in pasts:
            past.select_rows(rows)
    return worst


@torch.no_grad()
def assert_same_steps(model: Transformer, lengths: list[int], n_steps: int, n: int | None = None) -> None:
    assert worst_step(compiled.accelerate_decoding(model), CachedStepper(model), lengths, n_steps, n) < 1e-9


@of_all_sizes
def test_steps_are_the_same(sizes: dict[str, Any], src_lengths: list[int], tgt_lengths: list[int]) -> None:
    model = random_model(6, **sizes)
    assert_same_steps(model, src_lengths, 3)
    if "vocab_size" in sizes:
        for likeliest in (1, 2, 5, sizes["vocab_size"] - 3):
            assert_same_steps(model, src_lengths, 2, likeliest)


def test_many_steps_of_long_sources() -> None:
    assert_same_steps(random_model(5, n_layers=1, max_len=200), [4, 129, 200], 140)


def test_many_rows_of_many_lengths() -> None:
    """More rows and tokens than are taken at a time, and a sentence that is longer than a group."""
    assert_same_steps(random_model(1, max_len=200), [*range(1, 12)] * 20 + [150, 3], 5)


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.2)])
@pytest.mark.parametrize("n", [15, 33, 64, 129])
def test_steps_in_lower_dtypes_differ_by_their_rounding(dtype: torch.dtype, tolerance: float, n: int) -> None:
    model = lower_model(240 + n).to(dtype)
    ours = compiled.accelerate_decoding(model)
    assert 0 < worst_step(ours, CachedStepper(model.double()), [n, 3], 4) < tolerance
