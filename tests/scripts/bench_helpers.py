"""Helpers for tests of both benchmarks, which refuse a mistake in one line and print results when interrupted."""

import importlib.util
from types import ModuleType
from unittest.mock import Mock

import pytest

INSTALLED_PEERS = {name for name in ("transformers", "ctranslate2") if importlib.util.find_spec(name)}
needs_transformers = pytest.mark.skipif("transformers" not in INSTALLED_PEERS, reason="needs the extra bench")
needs_peers = pytest.mark.skipif(len(INSTALLED_PEERS) < 2, reason="needs the extras bench and export")
needs_ctranslate2 = pytest.mark.skipif("ctranslate2" not in INSTALLED_PEERS, reason="needs the extra export")


def refusal_line(bench: ModuleType, argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line in which a benchmark reports a mistake."""
    assert bench.main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return str(line)


def interrupted_output(
    function: str,
    bench: ModuleType,
    argv: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """What a benchmark prints if it is interrupted when it calls this function of its module."""
    with monkeypatch.context() as patch:
        patch.setattr(bench, function, Mock(side_effect=KeyboardInterrupt))
        assert bench.main(argv) == 130
    return capsys.readouterr().out
