"""Greedy decoding with a cache, without one, and from one masked pass over its output; beam search and a plain one."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from conftest import BOS, EOS, PAD, always, random_ids, random_model, random_targets, random_tensor, worst_deviation
from hypothesis import given
from hypothesis import strategies as st
from lively import LIVELY_SEED, SOURCE_LENGTHS, TARGET_LIMITS, decoding_model, decoding_sources, fed
from torch import Tensor

from minitrans.model import decoding
from minitrans.model.cache import DecoderCache
from minitrans.model.decoding import (
    CachedStepper,
    Hypothesis,
    Prefixes,
    Stepper,
    UncachedStepper,
    beam_search,
    greedy_decode,
    length_limit,
    length_limits,
    likeliest_token,
    likeliest_tokens,
)
from minitrans.model.loss import label_smoothed_cross_entropy
from minitrans.model.transformer import Transformer, TransformerConfig

S, V, MAX_LEN = 7, 11, 29

MakeStepper = Callable[[Transformer], Stepper[Any]]
STEPPERS: list[MakeStepper] = [CachedStepper, UncachedStepper]


@pytest.fixture
def selections(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[int]]]:
    """Whose rows were selected, and which, by every call of `select_rows`, in order."""
    calls: list[tuple[str, list[int]]] = []

    def watch(kind: type[DecoderCache] | type[Prefixes]) -> None:
        select: Callable[[Any, Tensor], None] = kind.select_rows

        def spy(self: Any, rows: Tensor) -> None:
            calls.append((kind.__name__, rows.tolist()))
            select(self, rows)

        monkeypatch.setattr(kind, "select_rows", spy)

    watch(DecoderCache)
    watch(Prefixes)
    return calls


def greedy_ids(stepper: Stepper[Any], src_ids: Tensor) -> list[list[int]]:
    return [found.ids for found in greedy_decode(stepper, src_ids)]


# Length limits and the choice of a token


@pytest.mark.parametrize(("src_len", "limit"), [(0, 10), (1, 12), (7, 24), (9, 28), (10, 29), (1000, 29)])
def test_the_length_limit_grows_with_the_source_up_to_max_len(src_len: int, limit: int) -> None:
    assert length_limit(src_len, 29) == limit


def test_each_row_has_the_limit_of_its_real_tokens() -> None:
    src_ids = torch.cat([decoding_sources(0), torch.full((1, S), PAD)])
    limits = length_limits(src_ids, decoding_model(0).config)
    assert limits == [*TARGET_LIMITS, 10]
    assert {type(limit) for limit in limits} == {int}
    assert length_limits(src_ids, decoding_model(0, max_len=13).config) == [*(min(13, n) for n in TARGET_LIMITS), 10]


def test_the_likeliest_token_is_chosen_in_every_row() -> None:
    logits = torch.zeros(3, V, dtype=torch.float64)
    logits[0, 7], logits[1, EOS], logits[2, 0] = 1.0, 2.0, 3.0
    assert likeliest_token(logits, decoding_model(0).config).tolist() == [7, EOS, 0]


def test_pad_and_bos_are_never_chosen_and_the_logits_are_left_alone() -> None:
    logits = torch.zeros(2, V, dtype=torch.float64)
    logits[:, PAD], logits[:, BOS] = 9.0, 8.0
    logits[0, 2], logits[1] = 1.0, logits[1] - torch.arange(1, V + 1)
    before = logits.clone()
    assert likeliest_token(logits, decoding_model(0).config).tolist() == [2, 0]
    assert torch.equal(logits, before)


# The steps


@torch.no_grad()
@pytest.mark.parametrize("make_stepper", STEPPERS)
def test_a_stepper_gives_the_likeliest_tokens_after_all_that_was_fed(make_stepper: MakeStepper) -> None:
    model, src_ids = decoding_model(LIVELY_SEED), decoding_sources(LIVELY_SEED)
    stepper = make_stepper(model)
    assert stepper.config is model.config
    assert stepper.max_threads == 1
    rows = stepper.begin(src_ids, 3)
    fed = random_targets(3, len(src_ids), 1)
    for t in range(3):
        if t:  # other rows, and other tokens than the likeliest
            keep = torch.tensor([[4, 2, 2, 0, 1], [3, 1, 0, 1]][t - 1])
            rows.select_rows(keep)
            src_ids, fed = src_ids[keep], torch.cat([fed[keep], random_ids(t, [1] * len(keep), 1)], 1)
        log_p, ids = stepper.next_tokens(fed[:, -1], rows, 4)
        want = likeliest_tokens(model(src_ids, fed)[:, -1], 4, model.config)
        assert torch.equal(ids, want[1])
        assert worst_deviation([log_p], [want[0]]) <= 1e-11


# One decode, three ways


@torch.no_grad()
def choices_in_one_pass(model: Transformer, src_ids: Tensor, outputs: Iterable[list[int]]) -> list[list[int]]:
    """What the full masked pass would choose after each token of the outputs, each row alone and unpadded."""
    chosen = []
    for source, output in zip(src_ids, outputs, strict=True):
        logits = model(source[source != PAD][None], torch.tensor([[BOS, *output][: model.config.max_len]]))[0]
        logits[:, [PAD, BOS]] = -torch.inf
        chosen.append(logits.argmax(-1).tolist())
    return chosen


def wrong_rows(model: Transformer, src_ids: Tensor, make_stepper: MakeStepper) -> int:
    """How many decoded rows are not what one full masked pass over them chooses, EOS and limit included."""
    outputs = greedy_ids(make_stepper(model), src_ids)
    assert {type(id_) for output in outputs for id_ in output} <= {int}
    chosen = choices_in_one_pass(model, src_ids, outputs)
    wrong = 0
    for source, output, choices in zip(src_ids, outputs, chosen, strict=True):
        at_limit = len(output) == length_limit(int((source != PAD).sum()), model.config.max_len)
        wrong += (choices[: len(output)] if at_limit else choices) != output + ([] if at_limit else [EOS])
    return wrong


@pytest.mark.parametrize("make_stepper", STEPPERS)
def test_decoding_equals_one_masked_pass_over_its_own_output(
    make_stepper: MakeStepper, selections: list[tuple[str, list[int]]]
) -> None:
    model, src_ids = decoding_model(LIVELY_SEED), decoding_sources(LIVELY_SEED)
    assert wrong_rows(model, src_ids, make_stepper) == 0
    assert [kind for kind, _ in selections] == ["DecoderCache" if make_stepper is CachedStepper else "Prefixes"] * 6


def test_the_lively_model_is_lively() -> None:
    """Otherwise the tests that use it would show little."""
    outputs = greedy_ids(CachedStepper(decoding_model(LIVELY_SEED)), decoding_sources(LIVELY_SEED))
    lengths = [len(output) for output in outputs]
    by_eos = [n for n, limit in zip(lengths, TARGET_LIMITS, strict=True) if n < limit]
    assert len(set(by_eos)) >= 4
    assert len(by_eos) < len(lengths)
    assert sum(len(set(output)) > 3 for output in outputs) >= 4


@given(seed=st.integers(0, 2**20), vocab_size=st.integers(6, 13), max_len=st.integers(8, 31))
def test_any_model_decodes_the_same_three_ways(seed: int, vocab_size: int, max_len: int) -> None:
    model = decoding_model(seed, vocab_size, max_len)
    src_ids = random_ids(seed + 1, [3, 5, 1, 5], 5, vocab_size)
    assert wrong_rows(model, src_ids, CachedStepper) == 0
    assert greedy_ids(CachedStepper(model), src_ids) == greedy_ids(UncachedStepper(model), src_ids)


def test_control_rows_that_are_not_taken_along_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    select = DecoderCache.select_rows
    monkeypatch.setattr(DecoderCache, "select_rows", lambda self, rows: select(self, torch.arange(len(rows))))
    assert wrong_rows(decoding_model(LIVELY_SEED), decoding_sources(LIVELY_SEED), CachedStepper) > 0


def test_control_positions_that_begin_again_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    embed = Transformer.embed
    monkeypatch.setattr(Transformer, "embed", lambda self, table, ids, offset: embed(self, table, ids, 0))
    assert wrong_rows(decoding_model(LIVELY_SEED), decoding_sources(LIVELY_SEED), CachedStepper) > 0


# Other rows


def test_a_row_does_not_depend_on_the_batch_it_is_in() -> None:
    stepper, src_ids = CachedStepper(decoding_model(LIVELY_SEED)), decoding_sources(LIVELY_SEED)
    together = greedy_ids(stepper, src_ids)
    assert [greedy_ids(stepper, row[row != PAD][None])[0] for row in src_ids] == together
    rows = [8, 2, 2, 0, 5]
    assert greedy_ids(stepper, src_ids[rows]) == [together[i] for i in rows]


def test_more_padding_changes_nothing() -> None:
    stepper, src_ids = CachedStepper(decoding_model(LIVELY_SEED)), decoding_sources(LIVELY_SEED)
    wider = torch.nn.functional.pad(src_ids, (0, 4), value=PAD)
    assert greedy_ids(stepper, wider) == greedy_ids(stepper, src_ids)


@pytest.mark.parametrize("batch", [list(range(len(SOURCE_LENGTHS))), [1, 4, 5, 8]])
def test_finished_rows_leave_at_once(
    batch: list[int], selections: list[tuple[str, list[int]]], fed: list[tuple[int, int]]
) -> None:
    outputs = greedy_ids(CachedStepper(decoding_model(LIVELY_SEED)), decoding_sources(LIVELY_SEED)[batch])
    limits = [TARGET_LIMITS[row] for row in batch]
    ends = [min(len(output) + 1, limit) for output, limit in zip(outputs, limits, strict=True)]
    want, rows = [], list(range(len(outputs)))
    for t in range(max(ends)):
        want.append((len(rows), 1))
        alive = [row for row in rows if ends[row] > t + 1]
        rows = alive
    assert fed == want
    assert len(selections) == len({size for size, _ in want}) - 1
    assert len(selections) >= 3


# Where it ends


def test_decoding_stops_when_every_row_has_ended(fed: list[tuple[int, int]]) -> None:
    assert greedy_ids(CachedStepper(always(decoding_model(0), EOS)), decoding_sources(0)) == [[]] * len(SOURCE_LENGTHS)
    assert len(fed) == 1


def test_each_row_has_its_own_length_limit(fed: list[tuple[int, int]]) -> None:
    outputs = greedy_ids(CachedStepper(always(decoding_model(0), 7)), decoding_sources(0))
    assert outputs == [[7] * limit for limit in TARGET_LIMITS]
    assert len(fed) == max(TARGET_LIMITS)


def test_no_row_is_longer_than_max_len() -> None:
    model = always(decoding_model(0, max_len=13), 7)
    for make_stepper in STEPPERS:
        outputs = greedy_ids(make_stepper(model), decoding_sources(0))
        assert [len(output) for output in outputs] == [min(13, limit) for limit in TARGET_LIMITS]


def test_tokens_after_the_end_are_not_returned() -> None:
    outputs = greedy_ids(CachedStepper(decoding_model(LIVELY_SEED)), decoding_sources(LIVELY_SEED))
    assert not {PAD, BOS, EOS} & {token for output in outputs for token in output}


def test_the_cache_has_room_for_the_longest_row_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = []
    init_cache = Transformer.init_cache

    def spy(self: Transformer, memory: Tensor, src_mask: Tensor, capacity: int | None = None) -> DecoderCache:
        rooms.append(capacity)
        return init_cache(self, memory, src_mask, capacity)

    monkeypatch.setattr(Transformer, "init_cache", spy)
    greedy_ids(CachedStepper(decoding_model(0)), decoding_sources(0))
    assert rooms == [max(TARGET_LIMITS)]
    assert isinstance(rooms[0], int)  # a tensor would make every step wait for its device


# Edges


@pytest.mark.parametrize("width", [0, 7])
@pytest.mark.parametrize("make_stepper", STEPPERS)
def test_an_empty_batch_gives_nothing(width: int, make_stepper: MakeStepper) -> None:
    assert greedy_ids(make_stepper(decoding_model(0)), torch.zeros(0, width, dtype=torch.int64)) == []


def test_a_source_of_padding_alone_disturbs_no_other_row() -> None:
    stepper, src_ids = CachedStepper(decoding_model(LIVELY_SEED)), decoding_sources(LIVELY_SEED)
    together = greedy_ids(stepper, src_ids)
    with_empty = greedy_ids(stepper, torch.cat([src_ids[:3], torch.full((1, S), PAD), src_ids[3:]]))
    assert len(with_empty.pop(3)) <= 10
    assert with_empty == together


@pytest.mark.parametrize("make_stepper", STEPPERS)
def test_a_source_beyond_max_len_is_refused(make_stepper: MakeStepper) -> None:
    with pytest.raises(ValueError, match=r"9 tokens are more than model\.max_len \(8\)"):
        greedy_ids(make_stepper(decoding_model(0, max_len=8)), random_ids(1, [9, 4], 9))


@pytest.mark.parametrize("make_stepper", STEPPERS)
def test_decoding_records_nothing_for_autograd(make_stepper: MakeStepper, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = []

    def spy(logits: Tensor, config: TransformerConfig) -> Tensor:
        recorded.append(logits.requires_grad)
        return likeliest_token(logits, config)

    monkeypatch.setattr(decoding, "likeliest_token", spy)
    greedy_ids(make_stepper(decoding_model(0)), decoding_sources(0))
    assert recorded
    assert not any(recorded)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("make_stepper", STEPPERS)
def test_everything_is_made_on_the_device_of_the_source(make_stepper: MakeStepper) -> None:
    model, src_ids = decoding_model(LIVELY_SEED), decoding_sources(LIVELY_SEED)
    before = greedy_ids(CachedStepper(model), src_ids)
    with torch.device("meta"):  # where a tensor goes that is made without a device; it cannot be computed with
        assert greedy_ids(make_stepper(model), src_ids) == before


# Training and stepwise decoding


@torch.no_grad()
def deviation_of_step_losses(model: Transformer, smoothing: float) -> float:
    """How far the teacher-forced losses are from those of an incremental decode fed the same tokens.

    Position by position, and the sum over all.
    """
    src_ids = decoding_sources(LIVELY_SEED)
    lengths = [5, 8, 3, 8, 2, 6, 1, 4, 7]
    whole = torch.cat([random_targets(2, len(SOURCE_LENGTHS), 8, V), torch.full((len(SOURCE_LENGTHS), 1), PAD)], 1)
    for row, length in zip(whole, lengths, strict=True):
        row[length], row[length + 1 :] = EOS, PAD
    tgt_in, tgt_out = whole[:, :-1].masked_fill(whole[:, :-1] == EOS, PAD), whole[:, 1:]
    logits = model(src_ids, tgt_in)
    total = label_smoothed_cross_entropy(logits, tgt_out, PAD, smoothing)

    cache = model.init_cache(*model.encode(src_ids), capacity=8)
    at_once, in_steps = [], []
    for t in range(8):
        here = slice(t, t + 1)
        at_once.append(label_smoothed_cross_entropy(logits[:, here], tgt_out[:, here], PAD, smoothing))
        stepped = model.step(tgt_in[:, here], cache)
        in_steps.append(label_smoothed_cross_entropy(stepped, tgt_out[:, here], PAD, smoothing))
    return worst_deviation([*at_once, total], [*in_steps, torch.stack(in_steps).sum()])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_teacher_forced_loss_is_the_sum_of_the_step_losses(smoothing: float) -> None:
    assert deviation_of_step_losses(random_model(3), smoothing) <= 1e-11  # of some hundred


def test_control_step_losses_report_a_leak_of_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(q_len: int, kv_len: int, offset: int, device: torch.device) -> Tensor:
        return torch.ones(1, 1, q_len, kv_len, dtype=torch.bool)

    monkeypatch.setattr("minitrans.model.transformer.causal_mask", everything)
    assert deviation_of_step_losses(random_model(3), 0.1) > 1e-3


# Beam search


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_likeliest_tokens_and_their_log_probabilities(dtype: torch.dtype) -> None:
    logits = random_tensor(0, 3, V).to(dtype)
    exact = logits.double().log_softmax(-1)
    exact[:, [PAD, BOS]] = -torch.inf
    for n in (1, 2, 4, V):
        log_p, ids = likeliest_tokens(logits, n, decoding_model(0).config)
        assert log_p.dtype == torch.promote_types(dtype, torch.float32)
        want = exact.topk(n)
        assert ids.shape == log_p.shape == want.indices.shape
        assert torch.allclose(log_p.double(), want.values, rtol=1e-6)
        if dtype == torch.float64:
            assert torch.equal(ids[:, : V - 2], want.indices[:, : V - 2])
    assert [len(row) for row in likeliest_tokens(logits, V + 1, decoding_model(0).config)[1]] == [V, V, V]


@torch.no_grad()
def plain_beam_search(model: Transformer, source: Tensor, beam: int, length_penalty: float) -> list[Hypothesis]:
    """The same for one row without padding, from the whole vocabulary and full passes, without a cache."""
    limit = length_limit(len(source), model.config.max_len)
    beginnings: list[tuple[float, list[int]]] = [(0.0, [])]
    found: list[tuple[float, list[int]]] = []
    for t in range(1, limit + 1):
        tgt_in = torch.tensor([[BOS, *ids] for _, ids in beginnings])
        log_ps = model(source.expand(len(tgt_in), -1), tgt_in)[:, -1].log_softmax(-1).tolist()
        candidates = []
        for (log_prob, ids), log_p in zip(beginnings, log_ps, strict=True):
            candidates += [(log_prob + p, [*ids, i]) for i, p in enumerate(log_p) if i not in (PAD, BOS)]
        candidates.sort(key=lambda candidate: -candidate[0])
        found += [candidate for candidate in candidates[:beam] if candidate[1][-1] == EOS]
        beginnings = [candidate for candidate in candidates if candidate[1][-1] != EOS][:beam]
        if t == limit:
            found += beginnings
        if len(found) >= beam:
            break
    hypotheses = [
        Hypothesis([i for i in ids if i != EOS], p, p / len(ids) ** length_penalty) for p, ids in found[:beam]
    ]
    return sorted(hypotheses, key=lambda h: -h.score)


def assert_same(found: list[Hypothesis], want: list[Hypothesis]) -> None:
    assert [h.ids for h in found] == [h.ids for h in want]
    for one, other in zip(found, want, strict=True):
        assert one[1:] == pytest.approx(other[1:], rel=1e-11)


@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("beam", [1, 2, 3, 5, 20])
def test_beam_search_is_the_plain_one_in_every_row(beam: int, length_penalty: float) -> None:
    model, src_ids = decoding_model(LIVELY_SEED), decoding_sources(LIVELY_SEED)
    for source, found in zip(src_ids, beam_search(CachedStepper(model), src_ids, beam, length_penalty), strict=True):
        assert len(found) == beam
        assert_same(found, plain_beam_search(model, source[source != PAD], beam, length_penalty))


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 4))
def test_beam_search_is_the_plain_one_for_any_model(seed: int, beam: int, n_rows: int) -> None:
    model, src_ids = decoding_model(seed, max_len=9), random_ids(seed, [4, 1, 3, 2][:n_rows], 4)
    for source, found in zip(src_ids, beam_search(CachedStepper(model), src_ids, beam), strict=True):
        assert_same(found, plain_beam_search(model, source[source != PAD], beam, 1.0))


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
def test_beams_for_everything_find_the_best_there_is(length_penalty: float) -> None:
    """PAD and BOS aside there are three words and EOS, and at most three tokens: 1 + 3 + 9 + 27 outputs."""
    for seed in range(5):
        model = decoding_model(seed, vocab_size=6, max_len=3)
        source = torch.tensor([0, 2])
        (found,) = beam_search(CachedStepper(model), source[None], 40, length_penalty)
        words = [i for i in range(6) if i not in (PAD, BOS, EOS)]
        outputs = [list(ids) for n in range(4) for ids in itertools.product(words, repeat=n)]
        scores = {}
        for ids in outputs:
            tgt_out = ids if len(ids) == 3 else [*ids, EOS]
            scores[tuple(ids)] = teacher_forced(model, source, tgt_out) / len(tgt_out) ** length_penalty
        assert {tuple(h.ids): h.score for h in found} == pytest.approx(scores)
        assert tuple(found[0].ids) == max(scores, key=lambda ids: scores[ids])


@torch.no_grad()
def teacher_forced(model: Transformer, source: Tensor, tgt_out: list[int]) -> float:
    log_p = model(source[None], torch.tensor([[BOS, *tgt_out[:-1]]]))[0].log_softmax(-1)
    return sum(log_p[t, i].item() for t, i in enumerate(tgt_out))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(5))
def test_one_beam_is_greedy_decoding(seed: int, dtype: torch.dtype) -> None:
    stepper, src_ids = CachedStepper(decoding_model(seed).to(dtype)), decoding_sources(seed)
    assert [[h.ids for h in found] for found in beam_search(stepper, src_ids, 1)] == [
        [ids] for ids in greedy_ids(stepper, src_ids)
    ]


def test_one_beam_is_greedy_where_all_tokens_are_as_likely() -> None:
    model = always(decoding_model(0), 0)
    with torch.no_grad():
        model.output.weight.zero_()
    stepper, src_ids = CachedStepper(model), decoding_sources(0)
    assert [found[0].ids for found in beam_search(stepper, src_ids, 1)] == greedy_ids(stepper, src_ids)


@pytest.mark.parametrize("make_stepper", STEPPERS)
@pytest.mark.parametrize("beam", [1, 2, 5])
def test_a_score_is_the_teacher_forced_score_of_the_output(beam: int, make_stepper: MakeStepper) -> None:
    """Of rows that end at different steps, by EOS or at their limit; of one beam, what greedy decoding finds."""
    model, src_ids = decoding_model(LIVELY_SEED), decoding_sources(LIVELY_SEED)
    stepper = make_stepper(model)
    greedy = [[found] for found in greedy_decode(stepper, src_ids, 0.6)]
    hypotheses = greedy if beam == 1 else beam_search(stepper, src_ids, beam, 0.6)
    for source, limit, found in zip(src_ids, TARGET_LIMITS, hypotheses, strict=True):
        assert len({tuple(h.ids) for h in found}) == beam
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
        for h in found:
            tgt_out = h.ids if len(h.ids) == limit else [*h.ids, EOS]
            assert h.log_prob == pytest.approx(teacher_forced(model, source[source != PAD], tgt_out), rel=1e-11)
            assert h.score == pytest.approx(h.log_prob / len(tgt_out) ** 0.6, rel=1e-12)


def test_a_row_of_beams_does_not_depend_on_the_others() -> None:
    stepper, src_ids = CachedStepper(decoding_model(LIVELY_SEED)), decoding_sources(LIVELY_SEED)
    together = beam_search(stepper, src_ids, 3)
    for source, found in zip(src_ids, together, strict=True):
        assert_same(found, beam_search(stepper, source[source != PAD][None], 3)[0])


@pytest.mark.parametrize("beam", [1, 2, 3, 20])
def test_beam_search_finds_the_same_without_a_cache(beam: int, selections: list[tuple[str, list[int]]]) -> None:
    model, src_ids = decoding_model(LIVELY_SEED), decoding_sources(LIVELY_SEED)
    found, want = (beam_search(make_stepper(model), src_ids, beam) for make_stepper in reversed(STEPPERS))
    for one, other in zip(found, want, strict=True):
        assert_same(one, other)
    steps = {kind: [rows for whose, rows in selections if whose == kind] for kind in ("Prefixes", "DecoderCache")}
    assert steps["Prefixes"] == steps["DecoderCache"]
    assert any(sorted(rows) != rows or len({*rows}) < len(rows) for rows in steps["Prefixes"]) == (beam > 1)


def test_a_row_leaves_the_batch_with_its_last_beam(fed: list[tuple[int, int]]) -> None:
    stepper, src_ids = CachedStepper(decoding_model(LIVELY_SEED)), decoding_sources(LIVELY_SEED)
    alone = []
    for source in src_ids:
        fed.clear()
        beam_search(stepper, source[source != PAD][None], 3)
        alone.append(len(fed))
    fed.clear()
    found = beam_search(stepper, src_ids, 3, length_penalty=1.0)
    assert alone == [max(round(h.log_prob / h.score) for h in hypotheses) for hypotheses in found]  # the longest one's
    assert {n for _, n in fed} == {1}
    assert len(set(alone)) >= 3
    assert [rows for rows, _ in fed] == [9, *(3 * sum(n > t for n in alone) for t in range(1, max(alone)))]


def test_beam_search_makes_room_for_the_longest_row_and_records_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    capacities = []
    step = Transformer.step

    def spy(self: Transformer, tgt_ids: Tensor, cache: DecoderCache) -> Tensor:
        assert torch.is_inference_mode_enabled()
        capacities.append(cache.capacity)
        return step(self, tgt_ids, cache)

    monkeypatch.setattr(Transformer, "step", spy)
    beam_search(CachedStepper(decoding_model(LIVELY_SEED)), decoding_sources(LIVELY_SEED)[:1], 2)
    assert set(capacities) == {18}


def test_a_row_ends_at_its_limit_with_fewer_hypotheses_than_beams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "length_limit", lambda src_len, max_len: src_len)
    src_ids = torch.tensor([[0, 2, PAD], [0, 2, 4]])
    first, second = beam_search(CachedStepper(decoding_model(0, vocab_size=6)), src_ids, 100)
    assert sorted(len(h.ids) for h in first) == [0] + [1] * 3 + [2] * 9
    assert len(second) == 1 + 3 + 9 + 27


def test_a_vocabulary_smaller_than_the_beams_gives_what_there_is() -> None:
    stepper = CachedStepper(decoding_model(0, vocab_size=6, max_len=1))
    (found,) = beam_search(stepper, torch.tensor([[0]]), 50)
    assert sorted(h.ids for h in found) == [[], [0], [2], [4]]


def test_beam_search_of_nothing_is_nothing() -> None:
    assert beam_search(CachedStepper(decoding_model(0)), torch.empty(0, 3, dtype=torch.int64), 2) == []


def test_beam_search_refuses_a_source_that_is_too_long() -> None:
    with pytest.raises(ValueError, match=str(MAX_LEN)):
        beam_search(CachedStepper(decoding_model(0)), torch.zeros(1, MAX_LEN + 1, dtype=torch.int64), 2)
