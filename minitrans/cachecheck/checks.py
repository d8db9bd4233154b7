"""What has to be true of any model that decodes from a cache, whatever is inside; and how to ask for it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from minitrans.cachecheck import faults, measures
from minitrans.cachecheck.check import (
    CONTROL,
    LOWER,
    Caught,
    Check,
    NotOfferedError,
    Report,
    Result,
    group,
    number,
)
from minitrans.cachecheck.patterns import patterns
from minitrans.cachecheck.protocol import CachedModel, Case

SIZES = 3, 9, 7  # rows, tokens of each, and tokens of the longest source
LEAST = 1e-7  # what another token has to move logits by at least, of the largest logit

ANYONE: list[Check] = []

check = group("Steps and the full pass", ANYONE)


@check(
    "steps",
    "Decoding step by step from the cache gives what the full masked pass gives, at every position.",
    "logits, one token at a time, against one full pass",
    lower=LOWER,
)
def steps_deviation(case: Case[Any]) -> float:
    return measures.step_deviation(case)


@check(
    "chunks",
    "So does every split into chunks: a prompt of many tokens, then few at a time, or any other.",
    f"logits: every split of the first {measures.SHORT} tokens, every chunk of every size at every position",
)
def chunks_deviation(case: Case[Any]) -> float:
    return measures.split_deviation(case)


@check(
    "lengths",
    "So do steps across the end of each window and block, and up to the longest position.",
    "logits of long sentences, of which a part is a prompt",
    lower=LOWER,
)
def lengths_deviation(case: Case[Any]) -> float:
    return measures.length_deviation(case)


@check(
    "greedy",
    "Greedy decoding from the cache chooses what it chooses without one.",
    "tokens that differ",
    tolerance=0.0,
)
def greedy_deviation(case: Case[Any]) -> float:
    return measures.greedy_differences(case, case.tokens.size(1) - 1)


@check(
    "score",
    "The log-probabilities of the steps add up to the teacher-forced score of each sentence.",
    "log-probability a token, summed over steps from the cache, against the full pass",
    lower=LOWER,
)
def score_deviation(case: Case[Any]) -> float:
    return measures.score_deviation(case.with_tokens(case.tokens[:, :-1]), case.tokens[:, 1:])


@check(
    "static",
    "A cache of a fixed size gives the same.",
    "logits, one token at a time, against one full pass",
    lower=LOWER,
)
def static_deviation(case: Case[Any]) -> float:
    return measures.step_deviation(case.run_in("static"))


@check(
    "weights",
    "The attention weights of the steps are those of the full pass: 0 for what comes later.",
    "logits and all attention weights, one token at a time",
    lower=LOWER,
)
def weights_deviation(case: Case[Any]) -> float:
    return measures.weights_deviation(case.run_in("weights"))


check = group("What may be seen", ANYONE)


@check(
    "causal.prefix",
    "What is computed for the first tokens does not change when tokens are appended.",
    "logits of every prefix, against those of the whole",
    lower=LOWER,
)
def causal_prefix_deviation(case: Case[Any]) -> float:
    return measures.prefix_deviation(case)


@check(
    "causal.values",
    "Nor does it when all later tokens are other ones.",
    "logits of the first tokens, with others after them",
)
def causal_values_deviation(case: Case[Any]) -> float:
    return measures.future_deviation(case)


@check(
    "causal.gradient",
    "The gradient of the logits at a position with respect to every later token's vector is exactly 0.",
    "largest such gradient, in shares of the largest of earlier ones",
    tolerance=0.0,
)
def causal_gradient_deviation(case: Case[Any]) -> float:
    return measures.future_gradient(case)


@check(
    "reach",
    "Every token does change the logits at its own position and at the next.",
    f"tokens and positions where another token moves them by less than {number(LEAST)}",
    tolerance=0.0,
)
def reach_deviation(case: Case[Any]) -> float:
    return measures.tokens_without_effect(case, LEAST)


check = group("Padding and other rows", ANYONE)


@check(
    "source.padding",
    "A source's padding changes nothing.",
    "logits of each row alone without padding, in steps too, and of the batch with more padding",
    lower=LOWER,
)
def source_padding_deviation(case: Case[Any]) -> float:
    return measures.source_padding_deviation(case)


@check(
    "source.padding-token",
    "Nor does it matter what stands in the padding.",
    "logits with another token there",
    lower=LOWER,
)
def source_padding_token_deviation(case: Case[Any]) -> float:
    return measures.padding_token_deviation(case)


@check(
    "padding.right",
    "Padding to the right of a target changes nothing, where a mask says that it is padding.",
    "logits of each row alone, and in one batch with longer ones",
    lower=LOWER,
)
def padding_right_deviation(case: Case[Any]) -> float:
    return measures.target_padding_deviation(case, "right")


@check(
    "padding.left",
    "Nor does padding to the left of a prompt, with mask and positions; nor in the steps that follow it.",
    "logits of each row alone, and in one batch with longer ones",
    lower=LOWER,
)
def padding_left_deviation(case: Case[Any]) -> float:
    return measures.target_padding_deviation(case, "left")


@check(
    "padding.left-mask-alone",
    "Nor does it where only the mask is given: the model finds the positions by itself.",
    "logits of each row alone, and in one batch with longer ones",
    lower=LOWER,
)
def padding_left_mask_alone_deviation(case: Case[Any]) -> float:
    return measures.target_padding_deviation(case.run_in("mask alone"), "left")


@check(
    "batch",
    "A row's numbers do not depend on the other rows.",
    "logits of each row in a batch with rows of other tokens, and with the rows in reverse",
    lower=LOWER,
)
def batch_deviation(case: Case[Any]) -> float:
    return measures.batch_deviation(case)


check = group("Rows and caches", ANYONE)


@check(
    "rows",
    "Rows of the cache can be reordered, dropped and repeated in mid-decode, and go different ways afterwards.",
    "logits after each of four selections, against full passes on the selected rows",
    lower=LOWER,
)
def rows_deviation(case: Case[Any]) -> float:
    return measures.selection_deviation(case, *measures.selections_for(*case.tokens.shape))


@check(
    "caches.two",
    "Two caches in use at once do not mix.",
    "logits of two decodes that take turns, against full passes",
    lower=LOWER,
)
def caches_two_deviation(case: Case[Any]) -> float:
    return measures.interleaved_deviation(case, [1] * case.tokens.size(1))


@check(
    "caches.alternating",
    "Steps and full passes by turns: neither notices the other.",
    "logits, with a full pass after every two tokens",
    lower=LOWER,
)
def caches_alternating_deviation(case: Case[Any]) -> float:
    return measures.alternating_deviation(case, [len(piece[0]) for piece in case.tokens.split(2, 1)])


@check(
    "random",
    "A model in eval mode draws no random number.",
    "of a full pass and of steps, how many move the state of PyTorch's random numbers",
    tolerance=0.0,
)
def random_deviation(case: Case[Any]) -> float:
    return measures.random_numbers_drawn(case)


# -- Asking ---------------------------------------------------------------------------------------------------------


def random_case(model: CachedModel[Any]) -> Case[Any]:
    """Random sentences for a model, no longer than it takes; logits are measured by the largest of them."""
    generator = torch.Generator().manual_seed(1)
    ordinary = torch.tensor(list(model.ordinary))
    batch, length, src_len = (min(n, model.max_len or n) for n in SIZES)

    def ids(*shape: int) -> torch.Tensor:
        return ordinary[torch.randint(len(ordinary), shape, generator=generator)]

    tokens, src_ids = ids(batch, length), ids(batch, src_len if model.has_source else 0)
    if model.first is not None:
        tokens[:, 0] = model.first
    src_mask = torch.arange(src_ids.size(1)) < torch.tensor([src_len, *range(1, batch)][:batch])[:, None]
    case = Case(model, tokens, src_ids, src_mask)
    largest = case.full_pass()[0].abs().max()
    return replace(case, unit=float(largest) if 0 < largest < torch.inf else 1.0)


def cases_for(model: CachedModel[Any]) -> dict[torch.dtype, Case[Any]]:
    """The same sentences for the model in each dtype that it can be had in: float64 and the lower ones.

    Raises:
        NotOfferedError: It computes in none of them.
    """
    found: dict[torch.dtype, Case[Any]] = {}
    errors = []
    for dtype in (torch.float64, *LOWER):
        try:
            moved = model if model.dtype == dtype else model.to(dtype)
            first = next(iter(found.values()), None)
            case = random_case(moved) if first is None else replace(first, model=moved)
            case.full_pass()
            found[dtype] = case
        except (NotOfferedError, RuntimeError, ValueError, TypeError) as error:
            errors.append(str(error))
    if not found:
        raise NotOfferedError(errors[0])
    return found


def run(model: CachedModel[Any]) -> Report:
    """Measure every claim on a model, with random sentences.

    Raises:
        NotOfferedError: It cannot compute a full pass at all.
    """
    return report_on(cases_for(model))


def report_on(cases: dict[torch.dtype, Case[Any]]) -> Report:
    """Measure every claim; of one that fails, say what that looks like."""
    results = [each.run(cases, may_lack=True) for each in ANYONE]
    case = next(iter(cases.values()))
    failed = {r.id: worst_of(r) for r in results if is_failure(r)}
    looks_like = patterns(case, failed)
    return Report([replace(r, detail="; ".join(filter(None, [r.detail, looks_like.get(r.id, "")]))) for r in results])


def self_test(model: CachedModel[Any]) -> Iterator[Caught]:
    """Put each fault around a model, if it does something to it and the model has not got it already.

    Yields:
        For each such fault the checks that fail, by far more than they do without it.
    """
    cases = cases_for(model)
    before = {each.id: each.run(cases, may_lack=True) for each in ANYONE}
    for fault in faults.FAULTS:
        lacks_it = any(m.measured <= CONTROL for id_ in fault.told_by for m in before[id_].by_dtype.values())
        if lacks_it and fault.applies(next(iter(cases.values())).model):
            sabotaged = {dtype: replace(case, model=fault.around(case.model)) for dtype, case in cases.items()}
            noticed = [each.id for each in ANYONE if is_worse(each.run(sabotaged, may_lack=True), before[each.id])]
            yield Caught(fault.id, fault.fault, noticed)


def is_worse(result: Result, before: Result) -> bool:
    """Whether a check fails in a dtype by a hundred times what it measured before, if that was a number."""
    known = before.by_dtype
    return any(
        name in known and not m.passed and m.measured > 100 * known[name].measured
        for name, m in result.by_dtype.items()
    )


def is_failure(result: Result) -> bool:
    """Whether a check measured something, and more than it may."""
    return result.offered and not result.passed


def check_cache(model: CachedModel[Any], *, skip: tuple[str, ...] = ()) -> Report:
    """Assert that decoding from a model's cache gives what its full masked pass gives; for your own test suite.

    Args:
        model: A subclass of `CachedModel` around your model, or `Functions`; in eval mode, float64 if it can be.
        skip: Ids of checks whose failure is known and meant.

    Returns:
        All that was measured.

    Raises:
        AssertionError: A check failed, or the model cannot even be stepped. The message has a line for each: what
            differs first, by how much, and what that looks like.
    """
    try:
        report = run(model)
    except NotOfferedError as error:
        raise AssertionError(f"no full pass: {error}") from error
    steps = next(r for r in report.checks if r.id == "steps")
    lines = [f"{r.id}: {number(worst_of(r))}, at most {number(r.tolerance)} is allowed: {r.detail or r.claim}"
             for r in report.checks if is_failure(r) and r.id not in skip]  # fmt: skip
    if not steps.offered:
        lines.insert(0, f"steps: {steps.detail}")
    assert not lines, "\n".join(lines)
    return report


def worst_of(result: Result) -> float:
    """What was measured in the first dtype in which the check failed."""
    return next((m.measured for m in result.by_dtype.values() if not m.passed), 0.0)
