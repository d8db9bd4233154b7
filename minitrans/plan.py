"""One reading of a model's architecture, for whatever computes it in another way: compiled code, and the export.

Such code knows one architecture, the one that `minitrans.model` has as it ships, in all sizes. `read_plan` tells
whether a model is of that architecture, and lists what there is to compute, in order. It accepts exactly what it knows:
types, shapes, no hooks. It cannot see an edit of the code itself: whoever goes by a plan has to compare numbers too.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from minitrans.model.attention import MultiHeadAttention
from minitrans.model.dropout import Dropout
from minitrans.model.layers import DecoderLayer, EncoderLayer, FeedForward
from minitrans.model.transformer import Decoder, Encoder, Transformer, TransformerConfig

Kind = Literal["self-attention", "cross-attention", "feed-forward"]


class UnknownArchitectureError(Exception):
    """A model is not of the known architecture; the message says in words what differs, and where."""


class Norm(NamedTuple):
    """A layer norm: scale and shift, (D,) each, and what is added to the variance."""

    gamma: Tensor
    beta: Tensor
    eps: float


class Sublayer(NamedTuple):
    """x + dropout(f(norm(x))), f an attention or a feed-forward network, which begins and ends with a linear layer.

    Attributes:
        kind: What f is.
        norm: What it reads x through.
        w_in: (3 H Dh, D) queries, keys and values; or (F, D).
        b_in: (3 H Dh,) or (F,).
        w_out: (D, H Dh) or (D, F).
        b_out: (D,).
        inside: Probability of dropping an attention weight, or an element of the hidden layer; 0 in eval mode.
        end: Probability of dropping an element of what is added to x; 0 in eval mode.
    """

    kind: Kind
    norm: Norm
    w_in: Tensor
    b_in: Tensor
    w_out: Tensor
    b_out: Tensor
    inside: float
    end: float


@dataclass(frozen=True)
class Plan:
    """What a model computes.

    Attributes:
        config: The sizes.
        source: (V, D) the source's embedding; scaled by sqrt(D), positions added.
        target: (V, D) the target's.
        output: (V, D) what turns the decoder's last hidden states into logits.
        tied: Whether these three are one matrix; else no two of them are.
        positions: (max_len, D).
        dropout: Probability of dropping an element of an embedding; 0 in eval mode.
        encoder: Each layer's sub-layers, in order: self-attention, feed-forward.
        encoder_norm: What makes the memory of the encoder's last output.
        decoder: Each layer's sub-layers, in order: self-attention, attention to the memory, feed-forward.
        decoder_norm: What the output matrix reads the decoder's last output through.
    """

    config: TransformerConfig
    source: Tensor
    target: Tensor
    output: Tensor
    tied: bool
    positions: Tensor
    dropout: float
    encoder: Sequence[Sequence[Sublayer]]
    encoder_norm: Norm
    decoder: Sequence[Sequence[Sublayer]]
    decoder_norm: Norm

    @property
    def eps(self) -> set[float]:
        """What the norms add to their variances: one number, or several."""
        return {sublayer.norm.eps for layer in (*self.encoder, *self.decoder) for sublayer in layer} | {
            self.encoder_norm.eps,
            self.decoder_norm.eps,
        }


# Each type of module, and the modules that it is made of.
PARTS: dict[type[nn.Module], dict[str, type[nn.Module]]] = {
    Transformer: {
        "src_embedding": nn.Embedding,
        "tgt_embedding": nn.Embedding,
        "output": nn.Linear,
        "dropout": Dropout,
        "encoder": Encoder,
        "decoder": Decoder,
    },
    Encoder: {"layers": nn.ModuleList, "norm": nn.LayerNorm},
    Decoder: {"layers": nn.ModuleList, "norm": nn.LayerNorm},
    EncoderLayer: {
        "self_norm": nn.LayerNorm,
        "self_attn": MultiHeadAttention,
        "ff_norm": nn.LayerNorm,
        "ff": FeedForward,
        "dropout": Dropout,
    },
    DecoderLayer: {
        "self_norm": nn.LayerNorm,
        "self_attn": MultiHeadAttention,
        "cross_norm": nn.LayerNorm,
        "cross_attn": MultiHeadAttention,
        "ff_norm": nn.LayerNorm,
        "ff": FeedForward,
        "dropout": Dropout,
    },
    MultiHeadAttention: {"w_qkv": nn.Linear, "w_o": nn.Linear},
    FeedForward: {"w_1": nn.Linear, "w_2": nn.Linear, "dropout": Dropout},
    nn.Embedding: {},
    nn.Linear: {},
    nn.LayerNorm: {},
    Dropout: {},
}
PARAMETERS = {nn.Embedding: {"weight"}, nn.Linear: {"weight", "bias"}, nn.LayerNorm: {"weight", "bias"}}
LAYERS: dict[type[nn.Module], type[nn.Module]] = {Encoder: EncoderLayer, Decoder: DecoderLayer}
METHODS = {kind: {name for name in dir(kind) if callable(getattr(kind, name))} for kind in (*PARTS, nn.ModuleList)}
HOOKS = {
    "_forward_pre_hooks": "forward hook",
    "_forward_hooks": "forward hook",
    "_backward_pre_hooks": "backward hook",
    "_backward_hooks": "backward hook",
}


def read_plan(model: Transformer) -> Plan:
    """List what a model computes.

    Raises:
        UnknownArchitectureError: It is not of the known architecture.
    """
    if _has_any_global_hook():
        raise UnknownArchitectureError("a hook is set on all modules of the process")
    _check_module("the model", model, Transformer)
    c = model.config
    tables = model.src_embedding.weight, model.tgt_embedding.weight, model.output.weight
    n_tables = len({id(table) for table in tables})
    if n_tables == 2:
        raise UnknownArchitectureError(
            "two of its embeddings and its output matrix are one; known are all three or none"
        )
    for name, table in zip(("src_embedding", "tgt_embedding", "output"), tables, strict=True):
        _check_shape(f"{name}.weight", table, c.vocab_size, c.d_model)
    if model.output.bias is not None:
        raise UnknownArchitectureError("output has a bias")
    for name, embedding in (("src_embedding", model.src_embedding), ("tgt_embedding", model.tgt_embedding)):
        if embedding.padding_idx is not None or embedding.max_norm or embedding.scale_grad_by_freq or embedding.sparse:
            raise UnknownArchitectureError(f"{name} treats some rows in a way of its own")
    _check_shape("positions", model.positions, c.max_len, c.d_model)
    first = tables[0]
    for name, tensor in (("positions", model.positions), *model.named_parameters()):
        if (tensor.dtype, tensor.device) != (first.dtype, first.device):
            raise UnknownArchitectureError(
                f"{name} is {tensor.dtype} on {tensor.device}, src_embedding.weight {first.dtype} on {first.device}"
            )
    return Plan(
        config=c,
        source=tables[0],
        target=tables[1],
        output=tables[2],
        tied=n_tables == 1,
        positions=model.positions,
        dropout=_probability(model.dropout),
        encoder=_read_layers("encoder", model.encoder, c),
        encoder_norm=_read_norm("encoder.norm", model.encoder.norm, c),
        decoder=_read_layers("decoder", model.decoder, c),
        decoder_norm=_read_norm("decoder.norm", model.decoder.norm, c),
    )


def _check_module(name: str, module: nn.Module | None, known: type[nn.Module]) -> None:
    """Refuse a module that is not exactly of the known type, or not made of the known parts; and so on inside it."""
    if type(module) is not known:
        kind = type(module)
        raise UnknownArchitectureError(f"{name} is a {kind.__module__}.{kind.__qualname__}, known is {known.__name__}")
    assert module is not None
    for attribute, hook in HOOKS.items():
        if getattr(module, attribute):
            raise UnknownArchitectureError(f"{name} has a {hook}")
    if own := METHODS[known] & vars(module).keys():
        raise UnknownArchitectureError(f"{name} has a method {min(own)} of its own")
    if others := module._parameters.keys() - PARAMETERS.get(known, set()):
        raise UnknownArchitectureError(f"{name} has a parameter {min(others)} of its own")
    prefix = "" if isinstance(module, Transformer) else f"{name}."
    parts = PARTS.get(known)
    if parts is None:
        return
    if other := module._modules.keys() ^ parts.keys():
        raise UnknownArchitectureError(f"{name} has {'no' if min(other) in parts else 'a part'} {min(other)}")
    for part, kind in parts.items():
        _check_module(f"{prefix}{part}", module._modules[part], kind)
    if layer := LAYERS.get(known):
        for i, each in enumerate(cast(nn.ModuleList, module.layers)):
            _check_module(f"{prefix}layers.{i}", each, layer)


def _check_shape(name: str, tensor: Tensor | None, *sizes: int) -> None:
    if tensor is None or tuple(tensor.shape) != sizes:
        found = None if tensor is None else tuple(tensor.shape)
        raise UnknownArchitectureError(f"{name} is {found} in shape, known is {sizes}")
    if not tensor.is_contiguous():
        raise UnknownArchitectureError(f"{name} does not lie in one piece in memory")


def _read_layers(name: str, stack: Encoder | Decoder, c: TransformerConfig) -> list[list[Sublayer]]:
    """The sub-layers of each layer."""
    layers = list(cast(Iterable[EncoderLayer | DecoderLayer], stack.layers))
    if len(layers) != c.n_layers:
        raise UnknownArchitectureError(f"{name} has {len(layers)} layers, not n_layers ({c.n_layers})")
    return [list(_read_layer(f"{name}.layers.{i}", layer, c)) for i, layer in enumerate(layers)]


def _read_layer(name: str, layer: EncoderLayer | DecoderLayer, c: TransformerConfig) -> Iterator[Sublayer]:
    end = _probability(layer.dropout)
    yield _read_attention("self-attention", f"{name}.self", layer.self_norm, layer.self_attn, end, c)
    if isinstance(layer, DecoderLayer):
        yield _read_attention("cross-attention", f"{name}.cross", layer.cross_norm, layer.cross_attn, end, c)
    linears = _read_linear(f"{name}.ff.w_1", layer.ff.w_1, c.d_ff, c.d_model) + _read_linear(
        f"{name}.ff.w_2", layer.ff.w_2, c.d_model, c.d_ff
    )
    norm = _read_norm(f"{name}.ff_norm", layer.ff_norm, c)
    yield Sublayer("feed-forward", norm, *linears, _probability(layer.ff.dropout), end)


def _read_attention(
    kind: Kind, name: str, norm: nn.LayerNorm, attention: MultiHeadAttention, end: float, c: TransformerConfig
) -> Sublayer:
    if (attention.n_heads, attention.d_head) != (c.n_heads, c.head_size):
        raise UnknownArchitectureError(
            f"{name}_attn has {attention.n_heads} heads of {attention.d_head}, known are {c.n_heads} of {c.head_size}"
        )
    width = c.n_heads * c.head_size
    linears = _read_linear(f"{name}_attn.w_qkv", attention.w_qkv, 3 * width, c.d_model) + _read_linear(
        f"{name}_attn.w_o", attention.w_o, c.d_model, width
    )
    inside = attention.dropout if attention.training else 0.0
    return Sublayer(kind, _read_norm(f"{name}_norm", norm, c), *linears, inside, end)


def _read_linear(name: str, linear: nn.Linear, n_out: int, n_in: int) -> tuple[Tensor, Tensor]:
    _check_shape(f"{name}.weight", linear.weight, n_out, n_in)
    _check_shape(f"{name}.bias", linear.bias, n_out)
    return linear.weight, linear.bias


def _read_norm(name: str, norm: nn.LayerNorm, c: TransformerConfig) -> Norm:
    _check_shape(f"{name}.weight", norm.weight, c.d_model)
    _check_shape(f"{name}.bias", norm.bias, c.d_model)
    return Norm(norm.weight, norm.bias, norm.eps)


def _probability(dropout: Dropout) -> float:
    return dropout.p if dropout.training else 0.0
