"""Every test is of one level, after its folder or its file: its marker says which."""

from pathlib import Path

import pytest

TESTS_DIR = Path(__file__).parent
LEVEL_PATHS = {
    "unit": ["cachecheck"],
    "model": ["model", "compiled", "verify", "translate/test_backend.py"],
    "command": [
        *("test_cli.py", "test_fuzz.py", "test_hostile.py", "test_refusals.py"),
        *("training/test_run.py", "training/test_settings.py"),
    ],
    "end_to_end": ["test_edits.py", "training/test_processes.py", "training/test_checkpoints.py"],
}
# The files that take longest, in this order: a process that begins one at the end keeps all others waiting.
SLOWEST_FILES = [
    *("verify/test_self_test.py", "test_edits.py", "training/test_processes.py", "test_cli.py"),
    *("training/test_distillation.py", "compiled/test_stepper.py"),
    *("training/test_checkpoints.py", "training/test_run.py"),
]


def file_level(path: Path) -> str:
    """The level of a test file: unit, model, command or end_to_end."""
    parts = path.relative_to(TESTS_DIR)
    names = {str(parts), *map(str, parts.parents)}
    return next((name for name, places in LEVEL_PATHS.items() if names & {*places}), "unit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its level, and a slow one with more time; the slowest files come first."""
    for item in items:
        item.add_marker(file_level(item.path))
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(3600))
    places = {TESTS_DIR / name: place for place, name in enumerate(SLOWEST_FILES)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
