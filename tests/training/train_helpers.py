"""Helpers for tests of whole trainings: make a run, in this or another process, and read or compare its files."""

import csv
import os
import pkgutil
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_helpers import tiny_flags, wait_for_group_exit

from minitrans import cli
from minitrans.text.lines import read_lines


def run_flags(corpus: Path, run_dir: Path, *flags: str, max_steps: int = 25) -> list[str]:
    """Flags of a short run."""
    return [*tiny_flags(corpus, max_steps), "--run-dir", str(run_dir), *flags]


def train(corpus: Path, run_dir: Path, *flags: str, max_steps: int = 25, command: str = "train") -> int:
    """Make a short run in this process, without drawing its curve; return the exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minitrans.training.run.chart_as_svg", lambda _: "")
        return cli.main([command, *run_flags(corpus, run_dir, *flags, max_steps=max_steps)])


def spawn(*command: str | Path, machine: str | None = None, **environment: str) -> "subprocess.Popen[str]":
    """Start Python with these arguments in a session of its own, one thread for each process.

    `machine` names the network namespace that it runs in.
    """
    enter = [] if machine is None else ["ip", "netns", "exec", machine]
    return subprocess.Popen(
        [*enter, sys.executable, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        start_new_session=True,
    )


def finish_process(process: "subprocess.Popen[str]", code: int = 0) -> tuple[str, str]:
    """Wait for a process that has to end with this code, and for all that it has started; return what it writes."""
    with process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    assert "Traceback" not in err, err
    wait_for_group_exit(process.pid)
    return out, err


def wait_for_checkpoint(run_dir: Path, step: int | str, process: "subprocess.Popen[str]") -> None:
    while not any(run_dir.glob(f"checkpoints/step-{step}.ckpt")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def interrupt(process: "subprocess.Popen[str]", signal_number: int, run_dir: Path) -> int:
    """Send a training a signal once it has written a checkpoint; return the step at which it reports a stop."""
    wait_for_checkpoint(run_dir, "*", process)
    os.killpg(process.pid, signal_number)
    out, err = finish_process(process, 130)
    assert out == ""
    assert err.count("stopping after this step") == err.count("minitrans: interrupted") == 1
    stopped = re.search(r"minitrans: interrupted: stopped at step (\d+); the same command with --resume continues", err)
    assert stopped is not None, err
    assert not (run_dir / "model.json").exists()
    return int(stopped[1])


def fail(
    patch: pytest.MonkeyPatch, place: str, error: BaseException, when: Callable[..., bool] = lambda *_: True
) -> None:
    """Make a function or method of the package raise an error when `when` is true of its arguments."""
    original = pkgutil.resolve_name(f"minitrans.training.{place}")

    def failing(*arguments: Any, **named: Any) -> Any:
        if when(*arguments):
            raise error
        return original(*arguments, **named)

    patch.setattr(f"minitrans.training.{place}", failing)


def last_error(capsys: pytest.CaptureFixture[str]) -> str:
    """The last line of standard error."""
    return capsys.readouterr().err.splitlines()[-1]


def read_metrics(run_dir: Path) -> list[dict[str, str]]:
    with open(run_dir / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def saved_steps(run_dir: Path) -> list[int]:
    """The steps of the checkpoints to resume from; the only other file is the best checkpoint, if any."""
    names = {path.name for path in (run_dir / "checkpoints").iterdir()} - {"best.ckpt"}
    return sorted(int(re.fullmatch(r"step-(\d+)\.ckpt", name)[1]) for name in names)  # type: ignore[index]


def read_sides(folder: Path, split: str) -> tuple[list[str], list[str]]:
    """The sources and the targets of a split of a corpus."""
    return read_lines(str(folder / f"{split}.en")), read_lines(str(folder / f"{split}.zh"))


def assert_same_run(one: Path, other: Path) -> None:
    """Assert that two finished runs hold the same files, except for the names of the runs."""
    for name in ("model.safetensors", "metrics.csv", "tokenizer.model", "model.json", "words.txt"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    cards = [re.sub(r"minitrans translate \S+", "", (run / "README.md").read_text("utf-8")) for run in (one, other)]
    assert cards[0] == cards[1]
