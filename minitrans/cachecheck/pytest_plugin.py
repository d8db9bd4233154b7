"""For pytest: each check of a model's cache is a test of its own, so that a report of failures names what broke.

In a test module: `pytest_plugins = "minitrans.cachecheck.pytest_plugin"`, a fixture `cached_model` that returns a
`CachedModel`, and a test that takes the fixture `cache_check` and calls it.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from minitrans.cachecheck.cache_checks import CHECKS
from minitrans.cachecheck.measurement import NotOfferedError
from minitrans.cachecheck.protocol import CachedModel, ModelAndTokens
from minitrans.cachecheck.runner import cases_by_dtype, failure_line, run_checks

_last: list[Any] = [None, None]  # the last model and its cases, kept because each dtype is a copy of the model


def cases_of_last_model(model: CachedModel[Any]) -> dict[torch.dtype, ModelAndTokens[Any]]:
    """A model's cases by dtype, made once for as long as the same model is asked for."""
    if _last[0] is not model:
        _last[:] = model, cases_by_dtype(model)
    return _last[1]


@pytest.fixture(params=CHECKS, ids=lambda check: check.id)
def cache_check(request: pytest.FixtureRequest, cached_model: CachedModel[Any]) -> Callable[[], None]:
    """Makes one check of `cached_model`; a test that takes it runs once for each check.

    Where the check fails, so does the test. Where the model cannot do what is checked, the test is skipped and says
    why; but a model has to have a full pass, and steps up to the last token that it takes.
    """

    def measure_one() -> None:
        try:
            (result,) = run_checks(cases_of_last_model(cached_model), [request.param])
        except NotOfferedError as error:
            pytest.fail(f"no full pass: {error}", pytrace=False)
        if line := failure_line(result):
            pytest.fail(line, pytrace=False)
        if not result.offered:
            pytest.skip(result.detail)

    return measure_one
