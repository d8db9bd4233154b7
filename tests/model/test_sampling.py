"""Drawing translations at random: with the probabilities that one masked pass gives, and the same ones every time."""

from collections import Counter

import pytest
import torch
from conftest import BOS, EOS, PAD, force_constant_token_ranking, record_calls
from decoding_models import DECODING_SEED, OUTPUT_LIMITS, SOURCE_LENGTHS, decoding_sources, varied_model
from torch import Tensor

from minitrans.model.decoding import CachedStepper, UncachedStepper, greedy_decode
from minitrans.model.sampling import sample
from minitrans.model.transformer import Transformer

MODEL, SRC_IDS = varied_model(DECODING_SEED), decoding_sources(DECODING_SEED)
CACHED_STEPPER = CachedStepper(MODEL)


@torch.no_grad()
def sample_prob(model: Transformer, source: Tensor, output: list[int], top: int) -> float:
    """That `sample` draws the output and then EOS: from one masked pass, each token's share among the likeliest."""
    logits = model(source[None], torch.tensor([[BOS, *output]]))[0]
    logits[:, [PAD, BOS]] = -torch.inf
    among = logits.masked_fill(logits < logits.topk(top).values[:, -1:], -torch.inf).softmax(-1)
    return among.gather(1, torch.tensor([*output, EOS])[:, None]).prod().item()


def test_what_is_sampled_has_the_probability_that_the_full_pass_gives_it() -> None:
    top, n, source = 3, 2000, SRC_IDS[0, : SOURCE_LENGTHS[0]]
    drawn = [tuple(sample(CACHED_STEPPER, source[None], top, seed)[0]) for seed in range(n)]
    common = [(output, count) for output, count in Counter(drawn).most_common(8) if len(output) < OUTPUT_LIMITS[0]]
    assert len(common) >= 4
    for output, count in common:
        p = sample_prob(MODEL, source, [*output], top)
        assert abs(count - n * p) < 4 * (n * p * (1 - p)) ** 0.5
    assert {p == 0 for p in (sample_prob(MODEL, source, [*output], top - 1) for output, _ in common)} == {True, False}


def test_one_sampled_from_is_the_greedy_one_and_all_is_made_on_the_device_of_the_source() -> None:
    greedy = [hypothesis.ids for hypothesis in greedy_decode(CACHED_STEPPER, SRC_IDS)]
    with torch.device("meta"):  # where a tensor goes that is made without a device; it cannot be computed with
        assert sample(CACHED_STEPPER, SRC_IDS, 1, seed=7) == greedy


def test_a_sample_depends_on_the_seed_and_the_source_alone() -> None:
    together = sample(CACHED_STEPPER, SRC_IDS, 5, seed=7)
    assert [sample(CACHED_STEPPER, row[row != PAD][None], 5, seed=7)[0] for row in SRC_IDS] == together
    assert sample(CACHED_STEPPER, SRC_IDS[[3, 3, 0]], 5, seed=7) == [together[i] for i in (3, 3, 0)]
    long = {tuple(row) for row in together if len(row) > 5}
    assert len(long) >= 4
    assert long.isdisjoint(map(tuple, sample(CACHED_STEPPER, SRC_IDS, 5, seed=8)))


def test_a_sample_ends_with_eos_or_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = record_calls(monkeypatch, Transformer, "step")
    lengths = [len(row) for row in sample(CACHED_STEPPER, SRC_IDS[:3], 2, seed=4)]
    ends = [min(n + 1, limit) for n, limit in zip(lengths, OUTPUT_LIMITS, strict=False)]
    assert any(n < limit for n, limit in zip(lengths, OUTPUT_LIMITS, strict=False))
    assert len(fed) == max(ends) < max(OUTPUT_LIMITS[:3])
    stepper = CachedStepper(force_constant_token_ranking(varied_model(0), 5))
    vocab_size = stepper.config.vocab_size
    everything = {id_ for row in sample(stepper, SRC_IDS, vocab_size, seed=1) for id_ in row}
    assert everything == {*range(vocab_size)} - {PAD, BOS, EOS}
    for top in (1, vocab_size):
        lengths = [len(row) for row in sample(stepper, SRC_IDS, top, seed=1)]
        assert all(n <= limit for n, limit in zip(lengths, OUTPUT_LIMITS, strict=True))
        assert (lengths == OUTPUT_LIMITS) == (top == 1)


@pytest.mark.parametrize("top", [1, 2, 5])
def test_a_sample_is_the_same_without_a_cache(top: int) -> None:
    assert sample(CACHED_STEPPER, SRC_IDS, top, seed=3) == sample(UncachedStepper(MODEL), SRC_IDS, top, seed=3)
