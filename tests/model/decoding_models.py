"""What the tests of decoding share: a model that seldom repeats itself, ragged sources, and looks at what is done."""

import pytest
import torch
from conftest import random_ids, random_model
from torch import Tensor

from minitrans.model import decoding
from minitrans.model.cache import DecoderCache
from minitrans.model.transformer import Transformer, TransformerConfig

SOURCE_LENGTHS = [4, 7, 1, 6, 2, 7, 3, 5, 4]
TARGET_LIMITS = [18, 24, 12, 22, 14, 24, 16, 20, 18]
DECODING_SEED = 5  # its rows end at eight different steps, some by EOS, some at their limit


def decoding_model(seed: int, vocab_size: int = 11, max_len: int = 29) -> Transformer:
    """A random model that seldom says what it has just been told, so that its outputs vary and end."""
    model = random_model(seed, d_model=10, vocab_size=vocab_size, max_len=max_len, tie_embeddings=False)
    with torch.no_grad():
        model.output.weight.sub_(2.0 * model.tgt_embedding.weight)
        model.decoder.norm.bias.zero_()
    return model


def decoding_sources(seed: int) -> Tensor:
    """int64 (9, 7), ragged."""
    return random_ids(seed + 1, SOURCE_LENGTHS, max(SOURCE_LENGTHS))


def record_step_shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The shape (rows, tokens) of every call of `step` from now on, in order."""
    shapes: list[tuple[int, int]] = []
    step = Transformer.step

    def spy(self: Transformer, tgt_ids: Tensor, cache: DecoderCache) -> Tensor:
        shapes.append((tgt_ids.size(0), tgt_ids.size(1)))
        return step(self, tgt_ids, cache)

    monkeypatch.setattr(Transformer, "step", spy)
    return shapes


def record_cache_capacities(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """For how many tokens each cache is made from now on."""
    rooms: list[int | None] = []
    init_cache = Transformer.init_cache

    def spy(self: Transformer, memory: Tensor, src_mask: Tensor, capacity: int | None = None) -> DecoderCache:
        rooms.append(capacity)
        return init_cache(self, memory, src_mask, capacity)

    monkeypatch.setattr(Transformer, "init_cache", spy)
    return rooms


def record_requires_grad(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether autograd records the logits that each token is chosen from, from now on."""
    recorded: list[bool] = []
    choose = decoding.likeliest_token

    def spy(logits: Tensor, config: TransformerConfig) -> Tensor:
        recorded.append(logits.requires_grad)
        return choose(logits, config)

    monkeypatch.setattr(decoding, "likeliest_token", spy)
    return recorded
