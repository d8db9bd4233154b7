"""Run commands in a changed copy of the package, each list of them in a process of its own.

Each process is forked from one that has imported the libraries, which takes most of the time, but no code of ours.
"""

import contextlib
import io
import json
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

PRELOADED = ["lightning.pytorch", "datasets", "sacrebleu", "jsonargparse", "ctranslate2"]
PRELOADED += ["torch.utils.tensorboard", "matplotlib.figure"]


def run_copy(folder: Path, commands: Sequence[Sequence[str]], **environment: str) -> tuple[list[tuple[int, str]], str]:
    """Run commands in the copy: their exit codes and what they printed, and standard error."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # as the libraries see it
        process = context.Process(target=_run_in_process, args=(folder, commands, dict(os.environ) | environment))
        process.start()
    process.join()
    err = (folder / "err").read_text(encoding="utf-8")
    assert process.exitcode == 0, err
    return [tuple(json.loads(line)) for line in (folder / "out").read_text(encoding="utf-8").splitlines()], err


def _run_in_process(folder: Path, commands: Sequence[Sequence[str]], environment: Mapping[str, str]) -> None:
    """Run the commands in this process. The package is imported only from the copy: what that lacks is missing."""
    for name, stream in (("out", 1), ("err", 2)):
        with open(folder / name, "wb") as file:
            os.dup2(file.fileno(), stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, str(folder))
    sys.meta_path = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
    from minitrans import cli

    assert Path(str(cli.__file__)).is_relative_to(folder)
    for argv in commands:
        out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
        print("$", argv[0], file=sys.stderr, flush=True)
        with contextlib.redirect_stdout(out):
            code = cli.main([*argv])
        print(json.dumps([code, out.buffer.getvalue().decode()]), flush=True)
