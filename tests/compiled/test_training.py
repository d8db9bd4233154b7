"""The training pass on compiled kernels against the plain one: the same numbers, gradients and dropout."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import BOS, EOS, PAD, assert_close, needs_compiled, random_ids, random_model, random_tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from losses import loss_of
from modes import assert_same_training, batch, compiled_training, own_eps, plain_training, set_dropout
from torch import Tensor

from minitrans.compiled import training
from minitrans.compiled.plan import read_plan
from minitrans.model.layers import DecoderLayer
from minitrans.model.transformer import Transformer, TransformerConfig

pytestmark = needs_compiled

SENTENCES = batch([5, 3], [4, 4])


def hidden_states(model: Transformer, src_ids: Tensor, tgt_in: Tensor) -> tuple[Tensor, Tensor]:
    return training.hidden_states(read_plan(model), src_ids, tgt_in, torch.float64)


@settings(max_examples=40)
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
    d_model, n_heads, d_head = sizes
    model = random_model(
        seed, d_model=d_model, n_heads=n_heads, d_head=d_head, d_ff=10, max_len=50, tie_embeddings=tied
    )
    set_dropout(model.train(), p, attention_p)
    src_lengths[0] = max(1, src_lengths[0])  # the others may be nothing but padding
    assert_same_training(model, batch(src_lengths, [tgt_length] * len(src_lengths)))


def test_in_bfloat16_they_differ_by_its_rounding() -> None:
    torch.manual_seed(0)
    config = TransformerConfig(50, PAD, BOS, EOS, d_model=64, n_heads=4, d_ff=128, n_layers=2, max_len=50, dropout=0.1)
    model, ids = Transformer(config).train(), batch([9, 4], [12, 12])
    exact = plain_training(model.double(), ids)
    lower = compiled_training(model.float(), ids, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        plain = plain_training(model, ids)
    assert [x.dtype for x in lower] == [torch.bfloat16, *[torch.float32] * (len(lower) - 1)]
    for a, b, truth in zip(lower, plain, exact, strict=True):
        errors = [((x.double() - truth).norm() / truth.norm()).item() for x in (a, b)]
        assert errors[0] <= 1.5 * errors[1] + 0.01


def test_the_same_seed_gives_the_same_bits() -> None:
    model, ids = random_model(3).float().train(), batch([5, 3, 1], [4, 4, 4])
    set_dropout(model, 0.3, 0.1)
    first, second = (compiled_training(model, ids, torch.float32) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("output_too", [False, True])
def test_a_table_has_the_right_gradient_whoever_reads_it(output_too: bool) -> None:
    """What `sum` sends back is a single element, seen at every place, and can be added to."""
    model = random_model(4).train()
    plain = model.hidden(*SENTENCES[:2]), model.output.weight
    got, want = (
        torch.autograd.grad(hidden.square().sum() + output_too * output.sum(), model.src_embedding.weight)[0]
        for hidden, output in (hidden_states(model, *SENTENCES[:2]), plain)
    )
    assert_close([got], [want], 1e-11)


def test_the_gradient_of_a_tied_table_passes_both_embeddings() -> None:
    _, output = hidden_states(random_model(4).train(), *SENTENCES[:2])
    first = output.grad_fn
    assert first is not None
    second = next(node for node, _ in first.next_functions if node is not None)
    assert first.name() == second.name() == "_KernelBackward"


def own_probabilities(model: Transformer) -> None:
    both: Any = (*model.encoder.layers, *model.decoder.layers)
    for i, layer in enumerate(both):
        layer.self_attn.dropout, layer.dropout.p, layer.ff.dropout.p = 0.1 * i, 0.1 + 0.1 * i, 0.6
        if isinstance(layer, DecoderLayer):
            layer.cross_attn.dropout = 0.5 - 0.1 * i
    model.dropout.p = 0.7


def an_encoder_in_eval_mode(model: Transformer) -> None:
    set_dropout(model, 0.4, 0.0)
    model.encoder.eval()


def shared_layers(model: Transformer) -> None:
    for stack in (model.encoder, model.decoder):
        stack.layers[1] = stack.layers[0]


@pytest.mark.parametrize("change", [own_probabilities, an_encoder_in_eval_mode, shared_layers, own_eps])
def test_parts_may_differ(change: Callable[[Transformer], None]) -> None:
    model = random_model(4).train()
    change(model)
    assert_same_training(model, SENTENCES)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("part", ["src_embedding", "tgt_embedding", "output", "encoder", "decoder.layers.1", "norm"])
def test_what_is_frozen_gets_no_gradient_and_changes_no_other(part: str, tied: bool) -> None:
    gradients = []
    for mode in ("require", "off"):
        model = random_model(4, tie_embeddings=tied).train()
        for name, parameter in model.named_parameters(remove_duplicate=False):
            parameter.requires_grad_(parameter.requires_grad and part not in name)
        loss_of(model, mode)(*SENTENCES, 0.1).backward()
        assert [p.grad is not None for p in model.parameters()] == [p.requires_grad for p in model.parameters()]
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert_close(gradients[0], gradients[1], 1e-11)


@pytest.mark.parametrize(("src_length", "tgt_length"), [(18, 4), (4, 18)])
def test_a_sequence_that_is_too_long_is_refused(src_length: int, tgt_length: int) -> None:
    with pytest.raises(ValueError, match="18 tokens"):
        hidden_states(random_model(4), *batch([src_length], [tgt_length])[:2])


def test_ids_need_not_lie_one_after_another() -> None:
    model, columns = random_model(4), [ids.T.contiguous().T for ids in SENTENCES[:2]]
    assert torch.equal(hidden_states(model, *columns)[0], hidden_states(model, *SENTENCES[:2])[0])


@pytest.fixture(params=["embed", "norm", "feed-forward", "attention", "loss"])
def result(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor]:
    """What a kernel is told, (11, 6) or (B, T, 6), and what it gives."""
    ids, mask = random_ids(1, [3, 2], 3), torch.ones(1, 1, 3, 3, dtype=torch.bool)
    plan = read_plan(random_model(4).train())
    attention, feed_forward, *_ = plan.encoder
    x = random_tensor(5, *((11, 6) if request.param == "embed" else (2, 3, 6))).requires_grad_()
    match request.param:
        case "embed":
            return x, training.embed(plan, x, ids, torch.float64)[0]
        case "norm":
            return x, training.norm(x, plan.encoder_norm)
        case "loss":
            return x, training.linear_cross_entropy(x, plan.output, ids, PAD, 0.1)
        case kind:
            return x, training.sublayer(plan, attention if kind == "attention" else feed_forward, x, mask)


def test_a_gradient_may_be_one_number_seen_everywhere(result: tuple[Tensor, Tensor]) -> None:
    x, y = result
    (one,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    (ones,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert torch.equal(one, ones)
    assert one.any()


def test_a_second_derivative_is_refused(result: tuple[Tensor, Tensor]) -> None:
    x, y = result
    (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
