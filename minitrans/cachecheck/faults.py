"""Faults that can be wrapped around any model, whatever is inside, and that the checks have to notice."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from minitrans.cachecheck.protocol import CachedModel

MethodOverrides = dict[str, Callable[..., Any]]  # what a faulty model does differently, by the names in `CachedModel`
MakeMethodOverrides = Callable[[CachedModel[Any]], MethodOverrides]  # takes the right model


class Faulty(CachedModel[Any]):
    """A model that wraps another one and behaves like it, except for what a change overrides, in its variants too."""

    def __init__(self, inner: CachedModel[Any], change: MakeMethodOverrides) -> None:
        same = {name: getattr(inner, name) for name in ("ordinary", *vars(CachedModel)) if not name.startswith("_")}
        vars(self).update(same | change(inner))
        self.variants = {name: partial(lambda make: Faulty(make(), change), it) for name, it in inner.variants.items()}


def mix_in_next_logits(model: CachedModel[Any]) -> MethodOverrides:
    """Each position's logits contain a little of the next position's."""

    def leaking(numbers: Sequence[Tensor]) -> Sequence[Tensor]:
        logits = numbers[0]
        return [logits + 0.01 * torch.cat([logits[:, 1:], logits[:, -1:]], 1), *numbers[1:]]

    return {
        "full_pass": lambda *given: leaking(model.full_pass(*given)),
        "feed": lambda *given: leaking(model.feed(*given)),
    }


@dataclass
class RememberingCache:
    """A cache that remembers what it was fed."""

    cache: Any
    make_empty: Callable[[], Any]
    tokens: Tensor | None = None


def cache_cut(model: CachedModel[Any]) -> MethodOverrides:
    """From the fifth token on, the cache holds no more than the last three."""

    def feed(tokens: Tensor, cache: RememberingCache, mask: Tensor | None = None) -> Sequence[Tensor]:
        if mask is not None:
            return model.feed(tokens, cache.cache, mask)
        before = tokens[:, :0] if cache.tokens is None else cache.tokens
        if before.size(1) >= 4:
            cache.cache = cache.make_empty()
            model.feed(before[:, -3:], cache.cache)
        cache.tokens = torch.cat([before, tokens], 1)
        return model.feed(tokens, cache.cache)

    def drop_last(cache: RememberingCache, n: int) -> RememberingCache:
        tokens = None if cache.tokens is None else cache.tokens[:, :-n]
        return replace(cache, cache=model.drop_last(cache.cache, n), tokens=tokens)

    return {
        "new_cache": lambda *given: RememberingCache(model.new_cache(*given), partial(model.new_cache, *given)),
        "feed": feed,
        "select_rows": lambda cache, rows: RememberingCache(model.select_rows(cache.cache, rows), cache.make_empty),
        "copy_cache": lambda cache: replace(cache, cache=model.copy_cache(cache.cache)),
        "drop_last": drop_last,
    }


def rows_reversed(model: CachedModel[Any]) -> MethodOverrides:
    """The right rows are kept in the opposite order."""
    return {"select_rows": lambda cache, rows: model.select_rows(cache, rows.flip(0))}


def copy_is_original(model: CachedModel[Any]) -> MethodOverrides:
    """A copy of a cache is the cache itself."""
    return {"copy_cache": lambda cache: cache}


def draft_kept(model: CachedModel[Any]) -> MethodOverrides:
    """Tokens that should be dropped stay in the cache."""
    return {"drop_last": lambda cache, n: cache}


def padding_seen(model: CachedModel[Any]) -> MethodOverrides:
    """All padding is treated as real tokens."""

    def unmask(mask: Tensor | None) -> Tensor | None:
        return None if mask is None else torch.ones_like(mask)

    return {
        "encode": lambda src_ids, src_mask: model.encode(src_ids, torch.ones_like(src_mask)),
        "full_pass": lambda memory, tokens, mask=None: model.full_pass(memory, tokens, unmask(mask)),
        "feed": lambda tokens, cache, mask=None: model.feed(tokens, cache, unmask(mask)),
        "generate": lambda memory, prompts, n, way, mask=None: model.generate(memory, prompts, n, way, unmask(mask)),
    }


def last_generated_wrong(model: CachedModel[Any]) -> MethodOverrides:
    """The last token that is generated from a cache, in whatever way, is replaced by another."""

    def generate(memory: Any, prompts: Tensor, n: int, way: str, mask: Tensor | None = None) -> Tensor:
        outputs = model.generate(memory, prompts, n, way, mask)
        if "uncached" not in way:
            one, other = model.ordinary[:2]
            outputs[:, -1] = torch.where(outputs[:, -1] == one, other, one)
        return outputs

    return {"generate": generate}


@dataclass(frozen=True)
class ModelFault:
    """A fault that is wrapped around a model."""

    id: str
    change: MakeMethodOverrides  # its docstring says what is wrong
    detected_by: tuple[str, ...]  # ids of the checks that are meant to detect it


FAULTS = [
    ModelFault("mask.late", mix_in_next_logits, ("causal.prefix",)),
    ModelFault("cache.cut", cache_cut, ("steps",)),
    ModelFault("rows.swapped", rows_reversed, ("rows",)),
    ModelFault("copy.shared", copy_is_original, ("fork",)),
    ModelFault("draft.kept", draft_kept, ("rollback",)),
    ModelFault("padding.seen", padding_seen, ("source.padding", "padding.left")),
    ModelFault("generated.last", last_generated_wrong, ("generate.greedy",)),
]
