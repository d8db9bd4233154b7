"""The compiled training pass against the plain one: the same numbers, gradients and dropout."""

import resource
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from conftest import BOS, EOS, PAD, assert_close, needs_compiled, random_ids, random_model, random_tensor
from hypothesis import given
from hypothesis import strategies as st
from loss_cases import HIDDEN_WEIGHT_DTYPES, loss_and_gradients, make_loss, plain_loss, random_case, with_gradients
from passes import assert_same_pass, batch, compiled_forward_backward, plain_forward_backward, set_distinct_eps
from torch import Tensor

from minitrans.compiled import training
from minitrans.compiled.plan import read_plan
from minitrans.model.layers import DecoderLayer
from minitrans.model.loss import CHUNK_ROWS
from minitrans.model.transformer import Transformer, TransformerConfig

pytestmark = needs_compiled

SMALL_BATCH = batch([5, 3], [4, 4])


def compiled_hidden_states(model: Transformer, src_ids: Tensor, tgt_in: Tensor) -> tuple[Tensor, Tensor]:
    return training.hidden_states(read_plan(model), src_ids, tgt_in, tgt_in >= 0, torch.float64)


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=4),
    st.integers(1, 40),
    st.sampled_from([(6, 2, None), (8, 1, 5), (12, 3, None)]),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from([0.0, 0.3]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_hidden_states_and_gradients_equal_the_plain_pass(
    src_lengths: list[int],
    tgt_length: int,
    sizes: tuple[int, int, int | None],
    p: float,
    attention_p: float,
    tied: bool,
    seed: int,
) -> None:
    widths: Any = dict(zip(("d_model", "n_heads", "d_head"), sizes, strict=True))
    dropout = {"dropout": p, "attention_dropout": attention_p}
    model = random_model(seed, **widths, **dropout, d_ff=10, max_len=50, tie_embeddings=tied).train()
    src_lengths[0] = max(1, src_lengths[0])  # the others may be nothing but padding
    assert_same_pass(model, batch(src_lengths, [tgt_length] * len(src_lengths)))


def test_bfloat16_differs_only_by_its_rounding() -> None:
    config = TransformerConfig(50, PAD, BOS, EOS, d_model=64, n_heads=4, d_ff=128, n_layers=2, max_len=50, dropout=0.1)
    ids, errors = batch([9, 4], [12, 12]), [0.0, 0.0]
    for seed in range(5):  # with one seed alone, ReLUs near 0 would decide
        torch.manual_seed(seed)
        model = Transformer(config).train()
        exact = plain_forward_backward(model.double(), ids)
        lower = compiled_forward_backward(model.float(), ids, torch.bfloat16)
        with torch.autocast("cpu", torch.bfloat16):
            plain = plain_forward_backward(model, ids)
        assert [x.dtype for x in lower] == [torch.bfloat16, *[torch.float32] * (len(lower) - 1)]
        for i, ours in enumerate((lower, plain)):
            errors[i] += sum(float((x - truth).norm() / truth.norm()) for x, truth in zip(ours, exact, strict=True))
    assert 0 < errors[0] <= 1.2 * errors[1]


@pytest.mark.parametrize("output_too", [False, True])
def test_an_embedding_has_the_right_gradient_also_if_the_output_uses_it(output_too: bool) -> None:
    """What `sum` sends back is a single element, expanded to every place, to which compiled code has to add."""
    model = random_model(4).train()
    plain = model.hidden_states(*SMALL_BATCH[:2]).flatten(0, 1), model.output.weight
    got, want = (
        torch.autograd.grad(hidden.sum() + output_too * output.sum(), model.src_embedding.weight)[0]
        for hidden, output in (compiled_hidden_states(model, *SMALL_BATCH[:2]), plain)
    )
    assert_close([got], [want], 1e-11)


def set_distinct_dropout(model: Transformer) -> None:
    both: Any = (*model.encoder.layers, *model.decoder.layers)
    for i, layer in enumerate(both):
        layer.self_attn.dropout, layer.dropout.p, layer.ff.dropout.p = 0.1 * i, 0.1 + 0.1 * i, 0.6
        if isinstance(layer, DecoderLayer):
            layer.cross_attn.dropout = 0.5 - 0.1 * i
    model.dropout.p = 0.7


def share_layers(model: Transformer) -> None:
    for stack in (model.encoder, model.decoder):
        stack.layers[1] = stack.layers[0]


@pytest.mark.parametrize("change", [set_distinct_dropout, share_layers, set_distinct_eps])
def test_layers_may_differ_or_be_shared(change: Callable[[Transformer], None]) -> None:
    model = random_model(4).train()
    change(model)
    assert_same_pass(model, SMALL_BATCH)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("part", ["src_embedding", "tgt_embedding", "output", "encoder", "decoder.layers.1", "norm"])
def test_frozen_parameters_get_no_gradient_and_change_no_others(part: str, tied: bool) -> None:
    gradients = []
    for mode in ("require", "off"):
        model = random_model(4, tie_embeddings=tied).train()
        for name, parameter in model.named_parameters(remove_duplicate=False):
            parameter.requires_grad_(parameter.requires_grad and part not in name)
        make_loss(model, mode)(*SMALL_BATCH, 0.1).backward()
        assert [p.grad is not None for p in model.parameters()] == [p.requires_grad for p in model.parameters()]
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert_close(gradients[0], gradients[1], 1e-11)


@pytest.mark.parametrize(("src_length", "tgt_length"), [(18, 4), (4, 18)])
def test_a_sequence_that_is_too_long_is_refused(src_length: int, tgt_length: int) -> None:
    with pytest.raises(ValueError, match="18 tokens"):
        compiled_hidden_states(random_model(4), *batch([src_length], [tgt_length])[:2])


def test_ids_need_not_be_contiguous() -> None:
    model, columns = random_model(4), [ids.T.contiguous().T for ids in SMALL_BATCH[:2]]
    assert torch.equal(compiled_hidden_states(model, *columns)[0], compiled_hidden_states(model, *SMALL_BATCH[:2])[0])


@pytest.mark.parametrize("wrong", [-1, 11])
@pytest.mark.parametrize("side", [0, 1, 2])
def test_ids_beyond_the_vocabulary_are_refused(wrong: int, side: int) -> None:
    ids = [each.clone() for each in SMALL_BATCH]
    ids[side][0, 0] = wrong
    with pytest.raises(IndexError, match=rf"^ids {wrong} to|to {wrong} are not all in the vocabulary"):
        make_loss(random_model(4), "require")(ids[0], ids[1], ids[2], 0.1)


def test_ids_of_other_shapes_or_dtypes_are_refused() -> None:
    src_ids, tgt_in, tgt_out = SMALL_BATCH
    loss = make_loss(random_model(4), "require")
    for ids in ((src_ids[:1], tgt_in, tgt_out), (src_ids, tgt_in[:1], tgt_out), (src_ids, tgt_in[:, 1:], tgt_out)):
        with pytest.raises(ValueError, match=r"^ids of \[\d, \d+\], .* do not match"):
            loss(*ids, 0.1)
    for ids in ((src_ids.int(), tgt_in, tgt_out), (src_ids, tgt_in, tgt_out.int())):
        with pytest.raises(TypeError, match=r"^ids are torch\.int32 on cpu; they must be int64"):
            loss(*ids, 0.1)


def test_padding_may_be_anywhere_and_rows_may_be_empty() -> None:
    """In the target the tokens before real ones are read, whatever they are."""
    model = random_model(4, dropout=0.3, attention_dropout=0.3).train()
    src_ids, tgt_in, tgt_out = batch([6, 5, 4, 1], [5, 4, 1, 5])
    src_ids[0, 2], src_ids[1, 0], src_ids[3] = PAD, PAD, PAD
    tgt_in[0, 2], tgt_out[0, 1], tgt_out[0, 4], tgt_out[2] = PAD, PAD, PAD, PAD
    got, want = (make_loss(model, mode) for mode in ("require", "off"))
    ids = src_ids, tgt_in, tgt_out
    assert_close(loss_and_gradients(got, model, ids), loss_and_gradients(want, model, ids), 1e-11)
    nothing = loss_and_gradients(got, model, (src_ids, tgt_in, torch.full_like(tgt_out, PAD)))
    assert not any(x.any() for x in nothing)


@pytest.mark.parametrize("size", [1e4, 1e8])
def test_large_scores_of_attention(size: float) -> None:
    model = random_model(4, n_layers=1).train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter[:12] *= size**0.5 if "w_qkv.weight" in name else 1
    assert_same_pass(model, SMALL_BATCH, 1e-6)


@pytest.mark.parametrize("p", [0.003, 0.9])
def test_very_low_and_very_high_dropout(p: float) -> None:
    model = random_model(4, max_len=50, dropout=p, attention_dropout=p).train()
    assert_same_pass(model, batch([30, 40], [50, 20]), 1e-10)


def test_passes_may_overlap_and_run_backward_twice() -> None:
    model, others = random_model(4), [SMALL_BATCH, batch([9, 9], [9, 2])]
    (a, b), c = [make_loss(model, "require")(*ids, 0.1) for ids in others], make_loss(random_model(5), "require")
    c(*others[1], 0.1)
    want = [compiled_forward_backward(model, ids)[2:] for ids in others]
    parameters = list(model.parameters())
    first, second, third = (torch.autograd.grad(x, parameters, retain_graph=True) for x in (a, b, a))
    for got, right in (first, want[0]), (second, want[1]), (third, want[0]):
        assert all(map(torch.equal, got, right))
    tied = random_model(4, tie_embeddings=True)
    mean = make_loss(tied, "require")(*SMALL_BATCH, 0.1) / (SMALL_BATCH[2] != PAD).sum()
    mean.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        mean.backward()


def test_parameters_may_get_other_memory_before_the_backward_pass() -> None:
    model = random_model(4)
    parameters, of_batch = list(model.parameters()), make_loss(model, "require")
    want, loss = torch.autograd.grad(of_batch(*SMALL_BATCH, 0.1), parameters), of_batch(*SMALL_BATCH, 0.1)
    for parameter in parameters:
        parameter.data = torch.full_like(parameter, torch.nan)
    others = [torch.full_like(parameter, torch.nan) for parameter in parameters]  # in memory just freed
    assert all(map(torch.equal, torch.autograd.grad(loss, parameters), want))
    assert others  # alive until here


def test_nan_in_a_feed_forward_network_is_not_lost() -> None:
    model = random_model(4)
    model.get_parameter("decoder.layers.1.ff.w_1.weight").data[0, 0] = torch.nan
    assert all(run(model, SMALL_BATCH)[1].isnan() for run in (compiled_forward_backward, plain_forward_backward))


def test_no_tape_is_released_when_the_process_ends() -> None:
    hidden: Any = compiled_hidden_states(random_model(4), *SMALL_BATCH[:2])[0]
    (reference,) = weakref.getweakrefs(hidden.grad_fn.saved_tensors[-1])
    assert isinstance(finalizer := reference.__callback__, weakref.finalize)
    assert not finalizer.atexit  # when a daemon thread may still be in its backward pass


def test_a_tape_is_released_after_the_backward_pass_even_if_the_loss_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    of_batch, call = make_loss(random_model(4), "require"), Mock(wraps=training._call_function)
    monkeypatch.setattr(training, "_call_function", call)
    loss = of_batch(*SMALL_BATCH, 0.1)
    for keep, released in ((True, 0), (False, 1)):
        loss.backward(retain_graph=keep)
        assert [each.args[0] for each in call.mock_calls].count("release") == released


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_nothing_is_left_over_from_another_batch(dtype: torch.dtype) -> None:
    """A batch that overflows everywhere leaves its tape and its threads' memory full of NaN."""
    narrow = random_model(4, d_model=20, n_heads=2, d_ff=20, dropout=0.3, attention_dropout=0.3).train()
    wide = random_model(4, d_model=48, n_heads=2, d_ff=48).train()
    for model in narrow, wide:
        model.to(torch.promote_types(dtype, torch.float32))
    before = compiled_forward_backward(narrow, SMALL_BATCH, dtype)
    with torch.no_grad():
        wide.src_embedding.weight.fill_(torch.nan)
    assert compiled_forward_backward(wide, batch([9] * 40, [11] * 40), dtype)[-1].isnan().all()
    assert all(map(torch.equal, before, compiled_forward_backward(narrow, SMALL_BATCH, dtype)))


@pytest.mark.parametrize("name", ["src_embedding.weight", "encoder.norm.bias", "decoder.layers.1.ff.w_2.weight"])
def test_parameters_that_are_no_longer_contiguous_are_refused(name: str) -> None:
    model = random_model(4).train()
    loss, parameter = make_loss(model, "require"), model.get_parameter(name)
    parameter.data = torch.stack([parameter.data] * 2, -1)[..., 0]
    with pytest.raises(AssertionError):
        loss(*SMALL_BATCH, 0.1)


def test_the_number_of_threads_changes_only_the_order_of_sums() -> None:
    results, model = [], random_model(4, max_len=40)
    for n in (1, 2, 3, 7):
        torch.set_num_threads(n)
        results.append(compiled_forward_backward(model, batch(range(1, 41), range(40, 0, -1))))
        assert_same_pass(model, SMALL_BATCH)  # of fewer sentences than threads
    for others in results[1:]:
        assert_close(others, results[0], 1e-12)
        assert not all(map(torch.equal, others, results[0]))  # the numbers of threads did differ


@pytest.mark.parametrize("which", ["hidden states", "loss"])
def test_a_second_derivative_is_refused(which: str) -> None:
    model = random_model(4).train()
    if which == "loss":
        x = random_tensor(5, 2, 3, 6).requires_grad_()
        y = training.linear_cross_entropy(x, model.output.weight, random_ids(1, [3, 2], 3), PAD, 0.1)
    else:
        x, y = model.src_embedding.weight, compiled_hidden_states(model, *SMALL_BATCH[:2])[0]
    (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


# The loss from hidden states: what it shares with the plain one is in tests/model/test_loss.py


@pytest.mark.parametrize("rows", [1, *range(125, 130), 300])
@pytest.mark.parametrize("vocab", [1, 2, 251, 252, 253, 30_000])  # plus PAD + 1; the last in blocks of rows
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_hidden_states_equals_the_plain_one(rows: int, vocab: int, smoothing: float) -> None:
    hidden, zeros = random_tensor(0, 1, rows, 12).requires_grad_(), torch.zeros(PAD + 1, 12, dtype=torch.float64)
    weight = torch.cat([zeros, random_tensor(1, vocab, 12)]).requires_grad_()  # no target is padding
    case = hidden, weight, (torch.arange(rows) * 37 % vocab)[None] + PAD + 1, smoothing
    assert_close(with_gradients(training.linear_cross_entropy, *case), with_gradients(plain_loss, *case), 1e-11)


def test_only_rows_that_are_not_padding_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    compute = Mock(return_value=7.0)
    monkeypatch.setattr(training, "_call_function", compute)
    given = random_case([5, 2], padded=1)
    assert training.linear_cross_entropy(*given, PAD, 0.1).item() == 7.0
    name, _, hidden, weight, target, _, _, *sizes = compute.call_args.args
    assert (name, compute.call_count, hidden.shape, weight.shape) == ("linear_cross_entropy", 1, (7, 6), (11, 6))
    assert (sizes, target.tolist()) == ([7, 6, 11, 0.1, 1 / 7], [i for i in given[2].flatten().tolist() if i != PAD])


@pytest.mark.parametrize(("dtype", "of_weight"), HIDDEN_WEIGHT_DTYPES)
def test_the_dtype_of_the_hidden_states_decides_not_autocast(dtype: torch.dtype, of_weight: torch.dtype) -> None:
    hidden, weight, tgt_out = random_case([CHUNK_ROWS + 3, 70])
    case = hidden.detach().to(dtype).requires_grad_(), weight.detach().to(of_weight).requires_grad_(), tgt_out
    want = with_gradients(training.linear_cross_entropy, *case)
    with torch.autocast("cpu", torch.bfloat16):
        loss = training.linear_cross_entropy(*case, PAD, 0.1)
    assert all(map(torch.equal, (loss.detach(), *torch.autograd.grad(loss, case[:2])), want))
    assert [x.dtype for x in want] == [of_weight, dtype, of_weight]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux reports the memory in use this way")
def test_the_memory_kept_does_not_grow_with_the_batch() -> None:
    """16 MB of exponentials, not all 120 MB of them; the memory that threads keep is still there after the call."""
    hidden, weight = torch.ones(3000, 8, requires_grad=True), torch.ones(10_000, 8, requires_grad=True)
    pages = Path("/proc/self/statm").read_text().split()[1]
    with_gradients(training.linear_cross_entropy, hidden, weight, torch.zeros(3000, dtype=torch.int64), 0.1)
    more = int(Path("/proc/self/statm").read_text().split()[1]) - int(pages)
    assert more * resource.getpagesize() < 40e6
