"""The compiled decoder against the plain model."""

import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from conftest import BOS, EOS, PAD, needs_compiled, random_ids, random_model
from hypothesis import given
from hypothesis import strategies as st
from passes import set_distinct_eps, worst_step_deviation
from torch import Tensor

from minitrans.compiled import stepper
from minitrans.compiled.library import DTYPE_SUFFIXES, call_function
from minitrans.compiled.plan import read_plan
from minitrans.compiled.stepper import CompiledStepper
from minitrans.model.decoding import CachedStepper, beam_search, greedy_decode
from minitrans.model.transformer import Transformer

pytestmark = needs_compiled

V = 11
LENGTHS = [4, 7, 1, 6, 2, 7, 3]


def compiled_stepper(model: Transformer) -> CompiledStepper:
    return CompiledStepper(read_plan(model))


def likeliest_first_tokens(fast: CompiledStepper, n: int) -> tuple[Tensor, Tensor]:
    return fast.next_tokens(torch.tensor([BOS]), fast.begin(torch.tensor([[7, EOS]]), 1), n)


@given(
    seed=st.integers(0, 2**20),
    sizes=st.sampled_from([(6, 2, 4, 13), (12, 3, None, 5), (33, 1, 7, 40), (7, 5, 1, 3)]),
    n_layers=st.integers(1, 3),
    vocab_size=st.sampled_from([6, 11, 255, 256, 257, 600]),  # around the number of words scored at a time
    tied=st.booleans(),
)
def test_every_step_equals_the_full_masked_pass(
    seed: int, sizes: tuple[int, int, int | None, int], n_layers: int, vocab_size: int, tied: bool
) -> None:
    widths: Any = dict(zip(("d_model", "n_heads", "d_head", "d_ff"), sizes, strict=True))
    model = random_model(seed, **widths, n_layers=n_layers, vocab_size=vocab_size, tie_embeddings=tied)
    set_distinct_eps(model)
    assert worst_step_deviation(model, compiled_stepper(model), seed, 9, LENGTHS) < 1e-11


def test_equally_likely_tokens_come_in_the_order_of_their_ids() -> None:
    model = random_model(0, vocab_size=600)
    with torch.no_grad():
        model.output.weight[:] = model.output.weight[0]
    _, ids = likeliest_first_tokens(compiled_stepper(model), 300)
    assert ids.tolist() == [[i for i in range(302) if i not in (PAD, BOS)]]


def log_prob_bytes_by_row(fast: CompiledStepper, src_ids: Tensor) -> list[bytes]:
    """What the stepper computes in a few steps, by row."""
    cache, tokens = fast.begin(src_ids, 4), torch.full((len(src_ids),), BOS)
    rows = [b""] * len(src_ids)
    for _ in range(4):
        log_p, ids = fast.next_tokens(tokens, cache, 3)
        rows = [row + numbers.numpy().tobytes() for row, numbers in zip(rows, log_p, strict=True)]
        tokens = ids[:, 0]
    return rows


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_the_batch_it_is_in(dtype: torch.dtype) -> None:
    """Not even if it is alone in its batch, where several tiles of it are multiplied at once."""
    fast = compiled_stepper(random_model(4, d_ff=150, vocab_size=300).to(dtype))
    src_ids = random_ids(5, LENGTHS * 9, max(LENGTHS))
    together = log_prob_bytes_by_row(fast, src_ids)
    assert [log_prob_bytes_by_row(fast, row[row != PAD][None])[0] for row in src_ids[:9]] == together[:9]
    assert log_prob_bytes_by_row(fast, src_ids.flip(0)) == together[::-1]


def test_several_threads_may_use_one_stepper() -> None:
    model = random_model(8, tie_embeddings=False)
    fast = compiled_stepper(model)
    batches = [random_ids(seed, LENGTHS, max(LENGTHS)) for seed in range(6)]
    want = [greedy_decode(fast, batch) for batch in batches]
    with ThreadPoolExecutor(3) as pool:
        decoded = pool.map(lambda _: [greedy_decode(fast, batch) for _ in range(10) for batch in batches], range(3))
    assert list(decoded) == [want * 10] * 3


def test_everything_is_on_the_cpu_whatever_the_default_device() -> None:
    fast, src_ids = compiled_stepper(random_model(9)), random_ids(10, LENGTHS, max(LENGTHS))
    before = beam_search(fast, src_ids, 2)
    with torch.device("meta"):
        assert beam_search(fast, src_ids, 2) == before


def test_a_stepper_keeps_the_weights_it_was_made_from() -> None:
    model, src_ids = random_model(9), random_ids(10, LENGTHS, max(LENGTHS))
    fast = compiled_stepper(model)
    before = log_prob_bytes_by_row(fast, src_ids)
    with torch.no_grad():
        for tensor in (*model.parameters(), model.positions):
            tensor.zero_()
    del model
    assert log_prob_bytes_by_row(fast, src_ids) == before


def test_a_step_that_fails_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, src_ids = compiled_stepper(random_model(9)), random_ids(10, LENGTHS, max(LENGTHS))
    state, tokens, call = fast.begin(src_ids, 3), torch.ones(len(src_ids), dtype=torch.int64), fast._call
    want = fast.next_tokens(tokens, fast.begin(src_ids, 3), 2)
    monkeypatch.setattr(fast, "_call", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        fast.next_tokens(tokens, state, 2)
    monkeypatch.setattr(fast, "_call", call)
    assert all(map(torch.equal, fast.next_tokens(tokens, state, 2), want))


def test_the_memory_of_a_stepper_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Mock(wraps=call_function)
    monkeypatch.setattr(stepper, "call_function", calls)
    fast = compiled_stepper(random_model(11))
    made = fast._stepper
    (reference,) = weakref.getweakrefs(fast)
    assert isinstance(finalizer := reference.__callback__, weakref.finalize)
    assert not finalizer.atexit  # when a daemon thread may still be decoding
    assert [made_call.args[2] for made_call in calls.mock_calls] == ["make"]
    del fast
    assert [freed.args[1:] for freed in calls.mock_calls[1:]] == [(torch.float64, "free", made)]


def test_a_source_of_nothing_but_padding_does_not_affect_other_rows() -> None:
    fast, src_ids = compiled_stepper(random_model(12)), random_ids(13, [4, 0, 7], 7)
    assert [log_prob_bytes_by_row(fast, src_ids)[row] for row in (0, 2)] == log_prob_bytes_by_row(fast, src_ids[[0, 2]])
    assert greedy_decode(fast, src_ids)[1].ids == greedy_decode(CachedStepper(random_model(12)), src_ids)[1].ids


def test_an_empty_batch_can_be_decoded() -> None:
    fast = compiled_stepper(random_model(16))
    state = fast.begin(torch.empty(0, 3, dtype=torch.int64), 1)
    assert [len(each) for each in fast.next_tokens(torch.empty(0, dtype=torch.int64), state, 2)] == [0, 0]


MEMORY_LIMIT_SCRIPT = """
import resource, torch
from minitrans.compiled import plan, stepper, training
from minitrans.model.transformer import Transformer, TransformerConfig
torch.set_num_threads(1)
sizes = {"d_model": 4, "n_heads": 1, "d_ff": 4, "n_layers": 1, "max_len": 20000}
plan, ids = plan.read_plan(Transformer(TransformerConfig(9, 0, 1, 2, **sizes))), torch.full((1, 20000), 7)
fast, library = stepper.CompiledStepper(plan), training.training_library()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**28,) * 2)
try:
    torch.empty(2**30, dtype=torch.uint8)
    raise SystemExit(77)  # the limit has no effect, as in an emulator
except RuntimeError:
    pass
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much memory it has")
@pytest.mark.parametrize(
    ("work", "code", "said"),
    [
        ("fast.begin(ids, 1)", 1, "MemoryError: there is not enough memory for compiled code"),
        ("training.batch_loss(plan, ids, ids, ids, 0.1, torch.float32)", 2, "minitrans: error: there is not enough"),
    ],
)
def test_running_out_of_memory_is_reported(work: str, code: int, said: str) -> None:
    ended = subprocess.run([sys.executable, "-c", MEMORY_LIMIT_SCRIPT + work], capture_output=True, text=True)
    if ended.returncode == 77:
        pytest.skip("the system does not enforce the limit")
    assert (ended.returncode, said in ended.stderr) == (code, True)


def test_invalid_ids_lengths_and_counts_are_refused() -> None:
    fast = compiled_stepper(random_model(14, max_len=8))
    for lengths, capacity in (([9, 4], 1), ([4, 9], 1), ([4, 3], 9)):
        with pytest.raises(ValueError, match=r"9 tokens are more than model\.max_len \(8\)"):
            fast.begin(random_ids(1, lengths, max(lengths)), capacity)
    for ids in ([[V, EOS]], [[-1, EOS]]):
        with pytest.raises(IndexError):
            fast.begin(torch.tensor(ids), 1)
    with pytest.raises(ValueError, match="there is padding before a token"):
        fast.begin(torch.tensor([[PAD, 7, EOS]]), 1)
    cache = fast.begin(torch.tensor([[7, EOS]]), 1)
    with pytest.raises(IndexError):
        fast.next_tokens(torch.tensor([V]), cache, 1)
    for n in (0, 2):
        with pytest.raises(ValueError, match=f"{n} tokens for a cache of 1 rows"):
            fast.next_tokens(torch.tensor([BOS] * n, dtype=torch.int64), cache, 1)
    with pytest.raises(ValueError, match="n is 0"):
        fast.next_tokens(torch.tensor([BOS]), cache, 0)
    fast.next_tokens(torch.tensor([BOS]), cache, 1)
    with pytest.raises(ValueError, match="the cache holds 1 of 1 tokens: no room for 1 more"):
        fast.next_tokens(torch.tensor([BOS]), cache, 1)


def test_more_continuations_than_there_are_give_all_of_them() -> None:
    _, ids = likeliest_first_tokens(compiled_stepper(random_model(15)), 100)
    assert sorted(ids[0].tolist()) == [i for i in range(V) if i not in (PAD, BOS)]


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("parameter", ["decoder.norm.bias", "output.weight"])  # of which one row gives one logit
@pytest.mark.parametrize("dtype", DTYPE_SUFFIXES)
def test_logits_that_are_not_finite_give_padding(dtype: torch.dtype, parameter: str, value: float) -> None:
    model = random_model(20, tie_embeddings=False).to(dtype)
    with torch.no_grad():
        model.get_parameter(parameter)[0] = value
    _, ids = likeliest_first_tokens(compiled_stepper(model), 2)
    assert ids.tolist() == [[PAD, PAD]]


@pytest.mark.usefixtures("_lesser_processor")
def test_lesser_processors_get_the_same_results() -> None:
    model = random_model(18, vocab_size=300)
    assert worst_step_deviation(model, compiled_stepper(model), 19, 9, LENGTHS) < 1e-11
    test_a_row_does_not_depend_on_the_batch_it_is_in(torch.bfloat16)
