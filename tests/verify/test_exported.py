"""Which translations the checks of the exported model accept as the same, and which they do not."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from subject_strategies import subjects

pytest.importorskip("ctranslate2", reason="the extra `export` is not installed")

from minitrans.export.ctranslate2 import greedy_exported
from minitrans.verify.checks import CHECKS, exported
from minitrans.verify.model_and_pairs import ModelAndPairs, fresh_model, model_and_id_pairs, model_and_random_pairs

SCORE_CHECK, GREEDY_CHECK = (
    next(check for check in CHECKS if check.id == f"export.{name}") for name in ("score", "greedy")
)


@settings(max_examples=20, derandomize=True)
@given(subject=subjects().filter(lambda s: any(len(src) > 1 and len(tgt) > 1 for src, tgt in s.pairs())))
def test_the_checks_pass_for_every_size_shape_and_padding(subject: ModelAndPairs) -> None:
    """At least one pair has no blank sentence, because the checks leave out those that have one."""
    assert SCORE_CHECK.measure(subject) <= SCORE_CHECK.tolerance
    assert GREEDY_CHECK.measure(subject) <= GREEDY_CHECK.tolerance


@pytest.mark.parametrize(
    ("change", "is_right"),
    [
        (lambda ids: ids, True),
        (lambda ids: [10 if i == 9 else i for i in ids], True),
        (lambda ids: [15 if i == 9 else i for i in ids], False),
        (lambda ids: [0 if i == 9 else i for i in ids], False),
        (lambda ids: ids[:-1], False),
        (lambda ids: [*ids, 9], False),
        (lambda ids: ids * 9, False),
    ],
    ids=["none", "a twin", "another token", "padding", "an early end", "a late end", "beyond the limit"],
)
def test_ctranslate2_may_differ_only_in_equally_likely_tokens(
    change: Callable[[list[int]], list[int]], is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = []
    model = fresh_model()
    with torch.no_grad():  # the same vector: always equally likely, and the same as an input
        model.output.weight[10] = model.output.weight[9]

    def changed(*arguments: object) -> list[list[int]]:
        output_ids = greedy_exported(*arguments)  # type: ignore[arg-type]
        outputs.extend(output_ids)
        return [change(ids) for ids in output_ids]

    monkeypatch.setattr(exported, "greedy_exported", changed)
    measured = GREEDY_CHECK.measure(model_and_random_pairs(model))
    assert any(9 in ids for ids in outputs)
    assert measured == 0.0 if is_right else measured > 1e-3


def test_without_sentences_the_checks_fail() -> None:
    subject = model_and_random_pairs(fresh_model())
    assert GREEDY_CHECK.measure(replace(subject, decode_batches=[])) == math.inf
    blank = model_and_id_pairs(fresh_model(), [[]], [[]], [[[]]])
    assert SCORE_CHECK.measure(blank) == GREEDY_CHECK.measure(blank) == math.inf


def test_blank_sentences_are_left_out() -> None:
    model = fresh_model()
    subject = model_and_id_pairs(model, [[], [5, 7], [9]], [[4], [6, 8], []], [[[], [5, 7]], [[]]])
    assert SCORE_CHECK.measure(subject) <= SCORE_CHECK.tolerance
    assert GREEDY_CHECK.measure(subject) == 0.0
