"""A model of nobody's: two layers of attention with one head, and faults that it can be given one at a time."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from minitrans.verify import CachedModel

V, D, LAYERS, MAX_LEN = 13, 8, 2, 20


@dataclass
class ToyCache:
    """The source with its mask, each layer's keys and values, and how many tokens have been fed."""

    memory: tuple[Tensor, Tensor]
    keys: list[list[Tensor]] = field(default_factory=lambda: [[] for _ in range(LAYERS)])
    values: list[list[Tensor]] = field(default_factory=lambda: [[] for _ in range(LAYERS)])
    fed: int = 0
    last: Tensor | None = None


class Toy(CachedModel[ToyCache]):
    """Right, unless it is given a fault."""

    has_source = True

    def __init__(self, fault: str = "", dtype: torch.dtype = torch.float64) -> None:
        """Make it with random weights, the same every time."""
        self.fault, self.dtype = fault, dtype
        self.ordinary, self.first, self.max_len = range(3, V), 1, MAX_LEN
        random = torch.Generator().manual_seed(0)
        self.tokens = nn.Embedding(V, D)
        self.weights = {
            name: torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)
            for name, shape in {"tokens": (V, D), "positions": (MAX_LEN, D), "out": (D, V)}.items()
        }
        for i in range(LAYERS):
            for name in "qkv":
                for kind in ("own", "source"):
                    w = 0.5 * torch.randn(D, D, generator=random, dtype=torch.float64)
                    self.weights[f"{kind}.{name}.{i}"] = w.to(dtype)
        self.tokens.weight = nn.Parameter(self.weights["tokens"])
        self.newest: ToyCache | None = None

    def to(self, dtype: torch.dtype) -> "Toy":
        return Toy(self.fault, dtype)

    def encode(self, src_ids: Tensor, src_mask: Tensor) -> tuple[Tensor, Tensor]:
        if self.fault == "padding seen":
            src_mask = torch.ones_like(src_mask)
        return self.weights["tokens"][src_ids], src_mask

    def full_pass(self, memory: Any, tokens: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        n = tokens.size(1)
        ahead = {"mask late": 1, "no mask": n}.get(self.fault, 0)
        seen = torch.arange(n) <= torch.arange(n)[:, None] + ahead
        return [self._run(tokens, torch.arange(n), seen, ToyCache(memory))]

    def new_cache(self, memory: Any, rows: int, capacity: int) -> ToyCache:
        self.newest = ToyCache(memory)
        return self.newest

    def copy_cache(self, cache: ToyCache) -> ToyCache:
        keys, values = ([list(layer) for layer in kind] for kind in (cache.keys, cache.values))
        return ToyCache(cache.memory, keys, values, cache.fed, cache.last)

    def feed(self, tokens: Tensor, cache: ToyCache, mask: Tensor | None = None) -> list[Tensor]:
        if self.fault == "shared":
            assert self.newest is not None
            cache = self.newest
        n, start = tokens.size(1), cache.fed
        positions = torch.arange(n) + (0 if self.fault == "positions restart" else start)
        queries = torch.arange(n) + (0 if self.fault == "wrong corner" and n > 1 else start)
        seen = torch.arange(start + n) <= queries[:, None]
        fed = tokens
        if self.fault == "stale" and cache.last is not None:
            fed = torch.cat([cache.last, tokens[:, :-1]], 1)
        cache.last, cache.fed = tokens[:, -1:], start + n
        return [self._run(fed, positions, seen, cache)]

    def select_rows(self, cache: ToyCache, rows: Tensor) -> ToyCache:
        result = self.copy_cache(cache)
        old = torch.arange(len(rows)) % len(cache.memory[0])
        of_target = old if self.fault in ("target rows", "all rows") else rows
        of_source = old if self.fault in ("source rows", "all rows") else rows
        result.memory = cache.memory[0][of_source], cache.memory[1][of_source]
        result.keys, result.values = (
            [[x[of_target] for x in layer] for layer in kind] for kind in (cache.keys, cache.values)
        )
        self.newest = result
        return result

    def embedding(self) -> nn.Module:
        return self.tokens

    def _run(self, tokens: Tensor, positions: Tensor, seen: Tensor, cache: ToyCache) -> Tensor:
        w = self.weights
        x = self.tokens(tokens) + w["positions"][positions]
        memory, src_mask = cache.memory
        for i in range(LAYERS):
            cache.keys[i].append(x @ w[f"own.k.{i}"])
            cache.values[i].append(x @ w[f"own.v.{i}"])
            k, v, own = torch.cat(cache.keys[i], 1), torch.cat(cache.values[i], 1), seen
            if self.fault == "cache cut" and len(cache.keys[i]) > 1:
                k, v, own = k[:, -3:], v[:, -3:], seen[:, -3:]
            x = x + self._attention(x @ w[f"own.q.{i}"], k, v, own)
            q, k, v = x @ w[f"source.q.{i}"], memory @ w[f"source.k.{i}"], memory @ w[f"source.v.{i}"]
            x = x + self._attention(q, k, v, src_mask[:, None])
            if self.fault == "dropout":
                x = x * (torch.rand_like(x) > 0.1)
            x = x.tanh()
        return x @ w["out"]

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        scores = (q @ k.mT).masked_fill(~seen, torch.finfo(q.dtype).min)
        if self.fault == "float32":
            return (torch.softmax(scores.float(), -1)).to(q.dtype) @ v
        return torch.softmax(scores, -1) @ v
