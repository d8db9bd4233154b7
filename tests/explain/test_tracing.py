"""An explanation agrees with the translator and the model."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from conftest import worst_deviation
from torch.nn import Module

import minitrans
from minitrans.explain import tracing
from minitrans.explain.tracing import ATTENTION_KINDS, TracedTranslation, trace_translation
from minitrans.model.attention import MultiHeadAttention
from minitrans.model.cache import KVCache
from minitrans.model.loss import batch_loss
from minitrans.model.transformer import Transformer
from minitrans.translate.bundle import Bundle
from minitrans.translate.translator import AttentionWeights, Translator

TEXTS = ["I love you.", "Machine learning is fun, and I love you."]


@pytest.fixture(scope="module")
def traced(translator: Translator) -> list[TracedTranslation]:
    return [*minitrans.explain(translator, TEXTS).sentences]


def test_each_step_takes_the_likeliest_piece_and_steps_sum_to_the_score(traced: list[TracedTranslation]) -> None:
    for each in traced:
        pieces = each.attention.target[1:]
        assert [step.top_pieces[0][0] for step in each.steps] == pieces
        assert [step.top_pieces[0][1] for step in each.steps] == pytest.approx([step.taken_logp for step in each.steps])
        for step in each.steps:
            log_probs = [log_p for _, log_p in step.top_pieces]
            assert len(log_probs) == 5
            assert log_probs == sorted(log_probs, reverse=True)
            assert sum(map(math.exp, log_probs)) <= 1.0001
        assert sum(step.taken_logp for step in each.steps) == pytest.approx(each.log_prob, abs=1e-4)
        assert each.log_prob / len(pieces) == pytest.approx(each.translation.score, abs=1e-4)


def test_a_piece_that_is_not_the_likeliest_has_its_own_probability(translator: Translator) -> None:
    """Each piece of the translation is replaced by a piece of the source."""
    (translation,) = translator.translations(TEXTS[:1], attention=True)
    attention = translation.attention
    assert attention is not None
    n = len(attention.target) - 1
    attention = attention._replace(
        target=[attention.target[0], *attention.source[:1] * n],
        target_ids=[attention.target_ids[0], *attention.source_ids[:1] * n],
    )
    each = trace_translation(translator.bundle, TEXTS[0], translation._replace(attention=attention))
    expected = translation_log_prob(translator.bundle, attention)
    assert [sum(step.taken_logp for step in each.steps), each.log_prob] == pytest.approx([expected] * 2, abs=1e-4)
    assert expected < sum(step.top_pieces[0][1] for step in each.steps) - 1


def test_an_edit_of_the_logits_reaches_training_decoding_and_the_page(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = Transformer.logits
    monkeypatch.setattr(Transformer, "logits", lambda self, hidden: 3.0 * logits(self, hidden).tanh())
    (each,) = minitrans.explain(translator, TEXTS[:1]).sentences
    src_ids, target = (torch.tensor([ids]) for ids in (each.attention.source_ids, each.attention.target_ids))
    loss = batch_loss(translator.bundle.model, src_ids, target[:, :-1], target[:, 1:], 0.0).item()
    of_steps, of_decoding = sum(step.taken_logp for step in each.steps), each.translation.score * (target.size(1) - 1)
    assert [each.log_prob, of_steps, of_decoding] == pytest.approx([-loss] * 3, abs=1e-4)
    monkeypatch.undo()
    assert abs(translation_log_prob(translator.bundle, each.attention) + loss) > 1.0


def test_the_cache_gives_what_the_full_pass_gives(traced: list[TracedTranslation]) -> None:
    for each in traced:
        assert each.max_forbidden_weight == 0
        assert each.n_padded == 2
        stepwise, full = (each.stepwise_decoder, each.stepwise_cross), (each.attention.decoder, each.attention.cross)
        assert worst_deviation(stepwise, full) < 1e-5
        for t, step in enumerate(each.steps):
            assert step.n_keys_held_before == t
            assert step.n_keys_read == t + 1
            assert step.source_kept
            assert 0 <= step.weight_difference < 1e-5
            assert 0 <= step.logit_difference < 1e-3


def test_a_wrong_cache_is_noticed(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    update = KVCache.update

    def shifted(self: KVCache, k: torch.Tensor, v: torch.Tensor, offset: int) -> tuple[torch.Tensor, torch.Tensor]:
        return update(self, k + offset, v - offset, offset)

    monkeypatch.setattr(KVCache, "update", shifted)
    steps = minitrans.explain(translator, TEXTS[:1]).sentences[0].steps
    assert steps[0].weight_difference < 1e-5
    assert max(step.weight_difference for step in steps) > 1e-3
    assert max(step.logit_difference for step in steps) > 1e-3


@pytest.mark.parametrize("name", ["k", "v"])
def test_a_changed_source_is_noticed(name: str, translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Transformer.run_decoder

    def losing(
        self: Transformer, ids: torch.Tensor, memory: Any, src_mask: Any, cache: Any = None, **named: Any
    ) -> Any:
        outputs = run(self, ids, memory, src_mask, cache, **named)
        if cache is not None:
            getattr(cache.layers[0].source, name).add_(1.0)
        return outputs

    monkeypatch.setattr(Transformer, "run_decoder", losing)
    two_layers = Transformer(replace(translator.bundle.model.config, n_layers=2)).eval()
    (each,) = minitrans.explain(Translator(replace(translator.bundle, model=two_layers)), TEXTS[:1]).sentences
    assert not any(step.source_kept for step in each.steps)


@pytest.mark.parametrize(
    ("part", "kind", "cached"),
    [("encoder", "self", False), ("decoder", "self", False), ("decoder", "cross", False), ("decoder", "cross", True)],
)
def test_a_missing_mask_is_noticed(
    part: str, kind: str, cached: bool, translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All weights of one kind are 2, even those of the next token and of the padding."""
    run, ahead = getattr(Transformer, f"run_{part}"), 1 if (part, kind) == ("decoder", "self") else 99

    def seeing_all(self: Transformer, *arguments: Any, **named: Any) -> tuple[Any, ...]:
        *outputs, traces = run(self, *arguments, **named)
        name = f"{kind}_weights"
        if named.get("need_weights") and (len(arguments) > 3) == cached:
            traces = [
                trace._replace(**{name: torch.full_like(getattr(trace, name), 2.0).tril(ahead)}) for trace in traces
            ]
        return *outputs, traces

    monkeypatch.setattr(Transformer, f"run_{part}", seeing_all)
    (each,) = minitrans.explain(translator, TEXTS[:1]).sentences
    assert each.max_forbidden_weight == 2
    assert all(step.weight_difference > 1 for step in each.steps) == (part == "decoder")


def test_the_translators_model_gets_no_hook(translator: Translator) -> None:
    """Others may be translating with it."""
    name, register = "register_forward_pre_hook", Module.register_forward_pre_hook
    with patch.object(Module, name, autospec=True, side_effect=register) as registered:
        minitrans.explain(translator, TEXTS[:1])
    hooked = {call.args[0] for call in registered.call_args_list}
    assert hooked
    assert not hooked & {*translator.bundle.model.modules()}


def test_ablating_a_head_zeroes_its_columns_of_w_o(translator: Translator, traced: list[TracedTranslation]) -> None:
    model, each = translator.bundle.model, traced[0]
    for kind in ATTENTION_KINDS:
        assert each.head_ablation_log_probs[kind].shape == (each.config.n_layers, each.config.n_heads)
        side, name = ("encoder" if kind == "encoder" else "decoder"), ("cross_attn" if kind == "cross" else "self_attn")
        attention = model.get_submodule(f"{side}.layers.0.{name}")
        assert isinstance(attention, MultiHeadAttention)
        for head in range(each.config.n_heads):
            columns = attention.w_o.weight[:, head * attention.d_head : (head + 1) * attention.d_head]
            kept = columns.detach().clone()
            with torch.no_grad():
                columns.zero_()
                expected = translation_log_prob(translator.bundle, each.attention)
                columns.copy_(kept)
            assert float(each.head_ablation_log_probs[kind][0, head]) == pytest.approx(expected, abs=1e-4)
            assert expected != pytest.approx(each.log_prob, abs=1e-6)


@torch.no_grad()
def translation_log_prob(bundle: Bundle, attention: AttentionWeights) -> float:
    source, target = attention.source_ids, attention.target_ids
    log_p = bundle.model(torch.tensor([source]), torch.tensor([target[:-1]])).log_softmax(-1)
    return sum(float(log_p[0, t, id_]) for t, id_ in enumerate(target[1:]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_models_of_any_dtype_can_be_traced(tiny_run: Path, dtype: torch.dtype) -> None:
    (each,) = minitrans.explain(Translator.load(tiny_run, dtype=dtype, compiled="off"), TEXTS[:1]).sentences
    assert each.stepwise_cross.dtype == dtype
    if dtype == torch.float64:
        assert max(step.logit_difference for step in each.steps) < 1e-10


@pytest.mark.parametrize("text", ["1) Go. 2) Mr. Lee! 😊", 'J. « ? ..."2) Mr. Lee !(: 1) -'])
def test_sentences_are_not_split_again_when_traced(translator: Translator, text: str) -> None:
    splitting = Translator(translator.bundle)
    splitting.split_sentences = True
    traced = minitrans.explain(splitting, [text]).sentences
    assert [each.text for each in traced] == splitting.to_sentences(text)
    (translated,) = splitting.translate([text])
    assert "".join(each.translation.text for each in traced).replace(" ", "") == translated.replace(" ", "")


def test_everything_is_on_the_models_device_whatever_the_default_device(translator: Translator) -> None:
    with torch.device("meta"):
        assert minitrans.explain(translator, TEXTS[:1]).sentences[0].max_forbidden_weight == 0


def test_a_text_of_the_maximum_length_can_be_traced(translator: Translator) -> None:
    (each,) = minitrans.explain(translator, ["love " * 40]).sentences
    assert len(each.attention.source) == each.config.max_len
    assert each.n_padded == 0


def test_nan_counts_as_the_largest_difference() -> None:
    assert math.isnan(tracing._largest_absolute_value(torch.ones(2), torch.tensor([1, math.nan])))
