"""What a decoder remembers between steps.

Each layer keeps the keys and values of the target tokens seen so far (self-attention; they grow) and of the source
(cross-attention; projected once). The cache is a plain argument, never state on a module, so one model can serve any
number of decodes at once.
"""

import torch
from torch import Tensor


class LayerCache:
    """Keys and values of one decoder layer, each (B, H, ., Dh).

    Attributes:
        cross_k: (B, H, S, Dh) keys of the source.
        cross_v: (B, H, S, Dh) values of the source.
        k: (B, H, capacity, Dh) buffer for the target's keys; slots from `DecoderCache.length` on hold nothing.
        v: (B, H, capacity, Dh) buffer for the target's values.
    """

    def __init__(self, cross_k: Tensor, cross_v: Tensor, capacity: int) -> None:
        """Take the source's projected keys and values, and make room for `capacity` target tokens."""
        batch, heads, _, d_head = cross_k.shape
        self.cross_k, self.cross_v = cross_k, cross_v
        self.k = cross_k.new_empty(batch, heads, capacity, d_head)
        self.v = cross_v.new_empty(batch, heads, capacity, d_head)

    def write(self, k: Tensor, v: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        """Store the new tokens' keys and values and return those of all tokens so far.

        Args:
            k: (B, H, n, Dh) keys of the new tokens.
            v: (B, H, n, Dh) values of the new tokens.
            offset: Number of tokens stored before, `DecoderCache.length`.

        Returns:
            Views (B, H, offset + n, Dh) on the filled slots alone.
        """
        end = offset + k.size(2)
        self.k[:, :, offset:end] = k
        self.v[:, :, offset:end] = v
        return self.k[:, :, :end], self.v[:, :, :end]


class DecoderCache:
    """The memory of one decode: made by `Transformer.init_cache`, filled by `Transformer.step`.

    Attributes:
        layers: One `LayerCache` for each decoder layer.
        src_mask: bool (B, 1, 1, S), True = may attend; which source positions are real.
        capacity: How many target tokens fit.
        length: How many are stored. The one source of the position offset.
    """

    def __init__(self, cross: list[tuple[Tensor, Tensor]], src_mask: Tensor, capacity: int) -> None:
        """Make an empty cache.

        Args:
            cross: For each layer the source's keys and values, (B, H, S, Dh) each.
            src_mask: bool (B, 1, 1, S), True = may attend.
            capacity: Number of target tokens to make room for.
        """
        self.layers = [LayerCache(k, v, capacity) for k, v in cross]
        self.src_mask = src_mask
        self.capacity = capacity
        self.length = 0

    def check_room(self, n: int) -> None:
        """Raise `ValueError` with both numbers unless `n` more tokens fit."""
        if self.length + n > self.capacity:
            raise ValueError(f"the cache holds {self.length} of {self.capacity} tokens: no room for {n} more")

    @torch.no_grad()
    def select_rows(self, rows: Tensor) -> None:
        """Keep the given rows, in the given order: reorders, drops and repeats.

        Args:
            rows: int64 (B',) indices into the present rows; a row may occur any number of times.
        """
        for layer in self.layers:
            layer.cross_k = layer.cross_k[rows]
            layer.cross_v = layer.cross_v[rows]
            layer.k, layer.v = (self._select_filled(buffer, rows) for buffer in (layer.k, layer.v))
        self.src_mask = self.src_mask[rows]

    def _select_filled(self, buffer: Tensor, rows: Tensor) -> Tensor:
        """Copy the filled slots of the chosen rows; the empty ones are not worth reading."""
        selected = buffer.new_empty(len(rows), *buffer.shape[1:])
        torch.index_select(buffer[:, :, : self.length], 0, rows, out=selected[:, :, : self.length])
        return selected
