"""The training pass on compiled kernels against the plain one: the same numbers, gradients and dropout."""

from collections.abc import Callable, Iterable
from typing import cast

import pytest
import torch
from conftest import BOS, EOS, PAD, needs_compiled, random_ids, random_model, random_tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from losses import loss_of
from torch import Tensor, nn

from minitrans.compiled import training
from minitrans.compiled.plan import read_plan
from minitrans.model.dropout import Dropout
from minitrans.model.layers import DecoderLayer, EncoderLayer
from minitrans.model.transformer import Transformer, TransformerConfig

pytestmark = needs_compiled


def batch(src_lengths: list[int], tgt_lengths: list[int]) -> tuple[Tensor, Tensor]:
    return random_ids(1, src_lengths, max(src_lengths)), random_ids(2, tgt_lengths, max(tgt_lengths))


def ours(model: Transformer, src_ids: Tensor, tgt_in: Tensor) -> tuple[Tensor, Tensor]:
    weight = model.output.weight
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else weight.dtype
    return training.hidden_states(read_plan(model), src_ids, tgt_in, dtype)


def plain(model: Transformer, src_ids: Tensor, tgt_in: Tensor) -> tuple[Tensor, Tensor]:
    return model.hidden(src_ids, tgt_in), model.output.weight


def both(model: Transformer, src_ids: Tensor, tgt_in: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Hidden states and the gradient at every parameter, by the kernels and by the plain pass; the same dropout."""
    results = []
    for run in (ours, plain):
        torch.manual_seed(7)
        hidden, output = run(model, src_ids, tgt_in)
        weights = torch.sin(torch.arange(hidden.numel(), dtype=torch.float64)).view_as(hidden).to(hidden.dtype)
        end = (hidden * weights).sum() + output.square().sum()
        results.append([hidden.detach(), *torch.autograd.grad(end, list(model.parameters()))])
    return results[0], results[1]


def worst(found: list[Tensor], theirs: list[Tensor]) -> float:
    pairs = zip(found, theirs, strict=True)
    return max(((a - b).abs().max() / b.abs().max().clamp_min(1e-300)).item() for a, b in pairs)


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
    config = TransformerConfig(
        13,
        PAD,
        BOS,
        EOS,
        d_model,
        n_heads,
        d_head,
        d_ff=10,
        n_layers=2,
        max_len=50,
        dropout=p,
        attention_dropout=attention_p,
        tie_embeddings=tied,
    )
    torch.manual_seed(seed)
    model = Transformer(config).double().train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    src_lengths[0] = max(1, src_lengths[0])  # the others may be nothing but padding
    src_ids, tgt_in = batch(src_lengths, [tgt_length] * len(src_lengths))
    assert worst(*both(model, src_ids, tgt_in)) <= 1e-11


def test_in_bfloat16_they_differ_by_its_rounding() -> None:
    torch.manual_seed(0)
    config = TransformerConfig(50, PAD, BOS, EOS, d_model=64, n_heads=4, d_ff=128, n_layers=2, max_len=50, dropout=0.1)
    model = Transformer(config).train()
    src_ids, tgt_in = batch([9, 4], [12, 12])
    exact = both(model.double(), src_ids, tgt_in)[1]
    with torch.autocast("cpu", torch.bfloat16):
        found, theirs = both(model.float(), src_ids, tgt_in)
    assert found[0].dtype == torch.bfloat16
    assert all(gradient.dtype == torch.float32 for gradient in found[1:])
    for a, b, truth in zip(found, theirs, exact, strict=True):
        errors = [((x.double() - truth).norm() / truth.norm()).item() for x in (a, b)]
        assert errors[0] <= 1.5 * errors[1] + 0.01


def test_the_same_seed_gives_the_same_bits() -> None:
    torch.manual_seed(3)
    model = Transformer(TransformerConfig(13, PAD, BOS, EOS, dropout=0.3, attention_dropout=0.1)).train()
    src_ids, tgt_in = batch([5, 3, 1], [4, 4, 4])
    first, second = both(model, src_ids, tgt_in)[0], both(model, src_ids, tgt_in)[0]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_table_that_nothing_else_reads_has_a_gradient_of_its_own() -> None:
    model = random_model(4).train()
    hidden, _ = ours(model, *batch([5, 3], [4, 4]))
    found, theirs = (
        torch.autograd.grad(h.square().sum(), model.src_embedding.weight)[0]
        for h in (hidden, plain(model, *batch([5, 3], [4, 4]))[0])
    )
    assert (found - theirs).abs().max() <= 1e-11 * theirs.abs().max()


def test_a_gradient_that_is_one_number_everywhere_can_be_added_to() -> None:
    """What `sum` sends back is a single element, seen at every place."""
    model = random_model(4).train()
    gradients = []
    for run in (ours, plain):
        hidden, output = run(model, *batch([5, 3], [4, 4]))
        gradients.append(torch.autograd.grad(hidden.square().sum() + output.sum(), model.src_embedding.weight)[0])
    assert (gradients[0] - gradients[1]).abs().max() <= 1e-11 * gradients[1].abs().max()


def test_the_gradient_of_a_tied_table_passes_both_embeddings() -> None:
    model = random_model(4).train()
    _, output = ours(model, *batch([5, 3], [4, 4]))
    first = output.grad_fn
    assert first is not None
    second = next(node for node, _ in first.next_functions if node is not None)
    assert first.name() == second.name() == "_EmbedBackward"


def test_each_dropout_has_its_own_probability() -> None:
    model = random_model(4).train()
    for layer in [*model.encoder.layers, *model.decoder.layers]:
        layer.dropout.p, layer.ff.dropout.p = 0.2, 0.6
    assert worst(*both(model, *batch([5, 3], [4, 4]))) <= 1e-11
    for i, layer in enumerate(
        cast(Iterable[EncoderLayer | DecoderLayer], [*model.encoder.layers, *model.decoder.layers])
    ):
        layer.self_attn.dropout = 0.1 * i
        if isinstance(layer, DecoderLayer):
            layer.cross_attn.dropout, layer.dropout.p = 0.5 - 0.1 * i, 0.1 + 0.1 * i
    model.dropout.p = 0.7
    assert worst(*both(model, *batch([5, 3], [4, 4]))) <= 1e-11


def test_a_part_in_eval_mode_drops_nothing() -> None:
    model = random_model(4).train()
    for module in model.modules():
        if isinstance(module, Dropout):
            module.p = 0.4
    model.encoder.eval()
    assert worst(*both(model, *batch([5, 3], [4, 4]))) <= 1e-11


def test_layers_may_be_shared() -> None:
    model = random_model(4).train()
    for stack in (model.encoder, model.decoder):
        stack.layers[1] = stack.layers[0]
    assert worst(*both(model, *batch([5, 3], [4, 4]))) <= 1e-11


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("part", ["src_embedding", "tgt_embedding", "output", "encoder", "decoder.layers.1", "norm"])
def test_what_is_frozen_gets_no_gradient_and_changes_no_other(part: str, tied: bool) -> None:
    gradients = []
    for mode in ("require", "off"):
        model = random_model(4, tie_embeddings=tied).train()
        for name, parameter in model.named_parameters(remove_duplicate=False):
            parameter.requires_grad_(parameter.requires_grad and part not in name)
        src_ids, tgt_in = batch([5, 3], [4, 4])
        loss_of(model, mode)(src_ids, tgt_in, tgt_in, 0.1).backward()
        assert [p.grad is not None for p in model.parameters()] == [p.requires_grad for p in model.parameters()]
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert worst(*gradients) <= 1e-11


def test_each_norm_has_its_own_eps() -> None:
    model = random_model(4).train()
    for i, module in enumerate(m for m in model.modules() if isinstance(m, nn.LayerNorm)):
        module.eps = 0.01 * 3.0**i
    assert worst(*both(model, *batch([5, 3], [4, 4]))) <= 1e-11


@pytest.mark.parametrize(("src_length", "tgt_length"), [(18, 4), (4, 18)])
def test_a_sequence_that_is_too_long_is_refused(src_length: int, tgt_length: int) -> None:
    with pytest.raises(ValueError, match="18 tokens"):
        ours(random_model(4).train(), *batch([src_length], [tgt_length]))


def test_ids_need_not_lie_one_after_another() -> None:
    model, (src_ids, tgt_in) = random_model(4).train(), batch([5, 3], [4, 4])
    columns = [ids.T.contiguous().T for ids in (src_ids, tgt_in)]
    assert torch.equal(ours(model, *columns)[0], ours(model, src_ids, tgt_in)[0])


def sublayers(model: Transformer) -> list[Callable[[Tensor], Tensor]]:
    """Each as a function of (B, T, D); the embedding as one of its table."""
    ids, mask = random_ids(1, [3, 2], 3), torch.ones(1, 1, 3, 3, dtype=torch.bool)
    plan = read_plan(model)
    attention, feed_forward = plan.encoder[0]
    return [
        lambda table: training.embed(plan, table, ids, torch.float64)[0],
        lambda x: training.norm(x, attention.norm),
        lambda x: training.sublayer(plan, feed_forward, x, mask),
        lambda x: training.sublayer(plan, attention, x, mask),
    ]


@pytest.mark.parametrize("number", range(4))
def test_a_gradient_may_be_one_number_seen_everywhere(number: int) -> None:
    sublayer = sublayers(random_model(4).train())[number]
    x = random_tensor(5, *((11, 6) if number == 0 else (2, 3, 6))).requires_grad_()
    y = sublayer(x)
    (one,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    (ones,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert torch.equal(one, ones)
    assert one.any()


@pytest.mark.parametrize("number", range(4))
def test_a_second_derivative_is_refused(number: int) -> None:
    sublayer = sublayers(random_model(4).train())[number]
    x = random_tensor(5, *((11, 6) if number == 0 else (2, 3, 6))).requires_grad_()
    (gradient,) = torch.autograd.grad(sublayer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
