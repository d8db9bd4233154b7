"""What a decoder remembers between steps.

Each layer keeps the keys and values of the target tokens seen so far (self-attention; they grow) and of the source
(cross-attention; projected once). The cache is a plain argument, never state on a module, so one model can serve any
number of decodes at once.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor


class KVCache:
    """The keys and values that one attention module has projected so far.

    Attributes:
        k: (B, H, slots, Dh) keys.
        v: (B, H, slots, Dh) values.
    """

    def __init__(self, k: Tensor, v: Tensor) -> None:
        self.k, self.v = k, v

    def empty_buffers(self, n: int) -> "KVCache":
        """Make empty buffers with as many rows and heads, for `n` tokens."""
        return KVCache(*(x.new_empty(*x.shape[:2], n, x.size(3)) for x in (self.k, self.v)))

    def update(self, k: Tensor, v: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        """Store the new tokens' keys and values and return those of all tokens so far.

        Args:
            k: (B, H, n, Dh) keys of the new tokens.
            v: (B, H, n, Dh) values of the new tokens.
            offset: Number of tokens stored before, `DecoderCache.length`; that there is room is not checked.

        Returns:
            Views (B, H, offset + n, Dh) of the filled slots only.
        """
        end = offset + k.size(2)
        self.k[:, :, offset:end] = k
        self.v[:, :, offset:end] = v
        return self.k[:, :, :end], self.v[:, :, :end]

    def select_rows(self, rows: Tensor, filled: int) -> None:
        """Keep the given rows, int64 (B'); only their filled slots are copied."""
        for name, buffer in (("k", self.k), ("v", self.v)):
            selected = buffer.new_empty(len(rows), *buffer.shape[1:])
            torch.index_select(buffer[:, :, :filled], 0, rows, out=selected[:, :, :filled])
            setattr(self, name, selected)


class LayerCache(NamedTuple):
    """What one decoder layer remembers.

    Attributes:
        target: Self-attention's keys and values; slots from `DecoderCache.length` on hold nothing.
        source: Cross-attention's keys and values; S slots, all filled from the start.
    """

    target: KVCache
    source: KVCache


class DecoderCache:
    """The memory of one decode: made by `Transformer.init_cache`, filled by `Transformer.step`.

    Attributes:
        layers: One `LayerCache` for each decoder layer.
        src_mask: bool (B, 1, 1, S), True = may attend; which source positions are real.
        capacity: How many target tokens fit.
        length: How many are stored. The position offset comes from here and nowhere else.
    """

    def __init__(self, source: Iterable[KVCache], src_mask: Tensor, capacity: int) -> None:
        """Make an empty cache; `source` has each layer's keys and values of the source."""
        self.layers = [LayerCache(source=each, target=each.empty_buffers(capacity)) for each in source]
        self.src_mask = src_mask
        self.capacity = capacity
        self.length = 0

    @torch.no_grad()
    def select_rows(self, rows: Tensor) -> None:
        """Keep the given rows, in the given order: int64 (B',) indices of current rows, which may repeat."""
        for layer in self.layers:
            layer.target.select_rows(rows, self.length)
            layer.source.select_rows(rows, layer.source.k.size(2))
        self.src_mask = self.src_mask[rows]
