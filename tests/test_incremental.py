"""The claim of the project: step by step from a cache gives what the full masked pass gives, everywhere.

Every comparison is a function that returns the worst deviation. The tests ask that it is nothing; the controls
sabotage the code and ask that the same function reports it.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from conftest import (
    ATOL,
    PAD,
    random_ids,
    random_model,
    random_targets,
    random_tensor,
    worst_deviation,
)
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from minitrans import attention
from minitrans.cache import DecoderCache, LayerCache
from minitrans.layers import LayerTrace
from minitrans.masks import causal_mask, padding_mask
from minitrans.model import Transformer

V = 11
CAUGHT = 1e-6  # a sabotage moves the numbers by far more than rounding does


class Case(NamedTuple):
    """A model and a ragged batch for it.

    Attributes:
        model: float64, every parameter random.
        src_ids: int64 (B, S), B >= 2; row i has `lengths[i]` real tokens.
        lengths: Real tokens of each source.
        tgt_in: int64 (B, T).
        chunks: Sizes of the pieces in which the target is fed; they sum to T.
    """

    model: Transformer
    src_ids: Tensor
    lengths: list[int]
    tgt_in: Tensor
    chunks: list[int]


@st.composite
def cases(draw: st.DrawFn, min_target: int = 1) -> Case:
    """Sizes B, S, T, H, Dh, D, d_ff from 1 to 8, pairwise distinct; S < T and S > T both occur."""
    d_model = draw(st.integers(4, 8))  # below 4 a LayerNorm leaves little to see
    sizes = draw(st.permutations([n for n in range(1, 9) if n != d_model]))
    batch, src_len, tgt_len, n_heads, d_head, d_ff, _ = sizes
    if batch == 1:
        batch, n_heads = n_heads, batch
    assume(tgt_len >= min_target)
    seed = draw(st.integers(0, 2**20))
    model = random_model(
        seed,
        d_model=d_model,
        n_heads=n_heads,
        d_head=d_head,
        d_ff=d_ff,
        vocab_size=V,
        tie_embeddings=draw(st.booleans()),
    )
    lengths = draw(st.lists(st.integers(1, src_len), min_size=batch, max_size=batch))
    cuts = sorted(draw(st.sets(st.integers(1, tgt_len - 1)))) if tgt_len > 1 else []
    chunks = [end - begin for begin, end in zip([0, *cuts], [*cuts, tgt_len], strict=True)]
    return Case(
        model, random_ids(seed + 1, lengths, src_len, V), lengths, random_targets(seed + 2, batch, tgt_len), chunks
    )


def fixed_case(chunks: tuple[int, ...] = (2, 3, 1), seed: int = 7) -> Case:
    """B = 3, S = 5, T = 6 (unless told), D = 7; the controls use it."""
    lengths = [5, 2, 4]
    tgt_in = random_targets(seed + 2, 3, sum(chunks))
    return Case(
        random_model(seed, d_model=7, tie_embeddings=False),
        random_ids(seed + 1, lengths, 5),
        lengths,
        tgt_in,
        list(chunks),
    )


# What is compared


def present(weights: list[Tensor | None]) -> list[Tensor]:
    """The weights, all of which must have been returned."""
    assert all(w is not None for w in weights)
    return [w for w in weights if w is not None]


def numbers(logits: Tensor, traces: list[LayerTrace], width: int) -> list[Tensor]:
    """Logits (B, T, V), every layer's output (B, T, D), its self-attention (B, H, T, width) and cross-attention.

    Self-attention to tokens that do not exist yet is 0.
    """
    self_weights = [F.pad(w, (0, width - w.size(-1))) for w in present([trace.self_weights for trace in traces])]
    cross_weights = present([trace.cross_weights for trace in traces])
    return [logits, *(trace.output for trace in traces), *self_weights, *cross_weights]


@torch.no_grad()
def full_pass(model: Transformer, src_ids: Tensor, tgt_in: Tensor) -> list[Tensor]:
    """All numbers of the full masked pass."""
    memory, src_mask = model.encode(src_ids)
    cross = model.decoder.project_memory(memory)
    logits, traces = model.run_decoder(tgt_in, cross, src_mask, need_weights=True)
    return numbers(logits, traces, tgt_in.size(1))


@torch.no_grad()
def next_numbers(model: Transformer, tgt_ids: Tensor, cache: DecoderCache, width: int) -> list[Tensor]:
    """All numbers of one step."""
    cross = [(layer.cross_k, layer.cross_v) for layer in cache.layers]
    logits, traces = model.run_decoder(tgt_ids, cross, cache.src_mask, cache, need_weights=True)
    return numbers(logits, traces, width)


def join(steps: list[list[Tensor]]) -> list[Tensor]:
    """Put the numbers of successive steps together, along the target axis of each."""
    return [torch.cat(parts, dim=parts[0].dim() - 2) for parts in zip(*steps, strict=True)]


@torch.no_grad()
def new_cache(model: Transformer, src_ids: Tensor, capacity: int | None = None) -> DecoderCache:
    """An empty cache for these sources."""
    return model.init_cache(*model.encode(src_ids), capacity)


def chunk_deviation(case: Case, spare: int = 0) -> float:
    """Full pass against chunks through a cache with `spare` slots too many: all numbers of all layers."""
    model, src_ids, _, tgt_in, chunks = case
    length = tgt_in.size(1)
    cache = new_cache(model, src_ids, length + spare)
    steps = [next_numbers(model, chunk, cache, length) for chunk in tgt_in.split(chunks, 1)]
    assert cache.length == length
    return worst_deviation(join(steps), full_pass(model, src_ids, tgt_in))


@torch.no_grad()
def selection_deviation(case: Case, selections: list[list[int]]) -> float:
    """Rows reordered, dropped and repeated after every chunk, against full passes on the rows that are left.

    Repeated rows go different ways: what is fed next is drawn for each row anew.
    """
    model, src_ids, _, tgt_in, chunks = case
    cache = new_cache(model, src_ids, tgt_in.size(1))
    fed = tgt_in[:, :0]
    worst = 0.0
    for i, (size, rows) in enumerate(zip(chunks, selections, strict=True)):
        new = random_ids(i, [size] * len(fed), size, V)
        fed = torch.cat([fed, new], 1)
        want = model(src_ids, fed)[:, -size:]
        worst = max(worst, worst_deviation([model.step(new, cache)], [want]))
        index = torch.tensor(rows)
        cache.select_rows(index)
        src_ids, fed = src_ids[index], fed[index]
    return worst


@torch.no_grad()
def interleaved_deviation(case: Case) -> float:
    """Two decodes at once on one model, step by step in turn, against each alone."""
    model, src_ids, _, tgt_in, chunks = case
    others = src_ids.flip(0), tgt_in.flip(0, 1)
    caches = [new_cache(model, ids) for ids in (src_ids, others[0])]
    steps: list[list[list[Tensor]]] = [[], []]
    for pieces in zip(tgt_in.split(chunks, 1), others[1].split(chunks, 1), strict=True):
        for i, piece in enumerate(pieces):
            steps[i].append(next_numbers(model, piece, caches[i], tgt_in.size(1)))
    want = full_pass(model, src_ids, tgt_in) + full_pass(model, *others)
    return worst_deviation(join(steps[0]) + join(steps[1]), want)


# Any split equals the full pass


@given(case=cases(), spare=st.integers(0, 3))
def test_any_split_into_chunks_equals_the_full_pass(case: Case, spare: int) -> None:
    assert chunk_deviation(case, spare) <= ATOL


@pytest.mark.parametrize("chunks", [(1,), (6,), (1, 1, 1, 1, 1, 1), (5, 1), (1, 5), (2, 3, 1), (2, 1, 1)])
def test_chunks_of_these_sizes_equal_the_full_pass(chunks: tuple[int, ...]) -> None:
    assert chunk_deviation(fixed_case(chunks)) <= ATOL


@given(case=cases())
def test_steps_equal_the_models_own_forward(case: Case) -> None:
    model, src_ids, _, tgt_in, chunks = case
    with torch.no_grad():
        cache = new_cache(model, src_ids)
        stepped = torch.cat([model.step(chunk, cache) for chunk in tgt_in.split(chunks, 1)], 1)
        assert worst_deviation([stepped], [model(src_ids, tgt_in)]) <= ATOL


@given(case=cases(), data=st.data())
def test_rows_reordered_dropped_and_repeated_go_on_exactly(case: Case, data: st.DataObject) -> None:
    selections: list[list[int]] = []
    batch = len(case.src_ids)
    for _ in case.chunks:
        selections.append(data.draw(st.lists(st.integers(0, batch - 1), min_size=1, max_size=8)))
        batch = len(selections[-1])
    assert selection_deviation(case, selections) <= ATOL


@given(case=cases())
def test_two_caches_on_one_model_do_not_mix(case: Case) -> None:
    assert interleaved_deviation(case) <= ATOL


@given(case=cases(min_target=2))
def test_a_full_pass_between_two_steps_changes_nothing(case: Case) -> None:
    model, src_ids, _, tgt_in, chunks = case
    length = tgt_in.size(1)
    cache = new_cache(model, src_ids, length)
    want = full_pass(model, src_ids, tgt_in)
    steps = []
    for chunk in tgt_in.split(chunks, 1):
        steps.append(next_numbers(model, chunk, cache, length))
        assert worst_deviation(full_pass(model, src_ids, tgt_in), want) == 0.0
    assert worst_deviation(join(steps), want) <= ATOL


@pytest.mark.parametrize("stepping_in_training", [True, False])
def test_training_mode_without_dropout_changes_nothing(stepping_in_training: bool) -> None:
    model, src_ids, _, tgt_in, chunks = fixed_case()
    want = full_pass(model.train(not stepping_in_training), src_ids, tgt_in)
    model.train(stepping_in_training)
    cache = new_cache(model, src_ids, 6)
    steps = [next_numbers(model, chunk, cache, 6) for chunk in tgt_in.split(chunks, 1)]
    assert worst_deviation(join(steps), want) <= ATOL


# The future


@torch.no_grad()
def future_deviation(case: Case, t: int) -> tuple[float, float]:
    """How much changing all tokens after `t` changes in every layer and the logits: up to t, and after t."""
    model, src_ids, _, tgt_in, _ = case
    others = tgt_in.clone()
    others[:, t + 1 :] = (others[:, t + 1 :] + 1) % V
    one, other = full_pass(model, src_ids, tgt_in), full_pass(model, src_ids, others)
    before = [[x.narrow(x.dim() - 2, 0, t + 1) for x in xs] for xs in (one, other)]
    after = [[x[:, t + 1 :] for x in xs if x.dim() == 3] for xs in (one, other)]
    return worst_deviation(*before), worst_deviation(*after)


@torch.no_grad()
def prefix_deviation(case: Case, length: int) -> float:
    """The first tokens alone against the first tokens of the whole: every layer and the logits."""
    model, src_ids, _, tgt_in, _ = case
    alone = full_pass(model, src_ids, tgt_in[:, :length])
    whole = full_pass(model, src_ids, tgt_in)
    return worst_deviation([x for x in alone if x.dim() == 3], [x[:, :length] for x in whole if x.dim() == 3])


def reaches(case: Case) -> Tensor:
    """Bool (T, T): whether the gradient of the logits at t (row) with respect to embedded input s (column) is not 0."""
    model, src_ids, _, tgt_in, _ = case
    memory, src_mask = model.encode(src_ids)
    x = random_tensor(0, *tgt_in.shape, model.config.d_model).requires_grad_()
    hidden, _ = model.decoder(x, model.decoder.project_memory(memory), src_mask)
    logits = model.output(hidden)
    rows = []
    for t in range(tgt_in.size(1)):
        weighted = (logits[:, t] * random_tensor(t + 1, len(x), V)).sum()
        rows.append(torch.autograd.grad(weighted, x, retain_graph=True)[0].ne(0.0).any(-1).all(0))
    return torch.stack(rows)


@given(case=cases(min_target=2), data=st.data())
def test_later_tokens_change_what_comes_after_them_alone(case: Case, data: st.DataObject) -> None:
    t = data.draw(st.integers(0, case.tgt_in.size(1) - 2))
    before, after = future_deviation(case, t)
    assert before <= ATOL
    assert after > CAUGHT


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_prefix_has_the_same_vectors_in_every_layer(length: int) -> None:
    assert prefix_deviation(fixed_case(), length) <= ATOL


def test_gradients_reach_the_past_and_never_the_future() -> None:
    assert torch.equal(reaches(fixed_case()), torch.ones(6, 6).tril().bool())


# Padding


@torch.no_grad()
def source_numbers(case: Case) -> list[Tensor]:
    """Memory, every encoder layer's output and all logits; what stands at padded positions is set to 0."""
    model, src_ids, _, tgt_in, _ = case
    memory, src_mask, traces = model.run_encoder(src_ids)
    real = (src_ids != PAD)[..., None]
    logits = model.decode(tgt_in, memory, src_mask)
    return [*((x * real) for x in (memory, *(trace.output for trace in traces))), logits]


def extra_padding_deviation(case: Case, extra: int) -> float:
    """The batch against the same batch with `extra` more columns of padding."""
    *encoded, logits = source_numbers(case._replace(src_ids=F.pad(case.src_ids, (0, extra), value=PAD)))
    return worst_deviation([*(x[:, :-extra] for x in encoded), logits], source_numbers(case))


def lone_row_deviation(case: Case) -> float:
    """The batch against each of its rows alone, without padding."""
    together = source_numbers(case)
    worst = 0.0
    for i, length in enumerate(case.lengths):
        alone = source_numbers(case._replace(src_ids=case.src_ids[i : i + 1, :length], tgt_in=case.tgt_in[i : i + 1]))
        here = [*(x[i : i + 1, :length] for x in together[:-1]), together[-1][i : i + 1]]
        worst = max(worst, worst_deviation(here, alone))
    return worst


def pad_embedding_deviation(case: Case) -> float:
    """The model against itself with another vector for PAD on the source side (its embeddings are not tied)."""
    before = source_numbers(case)
    table = case.model.src_embedding.weight.data
    kept = table[PAD].clone()
    table[PAD] = 100.0 * random_tensor(0, len(kept))
    after = source_numbers(case)
    table[PAD] = kept
    return worst_deviation(after, before)


@given(case=cases(), extra=st.integers(1, 3))
def test_more_padding_changes_nothing(case: Case, extra: int) -> None:
    assert extra_padding_deviation(case, extra) <= ATOL


@given(case=cases())
def test_a_row_does_not_depend_on_the_rows_beside_it(case: Case) -> None:
    assert lone_row_deviation(case) <= ATOL


@given(case=cases().filter(lambda case: not case.model.config.tie_embeddings))
def test_the_vector_of_padding_means_nothing(case: Case) -> None:
    assert pad_embedding_deviation(case) == 0.0


@torch.no_grad()
@pytest.mark.parametrize("extra", [0, 2])
def test_padded_keys_have_weight_exactly_zero_and_real_ones_have_not(extra: int) -> None:
    case = fixed_case()
    src_ids = F.pad(case.src_ids, (0, extra), value=PAD)
    memory, src_mask, read = case.model.run_encoder(src_ids, need_weights=True)
    cross = case.model.decoder.project_memory(memory)
    _, written = case.model.run_decoder(case.tgt_in, cross, src_mask, need_weights=True)
    weights = present([trace.self_weights for trace in read] + [trace.cross_weights for trace in written])
    assert len(weights) == 4
    for w in weights:
        assert torch.equal(w != 0.0, src_mask.expand_as(w))


def test_padding_of_the_target_does_not_reach_what_stands_before_it() -> None:
    case = fixed_case()
    padded = case.tgt_in.clone()
    padded[:, 4:] = PAD
    with torch.no_grad():
        got, want = (case.model(case.src_ids, tgt)[:, :4] for tgt in (padded, case.tgt_in))
    assert worst_deviation([got], [want]) <= ATOL


def test_a_source_of_padding_alone_gives_finite_numbers_and_gradients() -> None:
    model, src_ids, _, tgt_in, _ = fixed_case()
    src_ids = src_ids.clone()
    src_ids[1] = PAD
    memory, src_mask, read = model.run_encoder(src_ids, need_weights=True)
    logits, written = model.run_decoder(tgt_in, model.decoder.project_memory(memory), src_mask, need_weights=True)
    for w in present([trace.self_weights for trace in read] + [trace.cross_weights for trace in written]):
        assert not w[1].any()
    assert logits.isfinite().all()
    assert memory.isfinite().all()
    with torch.autograd.set_detect_anomaly(True):
        logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_a_source_of_padding_alone_steps_like_the_full_pass_and_disturbs_no_other_row() -> None:
    case = fixed_case()
    src_ids = case.src_ids.clone()
    src_ids[1] = PAD
    assert chunk_deviation(case._replace(src_ids=src_ids)) <= ATOL
    got, want = full_pass(case.model, src_ids, case.tgt_in), full_pass(case.model, case.src_ids, case.tgt_in)
    assert worst_deviation([x[[0, 2]] for x in got], [x[[0, 2]] for x in want]) <= ATOL


# Controls: the faults that people make, one at a time

Sabotage = Callable[[pytest.MonkeyPatch], None]


def replace_causal_mask(patch: pytest.MonkeyPatch, make: Callable[[int, int, int], Tensor]) -> None:
    patch.setattr("minitrans.model.causal_mask", lambda q_len, kv_len, offset, device: make(q_len, kv_len, offset))


def see_everything(q_len: int, kv_len: int, offset: int) -> Tensor:
    return torch.ones(1, 1, q_len, kv_len, dtype=torch.bool)


def no_causal_mask(patch: pytest.MonkeyPatch) -> None:
    replace_causal_mask(patch, see_everything)


def no_causal_mask_with_a_cache(patch: pytest.MonkeyPatch) -> None:
    replace_causal_mask(patch, lambda q, kv, offset: (see_everything if offset else causal_mask)(q, kv, offset))


def causal_mask_only_with_a_cache(patch: pytest.MonkeyPatch) -> None:
    replace_causal_mask(patch, lambda q, kv, offset: (causal_mask if offset else see_everything)(q, kv, offset))


def causal_mask_aligned_to_the_top_left(patch: pytest.MonkeyPatch) -> None:
    replace_causal_mask(patch, lambda q, kv, offset: causal_mask(q, kv, 0))


def causal_mask_one_too_far(patch: pytest.MonkeyPatch) -> None:
    replace_causal_mask(patch, lambda q, kv, offset: see_everything(q, kv, offset).tril(offset + 1))


def square_mask_for_every_chunk(patch: pytest.MonkeyPatch) -> None:
    replace_causal_mask(patch, lambda q, kv, offset: F.pad(causal_mask(q, q, 0), (0, kv - q)))


def positions_begin_again(patch: pytest.MonkeyPatch) -> None:
    embed = Transformer._embed
    patch.setattr(Transformer, "_embed", lambda self, table, ids, offset: embed(self, table, ids, 0))


def positions_one_late(patch: pytest.MonkeyPatch) -> None:
    embed = Transformer._embed
    patch.setattr(
        Transformer, "_embed", lambda self, table, ids, offset: embed(self, table, ids, offset + bool(offset))
    )


def cache_returns_empty_slots(patch: pytest.MonkeyPatch) -> None:
    write = LayerCache.write

    def all_slots(self: LayerCache, k: Tensor, v: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        if offset == 0:
            self.k.fill_(0.5)
            self.v.fill_(0.5)
        write(self, k, v, offset)
        return self.k, self.v

    patch.setattr(LayerCache, "write", all_slots)
    weigh = attention.attention_weights

    def attended(
        q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout: float, need_weights: bool
    ) -> tuple[Tensor, Tensor]:
        weights = weigh(q, k, F.pad(mask, (0, k.size(-2) - mask.size(-1)), value=True))
        return weights @ v, weights[..., : mask.size(-1)]

    patch.setattr(attention, "scaled_dot_product_attention", attended)


def cache_forgets(patch: pytest.MonkeyPatch) -> None:
    write = LayerCache.write

    def zeroed(self: LayerCache, k: Tensor, v: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        self.k[:, :, :offset] = 0.0
        return write(self, k, v, offset)

    patch.setattr(LayerCache, "write", zeroed)


def one_cache_for_all(patch: pytest.MonkeyPatch) -> None:
    init_cache = Transformer.init_cache
    made: list[DecoderCache] = []

    def shared(self: Transformer, memory: Tensor, src_mask: Tensor, capacity: int | None = None) -> DecoderCache:
        made.append(made[0] if made else init_cache(self, memory, src_mask, capacity))
        return made[0]

    patch.setattr(Transformer, "init_cache", shared)


def cross_cache_laid_out_tokens_first(patch: pytest.MonkeyPatch) -> None:
    init = LayerCache.__init__

    def mixed_up(self: LayerCache, cross_k: Tensor, cross_v: Tensor, capacity: int) -> None:
        init(self, cross_k.transpose(1, 2).reshape(cross_k.shape), cross_v, capacity)

    patch.setattr(LayerCache, "__init__", mixed_up)


def select_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DecoderCache, "select_rows", lambda self, rows: None)


def select_all_but(patch: pytest.MonkeyPatch, *kept: str) -> None:
    """Select rows, but leave these attributes of the layers as they were."""
    select = DecoderCache.select_rows

    def partly(self: DecoderCache, rows: Tensor) -> None:
        before = [{name: getattr(layer, name) for name in kept} for layer in self.layers]
        select(self, rows)
        for layer, attributes in zip(self.layers, before, strict=True):
            for name, tensor in attributes.items():
                setattr(layer, name, tensor)

    patch.setattr(DecoderCache, "select_rows", partly)


def select_in_self_attention_alone(patch: pytest.MonkeyPatch) -> None:
    select_all_but(patch, "cross_k", "cross_v")


def select_in_cross_attention_alone(patch: pytest.MonkeyPatch) -> None:
    select_all_but(patch, "k", "v")


def select_keys_alone(patch: pytest.MonkeyPatch) -> None:
    select_all_but(patch, "v", "cross_v")


def select_all_but_the_source_mask(patch: pytest.MonkeyPatch) -> None:
    select = DecoderCache.select_rows

    def partly(self: DecoderCache, rows: Tensor) -> None:
        before = self.src_mask
        select(self, rows)
        self.src_mask = before

    patch.setattr(DecoderCache, "select_rows", partly)


def select_by_the_inverse_order(patch: pytest.MonkeyPatch) -> None:
    select = DecoderCache.select_rows
    patch.setattr(DecoderCache, "select_rows", lambda self, rows: select(self, rows.argsort()))


def no_padding_mask(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("minitrans.model.padding_mask", lambda ids, pad_id: torch.ones_like(padding_mask(ids, pad_id)))


def padding_masks_another_id(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("minitrans.model.padding_mask", lambda ids, pad_id: padding_mask(ids, 0))


def replace_weights(patch: pytest.MonkeyPatch, weigh: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    patch.setattr(attention, "attention_weights", weigh)


def padding_masked_on_the_query_axis(patch: pytest.MonkeyPatch) -> None:
    weigh = attention.attention_weights

    def turned(q: Tensor, k: Tensor, mask: Tensor) -> Tensor:
        if mask.size(-2) == 1 != q.size(-2):  # (B, 1, 1, S): a padding mask
            mask = mask.mT if q.size(-2) == mask.size(-1) else torch.ones_like(mask)
        return weigh(q, k, mask)

    replace_weights(patch, turned)


def mask_after_softmax(patch: pytest.MonkeyPatch) -> None:
    weigh = attention.attention_weights
    replace_weights(patch, lambda q, k, mask: weigh(q, k).masked_fill(~mask, 0.0))


@pytest.mark.parametrize(
    "sabotage",
    [
        no_causal_mask,
        no_causal_mask_with_a_cache,
        causal_mask_only_with_a_cache,
        causal_mask_aligned_to_the_top_left,
        causal_mask_one_too_far,
        square_mask_for_every_chunk,
        positions_begin_again,
        positions_one_late,
        cache_returns_empty_slots,
        cache_forgets,
        cross_cache_laid_out_tokens_first,
        mask_after_softmax,
    ],
)
def test_control_chunks_report(sabotage: Sabotage, monkeypatch: pytest.MonkeyPatch) -> None:
    case = fixed_case()
    sabotage(monkeypatch)
    assert chunk_deviation(case) > CAUGHT


def test_control_empty_slots_are_refused_by_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    write = LayerCache.write

    def all_slots(self: LayerCache, k: Tensor, v: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        write(self, k, v, offset)
        return self.k, self.v

    monkeypatch.setattr(LayerCache, "write", all_slots)
    with pytest.raises(ValueError, match="does not broadcast to scores"):
        chunk_deviation(fixed_case())


ROWS = [[2, 0, 1], [1, 1, 2], [2, 1, 0]]  # as many as before, so that a sabotaged selection still runs


def test_the_selections_of_the_controls_pass_without_sabotage() -> None:
    assert selection_deviation(fixed_case(), ROWS) <= ATOL


@pytest.mark.parametrize(
    "sabotage",
    [
        select_nothing,
        select_in_self_attention_alone,
        select_in_cross_attention_alone,
        select_keys_alone,
        select_all_but_the_source_mask,
        select_by_the_inverse_order,
    ],
)
def test_control_selections_report(sabotage: Sabotage, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch)
    assert selection_deviation(fixed_case(), ROWS) > CAUGHT


def test_control_two_decodes_report_a_cache_that_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    case = fixed_case()
    assert interleaved_deviation(case) <= ATOL
    one_cache_for_all(monkeypatch)
    assert interleaved_deviation(case) > CAUGHT


@pytest.mark.parametrize(
    "sabotage", [no_causal_mask, causal_mask_only_with_a_cache, causal_mask_one_too_far, mask_after_softmax]
)
def test_control_changed_tokens_report(sabotage: Sabotage, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch)
    assert future_deviation(fixed_case(), 2)[0] > CAUGHT


@pytest.mark.parametrize("length", [1, 2, 5])
def test_control_prefixes_report_a_missing_causal_mask(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    no_causal_mask(monkeypatch)
    assert prefix_deviation(fixed_case(), length) > CAUGHT


def test_control_gradients_reach_everything_without_a_causal_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    no_causal_mask(monkeypatch)
    assert reaches(fixed_case()).all()


@pytest.mark.parametrize(
    "sabotage", [no_padding_mask, padding_masks_another_id, padding_masked_on_the_query_axis, mask_after_softmax]
)
@pytest.mark.parametrize(
    "deviation", [lambda case: extra_padding_deviation(case, 2), lone_row_deviation, pad_embedding_deviation]
)
def test_control_padding_reports(
    sabotage: Sabotage, deviation: Callable[[Case], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = fixed_case()
    assert deviation(case) <= ATOL
    sabotage(monkeypatch)
    assert deviation(case) > CAUGHT
