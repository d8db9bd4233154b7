"""Faults that can be put around any model, whatever is inside: what the checks of anyone's model have to notice."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from minitrans.cachecheck.protocol import CachedModel, Case
from minitrans.cachecheck.self_test import Fault


class Around(CachedModel[Any]):
    """A model that does what another one does, but for what a subclass does in its own way: a fault."""

    def __init__(self, inner: CachedModel[Any]) -> None:
        """Take the model, with its variants made faulty alike."""
        self.inner = inner
        for name in ("ordinary", *vars(CachedModel)):
            if not name.startswith("_") and name not in vars(type(self)):
                setattr(self, name, getattr(inner, name))
        self.variants = {name: partial(self._around, make) for name, make in inner.variants.items()}

    @classmethod
    def _around(cls, make: Callable[[], CachedModel[Any]]) -> "Around":
        return cls(make())


class PositionsAhead(Around):
    """After the first feed positions are one too high."""

    def new_cache(self, memory: Any, rows: int, capacity: int) -> Any:
        """With positions moved."""
        cache = self.inner.new_cache(memory, rows, capacity)
        self.inner.shift_positions(cache, 1)
        return cache


class MaskLate(Around):
    """Each token is given something of what the next one sees."""

    def full_pass(self, memory: Any, tokens: Tensor, mask: Tensor | None = None) -> Sequence[Tensor]:
        """With a leak."""
        return self._leaking(self.inner.full_pass(memory, tokens, mask))

    def feed(self, tokens: Tensor, cache: Any, mask: Tensor | None = None) -> Sequence[Tensor]:
        """With a leak within the chunk."""
        return self._leaking(self.inner.feed(tokens, cache, mask))

    @staticmethod
    def _leaking(numbers: Sequence[Tensor]) -> Sequence[Tensor]:
        logits = numbers[0]
        return [logits + 0.01 * torch.cat([logits[:, 1:], logits[:, -1:]], 1), *numbers[1:]]


@dataclass
class Cut:
    """A cache that remembers what it was fed."""

    cache: Any
    anew: Callable[[], Any]
    tokens: Tensor | None = None


class CacheCut(Around):
    """From the fifth token on, the cache holds no more than the last three."""

    def new_cache(self, memory: Any, rows: int, capacity: int) -> Any:
        """With its makings."""
        return Cut(self.inner.new_cache(memory, rows, capacity), lambda: self.inner.new_cache(memory, rows, capacity))

    def feed(self, tokens: Tensor, cache: Cut, mask: Tensor | None = None) -> Sequence[Tensor]:
        """From what is left."""
        if mask is not None:
            return self.inner.feed(tokens, cache.cache, mask)
        before = tokens[:, :0] if cache.tokens is None else cache.tokens
        if before.size(1) >= 4:
            cache.cache = cache.anew()
            self.inner.feed(before[:, -3:], cache.cache)
        cache.tokens = torch.cat([before, tokens], 1)
        return self.inner.feed(tokens, cache.cache)

    def select_rows(self, cache: Cut, rows: Tensor) -> Any:
        """Of the cache, and never cut it again."""
        return Cut(self.inner.select_rows(cache.cache, rows), cache.anew, None)

    def copy_cache(self, cache: Cut) -> Any:
        """Of what is left."""
        return Cut(self.inner.copy_cache(cache.cache), cache.anew, cache.tokens)


class RowsSwapped(Around):
    """The right rows are kept in the opposite order."""

    def select_rows(self, cache: Any, rows: Tensor) -> Any:
        """The other way round."""
        return self.inner.select_rows(cache, rows.flip(0))


class CopyShared(Around):
    """A copy of a cache is the cache itself."""

    def copy_cache(self, cache: Any) -> Any:
        """As it is."""
        return cache


class DraftKept(Around):
    """Tokens that should be dropped stay in the cache."""

    def drop_last(self, cache: Any, n: int) -> Any:
        """As it is."""
        return cache


class PaddingSeen(Around):
    """All padding passes for real."""

    def encode(self, src_ids: Tensor, src_mask: Tensor) -> Any:
        """With all of the source."""
        return self.inner.encode(src_ids, torch.ones_like(src_mask))

    def full_pass(self, memory: Any, tokens: Tensor, mask: Tensor | None = None) -> Sequence[Tensor]:
        """With all tokens."""
        return self.inner.full_pass(memory, tokens, None if mask is None else torch.ones_like(mask))

    def feed(self, tokens: Tensor, cache: Any, mask: Tensor | None = None) -> Sequence[Tensor]:
        """With all tokens."""
        return self.inner.feed(tokens, cache, None if mask is None else torch.ones_like(mask))

    def generate(self, memory: Any, prompts: Tensor, n: int, way: str, mask: Tensor | None = None) -> Tensor:
        """After all tokens."""
        return self.inner.generate(memory, prompts, n, way, None if mask is None else torch.ones_like(mask))


class GeneratedWrong(Around):
    """The last token that is generated from a cache, in whatever way, is another one."""

    def generate(self, memory: Any, prompts: Tensor, n: int, way: str, mask: Tensor | None = None) -> Tensor:
        """With another last one."""
        found = self.inner.generate(memory, prompts, n, way, mask)
        if "uncached" not in way:
            one, other = self.ordinary[:2]
            found[:, -1] = torch.where(found[:, -1] == one, other, one)
        return found


@dataclass(frozen=True)
class FaultyModel(Fault):
    """A fault that a model around the model has.

    Attributes:
        around: Makes the faulty model.
        told_by: Ids of the checks that are there to tell it.
    """

    around: type[Around]
    told_by: tuple[str, ...]

    @contextmanager
    def applied(self) -> Iterator[Callable[[Case[Any]], Case[Any]]]:
        """Yields what puts the faulty model in the model's place."""
        yield lambda case: replace(case, model=self.around(case.model))

    @torch.no_grad()
    def applies(self, model: CachedModel[Any]) -> bool:
        """Whether it does anything to a model."""
        ids = torch.tensor(list(model.ordinary)[:2]).expand(2, 2)
        try:
            memory = model.encode(ids, ids == ids) if model.has_source else None
            caches = [model.new_cache(memory, 2, 4) for _ in range(2)]
            for cache in caches:
                model.feed(ids[:, :1], cache)
            if self.around is RowsSwapped:
                model.select_rows(caches[0], torch.tensor([1, 0]))
            if self.around is DraftKept:
                model.drop_last(model.copy_cache(caches[0]), 1)
            if self.around is PaddingSeen:
                return model.has_source or model.takes_mask
            if self.around is PositionsAhead:  # distances alone count for some
                model.shift_positions(caches[0], 1)
                return not torch.equal(*(model.feed(ids[:, 1:], cache)[0] for cache in caches))
        except Exception:
            return False
        return True


FAULTS = [
    FaultyModel(id_, around.__doc__ or "", around, told_by)
    for id_, around, told_by in (
        ("positions.ahead", PositionsAhead, ("steps",)),
        ("mask.late", MaskLate, ("causal.prefix",)),
        ("cache.cut", CacheCut, ("steps",)),
        ("rows.swapped", RowsSwapped, ("rows",)),
        ("copy.shared", CopyShared, ("fork",)),
        ("draft.kept", DraftKept, ("rollback",)),
        ("padding.seen", PaddingSeen, ("source.padding", "padding.left", "generate.ragged")),
        ("generated.last", GeneratedWrong, ("generate.greedy",)),
    )
]
