"""Runs that are killed or stopped, and checkpoints that are damaged, do not fit on the disk, or are not ours."""

import errno
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import kill_resume
import pytest
import torch
from command_helpers import STREAM_FLAGS, EvilPickle, refusal_message
from lightning.pytorch import Trainer
from torch import Tensor
from train_helpers import (
    assert_same_run,
    fail,
    finish_process,
    interrupt,
    last_error,
    read_metrics,
    read_sides,
    run_flags,
    saved_steps,
    spawn,
    train,
)

from minitrans.data.batching import Batch
from minitrans.errors import UserError
from minitrans.text.tokenizer import Tokenizer
from minitrans.training import checkpoints, run
from minitrans.training.config import TrainingConfig, parse_config
from minitrans.training.module import TranslationModule

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
EPOCH_FLAGS = "--trainer.max_steps -1 --trainer.max_epochs 3 --trainer.check_val_every_n_epoch 2"


class KilledError(BaseException):
    """Stands in for a kill: no code catches it, so that the run does not end in an orderly way."""


def kill_at_step(patch: Patch, step: int, extra_batches: int = 0) -> None:
    """Kill the run after this many steps, and then this many more batches."""
    left, place = iter([False] * extra_batches), "module.TranslationModule.training_step"
    fail(patch, place, KilledError(), lambda module, *_: module.global_step >= step and next(left, True))


def signal_at_step(patch: Patch, step: int, number: signal.Signals, name: str) -> None:
    original = getattr(TranslationModule, name)

    def signalled(module: TranslationModule, batch: Batch, batch_idx: int) -> Any:
        if module.global_step == step and (name == "training_step" or batch_idx == 0):
            signal.raise_signal(number)
        return original(module, batch, batch_idx)

    patch.setattr(TranslationModule, name, signalled)


# -- Killed or stopped ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param("", id="steps"),
        pytest.param(f"{EPOCH_FLAGS} --trainer.val_check_interval 1.0", id="epochs"),
        pytest.param(f"{EPOCH_FLAGS} --trainer.val_check_interval 10", id="validation within epochs"),
        pytest.param(
            "--trainer.accumulate_grad_batches 3 --trainer.val_check_interval 12 --data.batch_tokens 390",
            id="accumulation",
        ),
        pytest.param(STREAM_FLAGS, id="stream"),
        pytest.param("--training.init_from {other}", id="from the weights of another run"),
    ],
)
def test_a_run_killed_every_few_steps_ends_like_an_unbroken_run(
    flags: str, tiny_run: Path, corpus: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    """Checkpoints come after each step, so also at the end of an epoch, of 22 batches, and before a validation."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    other = shutil.copytree(tiny_run, tmp_path / "other")
    (other / "words.txt").write_text((other / "words.txt").read_text().replace("love\n", "xyzzy\n"))
    every_step = (*flags.format(other=other).split(), "--training.checkpoint_every", "1")
    assert train(corpus, whole, *every_step, max_steps=48) == 0
    resume: tuple[str, ...] = ()
    for step in (8, 19, 21, 43, 45):  # plus a batch: resumed after 20, a validation, and 22 and 44, ends of epochs
        with monkeypatch.context() as patch:
            kill_at_step(patch, step, extra_batches=1)  # of several whose gradients are summed up
            with pytest.raises(KilledError):
                train(corpus, broken, *every_step, *resume, max_steps=48)
        resume = ("--resume",)
        shutil.rmtree(other, ignore_errors=True)  # no longer needed
    assert train(corpus, broken, *every_step, *resume, max_steps=48) == 0
    assert_same_run(whole, broken)
    assert saved_steps(whole) == saved_steps(broken)
    steps = [row["step"] for row in read_metrics(whole) if row["train_loss"]]
    assert len(steps) == len({*steps}) >= 4


@pytest.mark.parametrize("error", [BrokenPipeError, RuntimeError("reentrant call inside <_io.BufferedWriter>")])
def test_a_second_signal_stops_at_once(error: Any, monkeypatch: Patch) -> None:
    """The first does not, even if standard error is closed, or a line is being written."""
    writer = checkpoints.CheckpointWriter(Path(), TrainingConfig(), Mock())
    monkeypatch.setattr("sys.stderr", Mock(write=Mock(side_effect=error)))
    writer._handle_signal(2, None)
    assert writer.heard
    with pytest.raises(KeyboardInterrupt):
        writer._handle_signal(2, None)


@pytest.fixture(scope="module")
def whole_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint every five steps that nothing has stopped; tests only read it."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    assert train(corpus, run_dir, "--training.checkpoint_every", "5") == 0
    return run_dir


@pytest.mark.parametrize(
    ("place", "when", "error", "steps", "best"),
    [
        ("module.TranslationModule.validation_step", lambda *_: True, KilledError(), [10, 15], False),
        ("checkpoints.CheckpointWriter._save_if_due", lambda self, _: self.step == 20, KilledError(), [10, 15], True),
        ("run.save_bundle", lambda *_: True, KilledError(), [20, 25], True),
        # A second signal
        ("callbacks.ValidationScorer.on_validation_epoch_end", lambda *_: True, KeyboardInterrupt(), [10, 15], False),
    ],
    ids=["before the validation", "between two checkpoints", "after the last step", "stopped in the validation"],
)
def test_a_run_that_ends_at_an_unlucky_moment_resumes_to_the_same_result(
    place: str,
    when: Any,
    error: BaseException,
    steps: list[int],
    best: bool,
    whole_run: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: Patch,
) -> None:
    broken, flags = tmp_path / "broken", ("--training.checkpoint_every", "5")
    with monkeypatch.context() as patch:
        fail(patch, place, error, when)
        try:
            assert train(corpus, broken, *flags) == 130
        except KilledError:
            assert not isinstance(error, KeyboardInterrupt)
    assert (saved_steps(broken), (broken / "checkpoints/best.ckpt").exists()) == (steps, best)
    assert not (broken / "model.json").exists()
    (broken / "checkpoints/step-99.ckpt.123.tmp").write_bytes(b"half")
    assert train(corpus, broken, "--resume", *flags) == 0
    assert_same_run(whole_run, broken)
    assert saved_steps(whole_run) == saved_steps(broken)


def test_an_interrupt_before_the_first_checkpoint_suggests_overwrite(
    corpus: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    fail(monkeypatch, "module.TranslationModule.training_step", KeyboardInterrupt())
    assert train(corpus, tmp_path / "run") == 130
    assert last_error(capsys).endswith("stopped at step 0, before the first checkpoint; train again with --overwrite")


def test_a_signal_saves_and_the_run_can_be_resumed(corpus: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    """One is sent to a process of its own; the others are raised here, in a step and in the last validation."""
    whole = tmp_path / "whole"
    assert train(corpus, whole, max_steps=80) == 0
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        run_dir = tmp_path / number.name
        if number == signal.SIGINT:
            process = spawn("-m", "minitrans", "train", *run_flags(corpus, run_dir, max_steps=80))
            step = interrupt(process, number, run_dir)
        else:
            at, name, step = (7, "training_step", 8) if number == signal.SIGTERM else (80, "validation_step", 80)
            with monkeypatch.context() as patch:
                signal_at_step(patch, at, number, name)
                assert train(corpus, run_dir, max_steps=80) == 130
        assert checkpoints.read_checkpoint(run_dir / f"checkpoints/step-{step}.ckpt")["global_step"] == step
        assert train(corpus, run_dir, "--resume", max_steps=80) == 0
        assert_same_run(whole, run_dir)


TOKENIZING_PROGRAM = """
import multiprocessing, os, sys, time
from unittest import mock
from minitrans import cli
from minitrans.data import corpus

def wait(*arguments):
    print("x", file=out, flush=True)
    time.sleep(seconds)
    return proceed(*arguments)

out = open(os.dup(1), "w")  # an interrupted command sends its own standard output to /dev/null
corpus._PAIRS_PER_PROCESS, corpus._n_cores = 100, lambda: 2
starting, working = (corpus, "_tokenize_in_worker", 0.5), (corpus.Tokenizer, "encode_batch", 100)
for place, name, seconds in (starting, working, working):
    proceed = getattr(place, name)
    with mock.patch.object(place, name, wait):
        print(cli.main(sys.argv[1:]), multiprocessing.active_children(), file=out, flush=True)
"""


@pytest.mark.skipif(sys.platform == "darwin", reason="its processes are spawned, without the patches")
def test_a_signal_ends_all_processes_that_tokenize(corpus: Path, tmp_path: Path) -> None:
    flags = run_flags(corpus, tmp_path / "run", "--data.cache_dir", str(tmp_path))
    process = spawn("-c", TOKENIZING_PROGRAM, "train", *flags)
    assert process.stdout is not None
    for kill, number in ((os.killpg, signal.SIGINT), (os.killpg, signal.SIGTERM), (os.kill, signal.SIGTERM)):
        assert [process.stdout.readline() for _ in range(2)] == ["x\n"] * 2  # both have got this far
        kill(process.pid, number)
        assert process.stdout.readline() == "130 []\n"
    assert finish_process(process) == ("", "minitrans: interrupted\n" * 3)
    assert not [*tmp_path.rglob("*.tmp")]


@pytest.mark.parametrize("in_thread", [False, True])  # signals are handled only in the main thread
def test_signals_are_handled_until_training_ends(
    in_thread: bool, corpus: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    def handlers() -> list[Any]:
        return [*map(signal.getsignal, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1))]

    during, step = list[Any](), TranslationModule.training_step

    def observed(*given: Any) -> Tensor:
        during[:] = handlers()
        return step(*given)

    monkeypatch.setattr(TranslationModule, "training_step", observed)
    config = parse_config(run_flags(corpus, tmp_path / "run", max_steps=2))
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup pytest` ignores it
    before = handlers()
    with ThreadPoolExecutor(1) as pool:
        list((pool.map if in_thread else map)(run.train, [config]))
    after = handlers()
    signal.signal(signal.SIGHUP, hangup)
    assert after == before
    assert [now != then for now, then in zip(during, before, strict=True)] == [not in_thread] * 4


def test_a_signal_that_was_ignored_before_training_stays_ignored(
    corpus: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    signal_at_step(monkeypatch, 1, signal.SIGINT, "training_step")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a script's & has it
    try:
        run.train(parse_config(run_flags(corpus, tmp_path / "run", max_steps=2)))
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "run/model.json").is_file()


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--training.patience", "1", "--trainer.val_check_interval", "4"),
        (*EPOCH_FLAGS.split(), "--trainer.max_epochs", "1"),
    ],
)
def test_a_run_that_has_ended_or_stopped_early_is_only_evaluated_again(
    flags: tuple[str, ...], corpus: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    run_dir, copy = tmp_path / "run", tmp_path / "copy"
    assert train(corpus, run_dir, *flags) == 0
    assert (saved_steps(run_dir)[-1] < 25) == bool(flags)
    shutil.copytree(run_dir, copy)
    for name in ("model.safetensors", "metrics.csv", "README.md"):
        (run_dir / name).unlink()
    kill_at_step(monkeypatch, 0)
    assert train(corpus, run_dir, *flags, "--resume") == 0
    assert_same_run(copy, run_dir)
    assert saved_steps(copy) == saved_steps(run_dir)


@pytest.mark.slow
def test_processes_killed_at_random_end_like_unbroken_ones(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert kill_resume.main(["--runs", "1", "--kills", "1", "--steps", "60", "--seed", "4"]) == 0
    each, end = r"run \d: killed after step \d+: same\n", "0 ended with other weights or metrics than an unbroken run\n"
    assert re.fullmatch(rf"{each}1 runs, 1 kills, {end}", capsys.readouterr().out)


def test_control_a_run_that_differs_or_was_never_killed_is_reported(capsys: Capture, monkeypatch: Patch) -> None:
    noisy = ["sh", "-c", "head -c 100000 /dev/zero >&2"]  # more than a pipe holds
    monkeypatch.setattr(kill_resume, "start_or_resume_run", lambda *_: subprocess.Popen(noisy, stderr=subprocess.PIPE))
    monkeypatch.setattr(kill_resume, "file_digests", lambda run_dir: [run_dir.name])
    assert kill_resume.main(["--runs", "1"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("1 runs, 0 kills, 1 ended with other weights")
    monkeypatch.setattr(kill_resume, "file_digests", lambda run_dir: [])
    assert kill_resume.main(["--runs", "1"]) == 1


# -- Damaged, or not ours -------------------------------------------------------------------------------------------


@pytest.fixture
def tiny_run_copy(tiny_run: Path, tmp_path: Path) -> Path:
    """A copy of the tiny run, with checkpoints at steps 196 and 200, that a test may break."""
    return shutil.copytree(tiny_run, tmp_path / "run")


def flip_a_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], flip_a_bit])
def test_a_damaged_checkpoint_is_skipped_and_replaces_no_good_one(
    damage: Any, tiny_run: Path, corpus: Path, tiny_run_copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_run_copy / "checkpoints"
    newest = (folder / "step-200.ckpt").rename(folder / "step-900.ckpt")
    newest.write_bytes(damage(newest.read_bytes()))
    with caplog.at_level(logging.WARNING, "minitrans"):
        assert train(corpus, tiny_run_copy, "--resume", max_steps=200) == 0
    (warning,) = (record.getMessage() for record in caplog.records if "damaged" in record.getMessage())
    assert warning == f"{newest} is damaged or of another version; the checkpoint before it is used instead"
    assert_same_run(tiny_run, tiny_run_copy)
    assert saved_steps(tiny_run) == saved_steps(tiny_run_copy)


@pytest.mark.parametrize(
    ("place", "error", "said"),
    [
        ("torch.load", MemoryError(), "there is not enough memory; "),
        ("torch.load", RuntimeError("DefaultCPUAllocator: can't allocate memory"), "there is not enough memory; "),
        ("zipfile.ZipFile", OSError(errno.EIO, "Input/output error"), "cannot read {}: Input/output error; "),
        ("zipfile.ZipFile", PermissionError(errno.EACCES, "Permission denied"), "cannot read {}: Permission denied; "),
    ],
)
def test_an_unreadable_checkpoint_is_reported_and_not_skipped(
    place: str, error: Exception, said: str, corpus: Path, tiny_run: Path, monkeypatch: Patch
) -> None:
    fail(monkeypatch, f"checkpoints.{place}", error)
    flags = run_flags(corpus, tiny_run, "--resume", max_steps=200)
    message = refusal_message("train", *flags, unchanged=tiny_run)
    assert message.startswith(said.format(tiny_run / "checkpoints/step-200.ckpt"))


def test_a_run_is_not_resumed_on_other_text(tiny_run: Path, corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus, tmp_path, dirs_exist_ok=True)
    flags = run_flags(tmp_path, tmp_path / "run", "--resume", max_steps=200)
    assert train(tmp_path, tmp_path / "run", "--resume", max_steps=200) == 0  # the same text, moved
    for name in ("train.en", "train.zh"):
        (tmp_path / name).write_text((corpus / name).read_text(encoding="utf-8").partition("\n")[2], encoding="utf-8")
    said = (
        f"train or valid of {tmp_path} is not the text that {tmp_path}/run/checkpoints/step-200.ckpt was trained on; "
    )
    assert refusal_message("train", *flags, unchanged=tmp_path / "run").startswith(said)


def test_without_its_best_weights_a_run_is_not_resumed(tiny_run_copy: Path, corpus: Path) -> None:
    for name in ("step-200", "best"):
        (tiny_run_copy / f"checkpoints/{name}.ckpt").unlink()
    flags = run_flags(corpus, tiny_run_copy, "--resume", max_steps=200)
    assert "best.ckpt is missing or damaged; " in refusal_message("train", *flags, unchanged=tiny_run_copy)


@pytest.mark.parametrize("name", ["checkpoints/step-200.ckpt", "checkpoints/best.ckpt", "config.yaml"])
def test_a_run_whose_files_would_execute_code_is_refused(
    name: str, corpus: Path, tiny_run_copy: Path, tmp_path: Path, capsys: Capture
) -> None:
    path, evil = tiny_run_copy / name, tmp_path / "evil"
    if name == "config.yaml":
        path.write_text(f"model: !!python/object/apply:os.mkdir [{evil}]\n")
        said = rf"{path} is damaged \(.*\); train again with --overwrite"
    else:
        torch.save(checkpoints.read_checkpoint(path) | {"more": EvilPickle(evil)}, path)
        torch.load(path, weights_only=False)  # control: loading it does run the code
        evil.rmdir()
        said = f"{path} holds more than numbers and text, and might run code: it is not read"
    assert train(corpus, tiny_run_copy, "--resume", max_steps=200) == 2
    assert not evil.exists()
    assert re.fullmatch(f"minitrans: error: {said}", last_error(capsys))


def test_a_file_that_is_not_a_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "step-1.ckpt"
    some = {"state_dict": {}, "global_step": 1, "rng_states": []}
    contents: list[object] = [[1], some, some | {"metrics": {}, "TranslationDataModule": {}}]
    for content in contents:
        torch.save(content, path)
        with pytest.raises(checkpoints.DamagedCheckpointError, match=r"step-1\.ckpt is "):
            checkpoints.read_checkpoint(path)
    with pytest.raises(UserError, match="holds no checkpoint to resume from"):
        checkpoints.newest_intact_checkpoint(tmp_path)


def test_a_compressed_checkpoint_is_refused_as_a_possible_zip_bomb(tiny_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "step-200.ckpt"
    with (
        zipfile.ZipFile(tiny_run / "checkpoints" / path.name) as plain,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for entry in plain.infolist():
            packed.writestr(entry.filename, plain.read(entry))
    torch.load(path, weights_only=True)  # control: PyTorch reads it
    with pytest.raises(checkpoints.DamagedCheckpointError):
        checkpoints.read_checkpoint(path)


# -- A full disk, a loss that is not finite -------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full disk to write to")
def test_a_full_disk_leaves_old_checkpoints(corpus: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    run_dir = tmp_path / "run"
    save = checkpoints.CheckpointWriter._save_if_due

    def save_on_a_full_disk(self: checkpoints.CheckpointWriter, trainer: Trainer) -> None:
        if self.step == 14:
            (self.folder / "step-14.ckpt.7.tmp").symlink_to("/dev/full")
        save(self, trainer)

    monkeypatch.setattr("minitrans.files.randbits", lambda _: 7)
    monkeypatch.setattr(checkpoints.CheckpointWriter, "_save_if_due", save_on_a_full_disk)
    assert train(corpus, run_dir) == 2
    assert saved_steps(run_dir) == [7]
    assert last_error(capsys) == (
        f"minitrans: error: cannot write {run_dir}/checkpoints/step-14.ckpt: No space left on device; "
        "correct that, then use --resume to continue from the previous checkpoint"
    )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ESTALE, errno.ENOENT])
def test_metrics_that_cannot_be_written_end_the_run(
    number: int, corpus: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    fail(monkeypatch, "callbacks.CSVLogger.save", OSError(number, os.strerror(number)))
    assert train(corpus, tmp_path / "run") == 2
    assert last_error(capsys) == (
        f"minitrans: error: cannot write {tmp_path}/run: {os.strerror(number)}; correct that, then --resume continues "
        "from the last checkpoint"
    )


def test_a_loss_that_is_nan_is_reported_even_if_the_corpus_has_gone(
    corpus: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    original = TranslationModule.training_step

    def spoilt(self: TranslationModule, batch: Batch, batch_idx: int) -> Tensor:
        loss = original(self, batch, batch_idx)
        self.step_loss = loss.detach() * torch.nan
        return loss

    monkeypatch.setattr(TranslationModule, "training_step", spoilt)
    fail(monkeypatch, "callbacks.TranslationDataModule.find_line_numbers", UserError("cannot read data.path"))
    assert train(corpus, tmp_path / "run", max_steps=1) == 2
    assert "in the batch: unknown; last good checkpoint: none; check these" in last_error(capsys)


@pytest.mark.parametrize(
    ("of", "step", "flags"),
    [("loss", 17, ""), ("loss", 21, "--data.reversed_epochs 99"), ("weight", 21, STREAM_FLAGS)],
)
def test_a_loss_or_weight_that_is_nan_stops_the_run(
    of: str, step: int, flags: str, corpus: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    batches: list[Batch] = []
    training_step = TranslationModule.training_step

    def spoilt(self: TranslationModule, batch: Batch, batch_idx: int) -> Tensor:
        loss = training_step(self, batch, batch_idx)
        if self.global_step == step - 1:
            batches.append(batch)
            if of == "loss":
                self.step_loss = loss.detach() * torch.nan
            else:  # a single number, with a checkpoint due after step 21
                self.model.decoder.norm.bias.data[0] = torch.nan
        return loss

    monkeypatch.setattr(TranslationModule, "training_step", spoilt)
    assert train(corpus, tmp_path / "run", *flags.split()) == 2
    assert saved_steps(tmp_path / "run") == [7, 14]
    error = last_error(capsys)
    match = re.fullmatch(
        rf"minitrans: error: training failed at step {step}: the loss is ([\w.]+), or a weight is not finite after it; "
        rf"pairs of the training data in the batch: ([\d, ]+); last good checkpoint: {tmp_path}/run/checkpoints/"
        r"step-14.ckpt; check these pairs, or train again with a lower training.learning_rate",
        error,
    )
    assert match is not None, error
    assert (match[1] == "nan") == (of == "loss")
    lines = [int(number) for number in match[2].split(", ")]
    assert lines == sorted(lines)
    tokenizer = Tokenizer.load(tmp_path / "run/tokenizer.model")
    read = tokenizer.reader.preprocess_pairs(*read_sides(corpus, "train"))
    trained = [map(tokenizer.decode, ids.tolist()) for ids in (batches[0].src_ids, batches[0].tgt_out)]
    assert {frozenset(texts[n - 1] for texts in read) for n in lines} == {*map(frozenset, zip(*trained, strict=True))}
