"""The model compiled for decoding on a CPU: stepper.cpp as an object, and what it remembers between steps.

It gives what `CachedStepper` gives, without padding: the tokens of all sentences lie one after another.
"""

import ctypes
import weakref
from ctypes import addressof, c_bool, c_int64, c_void_p
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minitrans.compiled.library import SublayerParameters, call_function, check_token_ids, load_library
from minitrans.compiled.plan import Plan
from minitrans.model.decoding import source_lengths

CPP_PATH = Path(__file__).with_name("stepper.cpp")


class _Sizes(ctypes.Structure):
    _fields_ = [(name, c_int64) for name in ("D", "H", "Dh", "F", "L", "V", "pad", "bos")]


class _Model(ctypes.Structure):
    _fields_ = [(name, c_void_p) for name in ("source", "target", "output", "positions", "sublayers")]


class _KVBlockPointer(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("rows", c_int64)]


_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {  # what each returns, and its arguments
    "make": (c_void_p, [_Sizes, _Model]),
    "free": (None, [c_void_p]),
    "encode": (c_bool, [c_void_p, c_void_p, c_void_p, c_int64, c_void_p]),
    "step": (c_bool, [*[c_void_p] * 2, *[c_int64] * 3, *[c_void_p] * 4, _KVBlockPointer, c_int64, c_void_p, c_void_p]),
}


class CompiledState:
    """The memory of one decode: made by `CompiledStepper.begin`, filled by its `next_tokens`.

    Keys and values are written once and never copied: `select_rows` only chooses which of them a row goes on with.

    Attributes:
        cross: (L, tokens, 2 H Dh) keys and values of all sources under each layer, one source after another.
        offsets: int64 (B + 1,), where each source begins in `cross`, and the last one ends.
        sources: int64 (R,), which source each row translates.
        blocks: For each step so far (L, R at that step, 2 H Dh), the keys and values of its tokens.
        pointers: Where each block is, and how many rows it has.
        slots: int32 (R, capacity), the row of each block that holds a row's token; for a step to come, the row itself.
    """

    def __init__(self, cross: Tensor, offsets: Tensor, capacity: int) -> None:
        """Begin with one row for each source, for at most `capacity` steps."""
        self.cross, self.offsets = cross, offsets
        self.sources = torch.arange(len(offsets) - 1, device="cpu")
        self.blocks: list[Tensor] = []
        self.pointers = (_KVBlockPointer * capacity)()
        self.slots = torch.arange(len(self.sources), dtype=torch.int32, device="cpu")[:, None].repeat(1, capacity)

    def select_rows(self, rows: Tensor) -> None:
        """Keep the given rows, in the given order: reorders, drops and repeats.

        Args:
            rows: int64 (R',) indices into the present rows; a row may occur any number of times.
        """
        self.sources, self.slots = self.sources[rows], self.slots[rows]
        self.slots[:, len(self.blocks) :] = torch.arange(len(rows), dtype=torch.int32, device="cpu")[:, None]


class CompiledStepper:
    """A `Stepper` with a copy of a model's weights, ready to decode; it does not see later changes to the model.

    Any number of threads may use one at the same time. A row's numbers do not depend on the rows beside it.

    Attributes:
        config: The model's.
    """

    def __init__(self, plan: Plan) -> None:
        """Take the weights in their dtype, one of bfloat16, float32 and float64.

        Raises:
            NotAdmittedError: There is no C++ compiler, or it fails.
        """
        self.config = c = plan.config
        self.dtype = plan.output.dtype
        self._computed = torch.promote_types(self.dtype, torch.float32)
        copies: dict[int, Tensor] = {}  # one of a matrix that has several names

        def pointer(tensor: Tensor) -> int:
            key = tensor.data_ptr()
            if key not in copies:
                copies[key] = tensor.detach().to(self._computed, copy=True)
            return copies[key].data_ptr()

        sublayers = [SublayerParameters(*map(pointer, x.parameters), eps=x.eps) for x in (*plan.encoder, *plan.decoder)]
        array = (SublayerParameters * len(sublayers))(*sublayers)
        tables = *map(pointer, (plan.src_embedding, plan.tgt_embedding, plan.output, plan.positions)), addressof(array)
        sizes = _Sizes(c.d_model, c.n_heads, c.head_size, c.d_ff, c.n_layers, c.vocab_size, c.pad_id, c.bos_id)
        self._call = partial(call_function, load_library(CPP_PATH, _FUNCTIONS), self.dtype)
        self._stepper: int = self._call("make", sizes, _Model(*tables))
        last_norms = *plan.encoder[-1].parameters, *plan.decoder[-1].parameters
        read_later = plan.src_embedding, plan.tgt_embedding, plan.positions, *last_norms
        self._tensors = [copies[tensor.data_ptr()] for tensor in read_later]  # kept alive
        weakref.finalize(self, self._call, "free", self._stepper).atexit = False  # a daemon thread may still be in it

    @property
    def max_concurrent_batches(self) -> int:
        """As many threads as PyTorch may use: a batch keeps one busy, and they never wait for each other."""
        return torch.get_num_threads()

    def begin(self, src_ids: Tensor, capacity: int) -> CompiledState:
        """Read the sources, int64 (B, S), padded on the right, to decode at most `capacity` tokens of each.

        Raises:
            ValueError: A source, or `capacity`, is longer than `max_len`; or there is padding before a token.
            IndexError, TypeError: An id is not below V, or negative; ids are not int64, or not on the CPU.
        """
        check_token_ids(src_ids, self.config.vocab_size)
        lengths = source_lengths(src_ids, self.config.pad_id)
        if (longest := max([*lengths, capacity])) > self.config.max_len:
            raise ValueError(f"{longest} tokens are more than model.max_len ({self.config.max_len})")
        offsets, tokens = torch.tensor([0, *accumulate(lengths)], device="cpu"), src_ids[src_ids != self.config.pad_id]
        c = self.config
        cross = torch.empty(c.n_layers, len(tokens), 2 * c.n_heads * c.head_size, dtype=self.dtype, device="cpu")
        self._call("encode", self._stepper, tokens, offsets, len(lengths), cross)
        return CompiledState(cross, offsets, capacity)

    def next_tokens(self, tokens: Tensor, state: CompiledState, n: int) -> tuple[Tensor, Tensor]:
        """Feed each row its newest token, int64 (R,), at first BOS; the result is that of `likeliest_tokens`.

        Unlike there, PAD and BOS are not among the n; where the model's numbers are not finite, all n are PAD.

        Raises:
            ValueError: More tokens than `begin` was told, or not one for each row; or `n` is below 1.
            IndexError, TypeError: An id is not below V, or negative; ids are not int64, or not on the CPU.
        """
        c, count, t = self.config, len(tokens), len(state.blocks)
        check_token_ids(tokens, c.vocab_size)
        if t == len(state.pointers):
            raise ValueError(f"the cache holds {t} of {t} tokens: no room for 1 more")
        if count != len(state.sources):
            raise ValueError(f"{count} tokens for a cache of {len(state.sources)} rows")
        if n < 1:
            raise ValueError(f"n is {n}; it must be at least 1")
        n = min(n, c.vocab_size - 2)
        block = state.cross.new_empty(c.n_layers, count, state.cross.size(2))
        state.pointers[t] = _KVBlockPointer(block.data_ptr(), count)
        log_p, ids = tokens.new_empty(count, n, dtype=self._computed), tokens.new_empty(count, n)
        cross = _KVBlockPointer(state.cross.data_ptr(), state.cross.size(1))
        self._call("step", self._stepper, tokens.contiguous(), count, t, len(state.pointers), addressof(state.pointers),
                   state.slots, state.sources, state.offsets, cross, n, log_p, ids)  # fmt: skip
        state.blocks.append(block)
        return log_p, ids
