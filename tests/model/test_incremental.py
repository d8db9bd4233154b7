"""The claim of the project: step by step from a cache gives what the full masked pass gives, everywhere.

The comparisons are those of `minitrans.cachecheck.checks` and a few more of the kind: functions that return the
worst deviation. The tests ask that it is nothing; the controls sabotage the code and ask that the same function reports
it.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pytest
import torch
from conftest import PAD, random_model, random_sentences, random_tensor, subjects
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from minitrans.cachecheck.check import FLOAT64, LOWER, NotOfferedError, compare, rounding, worst
from minitrans.cachecheck.checks import (
    alternating_deviation,
    chunk_deviation,
    errors_by_position,
    interleaved_deviation,
    selection_deviation,
    splits,
    step_deviation,
)
from minitrans.cachecheck.protocol import Case as AnyCase
from minitrans.model.cache import DecoderCache, KeyValues
from minitrans.model.transformer import Transformer
from minitrans.verify.adapter import case_of, numbers
from minitrans.verify.checks.masks import all_weights
from minitrans.verify.proof import sabotages_for
from minitrans.verify.subject import Subject, make_subject

CAUGHT = 1e-6  # a sabotage moves the numbers by far more than rounding does

# Fewer examples than usual, for each has a model of its own; and the same ones every time, for no bound on what
# rounding in bfloat16 does to a model holds for all models.
fewer = settings(max_examples=settings().max_examples // 3, derandomize=True)


class Case(NamedTuple):
    """What is measured.

    Attributes:
        model: In eval mode, every parameter random; float64, float32 or bfloat16.
        src_ids: int64 (B, S), ragged, padded on the right.
        tgt_in: int64 (B, T), likewise.
        chunks: Sizes of the pieces in which the target is fed; they sum to T.
    """

    model: Transformer
    src_ids: Tensor
    tgt_in: Tensor
    chunks: list[int]

    @property
    def fed(self) -> tuple[AnyCase[DecoderCache], list[int]]:
        """What those checks take."""
        return case_of(self.model, self.src_ids, self.tgt_in), self.chunks

    @property
    def tolerance(self) -> float:
        """What rounding explains, in the model's dtype."""
        return rounding(self.model.output.weight.dtype)


@st.composite
def cases(draw: st.DrawFn, min_target: int = 1) -> Case:
    """Any sizes, dtype, padding and split."""
    subject = draw(subjects())
    length = subject.tgt_in.size(1)
    assume(length >= min_target)
    cuts = sorted(draw(st.sets(st.integers(1, length - 1)))) if length > 1 else []
    chunks = [end - begin for begin, end in zip([0, *cuts], [*cuts, length], strict=True)]
    dtype = draw(st.sampled_from([torch.float64, *LOWER]))
    return Case(subject.model.to(dtype), subject.src_ids, subject.tgt_in, chunks)


def fixed_subject() -> Subject:
    """float64; B = 3, S = 5, T = 6, D = 7; only sources are padded."""
    sources, targets = random_sentences(8, [5, 2, 4]), random_sentences(9, [6, 6, 6])
    return make_subject(random_model(7, d_model=7, tie_embeddings=False), sources, targets, [])


def fixed_case() -> Case:
    """`fixed_subject` in chunks of 2, 3 and 1; the controls use it."""
    subject = fixed_subject()
    return Case(subject.model, subject.src_ids, subject.tgt_in, [2, 3, 1])


# Any split equals the full pass


@fewer
@given(case=cases(), spare=st.integers(0, 3))
def test_any_split_into_chunks_equals_the_full_pass(case: Case, spare: int) -> None:
    assert chunk_deviation(*case.fed, spare) <= case.tolerance


def test_literally_every_split_of_six_tokens_equals_the_full_pass() -> None:
    ways = list(splits(6))
    assert len({tuple(way) for way in ways}) == 2**5
    for chunks in ways:
        assert sum(chunks) == 6
        assert chunk_deviation(*fixed_case()._replace(chunks=chunks).fed) <= FLOAT64, chunks


@torch.no_grad()
@fewer
@given(case=cases())
def test_steps_equal_the_models_own_forward(case: Case) -> None:
    model, src_ids, tgt_in, chunks = case
    cache = model.init_cache(*model.encode(src_ids))
    stepped = torch.cat([model.step(chunk, cache) for chunk in tgt_in.split(chunks, 1)], 1)
    assert compare([stepped], [model(src_ids, tgt_in)]) <= case.tolerance
    assert cache.length == tgt_in.size(1)


@fewer
@given(case=cases(), data=st.data())
def test_rows_reordered_dropped_and_repeated_go_on_exactly(case: Case, data: st.DataObject) -> None:
    selections: list[list[int]] = []
    batch = len(case.src_ids)
    for _ in case.chunks:
        selections.append(data.draw(st.lists(st.integers(0, batch - 1), min_size=1, max_size=8)))
        batch = len(selections[-1])
    assert selection_deviation(*case.fed, selections) <= case.tolerance


@fewer
@given(case=cases())
def test_two_caches_on_one_model_do_not_mix(case: Case) -> None:
    assert interleaved_deviation(*case.fed) <= case.tolerance


@fewer
@given(case=cases(min_target=2))
def test_a_full_pass_between_two_steps_changes_nothing(case: Case) -> None:
    assert alternating_deviation(*case.fed) <= case.tolerance


def test_the_errors_by_position_are_those_of_single_steps() -> None:
    subject = fixed_subject()
    errors = errors_by_position(subject.case())
    assert len(errors) == 6
    assert worst(errors) == step_deviation(subject.case()) <= FLOAT64


def test_numbers_without_weights_are_refused() -> None:
    model, src_ids, tgt_in, _ = fixed_case()
    memory, src_mask = model.encode(src_ids)
    hidden, traces = model.run_decoder(tgt_in, memory, src_mask)
    with pytest.raises(ValueError, match="no weights though asked for them"):
        numbers(model, hidden, traces)


# The future


def change_deviation(case: Case, t: int, later: Tensor) -> tuple[float, float]:
    """How far other tokens after `t`, int64 (B, T - t - 1), move what is computed up to t, and what is after it."""
    model, src_ids, tgt_in, _ = case
    split = t + 1, tgt_in.size(1) - t - 1
    one, other = (
        [x.split(split, -2) for x in case_of(model, src_ids, tgt).full_pass()]
        for tgt in (tgt_in, torch.cat([tgt_in[:, : t + 1], later], 1))
    )
    before, after = (compare([x[i] for x in other], [x[i] for x in one]) for i in (0, 1))
    return before, after


@fewer
@given(case=cases(min_target=2), data=st.data())
def test_later_tokens_change_what_comes_after_them_alone(case: Case, data: st.DataObject) -> None:
    t = data.draw(st.integers(0, case.tgt_in.size(1) - 2))
    vocab_size = case.model.config.vocab_size
    shift = data.draw(st.integers(1, vocab_size - 1))
    before, after = change_deviation(case, t, (case.tgt_in[:, t + 1 :] + shift) % vocab_size)
    assert before <= case.tolerance
    assert after > CAUGHT


@fewer
@given(case=cases(min_target=2), data=st.data())
def test_padding_of_the_target_does_not_reach_what_stands_before_it(case: Case, data: st.DataObject) -> None:
    t = data.draw(st.integers(0, case.tgt_in.size(1) - 2))
    before, _ = change_deviation(case, t, torch.full_like(case.tgt_in[:, t + 1 :], PAD))
    assert before <= case.tolerance


# Padding


@torch.no_grad()
def source_numbers(case: Case) -> list[Tensor]:
    """Memory, every encoder layer's output and all logits; what stands at padded positions is set to 0."""
    model, src_ids, tgt_in, _ = case
    memory, src_mask, traces = model.run_encoder(src_ids)
    real = (src_ids != PAD)[..., None]
    logits = model.decode(tgt_in, memory, src_mask)
    return [*((x * real) for x in (memory, *(trace.output for trace in traces))), logits]


def extra_padding_deviation(case: Case, extra: int) -> float:
    """The batch against the same batch with `extra` more columns of padding."""
    *encoded, logits = source_numbers(case._replace(src_ids=F.pad(case.src_ids, (0, extra), value=PAD)))
    return compare([*(x[:, :-extra] for x in encoded), logits], source_numbers(case))


def lone_row_deviation(case: Case) -> float:
    """The batch against each of its rows alone, without padding."""
    *encoded, logits = source_numbers(case)
    deviations = []
    for i, length in enumerate((case.src_ids != PAD).sum(1).tolist()):
        alone = source_numbers(case._replace(src_ids=case.src_ids[i : i + 1, :length], tgt_in=case.tgt_in[i : i + 1]))
        deviations.append(compare([*(x[i : i + 1, :length] for x in encoded), logits[i : i + 1]], alone))
    return worst(deviations)


def pad_embedding_deviation(case: Case) -> float:
    """The model against itself with another vector for PAD on the source side (its embeddings are not tied)."""
    before = source_numbers(case)
    table = case.model.src_embedding.weight.data
    kept = table[PAD].clone()
    table[PAD] = 100.0 * random_tensor(0, len(kept))
    after = source_numbers(case)
    table[PAD] = kept
    return compare(after, before)


@fewer
@given(case=cases(), extra=st.integers(1, 3))
def test_more_padding_changes_nothing(case: Case, extra: int) -> None:
    assume(case.src_ids.size(1) + extra <= case.model.config.max_len)
    assert extra_padding_deviation(case, extra) <= case.tolerance


@fewer
@given(case=cases())
def test_a_row_does_not_depend_on_the_rows_beside_it(case: Case) -> None:
    assert lone_row_deviation(case) <= case.tolerance


@fewer
@given(case=cases().filter(lambda case: not case.model.config.tie_embeddings))
def test_the_vector_of_padding_means_nothing(case: Case) -> None:
    assert pad_embedding_deviation(case) == 0.0


@torch.no_grad()
@fewer
@given(subject=subjects())
def test_padded_keys_have_weight_exactly_zero_and_real_ones_have_not(subject: Subject) -> None:
    src_mask, own, _, source = all_weights(subject)
    assert len(own) == len(source) == subject.model.config.n_layers
    for weights in own + source:
        assert torch.equal(weights != 0.0, src_mask.expand_as(weights))


def without_row(src_ids: Tensor, row: int) -> Tensor:
    """The sources, with nothing but padding in one row."""
    src_ids = src_ids.clone()
    src_ids[row] = PAD
    return src_ids


@torch.no_grad()
@fewer
@given(subject=subjects(), data=st.data())
def test_a_source_of_padding_alone_has_no_weights(subject: Subject, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(subject.src_ids) - 1))
    _, own, _, source = all_weights(replace(subject, src_ids=without_row(subject.src_ids, row)))
    assert not any(bool(weights[row].any()) for weights in own + source)


@fewer
@given(case=cases(), data=st.data())
def test_a_source_of_padding_alone_steps_like_the_full_pass_and_disturbs_no_other_row(
    case: Case, data: st.DataObject
) -> None:
    model, src_ids, tgt_in, _ = case
    row = data.draw(st.integers(0, len(src_ids) - 1))
    emptied = without_row(src_ids, row)
    assert model.encode(emptied)[0].isfinite().all()
    assert chunk_deviation(*case._replace(src_ids=emptied).fed) <= case.tolerance
    others = [i for i in range(len(src_ids)) if i != row]
    if others:
        got, want = (case_of(model, ids, tgt_in).full_pass() for ids in (emptied, src_ids))
        assert compare([x[others] for x in got], [x[others] for x in want]) <= case.tolerance


# Controls: the faults that people make, one at a time. What is measured under them must not raise, but report.

BY_ID = {sabotage.id: sabotage for sabotage in sabotages_for("off")}


@pytest.mark.parametrize(
    "sabotage",
    [
        *("mask.leak", "mask.late", "mask.only-cached", "mask.only-uncached", "mask.top-left", "mask.square"),
        *("mask.after-softmax", "positions.restart", "positions.ahead"),
        *("cache.wrong-slot", "cache.empty-slots", "cache.forgets", "cache.cross-layout"),
    ],
)
def test_control_chunks_report(sabotage: str) -> None:
    case = fixed_case()
    with BY_ID[sabotage].applied():
        assert CAUGHT < chunk_deviation(*case.fed) < math.inf
    assert chunk_deviation(*case.fed) <= FLOAT64


def test_control_empty_slots_are_refused_by_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    write = KeyValues.write

    def all_slots(self: KeyValues, k: Tensor, v: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        write(self, k, v, offset)
        return self.k, self.v

    monkeypatch.setattr(KeyValues, "write", all_slots)
    with pytest.raises(NotOfferedError, match="does not broadcast to scores"):
        chunk_deviation(*fixed_case().fed)


ROWS = [[2, 0, 1], [1, 1, 2], [2, 1, 0]]  # as many as before, so that a sabotaged selection still runs


@pytest.mark.parametrize(
    "sabotage",
    [
        *("rows.dropped", "rows.sorted", "rows.inverse"),
        *("rows.not-source", "rows.not-target", "rows.not-values", "rows.not-mask"),
    ],
)
def test_control_selections_report(sabotage: str) -> None:
    case = fixed_case()
    with BY_ID[sabotage].applied():
        assert CAUGHT < selection_deviation(*case.fed, ROWS) < math.inf
    assert selection_deviation(*case.fed, ROWS) <= FLOAT64


@pytest.mark.parametrize(
    ("deviation", "sabotage"),
    [(interleaved_deviation, "cache.on-module"), (alternating_deviation, "cache.emptied")],
)
def test_control_turns_report(deviation: Callable[..., float], sabotage: str) -> None:
    case = fixed_case()
    with BY_ID[sabotage].applied():
        assert CAUGHT < deviation(*case.fed) < math.inf
    assert deviation(*case.fed) <= FLOAT64


@pytest.mark.parametrize("sabotage", ["mask.leak", "mask.late", "mask.only-cached", "mask.after-softmax"])
def test_control_changed_tokens_report(sabotage: str) -> None:
    case = fixed_case()
    with BY_ID[sabotage].applied():
        before, _ = change_deviation(case, 2, case.tgt_in[:, 3:].flip(1))
    assert before > CAUGHT


@pytest.mark.parametrize("sabotage", ["padding.seen", "padding.other-id", "padding.queries", "mask.after-softmax"])
@pytest.mark.parametrize(
    "deviation", [partial(extra_padding_deviation, extra=2), lone_row_deviation, pad_embedding_deviation]
)
def test_control_padding_reports(sabotage: str, deviation: Callable[[Case], float]) -> None:
    case = fixed_case()
    assert deviation(case) <= FLOAT64
    with BY_ID[sabotage].applied():
        assert CAUGHT < deviation(case) < math.inf
