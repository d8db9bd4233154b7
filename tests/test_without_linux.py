"""What only Linux has is not needed on a system that lacks it, such as macOS."""

import ctypes
import os
import platform
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import TINY_CONFIG, needs_compiled

from minitrans.cli import process_setup
from minitrans.data import corpus
from minitrans.errors import UserError
from minitrans.training import config


@pytest.fixture(autouse=True)
def _imitate_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    """No functions of glibc or of Linux, no /proc and /sys, and its own number for "no limit"."""
    exists, read = Path.is_file, Path.read_text
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**63 - 1, 2**63 - 1))
    monkeypatch.setattr(Path, "is_file", lambda path: path.parts[:2] != ("/", "proc") and exists(path))
    monkeypatch.setattr(Path, "read_text", lambda path: read(Path("/none") if path.parts[1] == "sys" else path))


def test_linux_settings_of_the_process_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    process_setup.setup_training_process()


def test_all_cores_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, n in ((7, 7), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        assert corpus._n_cores() == n


def test_memory_without_a_limit_is_that_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 500, "SC_PAGE_SIZE": 1000}.get)
    config.check_model_memory(TINY_CONFIG)
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 5, "SC_PAGE_SIZE": 1000}.get)
    with pytest.raises(UserError, match="this machine has 5e-06 GB"):
        config.check_model_memory(TINY_CONFIG)


@needs_compiled
def test_the_cpu_features_are_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    from minitrans.compiled import library

    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert library._cpu_features() == "arm64"
