"""Compiled code at its block sizes, one below and one above them, in each dtype, against the plain model."""

from typing import Any

import pytest
import torch
from conftest import needs_compiled, random_model
from passes import assert_same_pass, batch, compiled_forward_backward, plain_forward_backward, worst_step_deviation

from minitrans import compiled
from minitrans.model.transformer import Transformer

pytestmark = needs_compiled

SMALL_BLOCK_EDGES = [n + around for n in (16, 32, 64) for around in (-1, 0, 1)]
ALL_BLOCK_EDGES: list[int] = [*SMALL_BLOCK_EDGES, *range(125, 130), 255, 256, 257]
Case = tuple[dict[str, int], list[int], list[int]]  # sizes of a model, and lengths of sources and of targets
LENGTH_AND_ROW_CASES: list[Case] = [
    case
    for n in ALL_BLOCK_EDGES
    for case in (
        ({"max_len": 260}, [n, 3], [n - 2, n]),
        ({"max_len": 260}, [n, 1, n - 1, 2], [3, 2, 4, 1]),
        ({}, [1 + i % 3 for i in range(n)], [1 + i % 2 for i in range(n)]),
    )
]
TARGET_LENGTH_CASES: list[Case] = [({"max_len": 260}, [5, 2, 9], [n, 1, n]) for n in ALL_BLOCK_EDGES]
VOCABULARY_CASES: list[Case] = [
    ({"vocab_size": n, "tie_embeddings": tied}, [7, 4, 1], [9, 5, 6])
    for n in (*ALL_BLOCK_EDGES, 511, 512, 513)
    for tied in (True, False)
]
MODEL_SIZE_CASES: list[Case] = [
    ({name: n}, [5, 3, 1, 9], [4, 6, 2, 5])
    for name in ("d_model", "d_head", "d_ff", "n_heads")
    for n in (2, 7, 8, 9, *SMALL_BLOCK_EDGES)
]


def parametrize_sizes(*cases: Case) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("sizes", "src_lengths", "tgt_lengths"),
        [*LENGTH_AND_ROW_CASES, *VOCABULARY_CASES, *MODEL_SIZE_CASES, *cases],
        ids=lambda value: str(value) if len(value) < 5 else f"{len(value)} rows",
    )


def small_weights_model(vocab_size: int) -> Transformer:
    """A model in which rounding errors do not grow from layer to layer."""
    model = random_model(9, d_model=33, n_heads=3, d_head=17, d_ff=65, vocab_size=vocab_size, max_len=140)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.4)
    return model


@parametrize_sizes(*TARGET_LENGTH_CASES)
def test_training_equals_the_plain_pass(sizes: dict[str, Any], src_lengths: list[int], tgt_lengths: list[int]) -> None:
    model = random_model(1, **{"n_layers": 1, "dropout": 0.3, "attention_dropout": 0.2} | sizes).train()
    assert_same_pass(model, batch(src_lengths, tgt_lengths, model.config.vocab_size), 1e-9)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.2)])
@pytest.mark.parametrize("n", [15, 16, 17, 31, 32, 33, 63, 64, 65, *range(125, 130)])
def test_training_in_lower_dtypes_differs_only_by_rounding(dtype: torch.dtype, tolerance: float, n: int) -> None:
    model, ids = small_weights_model(200 + n).train(), batch([n, 3], [4, n], 200 + n)
    exact = plain_forward_backward(model, ids)
    for one, other in zip(compiled_forward_backward(model.float(), ids, dtype), exact, strict=True):
        assert (one.double() - other).norm() <= tolerance * other.norm() + 1e-6


def assert_same_steps(model: Transformer, lengths: list[int], n_steps: int, n: int | None = None) -> None:
    assert worst_step_deviation(model, compiled.compiled_stepper(model), 3, n_steps, lengths, n) < 1e-9


@parametrize_sizes()
def test_steps_equal_the_full_pass(sizes: dict[str, Any], src_lengths: list[int], tgt_lengths: list[int]) -> None:
    model = random_model(6, **sizes)
    assert_same_steps(model, src_lengths, 3)
    if "vocab_size" in sizes:
        for likeliest in (1, 2, 5, sizes["vocab_size"] - 3):
            assert_same_steps(model, src_lengths, 2, likeliest)


def test_many_steps_of_long_sources() -> None:
    assert_same_steps(random_model(5, n_layers=1, max_len=200), [4, 129, 200], 140)


def test_many_rows_of_many_lengths() -> None:
    """More rows and tokens than are computed at a time, and a sentence that is longer than such a group."""
    assert_same_steps(random_model(1, max_len=200), [*range(1, 12)] * 20 + [150, 3], 5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.2)])
@pytest.mark.parametrize("n", [15, 33, 64, 129])
def test_steps_in_lower_dtypes_differ_only_by_rounding(dtype: torch.dtype, tolerance: float, n: int) -> None:
    model = small_weights_model(240 + n).to(dtype)
    stepper = compiled.compiled_stepper(model)
    assert 0 < worst_step_deviation(model.double(), stepper, 3, 4, [n, 3]) < tolerance


@pytest.mark.usefixtures("_lesser_processor")
def test_lesser_processors_train_and_decode_the_same() -> None:
    sizes = {"d_head": 7, "n_heads": 3, "d_ff": 50, "vocab_size": 257, "max_len": 130}
    test_training_equals_the_plain_pass(sizes, [5, 33, 64], [33, 129, 3])
    for dtype, tolerance in (torch.float32, 1e-4), (torch.bfloat16, 0.2):
        test_training_in_lower_dtypes_differs_only_by_rounding(dtype, tolerance, 129)
    test_steps_in_lower_dtypes_differ_only_by_rounding(torch.bfloat16, 0.2, 129)
