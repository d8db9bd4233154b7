"""Independent answers: PyTorch's own attention, layers and Transformer with our weights copied in.

They share no code with the package. The other oracle, loops in NumPy, is `minitrans.model.reference`.
"""

import math
import warnings
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from minitrans.model.attention import MultiHeadAttention
from minitrans.model.layers import DecoderLayer, EncoderLayer
from minitrans.model.reference import Array
from minitrans.model.transformer import Transformer


def numpy_weights(model: Transformer) -> dict[str, Array]:
    """The model's weights for the NumPy reference, in float64."""
    return {name: tensor.detach().double().numpy() for name, tensor in model.state_dict().items()}


def torch_multi_head(attention: MultiHeadAttention, batch_first: bool = True) -> nn.MultiheadAttention:
    """`nn.MultiheadAttention` with the weights of ours, whose packed layout it shares, n_heads * d_head = d_model.

    With `batch_first` it takes (B, L, D), as ours does, and (L, B, D) without.
    """
    d_model, dtype = attention.w_o.out_features, attention.w_o.weight.dtype
    module = nn.MultiheadAttention(d_model, attention.n_heads, batch_first=batch_first, dtype=dtype)
    module.load_state_dict(as_torch_state_dict(attention.state_dict()))
    return module


def torch_layer(layer: EncoderLayer | DecoderLayer) -> nn.Module:
    """PyTorch's pre-norm layer, of an encoder or a decoder, with the weights of ours, n_heads * d_head = d_model."""
    kind = nn.TransformerDecoderLayer if hasattr(layer, "cross_attn") else nn.TransformerEncoderLayer
    (d_ff, d_model), dtype, n_heads = layer.ff.w_1.weight.shape, layer.ff.w_1.weight.dtype, layer.self_attn.n_heads
    module = kind(d_model, n_heads, d_ff, dropout=0.0, batch_first=True, norm_first=True, dtype=dtype)
    module.load_state_dict(as_torch_state_dict(layer.state_dict()))
    return module


def torch_memory_and_logits(model: Transformer, src_ids: Tensor, tgt_in: Tensor) -> tuple[Tensor, Tensor]:
    """What `nn.Transformer` gives with the weights of ours, n_heads * d_head = d_model: memory and logits.

    It takes vectors, not ids, so embeddings, positions and the output projection are written out here. Sources are
    int64 (B, S), padded on the right, and targets int64 (B, T); the memory is (B, S, D), and logits are (B, T, V).
    """
    c, dtype = model.config, model.output.weight.dtype
    with warnings.catch_warnings(action="ignore"):  # it says that with norm_first padding is computed too
        module = nn.Transformer(
            c.d_model, c.n_heads, c.n_layers, c.n_layers, c.d_ff, 0.0, batch_first=True, norm_first=True, dtype=dtype
        )
    stacks = {n: w for n, w in model.state_dict().items() if n.startswith(("encoder.", "decoder."))}
    module.load_state_dict(as_torch_state_dict(stacks))
    src, tgt = (
        table(ids) * math.sqrt(c.d_model) + _sinusoidal_table(ids.size(1), c.d_model).to(dtype)
        for table, ids in ((model.src_embedding, src_ids), (model.tgt_embedding, tgt_in))
    )
    padded = src_ids == c.pad_id  # theirs: True = may NOT attend
    future = torch.ones(tgt_in.size(1), tgt_in.size(1)).triu(1).bool()
    hidden = module(src, tgt, tgt_mask=future, src_key_padding_mask=padded, memory_key_padding_mask=padded)
    return module.encoder(src, src_key_padding_mask=padded), hidden @ model.output.weight.T


def as_torch_state_dict(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our weights under the names that PyTorch's own attention, layers and Transformer give them."""
    renamed = {
        "w_qkv.": "in_proj_",
        "w_o.": "out_proj.",
        "cross_attn.": "multihead_attn.",
        "ff.w_1.": "linear1.",
        "ff.w_2.": "linear2.",
        "self_norm.": "norm1.",
        "cross_norm.": "norm2.",
    }
    result = {}
    for name, tensor in state_dict.items():
        in_decoder = name.replace("ff_norm", "cross_norm") in state_dict
        torch_name = name.replace("ff_norm.", "norm3." if in_decoder else "norm2.")
        for old, new in renamed.items():
            torch_name = torch_name.replace(old, new)
        result[torch_name] = tensor
    return result


def _sinusoidal_table(n: int, d_model: int) -> Tensor:
    """Sines and cosines of Vaswani et al. 2017, section 3.5, as one complex exponential: float64 (n, D)."""
    rates = torch.tensor([10000.0 ** (-2 * (i // 2) / d_model) for i in range(d_model)], dtype=torch.float64)
    waves = torch.exp(1j * torch.arange(n, dtype=torch.float64)[:, None] * rates)
    return torch.where(torch.arange(d_model) % 2 == 0, waves.imag, waves.real)
