"""Greedy decoding, with a cache and without one; beam search, against a plain implementation; sampling."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import BOS, EOS, PAD, force_constant_token_ranking, random_ids, random_model, random_tensor, record_calls
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from minitrans.model import decoding, sampling
from minitrans.model.cache import DecoderCache
from minitrans.model.decoding import (
    CachedStepper,
    Hypothesis,
    Stepper,
    UncachedState,
    UncachedStepper,
    beam_search,
    greedy_decode,
    length_limit,
    length_limits,
    likeliest_tokens,
)
from minitrans.model.sampling import sample
from minitrans.model.transformer import Transformer

S, V = 7, 11
SOURCE_LENGTHS = [4, 7, 1, 6, 2, 7, 3, 5, 4]
OUTPUT_LIMITS = [18, 24, 12, 22, 14, 24, 16, 20, 18]
DECODING_SEED = 5  # its rows end at eight different steps, some by EOS, some at their limit


def varied_model(seed: int, vocab_size: int = 11, max_len: int = 29) -> Transformer:
    """A random model that seldom repeats the token it was just fed, so that its outputs vary and end."""
    model = random_model(seed, d_model=10, vocab_size=vocab_size, max_len=max_len, tie_embeddings=False)
    with torch.no_grad():
        model.output.weight.sub_(2.0 * model.tgt_embedding.weight)
        model.decoder.norm.bias.zero_()
    return model


def decoding_sources(seed: int) -> Tensor:
    """int64 (9, 7), ragged."""
    return random_ids(seed + 1, SOURCE_LENGTHS, S)


MODEL, SRC_IDS = varied_model(DECODING_SEED), decoding_sources(DECODING_SEED)
CACHED_STEPPER = CachedStepper(MODEL)

MakeStepper = Callable[[Transformer], Stepper[Any]]
STEPPER_CLASSES: list[MakeStepper] = [CachedStepper, UncachedStepper]
both_steppers = pytest.mark.parametrize("make_stepper", STEPPER_CLASSES)

Search = Callable[[Stepper[Any], Tensor], Sequence[object]]
SEARCHES: list[Search] = [greedy_decode, partial(beam_search, beam=2), partial(sample, top=2, seed=1)]
every_search = pytest.mark.parametrize("search", SEARCHES)


def greedy_ids(stepper: Stepper[Any], src_ids: Tensor) -> list[list[int]]:
    return [hypothesis.ids for hypothesis in greedy_decode(stepper, src_ids)]


# Length limits and the choice of a token


def test_the_limit_of_each_row_grows_with_its_real_tokens_up_to_max_len() -> None:
    src_ids = torch.cat([SRC_IDS, torch.full((1, S), PAD)])
    limits = length_limits(src_ids, MODEL.config)
    assert limits == [*OUTPUT_LIMITS, 10]
    assert {type(limit) for limit in limits} == {int}
    assert length_limits(src_ids, varied_model(0, max_len=13).config) == [*(min(13, n) for n in OUTPUT_LIMITS), 10]


def test_sources_that_are_padded_on_the_left_are_refused() -> None:
    """Compiled code could not tell at which positions their tokens are."""
    with pytest.raises(ValueError, match=r"^there is padding before a token: sources are padded on the right$"):
        length_limits(torch.tensor([[7, EOS, PAD], [PAD, 7, EOS]]), MODEL.config)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_likeliest_tokens_and_their_log_probabilities(dtype: torch.dtype) -> None:
    logits = random_tensor(0, 3, V).to(dtype)
    exact = logits.double().log_softmax(-1)
    exact[:, [PAD, BOS]] = -torch.inf
    for n in (1, 2, 4, V):
        log_p, ids = likeliest_tokens(logits, n, MODEL.config)
        assert log_p.dtype == torch.promote_types(dtype, torch.float32)
        want = exact.topk(n)
        assert ids.shape == log_p.shape == want.indices.shape
        assert torch.allclose(log_p.double(), want.values, rtol=1e-6)
        if dtype == torch.float64:
            assert torch.equal(ids[:, : V - 2], want.indices[:, : V - 2])
    assert [len(row) for row in likeliest_tokens(logits, V + 1, MODEL.config)[1]] == [V, V, V]
    with pytest.raises(ValueError, match="n is 0; it must be at least 1"):
        likeliest_tokens(logits, 0, MODEL.config)
    close = torch.zeros(1, V, dtype=dtype).index_fill_(1, torch.tensor([7]), 1e-20)  # the same log-probabilities
    assert likeliest_tokens(close, 1, MODEL.config)[1].item() == 7


# One decode, three ways


@torch.no_grad()
def count_rows_unlike_full_pass(model: Transformer, src_ids: Tensor) -> int:
    """How many decoded rows differ from what a full masked pass over the row chooses, EOS and limit included."""
    wrong = 0
    for row, output in zip(src_ids, greedy_ids(CachedStepper(model), src_ids), strict=True):
        assert {type(id_) for id_ in output} <= {int}
        source = row[row != PAD]
        logits = model(source[None], torch.tensor([[BOS, *output][: model.config.max_len]]))[0]
        logits[:, [PAD, BOS]] = -torch.inf
        choices = logits.argmax(-1).tolist()
        at_limit = len(output) == length_limit(len(source), model.config.max_len)
        wrong += (choices[: len(output)] if at_limit else choices) != output + ([] if at_limit else [EOS])
    return wrong


@given(seed=st.integers(0, 2**20), vocab_size=st.integers(6, 13), max_len=st.integers(8, 31))
def test_cached_and_uncached_decoding_and_the_full_pass_agree(seed: int, vocab_size: int, max_len: int) -> None:
    model = varied_model(seed, vocab_size, max_len)
    src_ids = random_ids(seed + 1, [3, 5, 1, 5], 5, vocab_size)
    assert count_rows_unlike_full_pass(model, src_ids) == 0
    assert greedy_ids(CachedStepper(model), src_ids) == greedy_ids(UncachedStepper(model), src_ids)


def test_the_outputs_of_the_shared_model_vary_and_end() -> None:
    """Otherwise the tests that use this model would show little."""
    outputs = greedy_ids(CACHED_STEPPER, SRC_IDS)
    assert not {PAD, BOS, EOS} & {token for output in outputs for token in output}
    by_eos = [len(output) for output, limit in zip(outputs, OUTPUT_LIMITS, strict=True) if len(output) < limit]
    assert len(set(by_eos)) >= 4
    assert len(by_eos) < len(outputs)
    assert sum(len(set(output)) > 3 for output in outputs) >= 4


@pytest.mark.parametrize("batch", [list(range(len(SOURCE_LENGTHS))), [1, 4, 5, 8]])
def test_finished_rows_leave_the_batch_at_once(batch: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    fed = record_calls(monkeypatch, Transformer, "step")
    selected = record_calls(monkeypatch, DecoderCache, "select_rows")
    outputs = greedy_ids(CACHED_STEPPER, SRC_IDS[batch])
    limits = [OUTPUT_LIMITS[row] for row in batch]
    ends = [min(len(output) + 1, limit) for output, limit in zip(outputs, limits, strict=True)]
    assert [ids.shape for _, ids, _ in fed] == [(sum(end > t for end in ends), 1) for t in range(max(ends))]
    assert len(selected) == len(set(ends)) - 1
    assert len(selected) >= 3


# Room, batches and devices


def test_both_steppers_take_one_batch_at_a_time() -> None:
    assert {make_stepper(MODEL).max_concurrent_batches for make_stepper in STEPPER_CLASSES} == {1}


@every_search
@both_steppers
def test_the_cache_fits_the_longest_row_and_no_gradients_are_recorded(
    make_stepper: MakeStepper, search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = record_calls(monkeypatch, decoding, "greedy_token_ids")
    made = record_calls(monkeypatch, Transformer, "init_cache")
    search(make_stepper(MODEL), SRC_IDS)
    rooms = [capacity for *_, capacity in made]
    assert rooms == ([max(OUTPUT_LIMITS)] if make_stepper is CachedStepper else [])
    assert {type(room) for room in rooms} <= {int}  # a tensor would make every step wait for its device
    assert chosen
    assert not any(logits.requires_grad for logits, _ in chosen)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("width", [0, 7])
@every_search
@both_steppers
def test_an_empty_batch_gives_nothing(make_stepper: MakeStepper, search: Search, width: int) -> None:
    assert search(make_stepper(MODEL), torch.zeros(0, width, dtype=torch.int64)) == []


@both_steppers
def test_all_tensors_are_created_on_the_device_of_the_source(make_stepper: MakeStepper) -> None:
    before = greedy_ids(CACHED_STEPPER, SRC_IDS)
    with torch.device("meta"):  # the default device of new tensors, on which nothing can be computed
        assert greedy_ids(make_stepper(MODEL), SRC_IDS) == before


# Beam search


@torch.no_grad()
def plain_beam_search(model: Transformer, source: Tensor, beam: int, length_penalty: float) -> list[Hypothesis]:
    """Beam search for one row without padding, over the whole vocabulary, by full passes without a cache."""
    limit = length_limit(len(source), model.config.max_len)
    beginnings: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for t in range(1, limit + 1):
        tgt_in = torch.tensor([[BOS, *ids] for _, ids in beginnings])
        log_ps = model(source.expand(len(tgt_in), -1), tgt_in)[:, -1].log_softmax(-1).tolist()
        candidates = []
        for (log_prob, ids), log_p in zip(beginnings, log_ps, strict=True):
            candidates += [(log_prob + p, [*ids, i]) for i, p in enumerate(log_p) if i not in (PAD, BOS)]
        candidates.sort(key=lambda candidate: -candidate[0])
        ended += [candidate for candidate in candidates[:beam] if candidate[1][-1] == EOS]
        beginnings = [candidate for candidate in candidates if candidate[1][-1] != EOS][:beam]
        if t == limit:
            ended += beginnings
        if len(ended) >= beam:
            break
    hypotheses = [
        Hypothesis([i for i in ids if i != EOS], p, p / len(ids) ** length_penalty, len(ids)) for p, ids in ended[:beam]
    ]
    return sorted(hypotheses, key=lambda h: -h.score)


def assert_same_hypotheses(got: list[Hypothesis], want: list[Hypothesis]) -> None:
    assert [h.ids for h in got] == [h.ids for h in want]
    for one, other in zip(got, want, strict=True):
        assert one[1:] == pytest.approx(other[1:], rel=1e-11)


@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("beam", [1, 2, 3, 5, 20])
def test_beam_search_equals_the_plain_one_in_every_row(beam: int, length_penalty: float) -> None:
    for source, hypotheses in zip(SRC_IDS, beam_search(CACHED_STEPPER, SRC_IDS, beam, length_penalty), strict=True):
        assert len(hypotheses) == beam
        assert_same_hypotheses(hypotheses, plain_beam_search(MODEL, source[source != PAD], beam, length_penalty))


def test_beam_search_gives_something_where_logits_are_nan() -> None:
    model = varied_model(0)
    torch.nn.init.constant_(model.output.weight, torch.nan)
    assert [len(hypotheses) for hypotheses in beam_search(CachedStepper(model), SRC_IDS[:2], 2)] == [2, 2]


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 4), st.integers(6, 11))
def test_beam_search_equals_the_plain_one_for_any_model(seed: int, beam: int, n_rows: int, vocab_size: int) -> None:
    model, src_ids = varied_model(seed, vocab_size, max_len=9), random_ids(seed, [4, 1, 3, 2][:n_rows], 4, vocab_size)
    for source, hypotheses in zip(src_ids, beam_search(CachedStepper(model), src_ids, beam), strict=True):
        assert_same_hypotheses(hypotheses, plain_beam_search(model, source[source != PAD], beam, 1.0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", [*range(5), None])
def test_beam_search_with_one_beam_is_greedy_decoding(seed: int | None, dtype: torch.dtype) -> None:
    model = varied_model(seed or 0).to(dtype)
    if seed is None:  # all tokens are equally likely
        torch.nn.init.zeros_(model.output.weight)
    stepper, src_ids = CachedStepper(model), decoding_sources(seed or 0)
    searched, greedy = beam_search(stepper, src_ids, 1, 0.6), greedy_decode(stepper, src_ids, 0.6)
    for (one,), other in zip(searched, greedy, strict=True):
        assert one.ids == other.ids
        assert one[1:] == pytest.approx(other[1:], rel=1e-5)  # the sums may be in float32


@pytest.mark.parametrize("beam", [1, 2, 3, 20])
def test_beam_search_finds_the_same_without_a_cache(beam: int, monkeypatch: pytest.MonkeyPatch) -> None:
    selected = [record_calls(monkeypatch, kind, "select_rows") for kind in (DecoderCache, UncachedState)]
    got, want = (beam_search(make_stepper(MODEL), SRC_IDS, beam) for make_stepper in reversed(STEPPER_CLASSES))
    for one, other in zip(got, want, strict=True):
        assert_same_hypotheses(one, other)
    cached, uncached = ([rows.tolist() for _, rows in calls] for calls in selected)
    assert cached == uncached
    assert any(sorted(rows) != rows or len({*rows}) < len(rows) for rows in cached) == (beam > 1)


def test_a_row_leaves_the_batch_with_its_last_beam(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = record_calls(monkeypatch, Transformer, "step")
    rows = beam_search(CACHED_STEPPER, SRC_IDS, 3, length_penalty=1.0)
    together, ends = [ids.shape for _, ids, _ in fed], []
    for source, hypotheses in zip(SRC_IDS, rows, strict=True):
        fed.clear()
        assert_same_hypotheses(hypotheses, beam_search(CACHED_STEPPER, source[source != PAD][None], 3)[0])
        ends.append(len(fed))
    assert ends == [max(round(h.log_prob / h.score) for h in hypotheses) for hypotheses in rows]  # of the longest
    assert len(set(ends)) >= 3
    assert together == [(9, 1), *((3 * sum(n > t for n in ends), 1) for t in range(1, max(ends)))]


def test_a_row_ends_at_its_limit_with_fewer_hypotheses_than_beams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "length_limit", lambda src_len, max_len: src_len)
    src_ids = torch.tensor([[0, 2, PAD], [0, 2, 4]])
    first, second = beam_search(CachedStepper(varied_model(0, vocab_size=6)), src_ids, 100)
    assert sorted(len(h.ids) for h in first) == [0] + [1] * 3 + [2] * 9
    assert len(second) == 1 + 3 + 9 + 27


# Sampling: with the probabilities that one masked pass gives, and the same every time


@torch.no_grad()
def sample_prob(model: Transformer, source: Tensor, output: list[int], top: int) -> float:
    """The probability that `sample` draws output + EOS: of each token, among the likeliest, by one masked pass."""
    logits = model(source[None], torch.tensor([[BOS, *output]]))[0]
    logits[:, [PAD, BOS]] = -torch.inf
    among = logits.masked_fill(logits < logits.topk(top).values[:, -1:], -torch.inf).softmax(-1)
    return among.gather(1, torch.tensor([*output, EOS])[:, None]).prod().item()


def test_outputs_are_sampled_with_the_probabilities_of_the_full_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    top, n, source, seeds = 3, 2000, SRC_IDS[0, : SOURCE_LENGTHS[0]], count()  # a seed for each row
    monkeypatch.setattr(sampling, "random", SimpleNamespace(Random=lambda _: Random(next(seeds))))
    drawn = [*map(tuple, sample(CACHED_STEPPER, source.expand(n, -1), top, 0))]
    common = [(output, times) for output, times in Counter(drawn).most_common(8) if len(output) < OUTPUT_LIMITS[0]]
    assert len(common) >= 4
    for output, times in common:
        p = sample_prob(MODEL, source, [*output], top)
        assert abs(times - n * p) < 4 * (n * p * (1 - p)) ** 0.5
    assert {p == 0 for p in (sample_prob(MODEL, source, [*output], top - 1) for output, _ in common)} == {True, False}


def test_sampling_from_one_token_is_greedy_and_stays_on_the_device_of_the_source() -> None:
    greedy = [hypothesis.ids for hypothesis in greedy_decode(CACHED_STEPPER, SRC_IDS)]
    with torch.device("meta"):  # the default device of new tensors, on which nothing can be computed
        assert sample(CACHED_STEPPER, SRC_IDS, 1, seed=7) == greedy


def test_a_sample_depends_only_on_the_seed_and_the_source() -> None:
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
