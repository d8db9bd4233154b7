"""The model compiled for decoding on a CPU: stepper.cpp as an object, and what it remembers between steps.

It gives what `Transformer.encode`, `init_cache` and `step` give, without padding: the tokens of all sentences lie one
after another. Everything that decodes takes one or the other.
"""

import ctypes
import weakref
from collections.abc import Iterable
from ctypes import c_double, c_int64, c_void_p
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from minitrans.compiled import kernels
from minitrans.model.layers import DecoderLayer, EncoderLayer
from minitrans.model.masks import padding_mask
from minitrans.model.transformer import Transformer

SOURCE = Path(__file__).with_name("stepper.cpp")


class _Sizes(ctypes.Structure):
    _fields_ = [(name, c_int64) for name in ("D", "H", "Dh", "F", "L", "V", "pad", "bos")]


class _Model(ctypes.Structure):
    _fields_ = [
        (name, c_void_p)
        for name in ("source", "target", "output", "positions", "sublayers", "encoder_gamma", "encoder_beta",
                     "decoder_gamma", "decoder_beta")
    ]  # fmt: skip


class _Block(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("rows", c_int64)]


_ARGUMENTS = {
    "make": [_Sizes, _Model, c_double],
    "free": [c_void_p],
    "encode": [c_void_p, c_void_p, c_void_p, c_int64, c_void_p],
    "step": [c_void_p, c_void_p, c_int64, c_int64, *[c_void_p] * 4, _Block, c_int64, c_void_p, c_void_p],
}


class EngineCache:
    """The memory of one decode: made by `Engine.encode`, filled by `Engine.next_tokens`.

    Keys and values are written once and never copied: what `select_rows` chooses is which of them a row goes on with.

    Attributes:
        cross: (L, tokens, 2 H Dh) keys and values of all sources under each layer, one source after another.
        offsets: int64 (B + 1,), where each source begins in `cross`, and the last one ends.
        sources: int64 (R,), which source each row translates.
        blocks: For each step so far (L, R at that step, 2 H Dh), the keys and values of its tokens.
        slots: int32 (R, steps), in which row of each block a row's token is.
    """

    def __init__(self, cross: Tensor, offsets: Tensor) -> None:
        """Begin with one row for each source."""
        self.cross, self.offsets = cross, offsets
        self.sources = torch.arange(len(offsets) - 1)
        self.blocks: list[Tensor] = []
        self.slots = torch.empty(len(self.sources), 0, dtype=torch.int32)

    def select_rows(self, rows: Tensor) -> None:
        """Keep the given rows, in the given order: reorders, drops and repeats.

        Args:
            rows: int64 (R',) indices into the present rows; a row may occur any number of times.
        """
        self.sources, self.slots = self.sources[rows], self.slots[rows]


class Engine:
    """A copy of a model's weights, ready to decode; what happens to the model later, it does not see.

    Any number of threads may use one at the same time. A row's numbers do not depend on the rows beside it.

    Attributes:
        config: The model's.
    """

    def __init__(self, model: Transformer) -> None:
        """Take the weights in their dtype; `compiled` tells whether that can be done."""
        self.config = c = model.config
        self.dtype = model.output.weight.dtype
        self._computed = torch.promote_types(self.dtype, torch.float32)
        encoder = cast(Iterable[EncoderLayer], model.encoder.layers)
        decoder = cast(Iterable[DecoderLayer], model.decoder.layers)
        sublayers = [part for layer in encoder for part in (_attention(layer, "self"), _feed_forward(layer))]
        for layer in decoder:
            sublayers += [_attention(layer, "self"), _attention(layer, "cross"), _feed_forward(layer)]
        tables = model.src_embedding.weight, model.tgt_embedding.weight, model.output.weight, model.positions
        norms = [p for norm in (model.encoder.norm, model.decoder.norm) for p in (norm.weight, norm.bias)]
        copies: dict[int, Tensor] = {}  # one of a matrix that has several names

        def pointer(tensor: Tensor) -> int:
            key = tensor.data_ptr()
            if key not in copies:
                copies[key] = tensor.detach().to(self._computed, copy=True).contiguous()
            return copies[key].data_ptr()

        parameters = (kernels.Parameters * len(sublayers))(
            *(kernels.Parameters(*map(pointer, part)) for part in sublayers)
        )
        sizes = _Sizes(c.d_model, c.n_heads, c.head_size, c.d_ff, c.n_layers, c.vocab_size, c.pad_id, c.bos_id)
        of_model = _Model(*map(pointer, tables), ctypes.addressof(parameters), *map(pointer, norms))
        self._tensors = copies  # the library reads some of them again
        self._engine = self._call("make", sizes, of_model, model.encoder.norm.eps)
        weakref.finalize(self, self._function("free"), self._engine)

    def encode(self, src_ids: Tensor) -> EngineCache:
        """Read the sources, and begin a stepwise decode: int64 (B, S), padded on the right.

        Raises:
            ValueError: A source is longer than `max_len`.
            IndexError: An id is not below V, or negative.
        """
        kernels.check_ids(src_ids, self.config.vocab_size)
        real = padding_mask(src_ids, self.config.pad_id)[:, 0, 0]
        lengths = real.sum(-1).tolist()
        self._check_length(max(lengths))
        offsets, tokens = torch.tensor([0, *accumulate(lengths)]), src_ids[real]
        c = self.config
        cross = torch.empty(c.n_layers, len(tokens), 2 * c.n_heads * c.head_size, dtype=self.dtype)
        self._call("encode", self._engine, tokens, offsets, len(lengths), cross)
        return EngineCache(cross, offsets)

    def next_tokens(self, tokens: Tensor, cache: EngineCache, n: int) -> tuple[Tensor, Tensor]:
        """Feed each row's next token, and see what comes after it.

        Args:
            tokens: int64 (R,), the first one BOS.
            cache: From `encode`; gains the tokens.
            n: How many continuations of each row to return.

        Returns:
            The n likeliest, or all that there are, best first and among equals in the order of their ids:
            log-probabilities, float32 or float64, and int64 ids, both (R, n). PAD and BOS are not among them; but where
            the model's numbers are not finite, all is PAD.

        Raises:
            ValueError: More tokens than `max_len`, or not one for each row of the cache.
            IndexError: An id is not below V, or negative.
        """
        c, rows, t = self.config, len(tokens), len(cache.blocks)
        kernels.check_ids(tokens, c.vocab_size)
        self._check_length(t + 1)
        if rows != len(cache.sources):
            raise ValueError(f"{rows} tokens for a cache of {len(cache.sources)} rows")
        n = min(n, c.vocab_size - 2)
        cache.blocks.append(cache.cross.new_empty(c.n_layers, rows, cache.cross.size(2)))
        blocks = (_Block * (t + 1))(*(_Block(block.data_ptr(), block.size(1)) for block in cache.blocks))
        log_p, ids = torch.empty(rows, n, dtype=self._computed), tokens.new_empty(rows, n)
        cross = _Block(cache.cross.data_ptr(), cache.cross.size(1))
        self._call("step", self._engine, tokens.contiguous(), rows, t, ctypes.addressof(blocks), cache.slots,
                   cache.sources, cache.offsets, cross, n, log_p, ids)  # fmt: skip
        cache.slots = torch.cat([cache.slots, torch.arange(rows, dtype=torch.int32)[:, None]], 1)
        return log_p, ids

    def _check_length(self, length: int) -> None:
        if length > self.config.max_len:
            raise ValueError(f"{length} tokens are more than model.max_len ({self.config.max_len})")

    def _call(self, name: str, *arguments: object) -> int | None:
        assert all(a.is_contiguous() for a in arguments if isinstance(a, Tensor))
        result: int | None = self._function(name)(*(a.data_ptr() if isinstance(a, Tensor) else a for a in arguments))
        return result

    def _function(self, name: str) -> Any:
        function = getattr(_library(), f"{name}_{kernels.DTYPES[self.dtype]}")
        function.argtypes, function.restype = _ARGUMENTS[name], c_void_p if name == "make" else None
        return function


def compiled(model: Transformer) -> Transformer | Engine:
    """An engine of a model, on a CPU with a C++ compiler; elsewhere the model itself.

    The first call on a machine compiles the engine, for a few seconds.
    """
    weight = model.output.weight
    if weight.device.type != "cpu" or weight.dtype not in kernels.DTYPES or _library() is None:
        return model
    return Engine(model)


def _library() -> ctypes.CDLL | None:
    return kernels.compile_library(SOURCE)


def _attention(layer: EncoderLayer | DecoderLayer, kind: str) -> tuple[Tensor, ...]:
    attention = getattr(layer, f"{kind}_attn")
    return kernels.parameters_of(getattr(layer, f"{kind}_norm"), attention.w_qkv, attention.w_o)


def _feed_forward(layer: EncoderLayer | DecoderLayer) -> tuple[Tensor, ...]:
    return kernels.parameters_of(layer.ff_norm, layer.ff.w_1, layer.ff.w_2)
