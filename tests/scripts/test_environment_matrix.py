"""A matrix of settings passes only if some were measured, and none failed."""

from collections.abc import Sequence

import environment_matrix
import pytest


@pytest.mark.parametrize(
    ("missing", "failed", "code"), [("", [], 0), ("", ["verify"], 1), ("no g++", [], 1)], ids=["passed", "failed", "no"]
)
def test_it_passes_if_something_was_measured(
    missing: str, failed: Sequence[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_matrix, "missing_requirement", lambda setting: missing)
    monkeypatch.setattr(environment_matrix, "list_setting_failures", lambda setting, brief: failed)
    assert environment_matrix.main(["as it is", "one thread"]) == code
