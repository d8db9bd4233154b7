"""What compiled code reads of a model.

It knows one architecture, that of `minitrans.model` as shipped, in all sizes. `read_plan` checks that a model has that
architecture, and lists what is to be computed, in order. It accepts exactly what it knows: types, shapes, no hooks. It
cannot see that the code itself has been edited: whoever relies on a plan has to compare numbers too.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from minitrans.compiled.library import NotAdmittedError
from minitrans.model.attention import MultiHeadAttention
from minitrans.model.dropout import Dropout
from minitrans.model.layers import DecoderLayer, EncoderLayer, FeedForward
from minitrans.model.transformer import Decoder, Encoder, Transformer, TransformerConfig

SublayerKind = Literal["self-attention", "cross-attention", "feed-forward", "norm"]
HasDropout = MultiHeadAttention | Dropout
ModuleSpec = dict[str, Any]  # a module by the names in it, see `architecture_spec`

TYPE = "type"
ALLOWED_ATTRIBUTES = {*vars(nn.Module()), "config", "p", "dropout"}  # besides those of an architecture
HOOKS = {"forward": ("_forward_pre_hooks", "_forward_hooks"), "backward": ("_backward_pre_hooks", "_backward_hooks")}


class Sublayer(NamedTuple):
    """x + dropout(f(norm(x))), f an attention or a feed-forward network, which begins and ends with a linear layer.

    The last one of a stack is of kind "norm": a norm alone, whose parameters are gamma and beta.

    Attributes:
        kind: What f is.
        parameters: As compiled code takes them: gamma (D,) and beta (D,) of the norm; w_in (3 H Dh, D) of queries, keys
            and values, or (F, D); b_in (3 H Dh,) or (F,); w_out (D, H Dh) or (D, F); b_out (D,).
        eps: What the norm adds to the variance.
        inner_dropout: The module that drops attention weights, or elements of the hidden layer; None for a norm alone.
        residual_dropout: The module that drops elements of what is added to x; None likewise.
    """

    kind: SublayerKind
    parameters: tuple[Tensor, ...]
    eps: float
    inner_dropout: HasDropout | None
    residual_dropout: HasDropout | None


@dataclass(frozen=True)
class Plan:
    """What a model computes.

    Attributes:
        config: The sizes.
        src_embedding: (V, D) the source's embedding; scaled by sqrt(D), positions added.
        tgt_embedding: (V, D) the target's, likewise.
        output: (V, D) what turns the decoder's last hidden states into logits.
        tied: Whether these three are one matrix; else no two of them are.
        positions: (max_len, D).
        dropout: The module that drops elements of an embedding.
        encoder: The sub-layers of all layers, in order: self-attention, feed-forward, and so on; then the last norm.
        decoder: Likewise, in each layer self-attention, attention to the memory, feed-forward.
    """

    config: TransformerConfig
    src_embedding: Tensor
    tgt_embedding: Tensor
    output: Tensor
    tied: bool
    positions: Tensor
    dropout: Dropout
    encoder: Sequence[Sublayer]
    decoder: Sequence[Sublayer]


def architecture_spec(c: TransformerConfig) -> ModuleSpec:
    """What a model of these sizes is made of.

    A dict describes a module: TYPE gives its type, and each other key is a name in it, for another module, the shape of
    a parameter (of a buffer, for `positions`), or the value of a plain attribute. Everything is written out, because a
    newly made model would have any edits of its code as well.
    """
    d, width = c.d_model, c.n_heads * c.head_size
    heads = {"n_heads": c.n_heads, "d_head": c.head_size}
    no_row_differs = {"padding_idx": None, "max_norm": None, "scale_grad_by_freq": False, "sparse": False}

    def linear(n_in: int, n_out: int) -> ModuleSpec:
        return {TYPE: nn.Linear, "weight": (n_out, n_in), "bias": (n_out,)}

    def stack(kind: type[nn.Module], layer: ModuleSpec) -> ModuleSpec:
        return {TYPE: kind, "norm": norm, "layers": {TYPE: nn.ModuleList} | {str(i): layer for i in range(c.n_layers)}}

    norm, dropout = {TYPE: nn.LayerNorm, "weight": (d,), "bias": (d,)}, {TYPE: Dropout}
    embedding = {TYPE: nn.Embedding, **no_row_differs, "weight": (c.vocab_size, d)}
    attention = {TYPE: MultiHeadAttention, **heads, "w_qkv": linear(d, 3 * width), "w_o": linear(width, d)}
    feed_forward = {TYPE: FeedForward, "w_1": linear(d, c.d_ff), "w_2": linear(c.d_ff, d), "dropout": dropout}
    in_both = {"self_norm": norm, "self_attn": attention, "ff_norm": norm, "ff": feed_forward, "dropout": dropout}
    return {
        TYPE: Transformer,
        "src_embedding": embedding,
        "tgt_embedding": embedding,
        "output": {TYPE: nn.Linear, "weight": (c.vocab_size, d)},
        "positions": (c.max_len, d),
        "dropout": dropout,
        "encoder": stack(Encoder, {TYPE: EncoderLayer, **in_both}),
        "decoder": stack(Decoder, {TYPE: DecoderLayer, **in_both, "cross_norm": norm, "cross_attn": attention}),
    }


def read_plan(model: Transformer) -> Plan:
    """List what a model computes.

    Raises:
        NotAdmittedError: It is not of the known architecture.
    """
    if _has_any_global_hook():
        raise NotAdmittedError("a hook is set on all modules of the process")
    _check_module("", model, architecture_spec(model.config) if type(model) is Transformer else {TYPE: Transformer})
    tables = model.src_embedding.weight, model.tgt_embedding.weight, model.output.weight
    n_tables = len({id(table) for table in tables})
    if n_tables == 2:
        raise NotAdmittedError("two of src_embedding, tgt_embedding and output share a matrix; only all three may")
    for name, tensor in (("positions", model.positions), *model.named_parameters()):
        if (tensor.dtype, tensor.device) != (tables[0].dtype, tables[0].device):
            first = f"src_embedding.weight {tables[0].dtype} on {tables[0].device}"
            raise NotAdmittedError(f"{name} is {tensor.dtype} on {tensor.device}, {first}")
    return Plan(
        config=model.config,
        src_embedding=tables[0],
        tgt_embedding=tables[1],
        output=tables[2],
        tied=n_tables == 1,
        positions=model.positions,
        dropout=model.dropout,
        encoder=list(_sublayers(model.encoder)),
        decoder=list(_sublayers(model.decoder)),
    )


def _check_module(name: str, module: nn.Module, known: ModuleSpec) -> None:
    """Refuse a module that is not exactly as specified; likewise every module in it."""
    place, prefix = name or "the model", f"{name}." if name else ""
    _check_type(place, module, known[TYPE])
    for direction, attributes in HOOKS.items():
        if any(getattr(module, attribute) for attribute in attributes):
            raise NotAdmittedError(f"{place} has a {direction} hook")
    if own := vars(module).keys() - ALLOWED_ATTRIBUTES - known.keys() - {*getattr(module, "__constants__", ())}:
        raise NotAdmittedError(f"{place} has an unknown attribute {min(own)}")
    parts = {n: x for n, x in (module._modules | module._parameters | module._buffers).items() if x is not None}
    if others := parts.keys() - known.keys():
        raise NotAdmittedError(f"{place} has an unknown part {min(others)}")
    for part, wanted in known.items():
        if part == TYPE:
            continue
        if isinstance(wanted, dict | tuple) and part not in parts:
            raise NotAdmittedError(f"{place} has no {part}")
        if isinstance(wanted, dict):
            _check_module(f"{prefix}{part}", cast(nn.Module, parts[part]), wanted)
        elif isinstance(wanted, tuple):
            _check_tensor(f"{prefix}{part}", cast(Tensor, parts[part]), wanted)
        elif (value := getattr(module, part)) != wanted:
            raise NotAdmittedError(f"{prefix}{part} is {value}, not {wanted}")


def _check_tensor(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    _check_type(name, tensor, Tensor if name == "positions" else nn.Parameter)
    if tensor.shape != shape:
        raise NotAdmittedError(f"{name} has the shape {tuple(tensor.shape)}, not {shape}")
    if not tensor.is_contiguous():
        raise NotAdmittedError(f"{name} is not contiguous in memory")


def _check_type(name: str, thing: object, known: type) -> None:
    kind = type(thing)
    if kind is not known:
        raise NotAdmittedError(f"{name} is a {kind.__module__}.{kind.__qualname__}, not {known.__name__}")


def _sublayers(stack: Encoder | Decoder) -> Iterator[Sublayer]:
    for layer in cast(Iterable[EncoderLayer | DecoderLayer], stack.layers):
        attention, ff, end = layer.self_attn, layer.ff, layer.dropout
        yield _sublayer("self-attention", layer.self_norm, attention.w_qkv, attention.w_o, attention, end)
        if isinstance(layer, DecoderLayer):
            attention = layer.cross_attn
            yield _sublayer("cross-attention", layer.cross_norm, attention.w_qkv, attention.w_o, attention, end)
        yield _sublayer("feed-forward", layer.ff_norm, ff.w_1, ff.w_2, ff.dropout, end)
    yield Sublayer("norm", (stack.norm.weight, stack.norm.bias), stack.norm.eps, None, None)


def _sublayer(
    kind: SublayerKind, norm: nn.LayerNorm, first: nn.Linear, last: nn.Linear, inside: HasDropout, end: HasDropout
) -> Sublayer:
    parameters = norm.weight, norm.bias, first.weight, first.bias, last.weight, last.bias
    return Sublayer(kind, parameters, norm.eps, inside, end)


def dropout_probability(module: HasDropout | None) -> float:
    """The probability with which a module currently drops an element: 0 in eval mode."""
    if module is None or not module.training:
        return 0.0
    return module.dropout if isinstance(module, MultiHeadAttention) else module.p
