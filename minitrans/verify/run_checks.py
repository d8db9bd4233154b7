"""The proof for our own model: every claim measured on it, and every sabotage applied to see that it is noticed."""

from collections.abc import Iterator, Mapping, Sequence

import torch

from minitrans.cachecheck.measurement import LOWER_DTYPES, Caught, Check, Report, Result, default_modes
from minitrans.cachecheck.runner import MIN_TOKENS
from minitrans.errors import UserError, nearest_name_error
from minitrans.model.transformer import Transformer
from minitrans.translate.backend import CompiledMode, can_verify_compiled
from minitrans.verify.checks import CHECKS
from minitrans.verify.model_and_pairs import ModelAndPairs, fresh_model, model_and_random_pairs
from minitrans.verify.sabotage import SABOTAGES, Sabotage


def run(
    model: Transformer | None = None, subject: ModelAndPairs | None = None, compiled: CompiledMode = "auto"
) -> Report:
    """Measure every claim.

    Args:
        model: The model to measure, with random sentences; it is copied and not changed. None: a fresh model.
        subject: Model and sentences, in place of `model`; float64.
        compiled: Whether compiled code is measured: auto, if it is there and can be compiled; off, never; require,
            always, or an error. Where it is measured, a difference is a failure.

    Raises:
        UserError: Compiled code is required, and is not there or cannot be compiled; or the model is too small.
    """
    chosen = checks_to_run(compiled)  # first, because it may raise
    with default_modes():
        if subject is None:
            subject = model_and_random_pairs(fresh_model() if model is None else model)
        c = subject.model.config
        if c.max_len < MIN_TOKENS or c.d_model < 2:  # a norm of a single number is constant
            sizes = f"max_len {c.max_len} and d_model {c.d_model}"
            raise UserError(f"{sizes} are too small to check; they must be at least {MIN_TOKENS} and 2")
        subjects = {dtype: subject.to(dtype) for dtype in (torch.float64, *LOWER_DTYPES)}
        return Report([check.run(subjects) for check in chosen])


def self_test(compiled: CompiledMode = "auto") -> Iterator[Caught]:
    """Apply every sabotage to the live code, one at a time, and run all checks on a fresh model made under it, float64.

    Args:
        compiled: As for `run`; without compiled code its checks are left out, and its sabotages.

    Yields:
        For each sabotage the checks that noticed it; by then the code has been restored.
    """
    checks = checks_to_run(compiled)
    before = {check.id: check.run(fresh_float64_subjects()) for check in checks}
    for sabotage in sabotages_to_run(compiled):
        results = results_under(sabotage, checks)
        yield Caught(sabotage.id, sabotage.fault, [r.id for r in results if r.is_worse_than(before[r.id])])


def report_failures_under(sabotage_id: str, compiled: CompiledMode = "auto") -> Report:
    """Apply one sabotage, measure every claim on a fresh model made under it, float64, and report those that fail.

    Raises:
        UserError: There is no such sabotage; or as for `run`.
    """
    known = {sabotage.id: sabotage for sabotage in sabotages_to_run(compiled)}
    if sabotage_id not in known:
        raise nearest_name_error(f"there is no sabotage {sabotage_id} (see --list)", sabotage_id, known)
    sabotage = known[sabotage_id]
    failed = [result for result in results_under(sabotage, checks_to_run(compiled)) if not result.passed]
    return Report(failed, [Caught(sabotage_id, sabotage.fault, [r.id for r in failed])], each_must_catch=False)


def results_under(sabotage: Sabotage, checks: Sequence[Check]) -> list[Result]:
    """What checks measure on a fresh model made under a sabotage, float64."""
    with sabotage.apply_fault():
        subjects = fresh_float64_subjects()
        return [check.run(subjects) for check in checks]


@default_modes()
def fresh_float64_subjects() -> Mapping[torch.dtype, ModelAndPairs]:
    """A fresh model and its sentences, in float64 alone."""
    return {torch.float64: model_and_random_pairs(fresh_model())}


def checks_to_run(compiled: CompiledMode) -> list[Check]:
    """The checks, without those of compiled code where it is not measured."""
    measured = can_verify_compiled(compiled)
    return [check for check in CHECKS if measured or not check.id.startswith("compiled.")]


def sabotages_to_run(compiled: CompiledMode) -> list[Sabotage]:
    """The sabotages that one of the checks must notice."""
    ids = {check.id for check in checks_to_run(compiled)}
    return [sabotage for sabotage in SABOTAGES if not ids.isdisjoint(sabotage.noticed_by)]
