"""For pytest: each check of a model's cache is a test of its own, so that a report of failures names what broke.

In a test module: `pytest_plugins = "minitrans.cachecheck.pytest_plugin"`, a fixture `cached_model` that returns a
`CachedModel`, and a test that takes the fixture `cache_check` and calls it.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest

from minitrans.cachecheck.cache_checks import CHECKS
from minitrans.cachecheck.check import NotOfferedError
from minitrans.cachecheck.protocol import CachedModel
from minitrans.cachecheck.runner import cases_by_dtype, failure_line, run_checks

cases_of_last_model = lru_cache(1)(cases_by_dtype)  # each dtype is a copy of the model


@pytest.fixture(params=CHECKS, ids=lambda check: check.id)
def cache_check(request: pytest.FixtureRequest, cached_model: CachedModel[Any]) -> Callable[[], None]:
    """Makes one check of `cached_model`; a test that takes it runs once for each check.

    Where the check fails, so does the test. Where the model cannot do what is checked, the test is skipped and says
    why; but a model has to have a full pass and steps.
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
