"""The plan lists a whole model of the known architecture, and refuses others with a reason."""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any, cast

import pytest
import torch
from conftest import PAD, random_model
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize

from minitrans.compiled.library import NotAdmittedError
from minitrans.compiled.plan import Plan, dropout_probability, read_plan
from minitrans.model.attention import MultiHeadAttention
from minitrans.model.dropout import Dropout
from minitrans.model.layers import DecoderLayer
from minitrans.model.transformer import Transformer

SUBLAYERS_BY_STACK = {"encoder": ("self", "ff"), "decoder": ("self", "cross", "ff")}
KIND_BY_SUBLAYER = {"self": "self-attention", "cross": "cross-attention", "ff": "feed-forward"}
LINEAR_NAMES_BY_SUBLAYER = {
    "self": ("self_attn.w_qkv", "self_attn.w_o"),
    "cross": ("cross_attn.w_qkv", "cross_attn.w_o"),
    "ff": ("ff.w_1", "ff.w_2"),
}


# -- What is listed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("n_layers", [1, 3])
@pytest.mark.parametrize("training", [True, False])
def test_every_parameter_is_listed_once_and_in_its_place(tied: bool, n_layers: int, training: bool) -> None:
    model = random_model(1, tie_embeddings=tied, n_layers=n_layers).train(training)
    plan = read_plan(model)
    assert (plan.tied, plan.config, plan.positions) == (tied, model.config, model.positions)
    names = ["src_embedding.weight", "tgt_embedding.weight", "output.weight"]
    for stack, sublayers in SUBLAYERS_BY_STACK.items():
        for i, name in product(range(n_layers), sublayers):
            for part, end in product((f"{name}_norm", *LINEAR_NAMES_BY_SUBLAYER[name]), ("weight", "bias")):
                names.append(f"{stack}.layers.{i}.{part}.{end}")
        names += [f"{stack}.norm.weight", f"{stack}.norm.bias"]
    listed = [plan.src_embedding, plan.tgt_embedding, plan.output]
    listed += [tensor for part in (*plan.encoder, *plan.decoder) for tensor in part.parameters]
    assert all(tensor is model.get_parameter(name) for tensor, name in zip(listed, names, strict=True))
    assert sorted(names) == sorted(name for name, _ in model.named_parameters(remove_duplicate=False))


def dropout_probabilities(plan: Plan) -> list[float]:
    """The probabilities of dropout, in order."""
    parts = (part for part in (*plan.encoder, *plan.decoder) if part.kind != "norm")
    modules = [plan.dropout, *(each for part in parts for each in (part.inner_dropout, part.residual_dropout))]
    return [*map(dropout_probability, modules)]


def test_each_sub_layer_has_its_kind_its_eps_and_its_dropout() -> None:
    """No two probabilities are equal, nor two eps; and a part in eval mode drops nothing."""
    model = random_model(0).train()
    for i, module in enumerate(m for m in model.modules() if isinstance(m, Dropout | MultiHeadAttention)):
        setattr(module, "p" if isinstance(module, Dropout) else "dropout", 0.01 * (i + 1))
    for i, norm in enumerate(m for m in model.modules() if isinstance(m, nn.LayerNorm)):
        norm.eps = 1e-5 * (i + 1)
    plan, wanted = read_plan(model), [model.dropout.p]
    for name, parts in (("encoder", plan.encoder), ("decoder", plan.decoder)):
        layers = cast(Any, model.get_submodule(name)).layers
        for part, (layer, each) in zip(parts[:-1], product(layers, SUBLAYERS_BY_STACK[name]), strict=True):
            assert (part.kind, part.eps) == (KIND_BY_SUBLAYER[each], getattr(layer, f"{each}_norm").eps)
            inside = layer.ff.dropout.p if each == "ff" else getattr(layer, f"{each}_attn").dropout
            wanted += [inside, layer.dropout.p]
    assert (plan.encoder[-1].eps, plan.decoder[-1].eps) == (model.encoder.norm.eps, model.decoder.norm.eps)
    assert dropout_probabilities(plan) == wanted
    attention = cast(DecoderLayer, model.decoder.layers[1]).cross_attn.eval()
    assert dropout_probabilities(plan) == [p if p != attention.dropout else 0.0 for p in wanted]
    model.eval()
    assert dropout_probabilities(plan) == [0.0] * len(wanted)


# -- What is refused, and for which reason --------------------------------------------------------------------------


Change = Callable[[Transformer], object]
ENCODER, DECODER = "encoder.layers.0", "decoder.layers.1"


def no_op(*_: object) -> None: ...


def put(name: str, make: Callable[[Any], object]) -> Change:
    """Replace an attribute by what `make` makes of it."""

    def change(model: Transformer) -> None:
        place, _, last = name.rpartition(".")
        owner: Any = model.get_submodule(place)
        setattr(owner, last, make(getattr(owner, last, None)))

    return change


def add_hook(name: str, when: str = "forward") -> Change:
    return lambda model: getattr(model.get_submodule(name), f"register_{when}_hook")(no_op)


def subclass_submodule(name: str) -> Change:
    """Change the class of a module to a subclass that differs only in its name."""

    def change(model: Transformer) -> None:
        module = model.get_submodule(name)
        module.__class__ = type("Mine", (type(module),), {"__module__": "mine"})

    return change


def set_tgt_embedding_options(**options: Any) -> Change:
    return put("tgt_embedding", lambda old: nn.Embedding(11, 6, **options, _weight=old.weight))


SRC_EMBEDDING_TEXT = "src_embedding.weight torch.float64 on cpu"
REFUSED_CHANGES: list[tuple[Change, str]] = [
    # types
    (subclass_submodule(""), "the model is a mine.Mine, not Transformer"),
    (subclass_submodule(f"{ENCODER}.ff"), "encoder.layers.0.ff is a mine.Mine, not FeedForward"),
    (
        lambda m: parametrize.register_parametrization(m.get_submodule(f"{ENCODER}.ff.w_1"), "weight", nn.Identity()),
        "encoder.layers.0.ff.w_1 is a torch.nn.utils.parametrize.ParametrizedLinear, not Linear",
    ),
    (put("positions", nn.Parameter), "positions is a torch.nn.parameter.Parameter, not Tensor"),
    # hooks and methods
    (add_hook(""), "the model has a forward hook"),
    (add_hook(f"{DECODER}.ff.w_1", "forward_pre"), "decoder.layers.1.ff.w_1 has a forward hook"),
    (add_hook("decoder", "full_backward"), "decoder has a backward hook"),
    (add_hook("output", "full_backward_pre"), "output has a backward hook"),
    (put(f"{ENCODER}.ff.forward", lambda _: no_op), "encoder.layers.0.ff has an unknown attribute forward"),
    # parts
    (put("encoder.norm", lambda _: None), "encoder has no norm"),
    (put(f"{ENCODER}.ff.w_2", lambda _: nn.Linear(13, 6, bias=False)), "encoder.layers.0.ff.w_2 has no bias"),
    (put(f"{DECODER}.gate", lambda _: nn.Linear(6, 6)), "decoder.layers.1 has an unknown part gate"),
    (put("output.bias", lambda _: nn.Parameter(torch.zeros(11))), "output has an unknown part bias"),
    # sizes
    (put("positions", lambda old: old[:9]), "positions has the shape (9, 6), not (17, 6)"),
    (put(f"{DECODER}.cross_attn.n_heads", lambda _: 4), "decoder.layers.1.cross_attn.n_heads is 4, not 2"),
    # rows of a table that are treated differently, and which tables are shared
    (set_tgt_embedding_options(padding_idx=PAD), "tgt_embedding.padding_idx is 3, not None"),
    (set_tgt_embedding_options(max_norm=1.0), "tgt_embedding.max_norm is 1.0, not None"),
    (set_tgt_embedding_options(scale_grad_by_freq=True), "tgt_embedding.scale_grad_by_freq is True, not False"),
    (set_tgt_embedding_options(sparse=True), "tgt_embedding.sparse is True, not False"),
    (
        put("tgt_embedding.weight", lambda old: nn.Parameter(old.detach().clone())),
        "two of src_embedding, tgt_embedding and output share a matrix; only all three may",
    ),
    # memory, dtype and device
    (
        put(f"{ENCODER}.ff.w_1.weight", lambda old: nn.Parameter(old.detach().t().contiguous().t())),
        "encoder.layers.0.ff.w_1.weight is not contiguous in memory",
    ),
    (put("positions", lambda old: old.float()), f"positions is torch.float32 on cpu, {SRC_EMBEDDING_TEXT}"),
    (put("encoder.norm", nn.Module.float), f"encoder.norm.weight is torch.float32 on cpu, {SRC_EMBEDDING_TEXT}"),
    (
        put(f"{DECODER}.ff_norm", lambda old: old.to("meta")),
        f"decoder.layers.1.ff_norm.weight is torch.float64 on meta, {SRC_EMBEDDING_TEXT}",
    ),
]


@pytest.mark.parametrize(("change", "words"), REFUSED_CHANGES, ids=[words for _, words in REFUSED_CHANGES])
def test_other_architectures_are_refused_with_the_reason(change: Change, words: str) -> None:
    for training in (True, False):
        model = random_model(1).train(training)
        change(model)
        with pytest.raises(NotAdmittedError, match=f"^{re.escape(words)}$"):
            read_plan(model)


@pytest.mark.parametrize("kind", ["forward_pre_hook", "forward_hook", "full_backward_hook"])
def test_a_global_module_hook_is_refused_while_it_is_registered(kind: str) -> None:
    model, handle = random_model(1), getattr(torch_module, f"register_module_{kind}")(no_op)
    try:
        with pytest.raises(NotAdmittedError, match="all modules of the process"):
            read_plan(model)
    finally:
        handle.remove()
    handle = model.register_forward_hook(no_op)
    handle.remove()
    read_plan(model)


def test_the_sizes_in_the_config_must_be_those_of_the_model() -> None:
    for sizes in ({"vocab_size": 12}, {"d_model": 8}, {"d_ff": 12}, {"n_layers": 1}, {"max_len": 16}, {"d_head": 3}):
        model = random_model(1)
        model.config = replace(model.config, **sizes)  # type: ignore[arg-type]
        with pytest.raises(NotAdmittedError):
            read_plan(model)
