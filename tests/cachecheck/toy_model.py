"""A toy model: two layers of attention with one head, and faults that it can be given one at a time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from minitrans.cachecheck.protocol import N_BEAMS
from minitrans.verify import CachedModel

V, D, LAYERS, MAX_LEN = 13, 8, 2, 20


@dataclass
class ToyCache:
    """The source with its mask, each layer's keys and values, and what has been fed."""

    memory: tuple[Tensor, Tensor]
    capacity: int = MAX_LEN
    keys: list[list[Tensor]] = field(default_factory=lambda: [[] for _ in range(LAYERS)])
    values: list[list[Tensor]] = field(default_factory=lambda: [[] for _ in range(LAYERS)])
    mask: Tensor | None = None  # bool (B, T), which of the tokens fed are not padding
    last_token: Tensor | None = None
    chunks: list[int] = field(default_factory=list)  # sizes of what has been fed; none in a full pass
    selected_rows: Tensor | None = None  # those that were selected last
    shared_with: "ToyCache | None" = None  # whose memory it shares
    copy_depth: int = 0  # 1 for a copy, 2 for a copy of a copy


def is_last_row(ids: Tensor) -> Tensor:
    """Whether a row is the last of its batch: bool (B, 1, 1)."""
    return (torch.arange(len(ids)) == len(ids) - 1)[:, None, None]


# Whether, or by how much, logits are wrong, given the toy, the tokens and the cache.
LogitsOff = Callable[["Toy", Tensor, ToyCache], Tensor | bool]


class Toy(CachedModel[ToyCache]):
    """A correct model, unless it is given a fault: the name of one, or a function that says where logits are wrong."""

    has_source = True
    takes_mask = True
    eager_in_float32 = False  # whether its softmax is in float32 if weights are requested

    def __init__(
        self, fault: str | LogitsOff = "", dtype: torch.dtype = torch.float64, *, weights: bool = False
    ) -> None:
        """Make it with random weights, the same every time; it may return its attention weights too."""
        self.fault, self.dtype, self.returns_weights = fault, dtype, weights
        self.ordinary, self.first, self.max_len, self.window_sizes = range(3, V), 1, MAX_LEN, (6,)
        self.variants = {
            "weights": partial(type(self), fault, dtype, weights=True),
            "static": partial(type(self), "positions restart" if fault == "static" else fault, dtype),
            "mask alone": partial(type(self), "padding counted" if fault == "mask alone" else fault, dtype),
        }
        random = torch.Generator().manual_seed(0)
        self.tokens = nn.Embedding(V, D)
        self.weights = {
            name: torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)
            for name, shape in {"tokens": (V, D), "positions": (MAX_LEN, D), "out": (D, V)}.items()
        }
        for i, name, kind in product(range(LAYERS), "qkv", ("own", "source")):
            w = 0.5 * torch.randn(D, D, generator=random, dtype=torch.float64)
            self.weights[f"{kind}.{name}.{i}"] = w.to(dtype)
        self.tokens.weight = nn.Parameter(self.weights["tokens"])
        self.way = ""  # in which tokens are being generated
        self.newest: ToyCache | None = None
        self.latest: ToyCache | None = None  # that of the previous pass

    def to(self, dtype: torch.dtype) -> "Toy":
        return type(self)(self.fault, dtype)

    def encode(self, src_ids: Tensor, src_mask: Tensor) -> tuple[Tensor, Tensor]:
        if self.fault == "padding seen":
            src_mask = torch.ones_like(src_mask)
        if self.fault == "source unused":
            src_ids = torch.full_like(src_ids, 3)
        return self.weights["tokens"][src_ids], src_mask

    def full_pass(self, memory: Any, tokens: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        n = tokens.size(1)
        real = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
        ahead = {"mask late": 1, "no mask": n}.get(str(self.fault), 0)
        seen = torch.arange(n) <= torch.arange(n)[:, None] + ahead * is_last_row(tokens)
        return self._run(tokens, self._positions(real), seen, ToyCache(memory, mask=real))

    def new_cache(self, memory: Any, n_rows: int, capacity: int) -> ToyCache:
        self.newest = ToyCache(memory, min(capacity, self.max_len or capacity))
        return self.newest

    def feed(self, tokens: Tensor, cache: ToyCache, mask: Tensor | None = None) -> list[Tensor]:
        if self.fault == "shared":
            assert self.newest is not None
            cache = self.newest
        if self.fault == "forgets all":
            cache = ToyCache(cache.memory)
        n = tokens.size(1)
        assert sum(cache.chunks) + n <= cache.capacity
        cache.chunks.append(n)
        if self.fault == "repeated rows" and cache.selected_rows is not None:
            tokens = tokens[(cache.selected_rows[:, None] == cache.selected_rows).int().argmax(1)]
        new = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
        start = 0 if cache.mask is None else cache.mask.size(1)
        cache.mask = new if cache.mask is None else torch.cat([cache.mask, new], 1)
        positions = self._positions(new if self.fault == "positions restart" else cache.mask)[:, -n:]
        queries = torch.arange(n) + (0 if self.fault == "wrong corner" and n > 1 else start)
        fed = tokens
        if self.fault == "stale" and cache.last_token is not None:
            fed = torch.cat([cache.last_token, tokens[:, :-1]], 1)
        cache.last_token = tokens[:, -1:]
        seen = torch.arange(start + n) <= queries[:, None]
        if self.fault == "chunk forgets" and n > 1:
            seen = seen & (torch.arange(start + n) >= start)
        numbers = self._run(fed, positions, seen, cache)
        if cache.shared_with and len(cache.shared_with.chunks) == len(cache.chunks):
            pairs = zip(cache.shared_with.values, cache.values, strict=True)
            cache.shared_with.values = [[*copied[:-1], own[-1]] for copied, own in pairs]
        if self.fault == "weights" and self.returns_weights:
            numbers[-1] = numbers[-1].roll(1, -1)  # those of the last layer
        return numbers

    def select_rows(self, cache: ToyCache, rows: Tensor) -> ToyCache:
        result = self.copy_cache(cache)
        old = torch.arange(len(rows)) % len(cache.memory[0])
        if self.fault == "rows reversed":
            rows = rows.flip(0)
        of_target = old if self.fault in ("target rows", "all rows") else rows
        of_source = old if self.fault in ("source rows", "all rows") else rows
        result.memory = cache.memory[0][of_source], cache.memory[1][of_source]
        result.keys, result.values = (
            [[x[of_target] for x in layer] for layer in kind] for kind in (cache.keys, cache.values)
        )
        result.mask = cache.mask if cache.mask is None else cache.mask[of_target]
        result.selected_rows = rows
        self.newest = result
        return result

    def copy_cache(self, cache: ToyCache) -> ToyCache:
        copied = super().copy_cache(cache)
        copied.shared_with = cache if self.fault == "copies share" else None
        copied.copy_depth = cache.copy_depth + 1
        return copied

    def drop_last(self, cache: ToyCache, n: int) -> ToyCache:
        cache.chunks.append(-n)
        if self.fault == "drops nothing":
            return cache
        assert cache.mask is not None
        kept = cache.mask.size(1) - n
        first = n if self.fault == "values dropped first" else 0
        cache.keys = [[torch.cat(layer, 1)[:, :kept]] for layer in cache.keys]
        cache.values = [[torch.cat(layer, 1)[:, first:][:, :kept]] for layer in cache.values]
        cache.mask = cache.mask[:, :kept]
        return cache

    def generate(self, memory: Any, prompts: Tensor, n: int, way: str, mask: Tensor | None = None) -> Tensor:
        self.way = way
        try:
            if way in ("lookup", "draft", "own draft"):
                return self._generate_with_drafts(memory, prompts, n)
            return self._search(memory, prompts, n, N_BEAMS if "beams" in way else 1, mask)
        finally:
            self.way = ""

    def _search(self, memory: Any, prompts: Tensor, n: int, beams: int, mask: Tensor | None) -> Tensor:
        tokens, new, cache = prompts, prompts, self.new_cache(memory, len(prompts), MAX_LEN)
        score = torch.zeros(len(prompts), 1, dtype=self.dtype)
        for _ in range(n):
            if "uncached" in self.way:
                logits = self.full_pass([x.expand(len(tokens), *x.shape[1:]) for x in memory], tokens, mask)[0]
            else:
                logits, *_ = self.feed(new, cache, mask)
            log_p = torch.log_softmax(logits[:, -1], -1)[:, self.ordinary[0] :]
            score, chosen = (score + log_p).view(len(prompts), -1).topk(beams)
            rows, chosen = chosen.flatten() // log_p.size(1), chosen.flatten() % log_p.size(1)
            score, new, mask = score.view(-1, 1), chosen[:, None] + self.ordinary[0], None
            if beams > 1:
                tokens, cache = tokens[rows], self.select_rows(cache, rows)
            tokens = torch.cat([tokens, new], 1)
        return tokens

    def _generate_with_drafts(self, memory: Any, prompts: Tensor, n: int) -> Tensor:
        tokens, new, cache, end = prompts, prompts, self.new_cache(memory, 1, MAX_LEN), prompts.size(1) + n
        while tokens.size(1) < end:
            draft = self._draft(memory, tokens)[:, : end - tokens.size(1) - 1]
            logits = self.feed(torch.cat([new, draft], 1), cache)[0][:, -draft.size(1) - 1 :, self.ordinary[0] :]
            best = logits.argmax(-1) + self.ordinary[0]
            n_right = int((best[:, :-1] == draft).cumprod(1).sum())
            if draft.size(1) > n_right:
                cache = self.drop_last(cache, draft.size(1) - n_right)
            new = best[:, n_right : n_right + 1]
            tokens = torch.cat([tokens, draft[:, :n_right], new], 1)
        return tokens

    def _draft(self, memory: Any, tokens: Tensor) -> Tensor:
        """At most three tokens: after an earlier occurrence of the last, or the likeliest, maybe with one changed."""
        if self.way == "lookup":
            place = int((tokens[0, :-1] == tokens[0, -1]).nonzero().max()) if tokens[0, -1] in tokens[0, :-1] else 0
            return tokens[:, place + 1 : place + 4]
        way, self.way = self.way, ""
        draft = self._search(memory, tokens, min(3, MAX_LEN - tokens.size(1)), 1, None)[:, tokens.size(1) :]
        self.way = way
        draft[:, 1:2] = self.ordinary[0] if way == "draft" else draft[:, 1:2]
        return draft

    def embedding(self) -> nn.Module:
        return self.tokens

    def _positions(self, real: Tensor) -> Tensor:
        """int64 (B, T): how many real tokens there are before each."""
        if self.fault == "padding counted":
            return torch.arange(real.size(1)).expand_as(real)
        return (real.long().cumsum(1) - 1).clamp(min=0)

    def _run(self, tokens: Tensor, positions: Tensor, seen: Tensor, cache: ToyCache) -> list[Tensor]:
        w = self.weights
        x = self.tokens(tokens).mul_(2.0)  # in place, as many models scale it
        x = (torch.cat([x[:, :1], x[:, :-1]], 1) if self.fault == "a token late" else x) + w["positions"][positions]
        memory, src_mask = cache.memory
        src_mask = src_mask | (self.fault == "padding seen in steps" and bool(cache.chunks))
        assert cache.mask is not None
        seen = seen & (torch.ones_like(cache.mask) if self.fault == "own padding seen" else cache.mask)[:, None]
        weights = []
        for i in range(LAYERS):
            cache.keys[i].append(x @ w[f"own.k.{i}"])
            cache.values[i].append(x @ w[f"own.v.{i}"])
            k, v, own = torch.cat(cache.keys[i], 1), torch.cat(cache.values[i], 1), seen
            if self.fault == "cache cut" and len(cache.keys[i]) > 1:
                k, v, own = k[:, -3:], v[:, -3:], seen[..., -3:]
            looked = self._attention_weights(x @ w[f"own.q.{i}"], k, own)
            weights.append(looked[:, None])
            x = x if self.fault == "own token alone" else x + looked @ v
            q, k, v = x @ w[f"source.q.{i}"], memory @ w[f"source.k.{i}"], memory @ w[f"source.v.{i}"]
            x = x + self._attention_weights(q, k, src_mask[:, None]) @ v
            if self.fault == "dropout":
                x = x * (torch.rand_like(x) > 0.1)
            x = x.tanh()
        logits = x @ w["out"]
        logits = logits + (0.1 * self.fault(self, tokens, cache) if callable(self.fault) else 0.0)
        self.latest = cache
        return [logits, *(weights if self.returns_weights else [])]

    def _attention_weights(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        scores = (q @ k.mT).masked_fill(~seen, torch.finfo(q.dtype).min)
        if self.fault == "float32" or (self.eager_in_float32 and self.returns_weights):
            n = scores.size(-1)  # so that rounding differs, on any processor
            return torch.softmax(scores.float() / n * n, -1).to(q.dtype)
        return torch.softmax(scores, -1)
