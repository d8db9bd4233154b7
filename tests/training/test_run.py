"""A run from its flags to its folder, and what may go wrong on the way."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import yaml
from conftest import tiny_settings
from lightning.pytorch import LightningModule, Trainer
from safetensors.torch import load_file

from minitrans import cli
from minitrans.data.datamodule import TranslationDataModule
from minitrans.errors import UserError
from minitrans.files import lock
from minitrans.serving.bundle import Bundle, load_bundle
from minitrans.serving.confidence import choose_threshold
from minitrans.serving.scoring import score
from minitrans.serving.translator import Translator
from minitrans.text.words import words
from minitrans.training import callbacks
from minitrans.training.callbacks import ValidationTranslations
from minitrans.training.module import TranslationModule
from minitrans.training.run_folder import _new_folder

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def corpus(tiny_run: Path) -> Path:
    return tiny_run.parent


def train(corpus: Path, run_dir: Path, *flags: str, max_steps: int = 25) -> int:
    return cli.main(["train", *tiny_settings(corpus, max_steps), "--run-dir", str(run_dir), *flags])


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(run_dir / "model.safetensors")


def assert_same_weights(one: Path, other: Path) -> None:
    for name, tensor in weights(one).items():
        assert torch.equal(tensor, weights(other)[name]), name


# -- The folder -----------------------------------------------------------------------------------------------------


def test_a_run_folder_holds_what_the_contract_says(tiny_run: Path) -> None:
    found = {path.name for path in tiny_run.iterdir()}
    assert found == {
        "config.yaml",
        "tokenizer.model",
        "model.safetensors",
        "model.json",
        "words.txt",
        "metrics.csv",
        "checkpoints",
        "tensorboard",
        "README.md",
        ".minitrans",
        "curve.svg",
    }
    assert {path.name for path in (tiny_run / "checkpoints").iterdir()} == {
        "best.ckpt",
        "step-196.ckpt",
        "step-200.ckpt",
    }


def test_the_metrics_hold_the_curve(tiny_run: Path) -> None:
    with open(tiny_run / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    losses = [float(row["train_loss"]) for row in rows if row["train_loss"]]
    assert len(losses) == 40  # 200 steps, every 5th
    assert losses[-1] < 0.8 * losses[0]
    rates = [float(row["lr-AdamW"]) for row in rows if row["train_loss"]]
    assert rates[:2] == pytest.approx([0.005, 0.01])  # those of steps 5 and 10, of 10 that warm up
    assert [int(row["step"]) for row in rows if row["val_bleu"]] == list(range(19, 200, 20))
    assert all(row["val_loss"] and row["val_chrf"] for row in rows if row["val_bleu"])


def test_the_card_states_the_scores_that_evaluate_finds(tiny_run: Path, capsys: Capture) -> None:
    folder = tiny_run.parent
    flags = ["--source", str(folder / "test.en"), "--reference", str(folder / "test.zh")]
    assert cli.main(["evaluate", str(tiny_run), *flags]) == 0
    bleu, chrf = re.findall(r"(?:BLEU|chrF) (\d+\.\d\d)", capsys.readouterr().out)
    assert f"| test | 15 | {bleu} | {chrf} |" in (tiny_run / "README.md").read_text()


# -- Where there is no terminal ---------------------------------------------------------------------------------------


def test_a_line_after_ten_seconds_and_each_minute_says_how_far_it_is(
    corpus: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 6)).__next__  # seconds: each step takes 6, and the first is not counted
    watch = SimpleNamespace(monotonic=clock, perf_counter=iter(range(0, 10**6, 60)).__next__)
    monkeypatch.setattr("minitrans.training.callbacks.time", watch)
    assert cli.main(["train", *tiny_settings(corpus, max_steps=20), "--run-dir", str(tmp_path / "run")]) == 0
    err = capsys.readouterr().err
    said = re.findall(r"^step (\d+)/20  loss \d\.\d{3}  [\d,]+ tokens/s  (\d+) min left$", err, re.M)
    assert said == [("3", "2"), ("13", "1")]
    assert re.search(r"^step 20  .* tokens/s  20\.0 min$", err, re.M)


def test_a_validation_logs_its_scores_and_shows_translations_with_their_sources(tiny_run: Path) -> None:
    bundle = load_bundle(tiny_run)
    sources, references = ((tiny_run.parent / f"valid.{code}").read_text().splitlines() for code in ("en", "zh"))
    data = mock.Mock(spec=TranslationDataModule)
    data.tokenizer, data.config = bundle.tokenizer, SimpleNamespace(source="en", target="zh")
    data.texts.return_value = sources, references
    module = mock.Mock(spec=TranslationModule)
    module.model = bundle.model
    callback = ValidationTranslations("off")
    callback.on_validation_epoch_end(mock.Mock(datamodule=data, loggers=[]), module)
    translations = Translator(bundle).translate(sources)
    scores = score(translations, references, "zh")
    logged = {"val_bleu": scores.bleu, "val_chrf": scores.chrf, "val_exact_match": scores.exact_match}
    module.log_dict.assert_called_once_with(logged, sync_dist=True)
    assert len(set(logged.values())) == len(callback.samples) == 3
    assert set(callback.samples) <= set(zip(sources, translations, strict=True))


def test_the_weights_that_translate_and_are_kept_are_averaged_and_those_of_the_best_validation(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All weights are 1 after the first step, 2 after the second; of three validations the second is the best."""
    optimizer_step = TranslationModule.optimizer_step
    averages, seen, bleu = [1.0], [], iter((1.0, 9.0, 2.0))
    for step in range(1, 26):  # at every other step, the first included
        averages.append(averages[-1] + (1 - 0.995**2) * (step - averages[-1]) * (step % 2))

    def set_by_hand(self: TranslationModule, *arguments: Any) -> None:
        optimizer_step(self, *arguments)
        for parameter in self.parameters():
            parameter.data.fill_(self.global_step + 1)

    def translator(bundle: Bundle, *arguments: Any) -> Translator:
        seen.append(bundle.model.decoder.norm.weight[0].item())
        return Translator(bundle, *arguments)

    monkeypatch.setattr(TranslationModule, "optimizer_step", set_by_hand)
    monkeypatch.setattr(callbacks, "Translator", translator)
    monkeypatch.setattr(callbacks, "score", lambda *arguments: replace(score(*arguments), bleu=next(bleu)))
    run_dir = tmp_path / "run"
    flags = ("--training.ema_decay", "0.995", "--trainer.val_check_interval", "10")
    assert train(corpus, run_dir, *flags) == 0
    assert seen == pytest.approx([averages[step] for step in (10, 20, 25)])
    for name, tensor in weights(run_dir).items():
        torch.testing.assert_close(tensor, torch.full_like(tensor, averages[20]), msg=name)
    assert "averaged weights at step 20, " in (run_dir / "README.md").read_text()
    assert "step 20," in (run_dir / "curve.svg").read_text()


def test_the_words_are_those_of_the_sources_that_are_trained_on(tiny_run: Path) -> None:
    bundle = load_bundle(tiny_run)
    sides = (
        (tiny_run.parent / f"train.{language}").read_text(encoding="utf-8").splitlines() for language in ("en", "zh")
    )
    pairs = list(zip(*sides, strict=True))
    short = [pair for pair in pairs if all(len(ids) < 40 for ids in bundle.tokenizer.encode_batch(pair))]
    assert len(short) < len(pairs)  # those that the model cannot take are left out
    found = (tiny_run / "words.txt").read_text(encoding="utf-8").splitlines()
    assert found == sorted({word for source, _ in short for word in words(source)})
    assert bundle.words == frozenset(found)


def test_the_threshold_is_chosen_on_valid(tiny_run: Path) -> None:
    sources, references = (
        (tiny_run.parent / f"valid.{language}").read_text(encoding="utf-8").splitlines() for language in ("en", "zh")
    )
    translator = Translator.load(tiny_run)
    found = choose_threshold(translator.translations(sources), [[line] for line in references])
    told = translator.bundle.threshold
    assert told is not None
    assert found is not None
    assert told.score == pytest.approx(found.score, abs=1e-4)
    assert told.chrf == found.chrf


def test_the_same_seed_gives_the_same_weights_and_another_others(corpus: Path, tmp_path: Path) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert train(corpus, tmp_path / name, "--seed", seed) == 0
    assert_same_weights(tmp_path / "a", tmp_path / "b")
    assert not torch.equal(
        weights(tmp_path / "a")["encoder.norm.weight"], weights(tmp_path / "c")["encoder.norm.weight"]
    )


def test_the_last_step_is_validated_wherever_it_falls(corpus: Path, tmp_path: Path) -> None:
    assert train(corpus, tmp_path / "short", max_steps=3) == 0
    assert train(corpus, tmp_path / "odd", max_steps=23) == 0
    for name, steps in (("short", [2]), ("odd", [19, 22])):
        with open(tmp_path / name / "metrics.csv", newline="") as file:
            assert [int(row["step"]) for row in csv.DictReader(file) if row["val_bleu"]] == steps


# -- From the weights of another run --------------------------------------------------------------------------------


def test_training_begins_with_the_weights_and_the_tokenizer_of_a_run(
    tiny_run: Path, corpus: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    still = ("--training.learning_rate", "1e-30", "--model.dropout", "0.3", "--tokenizer.vocab_size", "500")
    assert train(corpus, run_dir, "--training.init_from", str(tiny_run), *still, max_steps=1) == 0
    assert_same_weights(tiny_run, run_dir)
    assert (run_dir / "tokenizer.model").read_bytes() == (tiny_run / "tokenizer.model").read_bytes()


def test_what_the_other_run_was_shown_is_known(tiny_run: Path, corpus: Path, tmp_path: Path) -> None:
    """And where that is not told, nothing is said of words."""
    other = shutil.copytree(tiny_run, tmp_path / "other")
    sizes = json.loads((other / "model.json").read_text())
    known = (other / "words.txt").read_text(encoding="utf-8").splitlines()
    (other / "words.txt").write_text("love\nxyzzy\n")
    (other / "model.json").write_text(json.dumps(sizes | {"words": 2}))
    flags = ("--training.init_from", str(other))
    assert train(corpus, tmp_path / "a", *flags, max_steps=1) == 0
    assert load_bundle(tmp_path / "a").words == frozenset([*known, "xyzzy"])
    del sizes["words"]
    (other / "model.json").write_text(json.dumps(sizes))
    assert train(corpus, tmp_path / "b", *flags, max_steps=1) == 0
    assert load_bundle(tmp_path / "b").words is None
    assert not (tmp_path / "b/words.txt").exists()


def test_a_run_that_began_so_is_resumed_without_the_other(
    tiny_run: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, whole, broken = tmp_path / "start", tmp_path / "whole", tmp_path / "broken"
    flags = ("--training.init_from", str(start))
    shutil.copytree(tiny_run, start)
    (start / "words.txt").write_text((start / "words.txt").read_text().replace("love\n", "xyzzy\n"))
    assert train(corpus, whole, *flags, max_steps=45) == 0
    monkeypatch.setattr(ValidationTranslations, "on_validation_epoch_end", stop_at_the_second_validation)
    assert train(corpus, broken, *flags, max_steps=45) == 130
    monkeypatch.undo()
    shutil.rmtree(start)
    assert train(corpus, broken, "--resume", *flags, max_steps=45) == 0
    assert_same_weights(whole, broken)
    assert (whole / "words.txt").read_bytes() == (broken / "words.txt").read_bytes()


def test_weights_of_other_sizes_are_refused(tiny_run: Path, corpus: Path, tmp_path: Path, capsys: Capture) -> None:
    flags, run_dir = ("--training.init_from", str(tiny_run)), tmp_path / "run"
    for size, value in (("d_ff", "64"), ("n_layers", "2"), ("n_heads", "1"), ("tie_embeddings", "false")):
        assert f"model.{size} is " in refuses(capsys, corpus, run_dir, *flags, f"--model.{size}", value)
    assert "is not a folder" in refuses(capsys, corpus, run_dir, "--training.init_from", str(tmp_path / "gone"))


# -- Resuming -------------------------------------------------------------------------------------------------------


def stop_at_the_second_validation(self: ValidationTranslations, trainer: Trainer, pl_module: LightningModule) -> None:
    if trainer.global_step == 40:
        raise KeyboardInterrupt
    translate(self, trainer, pl_module)


translate = ValidationTranslations.on_validation_epoch_end


@pytest.mark.parametrize(
    "flags", [(), ("--data.streaming", "true", "--data.shuffle_buffer", "150")], ids=["", "stream"]
)
def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert train(corpus, whole, *flags, max_steps=45) == 0
    # Checkpoints after steps 7, 14, 21, 28 and, in the middle of an epoch, 35; then stopped while step 39 validates.
    monkeypatch.setattr(ValidationTranslations, "on_validation_epoch_end", stop_at_the_second_validation)
    assert train(corpus, broken, *flags, max_steps=45) == 130
    monkeypatch.undo()
    assert not (broken / "model.json").exists()
    assert train(corpus, broken, "--resume", *flags, max_steps=45) == 0
    assert_same_weights(whole, broken)
    assert (whole / "metrics.csv").read_text() == (broken / "metrics.csv").read_text()
    for part in ("words.txt", "model.json"):
        assert (whole / part).read_bytes() == (broken / part).read_bytes()
    assert (whole / "README.md").read_text() == (broken / "README.md").read_text().replace(str(broken), str(whole))


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 80 steps that nothing stopped."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    assert train(corpus, run_dir, max_steps=80) == 0
    return run_dir


def start(corpus: Path, run_dir: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "minitrans", "train", *tiny_settings(corpus, 80), "--run-dir", str(run_dir)]
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}  # sums depend on the number of threads
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_run_goes_on(number: signal.Signals, corpus: Path, whole: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with start(corpus, run_dir) as process:
        while not any(run_dir.glob("checkpoints/step-*.ckpt")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        os.kill(process.pid, number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    stopped = re.search(r"minitrans: interrupted: stopped at step (\d+); the same command with --resume continues", err)
    assert stopped is not None, err
    assert not (run_dir / "model.json").exists()
    step = int(stopped[1])
    assert torch.load(run_dir / f"checkpoints/step-{step}.ckpt", weights_only=True)["global_step"] == step
    assert train(corpus, run_dir, "--resume", max_steps=80) == 0
    assert_same_weights(whole, run_dir)
    assert (whole / "metrics.csv").read_bytes() == (run_dir / "metrics.csv").read_bytes()


# -- Refusals -------------------------------------------------------------------------------------------------------


def refuses(capsys: Capture, corpus: Path, run_dir: Path, *flags: str) -> str:
    capsys.readouterr()
    before = sorted(run_dir.rglob("*")) if run_dir.exists() else None
    assert train(corpus, run_dir, *flags) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    *notices, error = captured.err.splitlines()
    assert error.startswith("minitrans: error: ")
    assert all(notice.startswith("minitrans: warning: ") for notice in notices)
    assert (sorted(run_dir.rglob("*")) if run_dir.exists() else None) == before, "something was written"
    return error


def test_a_folder_that_is_not_empty_is_left_alone(
    tiny_run: Path, corpus: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert "give --resume, --overwrite or another --run-dir" in refuses(capsys, corpus, tiny_run)
    (tmp_path / "thesis.doc").write_text("years of work")
    assert "is not marked as a run folder by a file .minitrans, so it is not overwritten" in refuses(
        capsys, corpus, tmp_path, "--overwrite"
    )
    assert "is a file" in refuses(capsys, corpus, tmp_path / "thesis.doc")
    assert "exclude each other" in refuses(capsys, corpus, tiny_run, "--resume", "--overwrite")


def test_overwrite_replaces_a_run(tiny_run: Path, corpus: Path, tmp_path: Path) -> None:
    run_dir = shutil.copytree(tiny_run, tmp_path / "run")
    assert train(corpus, run_dir, "--overwrite", "--seed", "3", max_steps=20) == 0
    assert yaml.safe_load((run_dir / "config.yaml").read_text())["seed"] == 3
    assert not torch.equal(weights(run_dir)["encoder.norm.weight"], weights(tiny_run)["encoder.norm.weight"])


def test_only_a_begun_run_with_the_same_settings_is_resumed(
    tiny_run: Path, corpus: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert "holds nothing to resume: config.yaml is missing" in refuses(capsys, corpus, tmp_path / "new", "--resume")
    assert "differ in model" in refuses(capsys, corpus, tiny_run, "--resume", "--model.d_ff", "64")
    assert "differ in seed" in refuses(capsys, corpus, tiny_run, "--resume", "--seed", "64")
    old = shutil.copytree(tiny_run, tmp_path / "old")
    text = (old / "config.yaml").read_text()
    (old / "config.yaml").write_text(text.replace("data:\n", "data:\n  workers: 0\n"))  # is no difference
    assert "differ in training" in refuses(capsys, corpus, old, "--resume", "--training.patience", "3")


def test_faults_in_settings_and_corpus_write_nothing(corpus: Path, tmp_path: Path, capsys: Capture) -> None:
    run_dir = tmp_path / "run"
    assert "not divisible" in refuses(capsys, corpus, run_dir, "--model.n_heads", "5")
    assert "the nearest is --model.d_ff" in refuses(capsys, corpus, run_dir, "--model.d_fff", "5")
    assert "No such file" in refuses(capsys, corpus, run_dir, "--data.path", str(tmp_path / "gone"))
    assert "trainer: " in refuses(capsys, corpus, run_dir, "--trainer.accelerator", "abacus")
    fp16 = refuses(capsys, corpus, run_dir, "--training.precision", "fp16", "--trainer.accelerator", "cpu")
    assert "training.precision is fp16" in fp16
    assert "max_steps" in refuses(capsys, corpus, run_dir, "--trainer.max_steps", "-1")
    two = ("--data.streaming", "true", "--trainer.accelerator", "cpu", "--trainer.devices", "2")
    assert "data.streaming works with one device only" in refuses(capsys, corpus, run_dir, *two)
    broken = tmp_path / "broken"
    shutil.copytree(corpus, broken, ignore=shutil.ignore_patterns("run", "cache"))
    with open(broken / "train.zh", "a", encoding="utf-8") as file:
        file.write("多\n")
    message = refuses(capsys, corpus, run_dir, "--data.path", str(broken))
    assert re.search(r"train.en has 400 lines but train.zh has 401", message)
    (broken / "train.zh").write_bytes(b"\xff\n" * 400)
    assert "train.zh, line 1" in refuses(capsys, corpus, run_dir, "--data.path", str(broken))
    (broken / "train.zh").write_bytes(b"")
    assert "train.zh has 0" in refuses(capsys, corpus, run_dir, "--data.path", str(broken))


# -- What is not ours -----------------------------------------------------------------------------------------------


def everything(folder: Path) -> dict[str, bytes | None]:
    """All names in a folder, with what is in the files."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_overwrite_removes_only_what_a_training_wrote(tiny_run: Path, corpus: Path, tmp_path: Path) -> None:
    run_dir = shutil.copytree(tiny_run, tmp_path / "run")
    theirs = ["thesis.doc", "config.yaml.bak", "checkpoints/step-one.ckpt", "tensorboard/notes.txt", "sources/main.c"]
    (run_dir / "sources").mkdir()
    for name in theirs:
        (run_dir / name).write_text("years of work")
    (run_dir / "model.json.123.tmp").write_text("half of it")
    assert train(corpus, run_dir, "--overwrite", "--seed", "3", max_steps=5) == 0
    for name in theirs:
        assert (run_dir / name).read_text() == "years of work"
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir()) == [
        "best.ckpt",
        "step-5.ckpt",
        "step-one.ckpt",
    ]
    assert not (run_dir / "model.json.123.tmp").exists()


def test_what_only_looks_like_a_run_is_not_overwritten(tmp_path: Path, corpus: Path, capsys: Capture) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for name in ("config.yaml", "README.md", "main.c"):
        (project / name).write_text("years: of work")
    assert "is not marked as a run folder" in refuses(capsys, corpus, project, "--overwrite")


@pytest.mark.parametrize(
    "name", ["checkpoints", "tensorboard", "metrics.csv", "tensorboard/hparams.yaml", ".minitrans"]
)
@pytest.mark.parametrize("flag", ["--resume", "--overwrite"])
def test_nothing_is_written_or_removed_where_a_link_leads(
    name: str, flag: str, tiny_run: Path, corpus: Path, tmp_path: Path, capsys: Capture
) -> None:
    run_dir, elsewhere = shutil.copytree(tiny_run, tmp_path / "run"), tmp_path / "elsewhere"
    (run_dir / name).rename(elsewhere) if name != "tensorboard/hparams.yaml" else elsewhere.write_text("theirs")
    (run_dir / name).unlink(missing_ok=True)
    (run_dir / name).symlink_to(elsewhere)
    before = everything(tmp_path)
    message = refuses(capsys, corpus, run_dir, flag)
    assert f"{run_dir / name} is a link, and nothing is written where links lead" in message
    assert everything(tmp_path) == before


def test_a_link_to_a_run_is_not_overwritten(tiny_run: Path, corpus: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "link").symlink_to(tiny_run)
    assert "is a link, so what it leads to is not overwritten" in refuses(
        capsys, corpus, tmp_path / "link", "--overwrite"
    )


def test_a_run_that_says_where_to_keep_things_is_not_resumed(
    tiny_run: Path, corpus: Path, tmp_path: Path, capsys: Capture
) -> None:
    run_dir = shutil.copytree(tiny_run, tmp_path / "run")
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    assert "cache_dir" not in config["data"]
    config["data"]["cache_dir"] = str(tmp_path / "planted")
    (run_dir / "config.yaml").write_text(yaml.safe_dump(config))
    words = ["train", "--config", str(run_dir / "config.yaml"), "--run-dir", str(run_dir), "--resume"]
    before = everything(tmp_path)
    capsys.readouterr()
    assert cli.main(words) == 2
    assert "config.yaml names data.cache_dir; remove that line" in capsys.readouterr().err
    assert everything(tmp_path) == before


@pytest.mark.parametrize("flag", ["--resume", "--overwrite", "new"])
def test_a_folder_that_is_trained_in_is_refused_until_that_process_is_dead(
    flag: str, tiny_run: Path, corpus: Path, tmp_path: Path, capsys: Capture
) -> None:
    run_dir = tmp_path / "run"
    if flag == "new":
        run_dir.mkdir()
    else:
        shutil.copytree(tiny_run, run_dir)
    code = (
        "import pathlib, sys, time; from minitrans.files import lock\n"
        "with lock(pathlib.Path(sys.argv[1])): print('held', flush=True); time.sleep(100)"
    )
    command = [sys.executable, "-c", code, str(run_dir / ".minitrans")]
    flags = [flag] if flag != "new" else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        if flag == "new":  # begun after the other has looked
            with pytest.raises(UserError, match="is in use by another process"), _new_folder(run_dir):
                pass
        else:
            assert "is in use by another process; wait for its end" in refuses(capsys, corpus, run_dir, *flags)
        process.kill()
    if flag == "new":
        with _new_folder(run_dir):
            pass
    else:
        assert train(corpus, run_dir, flag, max_steps=200 if flag == "--resume" else 5) == 0


def test_a_training_holds_its_folder(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir, tried = tmp_path / "run", []

    def tries(*_: object) -> None:
        with pytest.raises(UserError, match="is in use by another process"), lock(run_dir / ".minitrans"):
            pass
        tried.append(True)

    monkeypatch.setattr(ValidationTranslations, "on_validation_start", tries)
    assert train(corpus, run_dir, max_steps=2) == 0
    assert tried
    with lock(run_dir / ".minitrans"):
        pass
