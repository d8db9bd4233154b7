"""The claim of the project: step by step from a cache gives what the full masked pass gives, everywhere.

Most measures are those of `minitrans.cachecheck.cache_checks`, here on models and sentences of any size. That each of
them reports the faults that it is for is shown by tests/verify/test_self_test.py.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from conftest import BOS, EOS, PAD, random_model, random_tensor
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from subjects import random_sentences, subjects
from torch import Tensor

from minitrans.cachecheck.cache_checks import (
    alternating_deviation,
    batch_deviation,
    chunk_deviation,
    future_deviation,
    interleaved_deviation,
    selection_deviation,
    source_padding_deviation,
    split_deviation,
    step_deviation,
    tokens_without_effect,
)
from minitrans.cachecheck.measure import FLOAT64, LOWER, compare, rounding, worst
from minitrans.cachecheck.protocol import Case
from minitrans.model.cache import DecoderCache
from minitrans.model.transformer import Transformer
from minitrans.verify.adapter import case_of, numbers
from minitrans.verify.checks.masks import all_weights
from minitrans.verify.page.figures import errors_by_position
from minitrans.verify.subject import Subject, make_subject

# Fewer examples than usual, for each has a model of its own; and the same ones every time, for no bound on what
# rounding in bfloat16 does to a model holds for all models.
fewer_examples = settings(max_examples=settings().max_examples // 3, derandomize=True)


class Fed(NamedTuple):
    """What is measured.

    Attributes:
        model: In eval mode, every parameter random; float64, float32 or bfloat16.
        src_ids: int64 (B, S), ragged, padded on the right.
        tgt_in: int64 (B, T), likewise.
        chunks: Sizes of the pieces in which the target is fed; they sum to T.
        selections: The rows that are kept after each piece, of those that are left by then.
        spare: Slots of the cache beyond those that are filled.
    """

    model: Transformer
    src_ids: Tensor
    tgt_in: Tensor
    chunks: list[int]
    selections: list[list[int]]
    spare: int

    @property
    def case(self) -> Case[DecoderCache]:
        """What the measures take."""
        return case_of(self.model, self.src_ids, self.tgt_in)

    @property
    def tolerance(self) -> float:
        """What rounding explains, in the model's dtype."""
        return rounding(self.model.output.weight.dtype)


@st.composite
def feeds(draw: st.DrawFn) -> Fed:
    """Any sizes, dtype, padding, split and selections."""
    subject = draw(subjects())
    batch, length = subject.tgt_in.shape
    cuts = sorted(draw(st.sets(st.integers(1, length - 1)))) if length > 1 else []
    chunks = [end - begin for begin, end in zip([0, *cuts], [*cuts, length], strict=True)]
    selections: list[list[int]] = []
    for _ in chunks:
        selections.append(draw(st.lists(st.integers(0, batch - 1), min_size=1, max_size=8)))
        batch = len(selections[-1])
    model = subject.model.to(draw(st.sampled_from([torch.float64, *LOWER])))
    return Fed(model, subject.src_ids, subject.tgt_in, chunks, selections, draw(st.integers(0, 3)))


@torch.no_grad()
def forward_deviation(fed: Fed) -> float:
    """Steps against the model's own forward, and the length that they leave behind."""
    cache = fed.model.init_cache(*fed.model.encode(fed.src_ids))
    steps = [fed.model.step(chunk, cache) for chunk in fed.tgt_in.split(fed.chunks, 1)]
    assert cache.length == fed.tgt_in.size(1)
    return compare([torch.cat(steps, 1)], [fed.model(fed.src_ids, fed.tgt_in)])


def padding_vector_deviation(fed: Fed) -> float:
    """The model against itself with another vector for PAD on the source side, where that is a matrix of its own."""
    assume(not fed.model.config.tie_embeddings)
    before = fed.case.full_pass()
    with torch.no_grad():
        fed.model.src_embedding.weight[PAD] = 100.0 * random_tensor(0, fed.model.config.d_model)
    return compare(fed.case.full_pass(), before)


def later_tokens_deviation(fed: Fed) -> float:
    """What stands before some tokens, with other ones in their places."""
    assume(fed.tgt_in.size(1) > 1)
    return future_deviation(fed.case)


MEASURES: dict[str, Callable[[Fed], float]] = {
    "forward": forward_deviation,
    "padding's vector": padding_vector_deviation,
    "later tokens": later_tokens_deviation,
    "chunks": lambda fed: chunk_deviation(fed.case, fed.chunks, fed.spare),
    "splits": lambda fed: split_deviation(fed.case),
    "selections": lambda fed: selection_deviation(fed.case, fed.chunks, fed.selections),
    "two caches": lambda fed: interleaved_deviation(fed.case, fed.chunks),
    "passes between steps": lambda fed: alternating_deviation(fed.case, fed.chunks),
    "padding": lambda fed: source_padding_deviation(fed.case),
    "other rows": lambda fed: batch_deviation(fed.case),
}


@pytest.mark.parametrize("measure", MEASURES)
@fewer_examples
@given(fed=feeds())
def test_nothing_differs_by_more_than_rounding(measure: str, fed: Fed) -> None:
    assert MEASURES[measure](fed) <= fed.tolerance


def test_of_six_tokens_each_changes_what_comes_after_it_and_each_is_measured() -> None:
    sources, targets = random_sentences(8, [5, 2, 4]), random_sentences(9, [6, 6, 6])
    case = make_subject(random_model(7, d_model=7, tie_embeddings=False), sources, targets, []).case()
    assert float(tokens_without_effect(case)) == 0
    errors = errors_by_position(case)
    assert len(errors) == 6
    assert worst(errors) == step_deviation(case) <= FLOAT64


@torch.no_grad()
@fewer_examples
@given(subject=subjects())
def test_padded_keys_have_weight_exactly_zero_and_real_ones_have_not(subject: Subject) -> None:
    src_mask, own, _, source = all_weights(subject)
    assert len(own) == len(source) == subject.model.config.n_layers
    for weights in (*own, *source):
        assert torch.equal(weights != 0.0, src_mask.expand_as(weights))


@torch.no_grad()
@fewer_examples
@given(fed=feeds(), data=st.data())
def test_a_source_of_padding_alone_steps_like_the_full_pass_and_disturbs_no_other_row(
    fed: Fed, data: st.DataObject
) -> None:
    row = data.draw(st.integers(0, len(fed.src_ids) - 1))
    emptied = fed._replace(src_ids=fed.src_ids.index_fill(0, torch.tensor(row), PAD))
    memory, src_mask, read = fed.model.run_encoder(emptied.src_ids, need_weights=True)
    assert memory.isfinite().all()
    _, written = fed.model.run_decoder(fed.tgt_in, memory, src_mask, need_weights=True)
    weights = [trace.self_weights for trace in read] + [trace.cross_weights for trace in written]
    assert not any(w is None or w[row].any() for w in weights)
    assert chunk_deviation(emptied.case, fed.chunks) <= fed.tolerance
    others = [i for i in range(len(fed.src_ids)) if i != row]
    got, want = ([x[others] for x in each.case.full_pass()] for each in (emptied, fed))
    assert not others or compare(got, want) <= fed.tolerance


def test_numbers_without_weights_are_refused() -> None:
    model = random_model(7)
    memory, src_mask = model.encode(torch.tensor([[4, 6, EOS]]))
    hidden, traces = model.run_decoder(torch.tensor([[BOS, 8]]), memory, src_mask)
    with pytest.raises(ValueError, match="no weights though asked for them"):
        numbers(model, hidden, traces)
