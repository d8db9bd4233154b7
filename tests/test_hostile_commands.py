"""Random input from a stranger, typed or in files: one line, exit code 2, nothing written, and all within seconds.

The random tests take seconds; set HOSTILE_EXAMPLES, for instance to 10000, to run them for longer.
"""

import errno
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import fields
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from command_helpers import copy_run, folder_contents, refusal_message, run_cli, tiny_flags
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrans import cli
from minitrans.cachecheck.measurement import Report
from minitrans.training.config import SECTIONS
from minitrans.verify import run_checks

HYPOTHESIS_SETTINGS = settings(max_examples=int(os.environ.get("HOSTILE_EXAMPLES", "60")))


def quick_refusal_message(*words: str | Path, unchanged: Path) -> str:
    """Like `refusal_message`, within ten seconds of processor time."""
    began = time.process_time()
    error = refusal_message(*words, unchanged=unchanged)
    assert time.process_time() - began < 10
    return error


# -- Settings -------------------------------------------------------------------------------------------------------


SETTING_NAMES = [
    *("seed", "compiled"),
    *(f"{section}.{field.name}" for section, kind in SECTIONS.items() for field in fields(kind)),
]
VALUES = [
    *("0", "-1", "1e30", "1e-30", "nan", ".nan", ".inf", "-.inf", "", " ", "null", "true", "yes", "[]", "{}", "[1, 2]"),
    *("{a: 1}", "a", "1.5", "0.5", "-" + "9" * 30, "9" * 23, "9" * 5000, "0x" + "f" * 5000),
    *("[" * 500, "&a [*a]", "'1'", "x" * 100_000, "\x1b[2J", "a\nb", "\u202e", "\udc80", "../../x", "/dev/zero"),
    *("1:1:1:1:1", "2001-99-99", "!!int x"),
    *("!!python/object/apply:os.getcwd []", "{class_path: os.getcwd}", "os.getcwd", "minitrans.cli.main", "%s", "{0}"),
]
any_setting = st.tuples(st.sampled_from(SETTING_NAMES), st.sampled_from(VALUES) | st.text(max_size=5))


@settings(HYPOTHESIS_SETTINGS)
@given(st.lists(any_setting, min_size=1, max_size=2))
def test_any_value_of_any_setting_ends_in_one_line(offline_cwd: Path, drawn: list[tuple[str, str]]) -> None:
    """Even if the value happens to be valid, there is no corpus."""
    flags = [f"--{name}={value}" for name, value in drawn]
    quick_refusal_message("train", *tiny_flags(offline_cwd / "gone"), "--run-dir", "r", *flags, unchanged=offline_cwd)


@settings(HYPOTHESIS_SETTINGS)
@given(any_setting, st.booleans())
def test_any_setting_in_a_file_ends_in_one_line(offline_cwd: Path, drawn: tuple[str, str], quoted: bool) -> None:
    name, value = drawn
    section, _, key = name.rpartition(".")
    setting = f"{key}: {yaml.safe_dump(value) if quoted else value}\n"
    path = offline_cwd / "c.yaml"
    path.write_bytes((f"{section}:\n  {setting}" if section else setting).encode(errors="surrogateescape"))
    flags = [*tiny_flags(offline_cwd / "gone"), "--run-dir", "r", "--config", str(path)]
    quick_refusal_message("train", *flags, unchanged=offline_cwd)
    path.unlink()


# -- Flags ----------------------------------------------------------------------------------------------------------


COMMAND_WORDS = st.sampled_from(
    [*cli.COMMANDS, *VALUES]
    + [f"{flag}{end}" for name in cli.COMMANDS for flag in ("--run-dir", "--beam", "--input", "--json", "-o", "--model")
       for end in ("", "=", "=x")]
    + ["--help", "--version", "--print-config", "--debug=1", "--config", "--source", "--reference", "--threads", "--",
       "-", "-x", "--list", "--sabotage", "--n-best", "--sample", "--no-cache", "RUN", "gone"]
) | st.text(max_size=4)  # fmt: skip


@settings(HYPOTHESIS_SETTINGS)
@given(st.sampled_from([*cli.COMMANDS]), st.lists(COMMAND_WORDS, max_size=6))
def test_any_command_line_ends_in_one_line(offline_cwd: Path, name: str, words: list[str]) -> None:
    """No command line names an existing run, so none has anything to do."""
    if name == "verify" and "gone" not in words:
        words = [*words, "gone"]
    code, _, err = run_cli(name, *words)
    assert code in (0, 2)
    assert len(err.splitlines()) <= 2
    assert code == 0 or "minitrans: error: " in err
    assert [*offline_cwd.iterdir()] == []


# -- Run folders ----------------------------------------------------------------------------------------------------


def test_reading_a_run_writes_only_to_the_users_own_cache(
    tiny_run: Path, tmp_path: Path, fresh_model_report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "own")
    monkeypatch.setattr(run_checks, "run", lambda **_: fresh_model_report)
    run = copy_run(tiny_run, tmp_path / "run", cache_dir=tmp_path / "planted")
    before = folder_contents(tmp_path)
    assert run_cli("translate", run, "I love you.")[0] == 0
    assert run_cli("verify", run)[0] == 0
    after = folder_contents(tmp_path)
    assert {name: after[name] for name in after if not name.startswith("own")} == before


def test_a_run_that_was_moved_with_its_corpus_is_verified_from_anywhere(
    tiny_run: Path, offline_cwd: Path, tmp_path: Path, fresh_model_report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_checks, "run", lambda **_: fresh_model_report)
    home = tmp_path / "home"
    run = copy_run(tiny_run, home / "runs/run", path="data/tiny")
    shutil.copytree(tiny_run.parent, home / "data/tiny", ignore=shutil.ignore_patterns("run", "cache"))
    assert run_cli("verify", run)[0] == 0
    monkeypatch.chdir(home / "runs")
    assert run_cli("verify", "run")[0] == 0


# -- Disks, signals -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full disk to write to")
@pytest.mark.parametrize("command", ["translate {} ☂", "verify --help"])  # the first is sure of its translation
def test_a_full_disk_is_reported_in_one_line(command: str, tiny_run: Path) -> None:
    words = [sys.executable, "-m", "minitrans", *command.format(tiny_run).split()]
    with open("/dev/full", "wb") as full:
        env = os.environ | {"PYTHONUNBUFFERED": ""}  # else argparse swallows the error
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, env=env, timeout=60, check=False)
    said = "minitrans: error: cannot write the output: No space left on device; make room, or write elsewhere\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_a_forbidden_folder_or_file_is_reported_in_one_line(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES), "run")
    monkeypatch.setattr(Path, "is_file", Mock(side_effect=refused))
    assert refusal_message("translate", tiny_run, "a").startswith("cannot use run: Permission denied; ask its owner")
    monkeypatch.undo()
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "words.txt")  # root may read all
    said = f"cannot read {tiny_run / 'words.txt'}: Permission denied; ask its owner for access"
    assert refusal_message("translate", tiny_run, "a") == said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_half_written(number: signal.Signals, tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("I love you, and I saw a saw.\n" * 200_000)
    words = [sys.executable, "-m", "minitrans", "translate", str(tiny_run), "--input", "in", "--output", "out"]
    heard = partial(signal.signal, number, signal.SIG_DFL)  # `nohup pytest` would have it ignored
    with subprocess.Popen(words, stderr=subprocess.PIPE, cwd=tmp_path, text=True, preexec_fn=heard) as process:
        while not any(tmp_path.glob("out.*.tmp")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(60) == 130
        assert process.stderr is not None
        assert process.stderr.read() == "minitrans: interrupted\n"
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_terminal_may_lack_characters(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ß").write_text("I love you.\n")
    out = io.TextIOWrapper(io.BytesIO(), "ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", out)
    assert cli.main(["evaluate", str(tiny_run), "--source", f"{tmp_path}/ß", "--reference", f"{tmp_path}/ß"]) == 0
    assert out.buffer.getvalue().startswith(b"\\xdf: BLEU ")


def test_the_version_is_printed() -> None:
    code, out, _ = run_cli("--version")
    assert (code, out[:12]) == (0, "minitrans 0.")
