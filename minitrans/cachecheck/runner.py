"""The proof for anyone's model: run every check and report, or assert that all pass in a test suite."""

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
    default_modes,
    dtype_name,
    to_str,
)
from minitrans.cachecheck.protocol import CachedModel, ModelAndTokens

NEVER = -1000.0  # a lower logit means a token that is never generated: -inf, -1e9 or the like
LOWEST = -2.0  # in units of the largest absolute logit not below NEVER; all lower ones count as the same
MIN_TOKENS = 4  # of a sentence: a prompt of two (beside a padded one of a single token), and two steps
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


@default_modes()
def cases_by_dtype(model: CachedModel[Any]) -> dict[torch.dtype, ModelAndTokens[Any]]:
    """The same sentences for the model in each dtype that it can be converted to: float64 and the lower ones.

    Raises:
        NotOfferedError: The model computes in none of them, or takes too few tokens.
    """
    if (model.max_len or MIN_TOKENS) < MIN_TOKENS:
        raise NotOfferedError(f"it takes {model.max_len} tokens, but the checks need sentences of {MIN_TOKENS}")
    cases: dict[torch.dtype, ModelAndTokens[Any]] = {}
    errors = {}
    for dtype in (torch.float64, *LOWER_DTYPES):
        try:
            moved = model if model.dtype == dtype else model.to(dtype)
            case = replace(next(iter(cases.values())), model=moved) if cases else random_case(moved)
            replace(case, refusal=Exception).full_pass()
            cases[dtype] = case
            with suppress(Exception):  # the check `steps` reports what is wrong
                feed_in_chunks(case)
                cases[dtype] = replace(case, refusal=moved.refusal)
        except (NotOfferedError, RuntimeError, ValueError, TypeError) as error:
            errors[dtype] = str(error)
    if not cases:
        raise NotOfferedError(errors.get(model.dtype, errors[torch.float64]))
    return cases


def run(model: CachedModel[Any]) -> Report:
    """Measure every claim on a model, with random sentences; for a failure, say which known fault it looks like.

    Raises:
        NotOfferedError: The model cannot compute a full pass at all.
    """
    return Report(run_checks(cases_by_dtype(model), CHECKS))


@default_modes()
def run_checks(cases: Mapping[torch.dtype, ModelAndTokens[Any]], checks: Sequence[Check]) -> list[Result]:
    """The results of checks on a model's sentences; for a failure, also which known fault it looks like."""
    results = [check.run(cases, may_lack=True) for check in checks]
    looks_like: dict[str, str] = {}
    for dtype, case in cases.items():
        failed = [r for r in results if r.failed and r.first_failed_dtype == dtype_name(dtype)]
        looks_like |= explain_failures(case, {r.id: r.failed_measurement.measured for r in failed})
    return [replace(r, detail="; ".join(filter(None, [r.detail, looks_like.get(r.id)]))) for r in results]


def self_test(model: CachedModel[Any]) -> Iterator[Caught]:
    """Wrap each fault around a model, if a check that is meant to detect it can be measured and has not failed already.

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
        model: A subclass of `CachedModel` around your model, or `Functions`; in eval mode, float64 if possible.
            Parameters that start at 0, as of positions or gates, need other values: at 0 their faults do not show.
        skip: Ids of checks whose failure is known and intended.

    Raises:
        AssertionError: A check failed, or the model cannot be stepped to its last token. The message has a line for
            each: what differs first, by how much, and what that looks like.
        ValueError: An id to skip is not that of a check.
    """
    if not set(skip) <= {check.id for check in CHECKS}:  # also catches a string: its letters are no ids
        raise ValueError(f"skip={skip!r} is not a tuple of ids of checks, such as ('batch',)")
    try:
        report = run(model)
    except NotOfferedError as error:
        raise AssertionError(f"no full pass: {error}") from error
    lines = [failure_line(r) for r in report.checks if r.id not in skip or (r.id == "steps" and not r.offered)]
    if any(lines):
        raise AssertionError("\n".join(filter(None, lines)))
    return report


def failure_line(result: Result) -> str:
    """What is wrong, in one line: by how much, what differs first, and what it looks like; empty if nothing is wrong.

    A model has to offer steps, up to the last token that it takes: not to offer them is wrong too.
    """
    if result.id in ("steps", "lengths") and not result.offered:
        return f"{result.id}: {result.detail}{' (is max_len right?)' * (result.id == 'lengths')}"
    if not result.failed:
        return ""
    measured, allowed = to_str(result.failed_measurement.measured), to_str(result.failed_measurement.tolerance)
    return f"{result.id}: {measured}, at most {allowed} is allowed: {result.detail or result.claim}"
