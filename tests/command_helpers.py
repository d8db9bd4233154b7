"""Helpers that run commands in this process, make and copy tiny runs, and run the code that a README shows."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from minitrans import cli

TEST_CORPUS_DIR = Path(__file__).parent / "corpus"  # simple; trained on it, `tiny_run` writes words but no sentences
STREAM_FLAGS = "--data.streaming true --data.shuffle_buffer 150"


def run_cli(*words: str | Path, stdin: bytes = b"") -> tuple[int, str, str]:
    """Run a command; return its exit code, and what it writes to standard output and to standard error."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True), io.StringIO()
    with (
        tempfile.TemporaryFile("w+") as file,
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        file.buffer.write(stdin)
        file.seek(0)
        patch.setattr(sys, "stdin", file)
        try:
            code = cli.main([str(word) for word in words])
        except SystemExit as ended:  # --help, --version, --print-config
            code = int(ended.code or 0)
    out.seek(0)
    return code, out.read(), err.getvalue()


def folder_contents(folder: Path) -> dict[str, bytes | None]:
    """All names in a folder, with the content of the files, up to their first 16 MB."""
    contents: dict[str, bytes | None] = dict.fromkeys(str(path.relative_to(folder)) for path in folder.rglob("*"))
    for name in contents:
        if (folder / name).is_file():
            with (folder / name).open("rb") as file:
                contents[name] = file.read(1 << 24)
    return contents


def refusal_message(*words: str | Path, unchanged: Path | None = None) -> str:
    """Run a command that has to end with code 2 and leave a folder unchanged; return its one error message."""
    before = folder_contents(unchanged) if unchanged else {}
    code, out, err = run_cli(*words)
    assert (code, out) == (2, ""), err
    *notices, error = err.splitlines()
    assert all(notice.startswith("minitrans: warning: ") for notice in notices)
    assert error.startswith("minitrans: error: ")
    assert len(error) < 1000
    assert before == (folder_contents(unchanged) if unchanged else {})
    return error.removeprefix("minitrans: error: ")


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files into a folder, made if it is missing; return the folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def parquet_bytes(**columns: object) -> bytes:
    """A Parquet file of these columns."""
    pq.write_table(pa.table(columns), file := io.BytesIO())
    return file.getvalue()


def copy_run(run: Path, folder: Path, **data_settings: str | Path) -> Path:
    """Copy a run, except what it is resumed from, and change its data settings; return the folder."""
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("checkpoints", "tensorboard"))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["data"] |= {name: str(value) for name, value in data_settings.items()}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def write_corpus(folder: Path, **sizes: int) -> None:
    """Write the first pairs of each split into a folder."""
    for split, n in sizes.items():
        for language in ("en", "zh"):
            lines = (TEST_CORPUS_DIR / f"{split}.{language}").read_text(encoding="utf-8").splitlines()[:n]
            (folder / f"{split}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")


def tiny_flags(data: Path, max_steps: int = 200) -> list[str]:
    """Flags that train the smallest model worth the name on a folder of `train`, `valid` and `test` files."""
    settings = {
        "data.path": data,
        "data.source": "en",
        "data.target": "zh",
        "data.cache_dir": data / "cache",
        "data.batch_tokens": 400,
        "tokenizer.vocab_size": 1000,
        "tokenizer.character_coverage": 1.0,
        "model.d_model": 32,
        "model.n_heads": 2,
        "model.d_ff": 48,
        "model.n_layers": 1,
        "model.max_len": 40,
        "training.learning_rate": 0.01,
        "training.warmup_steps": 10,
        "training.ema_decay": 0.9,
        "training.checkpoint_every": 7,
        "training.precision": "fp32",  # on every machine
        "trainer.accelerator": "cpu",
        "trainer.max_steps": max_steps,
        "trainer.val_check_interval": 20,
        "trainer.check_val_every_n_epoch": "null",
        "trainer.log_every_n_steps": 5,
    }
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


class EvilPickle:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def wait_for_group_exit(group: int) -> None:
    """Wait until the last process of a group has ended, half a minute at most."""
    with contextlib.suppress(ProcessLookupError):
        for _ in range(3000):
            os.killpg(group, 0)
            time.sleep(0.01)
        raise AssertionError("a process has been left behind")


def run_readme_code(folder: Path, lines: list[str], blocked_module: str, expression: str = "translate(lines)") -> Any:
    """Run a README's code on lines, outside its folder, where our package and another one cannot be imported."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.S)
    example, place = 'print(translate(["..."]))', 'FOLDER = "."'
    assert example in code
    assert place in code
    code = code.replace(example, f"lines = json.load(sys.stdin)\nprint(json.dumps({expression}))")
    code = code.replace(place, f"FOLDER = {str(folder)!r}")
    program = f"import json, sys\nsys.modules |= {{'minitrans': None, {blocked_module!r}: None}}\n{code}"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, input=json.dumps(lines).encode(), stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)
