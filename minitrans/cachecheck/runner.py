"""The proof for anyone's model: how to ask for it, and how to have it asserted in a test suite."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from minitrans.cachecheck.cache_checks import CHECKS, feed_in_chunks
from minitrans.cachecheck.failure_patterns import explain_failures
from minitrans.cachecheck.faults import FAULTS, Faulty
from minitrans.cachecheck.measurement import (
    LOWER_DTYPES,
    MIN_FAULT,
    Caught,
    Check,
    NotOfferedError,
    Report,
    Result,
    dtype_name,
    to_str,
)
from minitrans.cachecheck.protocol import CachedModel, ModelAndTokens

NEVER = -1000.0  # a logit of less is that of a token that is never put out: -inf, -1e9 or the like
LOWEST = -2.0  # in units of the largest other one: logits below are not told apart
MIN_TOKENS = 4  # of a sentence: a prompt of two (padding one of a single token), and two steps after it
RANDOM_CASE_SIZE = 3, 9, 7  # rows, tokens of each, and tokens of the longest source


def random_case(model: CachedModel[Any]) -> ModelAndTokens[Any]:
    """Random sentences for a model, no longer than it takes; logits are measured in units of the largest."""
    generator = torch.Generator().manual_seed(1)
    ordinary = torch.tensor(list(model.ordinary))
    batch, length, src_len = (min(n, model.max_len or n) for n in RANDOM_CASE_SIZE)

    def ids(*shape: int) -> torch.Tensor:
        return ordinary[torch.randint(len(ordinary), shape, generator=generator)]

    tokens, src_ids = ids(batch, length), ids(batch, src_len if model.has_source else 0)
    if model.first is not None:
        tokens[:, 0] = model.first
    src_mask = torch.arange(src_ids.size(1)) < torch.tensor([src_len, *range(1, batch)])[:, None]
    case = ModelAndTokens(model, tokens, src_ids, src_mask)
    logits = case.full_pass()[0]
    possible = logits[~(logits < NEVER)]
    largest = float((possible if len(possible) else logits).abs().max())
    return replace(case, logit_unit=largest, lowest=LOWEST) if 0 < largest < torch.inf else case


def cases_by_dtype(model: CachedModel[Any]) -> dict[torch.dtype, ModelAndTokens[Any]]:
    """The same sentences for the model in each dtype that it can be had in: float64 and the lower ones.

    Raises:
        NotOfferedError: It computes in none of them, or takes too few tokens.
    """
    if (model.max_len or MIN_TOKENS) < MIN_TOKENS:
        raise NotOfferedError(f"it takes {model.max_len} tokens, and the checks need sentences of {MIN_TOKENS}")
    cases: dict[torch.dtype, ModelAndTokens[Any]] = {}
    errors = {}
    for dtype in (torch.float64, *LOWER_DTYPES):
        try:
            moved = model if model.dtype == dtype else model.to(dtype)
            case = replace(next(iter(cases.values())), model=moved) if cases else random_case(moved)
            case.full_pass()
            cases[dtype] = case
            with suppress(Exception):  # `steps` says what is wrong
                feed_in_chunks(case)
                cases[dtype] = replace(case, refusal=moved.refusal)
        except (NotOfferedError, RuntimeError, ValueError, TypeError) as error:
            errors[dtype] = str(error)
    if not cases:
        raise NotOfferedError(errors.get(model.dtype, errors[torch.float64]))
    return cases


def run(model: CachedModel[Any]) -> Report:
    """Measure every claim on a model, with random sentences; of one that fails, say what that looks like.

    Raises:
        NotOfferedError: It cannot compute a full pass at all.
    """
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False):  # whatever is around
        return Report(run_checks(cases_by_dtype(model), CHECKS))


def run_checks(cases: Mapping[torch.dtype, ModelAndTokens[Any]], checks: Sequence[Check]) -> list[Result]:
    """What checks find in sentences for a model; of one that fails, also what that looks like."""
    results = [check.run(cases, may_lack=True) for check in checks]
    looks_like: dict[str, str] = {}
    for dtype, case in cases.items():
        failed = [r for r in results if r.failed and r.first_failed_dtype == dtype_name(dtype)]
        looks_like |= explain_failures(case, {r.id: r.failed_measurement.measured for r in failed})
    return [replace(r, detail="; ".join(filter(None, [r.detail, looks_like.get(r.id)]))) for r in results]


def self_test(model: CachedModel[Any]) -> Iterator[Caught]:
    """Put each fault around a model, if a check that is there to tell it can be measured and has not failed already.

    Yields:
        For each such fault the checks that notice it.
    """
    cases = cases_by_dtype(model)
    before = {check.id: check.run(cases, may_lack=True) for check in CHECKS}
    for fault in FAULTS:
        measured = [m for id_ in fault.detected_by for m in before[id_].by_dtype.values()]
        if any(m.measured <= MIN_FAULT for m in measured):
            faulty = {dtype: replace(case, model=Faulty(case.model, fault.change)) for dtype, case in cases.items()}
            results = [check.run(faulty, may_lack=True) for check in CHECKS]
            yield Caught(fault.id, fault.change.__doc__ or "", [r.id for r in results if r.is_worse_than(before[r.id])])


def check_cache(model: CachedModel[Any], *, skip: tuple[str, ...] = ()) -> Report:
    """Assert that decoding from a model's cache gives what its full masked pass gives; for your own test suite.

    Args:
        model: A subclass of `CachedModel` around your model, or `Functions`; in eval mode, float64 if it can be. What
            starts at 0, as positions or gates may, needs other numbers: at 0 its faults do not show.
        skip: Ids of checks whose failure is known and meant.

    Raises:
        AssertionError: A check failed, or the model cannot be stepped to its last token. The message has a line for
            each: what differs first, by how much, and what that looks like.
        ValueError: There is no check of an id to skip.
    """
    if not set(skip) <= {check.id for check in CHECKS}:  # so with the letters of a string
        raise ValueError(f"skip={skip!r} is no tuple of ids of checks, as ('batch',) is")
    try:
        report = run(model)
    except NotOfferedError as error:
        raise AssertionError(f"no full pass: {error}") from error
    lines = [failure_line(r) for r in report.checks if r.id not in skip or (r.id == "steps" and not r.offered)]
    if any(lines):
        raise AssertionError("\n".join(filter(None, lines)))
    return report


def failure_line(result: Result) -> str:
    """What is wrong, in one line: by how much, what differs first, and what that looks like; empty if nothing is.

    A model has to offer steps, up to the last token that it takes: that it does not is wrong too.
    """
    if result.id in ("steps", "lengths") and not result.offered:
        return f"{result.id}: {result.detail}{' (is max_len right?)' * (result.id == 'lengths')}"
    if not result.failed:
        return ""
    measured, allowed = to_str(result.failed_measurement.measured), to_str(result.failed_measurement.tolerance)
    return f"{result.id}: {measured}, at most {allowed} is allowed: {result.detail or result.claim}"
