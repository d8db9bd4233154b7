"""Drawing translations at random: with the probabilities that one masked pass gives, and the same ones every time."""

from collections import Counter

import pytest
import torch
from conftest import (
    BOS,
    EOS,
    LIVELY_SEED,
    PAD,
    SOURCE_LENGTHS,
    TARGET_LIMITS,
    always,
    decoding_model,
    decoding_sources,
)
from torch import Tensor

from minitrans.model import decoding
from minitrans.model.cache import DecoderCache
from minitrans.model.decoding import CachedStepper, UncachedStepper, greedy_decode, likeliest_token
from minitrans.model.sampling import sample
from minitrans.model.transformer import Transformer, TransformerConfig


@torch.no_grad()
def probability(model: Transformer, source: Tensor, output: list[int], top: int) -> float:
    """That `sample` draws the output and then EOS: from one masked pass, each token's share among the likeliest."""
    logits = model(source[None], torch.tensor([[BOS, *output]]))[0]
    logits[:, [PAD, BOS]] = -torch.inf
    among = logits.masked_fill(logits < logits.topk(top).values[:, -1:], -torch.inf).softmax(-1)
    return among.gather(1, torch.tensor([*output, EOS])[:, None]).prod().item()


def test_what_is_sampled_has_the_probability_that_the_full_pass_gives_it() -> None:
    top, n = 3, 2000
    model, source = decoding_model(LIVELY_SEED), decoding_sources(LIVELY_SEED)[0, : SOURCE_LENGTHS[0]]
    drawn = [tuple(sample(CachedStepper(model), source[None], top, seed)[0]) for seed in range(n)]
    common = [(output, count) for output, count in Counter(drawn).most_common(8) if len(output) < TARGET_LIMITS[0]]
    assert len(common) >= 4
    for output, count in common:
        p = probability(model, source, [*output], top)
        assert abs(count - n * p) < 4 * (n * p * (1 - p)) ** 0.5
    assert {p == 0 for p in (probability(model, source, [*output], top - 1) for output, _ in common)} == {True, False}


def test_one_sampled_from_is_the_greedy_one() -> None:
    stepper, src_ids = CachedStepper(decoding_model(LIVELY_SEED)), decoding_sources(LIVELY_SEED)
    assert sample(stepper, src_ids, 1, seed=7) == [found.ids for found in greedy_decode(stepper, src_ids)]
    assert sample(stepper, src_ids[:0], 3, seed=7) == []


def test_a_sample_depends_on_the_seed_and_the_source_alone() -> None:
    stepper, src_ids = CachedStepper(decoding_model(LIVELY_SEED)), decoding_sources(LIVELY_SEED)
    together = sample(stepper, src_ids, 5, seed=7)
    assert [sample(stepper, row[row != PAD][None], 5, seed=7)[0] for row in src_ids] == together
    assert sample(stepper, src_ids[[3, 3, 0]], 5, seed=7) == [together[i] for i in (3, 3, 0)]
    long = {tuple(row) for row in together if len(row) > 5}
    assert len(long) >= 4
    assert long.isdisjoint(map(tuple, sample(stepper, src_ids, 5, seed=8)))


def test_a_sample_ends_with_eos_or_at_its_limit(fed: list[tuple[int, int]]) -> None:
    lively = CachedStepper(decoding_model(LIVELY_SEED))
    lengths = [len(row) for row in sample(lively, decoding_sources(LIVELY_SEED)[:3], 2, seed=4)]
    ends = [min(n + 1, limit) for n, limit in zip(lengths, TARGET_LIMITS, strict=False)]
    assert any(n < limit for n, limit in zip(lengths, TARGET_LIMITS, strict=False))
    assert len(fed) == max(ends) < max(TARGET_LIMITS[:3])
    stepper, src_ids = CachedStepper(always(decoding_model(0), token=5)), decoding_sources(0)
    vocab_size = stepper.config.vocab_size
    everything = {id_ for row in sample(stepper, src_ids, vocab_size, seed=1) for id_ in row}
    assert everything == {*range(vocab_size)} - {PAD, BOS, EOS}
    for top in (1, vocab_size):
        lengths = [len(row) for row in sample(stepper, src_ids, top, seed=1)]
        assert all(n <= limit for n, limit in zip(lengths, TARGET_LIMITS, strict=True))
        assert (lengths == TARGET_LIMITS) == (top == 1)


def test_a_sample_is_the_same_without_a_cache() -> None:
    model, src_ids = decoding_model(LIVELY_SEED), decoding_sources(LIVELY_SEED)
    for top in (1, 2, 5):
        cached, uncached = CachedStepper(model), UncachedStepper(model)
        assert sample(cached, src_ids, top, seed=3) == sample(uncached, src_ids, top, seed=3)


def test_sampling_records_nothing_for_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = []

    def spy(logits: Tensor, config: TransformerConfig) -> Tensor:
        recorded.append(logits.requires_grad)
        return likeliest_token(logits, config)

    monkeypatch.setattr(decoding, "likeliest_token", spy)
    sample(CachedStepper(decoding_model(0)), decoding_sources(0), top=2, seed=1)
    assert recorded
    assert not any(recorded)
    assert torch.is_grad_enabled()


def test_everything_is_made_on_the_device_of_the_source() -> None:
    stepper, src_ids = CachedStepper(decoding_model(LIVELY_SEED)), decoding_sources(LIVELY_SEED)
    before = [found.ids for found in greedy_decode(stepper, src_ids)]
    with torch.device("meta"):  # where a tensor goes that is made without a device; it cannot be computed with
        assert sample(stepper, src_ids, 1, seed=1) == before


def test_the_cache_has_room_for_the_longest_row_and_no_more() -> None:
    rooms = []

    class Spy(CachedStepper):
        def begin(self, src_ids: Tensor, capacity: int) -> DecoderCache:
            rooms.append(capacity)
            return super().begin(src_ids, capacity)

    sample(Spy(decoding_model(0)), decoding_sources(0)[[0, 4, 2]], 2, seed=1)
    assert rooms == [TARGET_LIMITS[0]]


def test_a_source_beyond_max_len_is_refused() -> None:
    with pytest.raises(ValueError, match=r"9 tokens are more than model\.max_len \(8\)"):
        sample(CachedStepper(decoding_model(0, max_len=8)), torch.zeros(1, 9, dtype=torch.int64), 2, seed=1)
