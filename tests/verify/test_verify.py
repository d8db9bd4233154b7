"""The checks pass on the code as it is, and each fails on code that is wrong."""

import json
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import minitrans.attention
import minitrans.decoding
import minitrans.layers
import minitrans.masks
import minitrans.model
import minitrans.verify.checks
from minitrans import verify
from minitrans.cache import DecoderCache, LayerCache
from minitrans.decoding import greedy_decode
from minitrans.loss import label_smoothed_cross_entropy
from minitrans.model import Transformer
from minitrans.verify.check import Check, deviation, worst
from minitrans.verify.subject import fresh_model, random_subject

Patch = pytest.MonkeyPatch


def failed_checks() -> set[str]:
    return {result.id for result in verify.run().checks if not result.passed}


def test_every_check_passes_on_a_fresh_model() -> None:
    report = verify.run()
    assert report.passed, [result for result in report.checks if not result.passed]


def test_a_given_model_is_measured_and_left_as_it_is() -> None:
    model = fresh_model(seed=7).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert verify.run(model).passed
    assert model.training
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == before[name].dtype
        assert torch.equal(tensor, before[name])


def test_the_report_is_the_json_of_the_contract() -> None:
    found = json.loads(json.dumps(verify.run().as_dict()))
    assert found["passed"] is True
    assert all(set(c) == {"id", "claim", "measured", "tolerance", "passed", "seconds"} for c in found["checks"])
    assert {"C9", "C10", "C20", "C21", "C25"} <= {c["id"] for c in found["checks"]}
    assert {"C15", "C17", "C19"} <= {c["id"].split(".")[0] for c in found["checks"]}


def test_identifiers_are_unique() -> None:
    ids = [result.id for result in verify.run().checks]
    assert len(set(ids)) == len(ids)


def test_nan_and_different_shapes_and_nothing_are_not_agreement() -> None:
    ones = torch.ones(2, 3)
    assert deviation(ones, ones) == 0.0
    assert math.isnan(deviation(ones, ones * float("nan")))
    assert deviation(ones, torch.ones(3, 2)) == math.inf
    assert deviation(ones[:0], ones[:0]) == math.inf
    assert math.isnan(worst([0.0, float("nan"), 1.0]))
    assert worst([]) == math.inf
    subject = random_subject(fresh_model())
    assert not Check("x", "NaN fails.", 1.0, lambda _: float("nan")).run(subject).passed


# -- Sabotages: what is done to the code, and the checks that have to notice ------------------------------------------


def all_true(q_len: int, kv_len: int, offset: int, device: torch.device | None = None) -> Tensor:
    return torch.ones(1, 1, q_len, kv_len, dtype=torch.bool, device=device)


def top_left(q_len: int, kv_len: int, offset: int, device: torch.device | None = None) -> Tensor:
    return torch.ones(q_len, kv_len, dtype=torch.bool, device=device).tril()[None, None]


def causal_mask_leaks(patch: Patch) -> None:
    patch.setattr(minitrans.model, "causal_mask", all_true)


def causal_mask_is_aligned_top_left(patch: Patch) -> None:
    patch.setattr(minitrans.model, "causal_mask", top_left)


def padding_is_not_masked(patch: Patch) -> None:
    patch.setattr(minitrans.model, "padding_mask", lambda ids, pad_id: torch.ones_like(ids).bool()[:, None, None])


def positions_restart_at_every_step(patch: Patch) -> None:
    embed = Transformer._embed
    patch.setattr(Transformer, "_embed", lambda self, embedding, ids, offset: embed(self, embedding, ids, 0))


def selecting_rows_is_dropped(patch: Patch) -> None:
    patch.setattr(DecoderCache, "select_rows", lambda self, rows: None)


def selecting_rows_forgets_the_source(patch: Patch) -> None:
    select = DecoderCache.select_rows

    def select_self_only(self: DecoderCache, rows: Tensor) -> None:
        cross = [(layer.cross_k, layer.cross_v) for layer in self.layers]
        src_mask = self.src_mask
        select(self, rows)
        if len(rows) == len(src_mask):
            self.src_mask = src_mask
            for layer, (cross_k, cross_v) in zip(self.layers, cross, strict=True):
                layer.cross_k, layer.cross_v = cross_k, cross_v

    patch.setattr(DecoderCache, "select_rows", select_self_only)


def unfilled_slots_are_returned(patch: Patch) -> None:
    write = LayerCache.write

    def write_and_return_all(self: LayerCache, k: Tensor, v: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        k, v = write(self, k, v, offset)
        return k.roll(1, dims=2), v

    patch.setattr(LayerCache, "write", write_and_return_all)


def caches_share_their_buffers(patch: Patch) -> None:
    init_cache = Transformer.init_cache
    shared: dict[object, tuple[Tensor, Tensor]] = {}

    def init_shared(self: Transformer, memory: Tensor, src_mask: Tensor, capacity: int | None = None) -> DecoderCache:
        cache = init_cache(self, memory, src_mask, capacity)
        key = tuple(cache.layers[0].k.shape)
        for i, layer in enumerate(cache.layers):
            layer.k, layer.v = shared.setdefault((key, i), (layer.k, layer.v))
        return cache

    patch.setattr(Transformer, "init_cache", init_shared)


def scores_are_divided_by_sqrt_d_model(patch: Patch) -> None:
    def wrong(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
        return weights(q / math.sqrt(q.size(1)), k, mask)

    weights = minitrans.attention.attention_weights
    patch.setattr(minitrans.attention, "attention_weights", wrong)


def mask_is_applied_after_the_softmax(patch: Patch) -> None:
    weights = minitrans.attention.attention_weights

    def wrong(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
        found = weights(q, k)
        return found if mask is None else found * mask

    patch.setattr(minitrans.attention, "attention_weights", wrong)


def masked_scores_are_only_lowered(patch: Patch) -> None:
    def wrong(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        return torch.softmax(scores if mask is None else scores.masked_fill(~mask, -1e6), dim=-1)

    patch.setattr(minitrans.attention, "attention_weights", wrong)
    patch.setattr(minitrans.verify.checks, "attention_weights", wrong)


def empty_rows_are_uniform(patch: Patch) -> None:
    def wrong(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        fill = torch.finfo(scores.dtype).min
        return torch.softmax(scores if mask is None else scores.masked_fill(~mask, fill), dim=-1)

    patch.setattr(minitrans.attention, "attention_weights", wrong)


def packed_projections_are_swapped(patch: Patch) -> None:
    project = minitrans.attention.MultiHeadAttention.project_qkv

    def wrong(self: minitrans.attention.MultiHeadAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = project(self, x)
        return k, q, v

    patch.setattr(minitrans.attention.MultiHeadAttention, "project_qkv", wrong)


def heads_are_interleaved(patch: Patch) -> None:
    attention = minitrans.attention.MultiHeadAttention
    project = attention._project

    def wrong(self: minitrans.attention.MultiHeadAttention, x: Tensor, first: int, last: int) -> tuple[Tensor, ...]:
        return tuple(
            t.transpose(1, 2).flatten(2).unflatten(2, (self.d_head, self.n_heads)).permute(0, 3, 1, 2)
            for t in project(self, x, first, last)
        )

    patch.setattr(attention, "_project", wrong)


def the_cache_costs_the_last_token(patch: Patch) -> None:
    def wrong(model: Transformer, src_ids: Tensor, use_cache: bool = True) -> list[list[int]]:
        found = greedy_decode(model, src_ids, use_cache)
        return [ids[: len(ids) - use_cache] for ids in found]

    patch.setattr(minitrans.verify.checks, "greedy_decode", wrong)


def the_loss_counts_padding(patch: Patch) -> None:
    loss = label_smoothed_cross_entropy
    patch.setattr(
        minitrans.verify.checks,
        "label_smoothed_cross_entropy",
        lambda logits, tgt_out, pad_id, smoothing: loss(logits, tgt_out, -1, smoothing),
    )


SABOTAGES: list[tuple[Callable[[Patch], None], set[str]]] = [
    (causal_mask_leaks, {"C19.prefix", "C19.gradient", "C15.model", "cache.steps", "C20"}),
    (causal_mask_is_aligned_top_left, {"cache.steps", "cache.chunks", "C20", "C21"}),
    (padding_is_not_masked, {"C17.zero", "C17.ignored", "C15.model"}),
    (positions_restart_at_every_step, {"cache.steps", "cache.chunks", "cache.float32", "cache.two", "C20", "C21"}),
    (selecting_rows_is_dropped, {"cache.rows"}),
    (selecting_rows_forgets_the_source, {"cache.rows"}),
    (unfilled_slots_are_returned, {"cache.steps", "cache.chunks"}),
    (caches_share_their_buffers, {"cache.two"}),
    (scores_are_divided_by_sqrt_d_model, {"C15.numpy", "C15.torch", "C15.model"}),
    (mask_is_applied_after_the_softmax, {"C15.numpy", "C15.torch"}),
    (masked_scores_are_only_lowered, {"C17.zero", "C25"}),
    (empty_rows_are_uniform, {"C25"}),
    (packed_projections_are_swapped, {"C9"}),
    (heads_are_interleaved, {"C9", "C10"}),
    (the_cache_costs_the_last_token, {"C21"}),
    (the_loss_counts_padding, {"C20"}),
]


@pytest.mark.parametrize(("sabotage", "noticed_by"), SABOTAGES, ids=lambda v: getattr(v, "__name__", ""))
def test_a_sabotage_is_caught(
    sabotage: Callable[[Patch], None], noticed_by: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    assert noticed_by <= failed_checks()


def test_every_check_catches_a_sabotage() -> None:
    caught = set().union(*(noticed_by for _, noticed_by in SABOTAGES))
    assert caught == {check.id for check in minitrans.verify.checks.CHECKS}
