"""Training in two processes, which talk by gloo: as in one with the same global batches."""

import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import loss_of, needs_compiled, tiny_settings, wait_for_the_end_of
from lightning.fabric.plugins.environments.lightning import find_free_network_port

from minitrans import cli
from minitrans.admission import Mode
from minitrans.data import batching
from minitrans.data.batching import IntArray, TokenBatchSampler, collate
from minitrans.model.transformer import Transformer, TransformerConfig
from minitrans.training import precision
from minitrans.training.checkpoints import newest_checkpoint

TWO = ["--trainer.accelerator", "cpu", "--trainer.devices", "2", "--trainer.strategy", "ddp"]
FLOAT64_RUN = Path(__file__).with_name("float64_run.py")


def start(*command: str | Path, **environment: str) -> "subprocess.Popen[str]":
    """Start a command in a session of its own, one thread for each process."""
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        start_new_session=True,
    )


def finish(process: "subprocess.Popen[str]", code: int = 0) -> tuple[str, str]:
    """What it writes until it has ended with this code, and all that it has started."""
    with process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    assert "Traceback" not in err
    wait_for_the_end_of(process.pid)
    return out, err


@pytest.fixture(scope="module")
def corpus(tiny_run: Path) -> Path:
    return tiny_run.parent


def settings(corpus: Path, run_dir: Path, max_steps: int = 25) -> list[str]:
    return [*tiny_settings(corpus, max_steps), "--run-dir", str(run_dir)]


def curve(run_dir: Path) -> list[dict[str, str]]:
    with open(run_dir / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def checkpoint(run_dir: Path) -> dict[str, Any]:
    return torch.load(newest_checkpoint(run_dir / "checkpoints"), weights_only=True)


def global_batches(patch: pytest.MonkeyPatch) -> None:
    """Give one process at each step what two would be given."""
    plan = batching.plan_batches

    def pairs_of_batches(*arguments: Any) -> list[IntArray]:
        batches = plan(*arguments)
        assert len(batches) % 2 == 1, "the last step of an epoch has to leave a process without rows"
        return [np.concatenate(batches[i : i + 2]) for i in range(0, len(batches), 2)]

    patch.setattr(batching, "plan_batches", pairs_of_batches)
    patch.setattr(TokenBatchSampler, "__len__", lambda self: (self._n_batches + 1) // 2)


@pytest.mark.parametrize(
    "way", [pytest.param("require", marks=needs_compiled), pytest.param("off", marks=pytest.mark.slow)]
)
def test_two_processes_train_as_one_with_the_same_global_batches(
    way: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    flags = ["--model.dropout", "0", "--trainer.gradient_clip_val", "0.5", "--data.batch_tokens", "480"]
    command: list[str | Path] = [FLOAT64_RUN, way, *settings(corpus, two), *flags, *TWO]
    if way == "require":
        processes = [start(*command)]
    else:  # as on two machines
        command += ["--trainer.devices", "1", "--trainer.num_nodes", "2"]
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_network_port())}
        processes = [start(*command, NODE_RANK=rank, **meet) for rank in "01"]
    global_batches(monkeypatch)
    monkeypatch.setitem(precision.OF_TRAINER, "fp32", "64-true")
    assert cli.main(["train", *settings(corpus, one), *flags, "--compiled", way]) == 0
    out, err = ("".join(texts) for texts in zip(*map(finish, processes), strict=True))

    for kind, atol in (("current_model_state", 1e-10), ("state_dict", 1e-7)):  # the latter is averaged, in float32
        ours, theirs = checkpoint(one)[kind], checkpoint(two)[kind]
        for name, tensor in ours.items():
            assert (tensor - theirs[name]).abs().max() < atol, name
    for ours, theirs in zip(curve(one), curve(two), strict=True):
        for name, value in ours.items():
            if value:
                assert float(value) == pytest.approx(float(theirs[name]), rel=1e-6), name
    assert (two / "words.txt").read_bytes() == (one / "words.txt").read_bytes()
    # The first process alone writes.
    assert {path.name for path in two.iterdir()} == {path.name for path in one.iterdir()}
    assert (two / "README.md").read_text() == (one / "README.md").read_text().replace(str(one), str(two))
    assert out.count("run folder: ") == out.count("valid: ") == 1
    assert [err.count(text) for text in ("left out", "precision: fp32", "val loss")] == [1, 1, 2]


@pytest.mark.parametrize("way", [pytest.param("require", marks=needs_compiled), "off"])
def test_a_batch_of_no_rows_costs_nothing_and_moves_nothing(way: Mode) -> None:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(vocab_size=9, pad_id=3, bos_id=1, eos_id=2, d_model=8, n_heads=2))
    batch = collate([], [], pad_id=3, bos_id=1, eos_id=2)
    loss = loss_of(model, way)(batch.src_ids, batch.tgt_in, batch.tgt_out, 0.1)
    loss.backward()
    assert loss == 0
    for parameter in model.parameters():
        assert parameter.grad is not None  # DDP waits for each
        assert not parameter.grad.any()


@pytest.mark.slow
def test_ctrl_c_stops_all_and_the_run_goes_on_as_if_it_had_not(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With dropout: other elements in each process, the same in a resumed run."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(start("-m", "minitrans", "train", *settings(corpus, whole, 60), *TWO))
    process = start("-m", "minitrans", "train", *settings(corpus, broken, 60), *TWO)
    while not any(broken.glob("checkpoints/step-*.ckpt")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    out, err = finish(process, 130)
    assert out == ""
    assert err.count("stopping after this step") == err.count("minitrans: interrupted") == 1
    stopped = re.search(r"minitrans: interrupted: stopped at step (\d+); the same command with --resume continues", err)
    assert stopped is not None, err
    saved = checkpoint(broken)
    assert saved["global_step"] == int(stopped[1])
    assert not torch.equal(*(states["torch"] for states in saved["rng_states"]))

    # One process cannot take over from two.
    _, err = finish(start("-m", "minitrans", "train", *settings(corpus, broken, 60), "--resume"), 2)
    assert err.splitlines()[-1].startswith(
        "minitrans: error: the checkpoint was written by 2 processes, and these are 1"
    )

    finish(start("-m", "minitrans", "train", *settings(corpus, broken, 60), *TWO, "--resume"))
    one, other = checkpoint(whole), checkpoint(broken)
    for states, states_of_other in zip(one["rng_states"], other["rng_states"], strict=True):
        assert torch.equal(states.pop("torch"), states_of_other.pop("torch"))
        assert states == states_of_other
    for name, tensor in one["current_model_state"].items():
        assert torch.equal(tensor, other["current_model_state"][name]), name
    assert (whole / "metrics.csv").read_text() == (broken / "metrics.csv").read_text()


@pytest.mark.slow
def test_what_all_processes_fail_of_is_told_once(tiny_run: Path, tmp_path: Path) -> None:
    run_dir = shutil.copytree(tiny_run, tmp_path / "run")
    _, err = finish(start("-m", "minitrans", "train", *settings(tiny_run.parent, run_dir, 300), "--resume", *TWO), 2)
    assert err.count("minitrans: error: the checkpoint was written by 1 processes, and these are 2") == 1


@pytest.mark.slow
def test_a_fault_of_one_process_ends_all(corpus: Path, tmp_path: Path) -> None:
    _, err = finish(start(FLOAT64_RUN, "fail", *settings(corpus, tmp_path / "run"), *TWO), 2)
    errors = [line for line in err.splitlines() if line.startswith("minitrans: error: ")]
    assert errors == [
        "minitrans: error: the second process has a fault of its own",
        "minitrans: error: a training process ended with code 2; see its messages above",
    ]


def test_other_strategies_are_refused(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", *settings(corpus, tmp_path / "run"), "--trainer.strategy", "fsdp"]) == 2
    assert capsys.readouterr().err.endswith("error: --trainer.strategy is fsdp; it must be auto or ddp\n")
    assert not (tmp_path / "run").exists()
