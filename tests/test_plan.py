"""The plan lists a whole model of the known architecture, and refuses others in words."""

import re
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from conftest import BOS, EOS, PAD, random_model
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
)
from torch.nn.utils import parametrize, prune

from minitrans.model.attention import MultiHeadAttention
from minitrans.model.dropout import Dropout
from minitrans.model.layers import DecoderLayer, EncoderLayer, FeedForward
from minitrans.model.transformer import Transformer, TransformerConfig
from minitrans.plan import Plan, UnknownArchitectureError, read_plan

KINDS = {"self": "self-attention", "cross": "cross-attention", "ff": "feed-forward"}


def model_with_dropout() -> Transformer:
    """Two layers; no two probabilities of dropout in it are equal, nor two eps."""
    model = random_model(0).train()
    for i, module in enumerate(m for m in model.modules() if isinstance(m, Dropout | MultiHeadAttention)):
        setattr(module, "p" if isinstance(module, Dropout) else "dropout", 0.01 * (i + 1))
    for i, norm in enumerate(m for m in model.modules() if isinstance(m, nn.LayerNorm)):
        norm.eps = 1e-5 * (i + 1)
    return model


def tensors(plan: Plan) -> list[Tensor]:
    """All that are listed, in order."""
    found = [plan.source, plan.target, plan.output]
    for stack, norm in ((plan.encoder, plan.encoder_norm), (plan.decoder, plan.decoder_norm)):
        for part in (part for layer in stack for part in layer):
            found += [part.norm.gamma, part.norm.beta, part.w_in, part.b_in, part.w_out, part.b_out]
        found += [norm.gamma, norm.beta]
    return found


# -- What is listed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("n_layers", [1, 3])
@pytest.mark.parametrize("training", [True, False])
def test_every_parameter_is_listed_once(tied: bool, n_layers: int, training: bool) -> None:
    model = random_model(1, tie_embeddings=tied, n_layers=n_layers).train(training)
    plan = read_plan(model)
    assert plan.tied == tied
    assert plan.config is model.config
    assert plan.positions is model.positions
    listed = tensors(plan)[2 if tied else 0 :]
    assert sorted(map(id, listed)) == sorted(map(id, model.parameters()))
    assert len({id(tensor) for tensor in listed}) == len(listed) == len(list(model.named_parameters()))


@pytest.mark.parametrize("tied", [True, False])
def test_each_has_its_place(tied: bool) -> None:
    model = random_model(1, tie_embeddings=tied)
    names = {id(tensor): name for name, tensor in model.named_parameters(remove_duplicate=False)}
    expected = ["src_embedding.weight", "tgt_embedding.weight", "output.weight"]
    if tied:
        expected = ["output.weight"] * 3  # the last of its names
    for stack, kinds in (("encoder", ("self", "ff")), ("decoder", ("self", "cross", "ff"))):
        for prefix in (f"{stack}.layers.{i}.{kind}" for i in range(2) for kind in kinds):
            linears = ("w_1", "w_2") if prefix.endswith("ff") else ("w_qkv", "w_o")
            module = prefix if prefix.endswith("ff") else f"{prefix}_attn"
            parts = [f"{prefix}_norm", *(f"{module}.{linear}" for linear in linears)]
            expected += [f"{part}.{end}" for part in parts for end in ("weight", "bias")]
        expected += [f"{stack}.norm.weight", f"{stack}.norm.bias"]
    assert [names[id(tensor)] for tensor in tensors(read_plan(model))] == expected


def dropping(plan: Plan) -> list[float]:
    """The probabilities of dropout, in order."""
    parts = [part for layer in (*plan.encoder, *plan.decoder) for part in layer]
    return [plan.dropout, *(p for part in parts for p in (part.inside, part.end))]


@pytest.mark.parametrize("training", [True, False])
def test_each_sub_layer_has_its_kind_its_eps_and_its_dropout(training: bool) -> None:
    model = model_with_dropout().train(training)
    plan = read_plan(model)
    wanted = [model.dropout.p]
    for layers_of_plan, stack in ((plan.encoder, model.encoder), (plan.decoder, model.decoder)):
        assert len(layers_of_plan) == 2
        for parts, layer in zip(layers_of_plan, cast(Any, stack.layers), strict=True):
            names = ["self", "cross", "ff"] if isinstance(layer, DecoderLayer) else ["self", "ff"]
            assert [part.kind for part in parts] == [KINDS[name] for name in names]
            assert [part.norm.eps for part in parts] == [getattr(layer, f"{name}_norm").eps for name in names]
            inside = [layer.ff.dropout.p if name == "ff" else getattr(layer, f"{name}_attn").dropout for name in names]
            wanted += [p for each in inside for p in (each, layer.dropout.p)]
    assert plan.encoder_norm.eps == model.encoder.norm.eps
    assert plan.decoder_norm.eps == model.decoder.norm.eps
    assert dropping(plan) == (wanted if training else [0.0] * len(wanted))
    assert len(plan.eps) == len({m.eps for m in model.modules() if isinstance(m, nn.LayerNorm)}) == 12


def test_a_part_in_eval_mode_drops_nothing() -> None:
    model = model_with_dropout()
    before = dropping(read_plan(model))
    cast(DecoderLayer, model.decoder.layers[1]).cross_attn.eval()
    after = dropping(read_plan(model))
    (changed,) = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    assert (before[changed], after[changed]) == (cast(DecoderLayer, model.decoder.layers[1]).cross_attn.dropout, 0.0)


def test_one_eps_is_one_number() -> None:
    assert read_plan(random_model(1)).eps == {1e-5}


@pytest.mark.parametrize(
    "sizes", [{"n_heads": 1}, {"d_head": None}, {"n_heads": 3, "d_head": 5}, {"d_ff": 1}, {"max_len": 1}], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_all_sizes_and_dtypes_are_known(sizes: dict[str, Any], dtype: torch.dtype) -> None:
    plan = read_plan(random_model(1, **sizes).to(dtype))
    assert {tensor.dtype for tensor in (*tensors(plan), plan.positions)} == {dtype}


def test_of_two_dtypes_the_first_parameters_is_named() -> None:
    model = random_model(1, tie_embeddings=False)
    model.tgt_embedding.float()
    words = r"tgt_embedding\.weight is torch\.float32 on cpu, src_embedding\.weight torch\.float64 on cpu"
    with pytest.raises(UnknownArchitectureError, match=words):
        read_plan(model)


def test_a_model_on_another_device_is_known() -> None:
    assert read_plan(random_model(1).to("meta")).source.device.type == "meta"


# -- What is refused, and in which words ----------------------------------------------------------------------------


def nothing(*_: object) -> None: ...


class Other(FeedForward):
    """The same, but for its name."""


def parts(model: Transformer) -> tuple[EncoderLayer, DecoderLayer]:
    return cast(EncoderLayer, model.encoder.layers[0]), cast(DecoderLayer, model.decoder.layers[1])


Change = Callable[[Transformer], object]


def subclass(model: Transformer) -> None:
    parts(model)[0].ff.__class__ = Other


def subclass_of_the_model(model: Transformer) -> None:
    model.__class__ = type("Mine", (Transformer,), {"__module__": "mine"})


def subclass_of_the_layers(model: Transformer) -> None:
    model.encoder.layers = type("Mine", (nn.ModuleList,), {"__module__": "mine"})(model.encoder.layers)


def rms_norm(model: Transformer) -> None:
    parts(model)[1].cross_norm = nn.RMSNorm(6).double()  # type: ignore[assignment]


def identity(model: Transformer) -> None:
    model.decoder.norm = nn.Identity()  # type: ignore[assignment]


def no_module(model: Transformer) -> None:
    model.encoder.norm = None  # type: ignore[assignment]


class Scale(nn.Module):
    """A parametrization."""

    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * x


def parametrized(model: Transformer) -> None:
    parametrize.register_parametrization(parts(model)[0].ff.w_1, "weight", Scale())


def normed_weight(model: Transformer) -> None:
    nn.utils.parametrizations.weight_norm(parts(model)[1].cross_attn.w_o)


def normed_weight_of_old(model: Transformer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(parts(model)[1].cross_attn.w_o)


def own_forward(model: Transformer) -> None:
    ff = parts(model)[0].ff
    ff.forward = lambda x: x  # type: ignore[method-assign]


def own_project(model: Transformer) -> None:
    parts(model)[1].self_attn.project = nothing  # type: ignore[method-assign, assignment]


def extra_part(model: Transformer) -> None:
    parts(model)[1].gate = nn.Linear(6, 6)


def extra_parameter(model: Transformer) -> None:
    parts(model)[1].ff.gain = nn.Parameter(torch.ones(6))


def learned_positions(model: Transformer) -> None:
    model.positions = nn.Parameter(model.positions)


def missing_part(model: Transformer) -> None:
    del parts(model)[1].cross_attn


def grouped_heads(model: Transformer) -> None:
    parts(model)[0].self_attn.w_qkv = nn.Linear(6, (2 + 1 + 1) * 4).double()


def more_heads(model: Transformer) -> None:
    parts(model)[1].cross_attn.n_heads, parts(model)[1].cross_attn.d_head = 4, 2


def no_bias(model: Transformer) -> None:
    parts(model)[0].ff.w_2 = nn.Linear(13, 6, bias=False).double()


def other_width(model: Transformer) -> None:
    parts(model)[0].ff = FeedForward(6, 14, 0.0).double()


def norm_without_weights(model: Transformer) -> None:
    model.decoder.norm = nn.LayerNorm(6, elementwise_affine=False)


def norm_without_a_shift(model: Transformer) -> None:
    model.decoder.norm = nn.LayerNorm(6, bias=False).double()


def output_bias(model: Transformer) -> None:
    model.output.bias = nn.Parameter(torch.zeros(11).double())


def with_embedding(**options: Any) -> Change:
    def change(model: Transformer) -> None:
        weight = model.tgt_embedding.weight
        model.tgt_embedding = nn.Embedding(11, 6, **options).double()
        model.tgt_embedding.weight = weight

    return change


def partly_tied(model: Transformer) -> None:
    model.tgt_embedding.weight = nn.Parameter(model.output.weight.detach().clone())


def scattered(model: Transformer) -> None:
    weight = parts(model)[0].ff.w_1.weight
    weight.data = weight.data.t().contiguous().t()


def scattered_positions(model: Transformer) -> None:
    model.positions = model.positions.t().contiguous().t()


def more_layers(model: Transformer) -> None:
    model.encoder.layers.append(deepcopy(model.encoder.layers[0]))


def fewer_layers(model: Transformer) -> None:
    del model.decoder.layers[0]


def layer_of_the_other_stack(model: Transformer) -> None:
    model.encoder.layers[1] = deepcopy(model.decoder.layers[1])


def short_positions(model: Transformer) -> None:
    model.positions = model.positions[:9]


def exact_positions(model: Transformer) -> None:
    model.float()
    model.positions = model.positions.double()


def larger_vocabulary(model: Transformer) -> None:
    model.src_embedding.weight = model.tgt_embedding.weight = model.output.weight = nn.Parameter(torch.ones(12, 6))


def lower_part(model: Transformer) -> None:
    parts(model)[1].ff_norm.float()


def elsewhere(model: Transformer) -> None:
    parts(model)[1].ff_norm.to("meta")


REFUSED: list[tuple[Change, str]] = [
    (subclass, "encoder.layers.0.ff is a test_plan.Other, known is FeedForward"),
    (subclass_of_the_model, "the model is a mine.Mine, known is Transformer"),
    (subclass_of_the_layers, "encoder.layers is a mine.Mine, known is ModuleList"),
    (rms_norm, "decoder.layers.1.cross_norm is a torch.nn.modules.normalization.RMSNorm, known is LayerNorm"),
    (identity, "decoder.norm is a torch.nn.modules.linear.Identity, known is LayerNorm"),
    (no_module, "encoder.norm is a builtins.NoneType, known is LayerNorm"),
    (lambda m: m.register_forward_hook(nothing), "the model has a forward hook"),
    (lambda m: m.encoder.register_forward_hook(nothing), "encoder has a forward hook"),
    (lambda m: parts(m)[1].ff.w_1.register_forward_pre_hook(nothing), "decoder.layers.1.ff.w_1 has a forward hook"),
    (lambda m: m.dropout.register_forward_hook(nothing), "dropout has a forward hook"),
    (lambda m: parts(m)[0].self_norm.register_forward_hook(nothing), "encoder.layers.0.self_norm has a forward hook"),
    (lambda m: m.src_embedding.register_forward_hook(nothing), "src_embedding has a forward hook"),
    (lambda m: m.decoder.layers.register_forward_hook(nothing), "decoder.layers has a forward hook"),
    (lambda m: m.decoder.register_full_backward_hook(nothing), "decoder has a backward hook"),
    (lambda m: m.output.register_full_backward_pre_hook(nothing), "output has a backward hook"),
    (parametrized, "encoder.layers.0.ff.w_1 is a torch.nn.utils.parametrize.ParametrizedLinear, known is Linear"),
    (
        normed_weight,
        "decoder.layers.1.cross_attn.w_o is a torch.nn.utils.parametrize.ParametrizedLinear, known is Linear",
    ),
    (normed_weight_of_old, "decoder.layers.1.cross_attn.w_o has a forward hook"),
    (lambda m: prune.random_unstructured(parts(m)[0].ff.w_1, "bias", 1), "encoder.layers.0.ff.w_1 has a forward hook"),
    (own_forward, "encoder.layers.0.ff has a method forward of its own"),
    (own_project, "decoder.layers.1.self_attn has a method project of its own"),
    (extra_part, "decoder.layers.1 has a part gate"),
    (extra_parameter, "decoder.layers.1.ff has a parameter gain of its own"),
    (learned_positions, "the model has a parameter positions of its own"),
    (missing_part, "decoder.layers.1 has no cross_attn"),
    (grouped_heads, "encoder.layers.0.self_attn.w_qkv.weight is (16, 6) in shape, known is (24, 6)"),
    (more_heads, "decoder.layers.1.cross_attn has 4 heads of 2, known are 2 of 4"),
    (no_bias, "encoder.layers.0.ff.w_2.bias is None in shape, known is (6,)"),
    (other_width, "encoder.layers.0.ff.w_1.weight is (14, 6) in shape, known is (13, 6)"),
    (norm_without_weights, "decoder.norm.weight is None in shape, known is (6,)"),
    (norm_without_a_shift, "decoder.norm.bias is None in shape, known is (6,)"),
    (output_bias, "output has a bias"),
    (with_embedding(padding_idx=PAD), "tgt_embedding treats some rows in a way of its own"),
    (with_embedding(max_norm=1.0), "tgt_embedding treats some rows in a way of its own"),
    (with_embedding(scale_grad_by_freq=True), "tgt_embedding treats some rows in a way of its own"),
    (with_embedding(sparse=True), "tgt_embedding treats some rows in a way of its own"),
    (partly_tied, "two of its embeddings and its output matrix are one; known are all three or none"),
    (scattered, "encoder.layers.0.ff.w_1.weight does not lie in one piece in memory"),
    (scattered_positions, "positions does not lie in one piece in memory"),
    (more_layers, "encoder has 3 layers, not n_layers (2)"),
    (fewer_layers, "decoder has 1 layers, not n_layers (2)"),
    (layer_of_the_other_stack, "encoder.layers.1 is a minitrans.model.layers.DecoderLayer, known is EncoderLayer"),
    (short_positions, "positions is (9, 6) in shape, known is (17, 6)"),
    (exact_positions, "positions is torch.float64 on cpu, src_embedding.weight torch.float32 on cpu"),
    (larger_vocabulary, "src_embedding.weight is (12, 6) in shape, known is (11, 6)"),
    (lower_part, "decoder.layers.1.ff_norm.weight is torch.float32 on cpu, src_embedding.weight torch.float64 on cpu"),
    (elsewhere, "decoder.layers.1.ff_norm.weight is torch.float64 on meta, src_embedding.weight torch.float64 on cpu"),
]


@pytest.mark.parametrize(("change", "words"), REFUSED, ids=[words for _, words in REFUSED])
@pytest.mark.parametrize("training", [True, False])
def test_another_architecture_is_refused_in_words(change: Change, words: str, training: bool) -> None:
    model = random_model(1).train(training)
    change(model)
    with pytest.raises(UnknownArchitectureError, match=f"^{re.escape(words)}$"):
        read_plan(model)


@pytest.mark.parametrize(
    "register",
    [register_module_forward_hook, register_module_forward_pre_hook, register_module_full_backward_hook],
    ids=lambda register: register.__name__,
)
def test_a_hook_on_all_modules_is_refused_while_it_is_there(register: Callable[..., Any]) -> None:
    model = random_model(1)
    handle = register(nothing)
    try:
        with pytest.raises(UnknownArchitectureError, match=r"^a hook is set on all modules of the process$"):
            read_plan(model)
    finally:
        handle.remove()
    read_plan(model)


def test_a_hook_that_has_been_removed_is_no_hook() -> None:
    model = random_model(1)
    for register in (model.register_forward_hook, model.register_forward_pre_hook, model.register_full_backward_hook):
        handle = register(nothing)
        with pytest.raises(UnknownArchitectureError):
            read_plan(model)
        handle.remove()
    read_plan(model)


def test_the_sizes_that_a_model_says_it_has_have_to_be_its_own() -> None:
    for sizes in ({"vocab_size": 12}, {"d_model": 8}, {"d_ff": 12}, {"n_layers": 1}, {"max_len": 16}, {"d_head": 3}):
        model = random_model(1)
        model.config = replace(model.config, **sizes)  # type: ignore[arg-type]
        with pytest.raises(UnknownArchitectureError):
            read_plan(model)


def test_a_config_says_what_it_is_of() -> None:
    config = TransformerConfig(11, PAD, BOS, EOS, d_model=6, n_heads=2, n_layers=1)
    assert read_plan(Transformer(config)).config == config
