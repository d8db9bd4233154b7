"""What a model has to offer for its decoding from a cache to be measured; and what it is measured on."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from minitrans.cachecheck.measurement import NotOfferedError, dtype_name, one_line_message

CacheT = TypeVar("CacheT")
N_BEAMS = 3


class LoadError(ImportError):
    """There is no such model, or what loads it is not installed; the message says in one line which, and what to do."""


class CachedModel(Generic[CacheT]):
    """A model in eval mode that computes the next token's logits from a cache. Subclass it around your own.

    `full_pass`, `new_cache` and `feed` are required. A subclass need not override what its model cannot do: the checks
    that need it are "not offered". Tokens are int64 (B, n), masks bool of the same shape, True = a real token.

    Attributes:
        ordinary: Ids that sentences may be made of, at least two: not padding, nor the end of a sentence.
        first: The id that every target begins with; None: any.
        dtype: Of the parameters; the model computes in it.
        max_len: The most tokens that it takes; None: any number.
        window_sizes: Sizes of windows and blocks, across which sentences should go.
        has_source: Whether there is an encoder.
        takes_mask: Whether `full_pass` and `feed` make use of their mask.
        variants: The same model run in other ways, by name; see `cache_checks`.
        refusal: What it raises where it cannot select, copy, drop or embed, or take a full pass or a step of a sentence
            that it has taken token by token before; any other exception there is a failure.
    """

    ordinary: Sequence[int]
    first: int | None = None
    dtype: torch.dtype = torch.float32
    max_len: int | None = None
    window_sizes: Sequence[int] = ()
    has_source: bool = False
    takes_mask: bool = False
    variants: Mapping[str, "Callable[[], CachedModel[Any]]"] = {}
    refusal: type[Exception] = NotOfferedError

    def full_pass(self, memory: Any, tokens: Tensor, mask: Tensor | None = None) -> Sequence[Tensor]:
        """The logits (B, T, V) after each of the tokens, by the full masked pass.

        Args:
            memory: From `encode`; None if there is no encoder.
            tokens: int64 (B, T).
            mask: bool (B, T); None: all are real.

        Returns:
            The logits, and then whatever else is to be the same in steps: each with the positions as its last axis
            but one. Attention weights are (B, H, T, Tk).
        """
        raise NotImplementedError

    def new_cache(self, memory: Any, n_rows: int, capacity: int) -> CacheT:
        """An empty cache for some rows, and for as many tokens as `capacity`; it holds the memory."""
        raise NotImplementedError

    def feed(self, tokens: Tensor, cache: CacheT, mask: Tensor | None = None) -> Sequence[Tensor]:
        """What `full_pass` returns, for the next n >= 1 tokens (B, n); the cache gains them."""
        raise NotImplementedError

    def encode(self, src_ids: Tensor, src_mask: Tensor) -> Any:
        """The memory of sources (B, S), padded where the mask (B, S) is False."""
        raise NotOfferedError("there is no encoder")

    def select_rows(self, cache: CacheT, rows: Tensor) -> CacheT:
        """The cache with the given rows, int64 (R,), in the given order; a row may occur any number of times."""
        raise NotOfferedError("there is no way to select a cache's rows")

    def copy_cache(self, cache: CacheT) -> CacheT:
        """A copy that shares nothing with the cache."""
        return call_model(copy.deepcopy, cache)

    def drop_last(self, cache: CacheT, n: int) -> CacheT:
        """The cache without its last n >= 1 tokens, all fed since some were last dropped; it is not left empty."""
        raise NotOfferedError("there is no way to drop a cache's last tokens")

    def embedding(self) -> nn.Module:
        """The module that turns the target's ids into vectors (B, n, D): gradients are taken of what it returns."""
        raise NotOfferedError("nothing says which module embeds the tokens")

    def generate(self, memory: Any, prompts: Tensor, n: int, way: str, mask: Tensor | None = None) -> Tensor:
        """The prompts, and after each the n likeliest of the ordinary tokens, one after the other.

        Args:
            memory: As for `full_pass`.
            prompts: int64 (B, T); more than one only if `way` is "cached".
            n: How many to add, at least 1.
            way: "cached" or "uncached"; "beams" or "uncached beams", the N_BEAMS best by beam search, best one first;
                or from a cache with drafts, by "lookup" in the prompt, of a "draft" model or the model's "own draft".
            mask: bool (B, T); None: all are real.

        Returns:
            int64 (B, T + n); of beams (N_BEAMS, T + n).
        """
        raise NotOfferedError("it has no generate")

    def to(self, dtype: torch.dtype) -> "CachedModel[CacheT]":
        """The same around a copy of the model in another dtype."""
        raise NotOfferedError(f"there is no way to convert it from {dtype_name(self.dtype)} to {dtype_name(dtype)}")


class Functions(CachedModel[list[Any]]):
    """A model given as a pair of functions, without padding; further functions may select rows and drop tokens."""

    def __init__(
        self,
        full: Callable[[Tensor], Tensor],
        step: Callable[[Tensor, Any], tuple[Tensor, Any]],
        vocab_size: int,
        *,
        select: Callable[[Any, Tensor], Any] | None = None,
        drop: Callable[[Any, int], Any] | None = None,
        embedding: nn.Module | None = None,
        dtype: torch.dtype = torch.float32,
        max_len: int | None = None,
        window_sizes: Sequence[int] = (),
        first: int | None = None,
    ) -> None:
        """Take the functions; `dtype`, `max_len`, `window_sizes` and `first` are the attributes of `CachedModel`.

        `full` gives logits (B, T, V) of int64 tokens (B, T), where V is `vocab_size`. `step` gives logits (B, n, V) of
        the next n tokens (B, n), and the cache for the next call; the first cache is None. `select` gives a cache with
        the given rows, `drop` one without its last n tokens; `embedding` is the module that embeds the tokens.
        """
        self.ordinary, self.first = [i for i in range(vocab_size) if i != first], first
        self.dtype, self.max_len, self.window_sizes = dtype, max_len, window_sizes
        self._full, self._step, self._select, self._drop, self._embedding = full, step, select, drop, embedding

    def full_pass(self, memory: Any, tokens: Tensor, mask: Tensor | None = None) -> Sequence[Tensor]:
        """Call `full`."""
        return [self._full(tokens)]

    def new_cache(self, memory: Any, n_rows: int, capacity: int) -> list[Any]:
        """A list that holds the cache, None at first."""
        return [None]

    def feed(self, tokens: Tensor, cache: list[Any], mask: Tensor | None = None) -> Sequence[Tensor]:
        """Call `step`."""
        logits, cache[0] = self._step(tokens, cache[0])
        return [logits]

    def select_rows(self, cache: list[Any], rows: Tensor) -> list[Any]:
        """Call `select`."""
        return super().select_rows(cache, rows) if self._select is None else [self._select(cache[0], rows)]

    def drop_last(self, cache: list[Any], n: int) -> list[Any]:
        """Call `drop`."""
        return super().drop_last(cache, n) if self._drop is None else [self._drop(cache[0], n)]

    def embedding(self) -> nn.Module:
        """The module that was given."""
        return self._embedding if self._embedding is not None else super().embedding()


@dataclass(frozen=True)
class ModelAndTokens(Generic[CacheT]):
    """A model, and sentences for it.

    Attributes:
        model: What is measured.
        tokens: int64 (B, T), of which none is padding to the model.
        src_ids: int64 (B, S), ragged; (B, 0) if there is no encoder.
        src_mask: bool (B, S), True = a real token.
        logit_unit: What logits are divided by before they are compared.
        lowest: The value to which lower logits are then raised: how far below they lie, say at -1e9, does not matter.
        refusal: What the model may raise to refuse a full pass or a step of one token without a mask: any exception,
            until it (in the ordinary way, not a variant) has taken these sentences token by token.
    """

    model: CachedModel[CacheT]
    tokens: Tensor
    src_ids: Tensor
    src_mask: Tensor
    logit_unit: float = 1.0
    lowest: float = -float("inf")
    refusal: type[Exception] = Exception

    def with_rows(self, index: Tensor | slice) -> "ModelAndTokens[CacheT]":
        """The same with the given rows alone."""
        return replace(self, tokens=self.tokens[index], src_ids=self.src_ids[index], src_mask=self.src_mask[index])

    def unpadded_row(self, b: int) -> "ModelAndTokens[CacheT]":
        """One row, without its source's padding."""
        row = self.with_rows(slice(b, b + 1))
        return replace(row, src_ids=row.src_ids[:, self.src_mask[b]], src_mask=row.src_mask[:, self.src_mask[b]])

    def with_tokens(self, tokens: Tensor) -> "ModelAndTokens[CacheT]":
        """The same with other tokens (B, T)."""
        return replace(self, tokens=tokens)

    def with_other_tokens(self, positions: slice) -> "ModelAndTokens[CacheT]":
        """The same with other tokens at some positions."""
        tokens = self.tokens.clone()
        tokens[:, positions] = self.other_tokens(tokens[:, positions])
        return self.with_tokens(tokens)

    def with_variant(self, way: str) -> "ModelAndTokens[Any]":
        """The same with the model run in another way, one of its variants.

        Raises:
            NotOfferedError: It has no such variant.
        """
        if way not in self.model.variants:
            raise NotOfferedError(f"no way to run it with {way} is given")
        return replace(self, model=call_model(self.model.variants[way]))

    def memory(self) -> Any:
        """The memory of the sources."""
        if not self.model.has_source:
            return None
        return call_model(self.model.encode, own_copy(self.src_ids), self.src_mask, refusal=self.refusal)

    def full_pass(self, mask: Tensor | None = None) -> list[Tensor]:
        """What the full masked pass gives for the tokens; logits in units of `logit_unit`."""
        refusal = self.refusal if mask is None else Exception
        tokens = own_copy(self.tokens)
        return self._logits_in_units(call_model(self.model.full_pass, self.memory(), tokens, mask, refusal=refusal))

    def new_cache(self) -> CacheT:
        """An empty cache for the sources and all of the tokens."""
        return call_model(self.model.new_cache, self.memory(), *self.tokens.shape)

    def feed(
        self, tokens: Tensor, cache: CacheT, mask: Tensor | None = None, refusal: type[Exception] = Exception
    ) -> list[Tensor]:
        """What the next tokens (B, n) give; logits in units of `logit_unit`. The model may raise a `refusal`."""
        if mask is None and tokens.size(1) == 1 and refusal is Exception:
            refusal = self.refusal
        return self._logits_in_units(call_model(self.model.feed, own_copy(tokens), cache, mask, refusal=refusal))

    def select_rows(self, cache: CacheT, rows: Tensor) -> CacheT:
        """The cache with the given rows."""
        return call_model(self.model.select_rows, cache, rows, refusal=self.model.refusal)

    def drop_last(self, cache: CacheT, n: int) -> CacheT:
        """The cache without its last tokens."""
        return call_model(self.model.drop_last, cache, n, refusal=self.model.refusal)

    def copy_cache(self, cache: CacheT) -> CacheT:
        """A copy of the cache."""
        return call_model(self.model.copy_cache, cache, refusal=self.model.refusal)

    def other_tokens(self, tokens: Tensor) -> Tensor:
        """Ordinary ids, each different from the one in its place in `tokens`."""
        ordinary = torch.tensor(sorted(self.model.ordinary))
        return ordinary[(torch.searchsorted(ordinary, tokens.contiguous()) + 1) % len(ordinary)]

    def _logits_in_units(self, numbers: Sequence[Tensor]) -> list[Tensor]:
        if isinstance(numbers, Tensor):
            raise TypeError("what is returned is a tensor, not a list of tensors with the logits first")
        if not isinstance(numbers[0], Tensor):
            raise TypeError(f"the logits are not a tensor, but of type {type(numbers[0]).__name__}")
        return [(numbers[0] / self.logit_unit).clamp(min=self.lowest), *numbers[1:]]


def own_copy(tokens: Tensor) -> Tensor:
    """The tokens, contiguous, for a model to read or overwrite: the caller's stay as they are."""
    return tokens.clone(memory_format=torch.contiguous_format)


@torch.no_grad()
def call_model(function: Callable[..., Any], *arguments: Any, refusal: type[Exception] = Exception) -> Any:
    """Call a function of a model without gradients, and return what it returns.

    Raises:
        NotOfferedError: The function raises this, or a `refusal`: by default any exception.
    """
    try:
        return function(*arguments)
    except NotOfferedError:
        raise
    except refusal as error:
        raise NotOfferedError(f"{type(error).__name__}: {one_line_message(error)}") from error
