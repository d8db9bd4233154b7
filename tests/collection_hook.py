"""The tests of the model are marked after their folder or file, and the slowest files come first."""

from pathlib import Path

import pytest

TESTS_DIR = Path(__file__).parent
MODEL_TEST_PATHS = {"model", "compiled", "verify", "translate/test_backend.py"}
# The files that take longest, in this order: a process that begins one at the end keeps all others waiting.
SLOWEST_FILES = [
    *("verify/test_self_test.py", "test_model_edits.py", "training/test_multi_process.py", "test_cli.py"),
    *("training/test_distillation.py", "compiled/test_stepper.py"),
    *("training/test_checkpoints.py", "training/test_run.py"),
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the model, and give a slow one more time; the slowest files come first."""
    for item in items:
        place = item.path.relative_to(TESTS_DIR)
        if MODEL_TEST_PATHS & {str(place), *map(str, place.parents)}:
            item.add_marker("model")
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(3600))
    places = {TESTS_DIR / name: place for place, name in enumerate(SLOWEST_FILES)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
