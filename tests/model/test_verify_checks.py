"""What `verify` proves about a fresh model: each check is a test of the model."""

from collections.abc import Mapping

import pytest
import torch

from minitrans.cachecheck.measurement import LOWER_DTYPES, Check
from minitrans.verify.checks import CHECKS
from minitrans.verify.model_and_pairs import ModelAndPairs, fresh_model, model_and_random_pairs


@pytest.fixture(scope="module")
def subject_by_dtype() -> Mapping[torch.dtype, ModelAndPairs]:
    subject = model_and_random_pairs(fresh_model())
    return {dtype: subject.to(dtype) for dtype in (torch.float64, *LOWER_DTYPES)}


@pytest.mark.parametrize(  # those of optional parts: tests/verify
    "check", [c for c in CHECKS if not c.id.startswith(("compiled.", "export."))], ids=lambda check: check.id
)
def test_check(check: Check, subject_by_dtype: Mapping[torch.dtype, ModelAndPairs]) -> None:
    assert check.run(subject_by_dtype).passed
