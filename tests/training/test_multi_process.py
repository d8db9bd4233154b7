"""Training in several processes, connected by gloo, equals training in one with the same global batches."""

import re
import signal
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np
import pytest
import torch
from command_helpers import STREAM_FLAGS, refusal_message, wait_for_group_exit
from conftest import needs_compiled
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from loss_cases import make_loss
from train_helpers import finish_process, interrupt, read_metrics, run_flags, spawn, train

from minitrans.cli.arguments import N_CORES
from minitrans.data import batching, loader
from minitrans.data.batching import IntArray, collate
from minitrans.model.transformer import Transformer, TransformerConfig
from minitrans.training import precision
from minitrans.training.checkpoints import newest_intact_checkpoint
from minitrans.translate.backend import CompiledMode

pytestmark = pytest.mark.skipif(N_CORES < 2, reason="each process needs a core")
TWO_PROCESSES = ["--trainer.accelerator", "cpu", "--trainer.devices", "2", "--trainer.strategy", "ddp"]
FLOAT64_RUN = Path(__file__).with_name("float64_run.py")


def load_newest_checkpoint(run_dir: Path) -> dict[str, Any]:
    return torch.load(newest_intact_checkpoint(run_dir / "checkpoints")[0], weights_only=True)


def patch_joined_batches(patch: pytest.MonkeyPatch, n_processes: int) -> list[int]:
    """Join the batches of `n_processes` into one at each step; the list gets the number of batches of each plan."""
    plan, planned = batching.plan_batches, list[int]()

    def joined(*arguments: Any) -> list[IntArray]:
        batches = plan(*arguments)
        planned.append(len(batches))
        return [np.concatenate(batches[i : i + n_processes]) for i in range(0, len(batches), n_processes)]

    patch.setattr(loader, "plan_batches", joined)
    return planned


@pytest.mark.parametrize(
    ("way", "read", "n", "steps"),
    [
        pytest.param("require", [], 2, 25, marks=needs_compiled),
        pytest.param("require", STREAM_FLAGS.split(), 2, 25, marks=needs_compiled),
        pytest.param("off", [], 4, 200, marks=pytest.mark.slow),
        pytest.param("off", STREAM_FLAGS.split(), 4, 200, marks=pytest.mark.slow),
    ],
)
def test_several_processes_train_as_one_with_the_same_global_batches(
    way: str, read: list[str], n: int, steps: int, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, several = tmp_path / "one", tmp_path / "several"
    flags = ["--model.dropout", "0", "--trainer.gradient_clip_val", "0.5", "--data.batch_tokens", "520", *read]
    command: list[str | Path] = [FLOAT64_RUN, way, *run_flags(corpus, several, max_steps=steps), *flags, *TWO_PROCESSES]
    if n == 2:
        processes = [spawn(*command)]
    else:  # as on two machines
        command += ["--trainer.num_nodes", "2"]
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_network_port())}
        processes = [spawn(*command, NODE_RANK=rank, **meet) for rank in "01"]
    planned = patch_joined_batches(monkeypatch, n)
    monkeypatch.setitem(precision.TRAINER_PRECISIONS, "fp32", "64-true")
    assert train(corpus, one, *flags, "--compiled", way, max_steps=steps) == 0
    out, err = ("".join(texts) for texts in zip(*map(finish_process, processes), strict=True))
    assert any(length % n for length in planned), (
        "the last step of an epoch or a buffer has to leave a process without rows"
    )

    for kind, atol in (("current_model_state", 1e-10), ("state_dict", 1e-7)):  # the latter is averaged, in float32
        of_one, of_all = load_newest_checkpoint(one)[kind], load_newest_checkpoint(several)[kind]
        for name, tensor in of_one.items():
            assert (tensor - of_all[name]).abs().max() < atol, name
    for of_one, of_all in zip(read_metrics(one), read_metrics(several), strict=True):
        for name, value in of_one.items():
            if value:
                assert float(value) == pytest.approx(float(of_all[name]), rel=1e-6), name
    assert (several / "words.txt").read_bytes() == (one / "words.txt").read_bytes()
    # Only the first process writes.
    assert {path.name for path in several.iterdir()} == {path.name for path in one.iterdir()}
    card = (one / "README.md").read_text("utf-8")
    assert (several / "README.md").read_text("utf-8") == card.replace(str(one), str(several))
    assert out.count("run folder: ") == out.count("valid: ") == 1
    n_left_out = 0 if read else 1  # a stream reports only its first buffer, which has no pair that is too long
    counts = [err.count(text) for text in ("left out", "precision: fp32", "val loss")]
    assert counts == [n_left_out, 1, -(-steps // 20)]


@pytest.mark.parametrize("way", [pytest.param("require", marks=needs_compiled), "off"])
def test_a_batch_without_rows_has_zero_loss_and_zero_gradients(way: CompiledMode) -> None:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(vocab_size=9, pad_id=3, bos_id=1, eos_id=2, d_model=8, n_heads=2))
    batch = collate([], [], pad_id=3, bos_id=1, eos_id=2)
    loss = make_loss(model, way)(batch.src_ids, batch.tgt_in, batch.tgt_out, 0.1)
    loss.backward()
    assert loss == 0
    for parameter in model.parameters():
        assert parameter.grad is not None  # DDP waits for each
        assert not parameter.grad.any()


@pytest.mark.slow
def test_ctrl_c_stops_all_processes_and_the_run_resumes_to_the_same_result(corpus: Path, tmp_path: Path) -> None:
    """With dropout, which drops other elements in each process, but the same ones in a resumed run."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"

    def begin(run_dir: Path, *flags: str) -> "Popen[str]":
        return spawn("-m", "minitrans", "train", *run_flags(corpus, run_dir, *flags, max_steps=60))

    finish_process(begin(whole, *TWO_PROCESSES))
    stopped = interrupt(begin(broken, *TWO_PROCESSES), signal.SIGINT, broken)
    saved = load_newest_checkpoint(broken)
    assert saved["global_step"] == stopped
    assert not torch.equal(*(states["torch"] for states in saved["rng_states"]))

    # One process cannot take over from two.
    _, err = finish_process(begin(broken, "--resume"), 2)
    said = r"minitrans: error: processes when .*/step-\d+\.ckpt was written: 2; now: 1; "
    assert re.match(said, err.splitlines()[-1])

    finish_process(begin(broken, *TWO_PROCESSES, "--resume"))
    one, other = load_newest_checkpoint(whole), load_newest_checkpoint(broken)
    for states, states_of_other in zip(one["rng_states"], other["rng_states"], strict=True):
        assert torch.equal(states.pop("torch"), states_of_other.pop("torch"))
        assert states == states_of_other
    for name, tensor in one["current_model_state"].items():
        assert torch.equal(tensor, other["current_model_state"][name]), name
    assert (whole / "metrics.csv").read_text() == (broken / "metrics.csv").read_text()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux ends a process with its parent")
def test_no_process_outlives_a_killed_first_process(corpus: Path, tmp_path: Path) -> None:
    first = spawn("-m", "minitrans", "train", *run_flags(corpus, tmp_path / "run", *TWO_PROCESSES))
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children")

    def has_begun(pid: str) -> bool:  # and is no longer a copy of the first
        process = Path("/proc") / pid
        return "__main__" in (process / "cmdline").read_text() and "libtorch" in (process / "maps").read_text()

    while not any(map(has_begun, children.read_text().split())):
        assert first.poll() is None
    first.kill()
    first.communicate(timeout=60)  # until the second has closed its end as well
    wait_for_group_exit(first.pid)


@pytest.mark.slow
def test_an_error_of_all_processes_is_reported_once(corpus: Path, tmp_path: Path) -> None:
    flags = run_flags(corpus, tmp_path / "run", *TWO_PROCESSES, "--training.learning_rate", "1e30", max_steps=60)
    _, err = finish_process(spawn("-m", "minitrans", "train", *flags), 2)
    assert err.count("minitrans: error: ") == err.count("minitrans: error: training failed at step ") == 1


def test_a_run_is_resumed_only_by_as_many_processes(corpus: Path, tiny_run: Path) -> None:
    flags = run_flags(corpus, tiny_run, *TWO_PROCESSES, "--resume", max_steps=200)
    said = f"processes when {tiny_run}/checkpoints/step-200.ckpt was written: 1; now: 2; resume with "
    assert refusal_message("train", *flags, unchanged=tiny_run).startswith(said)


def test_slurm_has_to_start_as_many_processes(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NTASKS": "1", "JOB_NAME": "train", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    flags = run_flags(corpus, tmp_path / "run", *TWO_PROCESSES)
    said = "torchrun or Slurm has started 1 processes, but trainer.devices and trainer.num_nodes ask for 2; "
    assert refusal_message("train", *flags, unchanged=tmp_path).startswith(said)


@pytest.mark.slow
def test_an_error_of_one_process_ends_all(corpus: Path, tmp_path: Path) -> None:
    _, err = finish_process(spawn(FLOAT64_RUN, "fail", *run_flags(corpus, tmp_path / "run"), *TWO_PROCESSES), 2)
    errors = [line for line in err.splitlines() if line.startswith("minitrans: error: ")]
    assert errors == [
        "minitrans: error: the second process has a fault of its own",
        "minitrans: error: a training process ended with code 2; see its messages above",
    ]
