"""The encoder-decoder Transformer: token ids in, logits out.

Shapes: `B` batch, `S` source length, `T` target length, `D` d_model, `H` heads, `V` vocabulary. Batch first.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from minitrans.model.cache import DecoderCache, KVCache
from minitrans.model.dropout import Dropout
from minitrans.model.layers import DecoderLayer, EncoderLayer, LayerOutput, Norm, sinusoidal_positions
from minitrans.model.masks import causal_mask, padding_mask


@dataclass(frozen=True)
class TransformerConfig:
    """The sizes of a Transformer.

    Attributes:
        vocab_size: Number of pieces in the joint vocabulary, V.
        pad_id: Id of the padding piece.
        bos_id: Id of the piece that begins a target.
        eos_id: Id of the piece that ends a source and a target.
        d_model: Size of the vectors between layers.
        n_heads: Attention heads in each layer.
        d_head: Size of each head's queries, keys and values; d_model / n_heads when null.
        d_ff: Size of the hidden layer of the feed-forward network.
        n_layers: Layers in the encoder, and again in the decoder.
        max_len: Longest source or target, in tokens, EOS (or BOS) included.
        dropout: Probability of dropping an element of an embedding, of a sub-layer's output or of a hidden layer.
        attention_dropout: Probability of dropping an attention weight.
        tie_embeddings: Whether source embedding, target embedding and output projection are one matrix.

    Raises:
        ValueError: A size makes no sense; the message names the setting.
    """

    vocab_size: int
    pad_id: int
    bos_id: int
    eos_id: int
    d_model: int = 128
    n_heads: int = 4
    d_head: int | None = None
    d_ff: int = 512
    n_layers: int = 3
    max_len: int = 256
    dropout: float = 0.1
    attention_dropout: float = 0.0
    tie_embeddings: bool = True

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "n_heads", "d_ff", "n_layers", "max_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"model.{name} must be in [0, 1), got {getattr(self, name)}")
        for name in ("pad_id", "bos_id", "eos_id"):
            if not 0 <= getattr(self, name) < self.vocab_size:
                raise ValueError(f"model.{name} is {getattr(self, name)}, not one of the {self.vocab_size} ids")
        if len({self.pad_id, self.bos_id, self.eos_id}) < 3:
            raise ValueError(f"pad_id, bos_id and eos_id must differ, got {self.pad_id}, {self.bos_id}, {self.eos_id}")
        if self.d_head is None and self.d_model % self.n_heads:
            raise ValueError(f"model.d_model ({self.d_model}) is not divisible by model.n_heads ({self.n_heads})")
        if self.d_head is not None and self.d_head < 1:
            raise ValueError(f"model.d_head must be at least 1, got {self.d_head}")

    @property
    def head_size(self) -> int:
        """Size of each head, Dh: `d_head`, or d_model / n_heads."""
        return self.d_head if self.d_head is not None else self.d_model // self.n_heads


class Encoder(nn.Module):
    """The encoder's layers and its final norm."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        c = config
        sizes = c.d_model, c.n_heads, c.head_size, c.d_ff, c.dropout, c.attention_dropout
        self.layers = nn.ModuleList(EncoderLayer(*sizes) for _ in range(c.n_layers))
        self.norm = Norm(c.d_model)

    def forward(self, x: Tensor, src_mask: Tensor, need_weights: bool = False) -> tuple[Tensor, list[LayerOutput]]:
        """Encode.

        Args:
            x: (B, S, D) embedded source.
            src_mask: bool (B, 1, 1, S), True = may attend.
            need_weights: Whether the traces hold attention weights.

        Returns:
            memory (B, S, D), and what each layer computed.
        """
        traces = []
        for layer in self.layers:
            traces.append(layer(x, src_mask, need_weights))
            x = traces[-1].output
        return self.norm(x), traces


class Decoder(nn.Module):
    """The decoder's layers and its final norm."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        c = config
        sizes = c.d_model, c.n_heads, c.head_size, c.d_ff, c.dropout, c.attention_dropout
        self.layers = nn.ModuleList(DecoderLayer(*sizes) for _ in range(c.n_layers))
        self.norm = Norm(c.d_model)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None,
        src_mask: Tensor,
        cache: DecoderCache | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, list[LayerOutput]]:
        """Decode all positions of `x` at once, each seeing the source and the target up to itself.

        Args:
            x: (B, T, D) embedded target: all of it, or the tokens that follow those in the cache.
            memory: (B, S, D) the encoded source; None with a cache, which has its keys and values.
            src_mask: bool (B, 1, 1, S), True = may attend.
            cache: The tokens before `x`; its layers gain those of `x`, its length is left to the caller.
            need_weights: Whether the traces hold attention weights.

        Returns:
            The hidden states (B, T, D), and what each layer computed.
        """
        offset = 0 if cache is None else cache.length
        causal = causal_mask(x.size(1), offset + x.size(1), offset, x.device)
        pasts = [None] * len(self.layers) if cache is None else cache.layers
        traces = []
        for layer, past in zip(self.layers, pasts, strict=True):
            traces.append(layer(x, causal, memory, src_mask, past, offset, need_weights))
            x = traces[-1].output
        return self.norm(x), traces


class Transformer(nn.Module):
    """The whole model, initially with random weights.

    `model(src_ids, tgt_in)` is the full masked pass of training. Decoding is `encode`, `init_cache`, then `step` after
    `step`. Source: Vaswani et al. 2017, with pre-norm layers (Xiong et al. 2020).
    """

    positions: Tensor

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.src_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.tgt_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.tgt_embedding.weight = self.output.weight = self.src_embedding.weight
        for table in (self.src_embedding, self.tgt_embedding, self.output):
            nn.init.normal_(table.weight, std=config.d_model**-0.5)
        self.register_buffer("positions", None, persistent=False)
        self.dropout = Dropout(config.dropout)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self._reset_positions()

    def _reset_positions(self) -> None:
        """Compute the positions in float64 and round them to the dtype of the weights."""
        weight = self.output.weight
        table = sinusoidal_positions(self.config.max_len, self.config.d_model)
        self.positions = table.to(weight.dtype).to(weight.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Transformer":
        """Move or cast the model, as `to` and `double` do; positions are recomputed, not cast from a low dtype."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._reset_positions()
        return self

    def forward(self, src_ids: Tensor, tgt_in: Tensor) -> Tensor:
        """The full masked pass: what comes after each target token, for all of them at once.

        Args:
            src_ids: int64 (B, S), ends with EOS, padded on the right.
            tgt_in: int64 (B, T), begins with BOS, padded on the right.

        Returns:
            logits (B, T, V); position t has seen `tgt_in` up to t. The logits at padding are meaningless.

        Raises:
            ValueError: A sequence is longer than `max_len`.
        """
        return self.logits(self.hidden_states(src_ids, tgt_in))

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of the next token: (..., D) -> (..., V). The loss calls this twice: use no random numbers."""
        return self.output(hidden)

    def hidden_states(self, src_ids: Tensor, tgt_in: Tensor) -> Tensor:
        """`forward` (errors too) up to the logits, which the loss computes for a few rows at a time: (B, T, D)."""
        memory, src_mask = self.encode(src_ids)
        return self.run_decoder(tgt_in, memory, src_mask)[0]

    def encode(self, src_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Read the source.

        Args:
            src_ids: int64 (B, S), padded on the right.

        Returns:
            memory (B, S, D) and src_mask, bool (B, 1, 1, S), True = may attend.

        Raises:
            ValueError: The source is longer than `max_len`.
        """
        return self.run_encoder(src_ids)[:2]

    def decode(self, tgt_in: Tensor, memory: Tensor, src_mask: Tensor) -> Tensor:
        """The full masked pass: int64 (B, T) -> logits (B, T, V); the rest is from `encode`. Errors as in `forward`."""
        return self.logits(self.run_decoder(tgt_in, memory, src_mask)[0])

    def init_cache(self, memory: Tensor, src_mask: Tensor, capacity: int | None = None) -> DecoderCache:
        """Begin a stepwise decode.

        Args:
            memory: (B, S, D), from `encode`.
            src_mask: bool (B, 1, 1, S), True = may attend, from `encode`.
            capacity: How many target tokens to make room for; `max_len` when None.

        Returns:
            An empty cache for `step`. It is for inference only: call `step` under `torch.no_grad()`.
        """
        layers = cast(Iterable[DecoderLayer], self.decoder.layers)
        source = [KVCache(*layer.cross_attn.project(memory, 1, 3)) for layer in layers]
        return DecoderCache(source, src_mask, self.config.max_len if capacity is None else capacity)

    def step(self, tgt_ids: Tensor, cache: DecoderCache) -> Tensor:
        """Feed the next target tokens, and return the logits after each.

        Args:
            tgt_ids: int64 (B, n), n >= 1 new tokens for every row; the very first is BOS.
            cache: From `init_cache`; gains the new tokens.

        Returns:
            logits (B, n, V), equal to those that the full masked pass gives at the same positions.

        Raises:
            ValueError: No room for n more tokens in the cache, or beyond `max_len`.
        """
        return self.logits(self.run_decoder(tgt_ids, None, cache.src_mask, cache)[0])

    def run_encoder(self, src_ids: Tensor, need_weights: bool = False) -> tuple[Tensor, Tensor, list[LayerOutput]]:
        """`encode`, and what each layer computed; with the attention weights if asked for."""
        src_mask = padding_mask(src_ids, self.config.pad_id)
        memory, traces = self.encoder(self.embed(self.src_embedding, src_ids, 0), src_mask, need_weights)
        return memory, src_mask, traces

    def run_decoder(
        self,
        tgt_ids: Tensor,
        memory: Tensor | None,
        src_mask: Tensor,
        cache: DecoderCache | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, list[LayerOutput]]:
        """`decode` (without a cache) and `step` (with one) up to the logits, and what each layer computed.

        `tgt_ids`, int64 (B, T), is the whole target, or the tokens that follow those in the cache; the rest is as for
        `Decoder.forward`. Errors as in `step`.
        """
        n = tgt_ids.size(1)
        if cache is not None and cache.length + n > cache.capacity:
            raise ValueError(f"the cache holds {cache.length} of {cache.capacity} tokens: no room for {n} more")
        offset = 0 if cache is None else cache.length
        x = self.embed(self.tgt_embedding, tgt_ids, offset)
        hidden, traces = self.decoder(x, memory, src_mask, cache, need_weights)
        if cache is not None:
            cache.length += n
        return hidden, traces

    def embed(self, embedding: nn.Embedding, ids: Tensor, offset: int) -> Tensor:
        """Token vectors times sqrt(D), plus position vectors from `offset` on: int64 (B, T) -> (B, T, D)."""
        end = offset + ids.size(1)
        if end > self.config.max_len:
            raise ValueError(f"{end} tokens are more than model.max_len ({self.config.max_len})")
        x = embedding(ids) * math.sqrt(self.config.d_model) + self.positions[offset:end]
        device = x.device.type
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            x = x.to(torch.get_autocast_dtype(device))  # sums too, not only products
        return self.dropout(x)
