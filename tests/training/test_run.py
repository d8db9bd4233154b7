"""A run from its flags to its folder, and who may write to that folder (refusals: tests/test_refusals.py)."""

import errno
import io
import json
import logging
import re
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import yaml
from command_helpers import refusal_message
from conftest import record_calls
from fake_processes import run_as_processes
from safetensors.torch import load_file
from train_helpers import last_error, read_metrics, read_sides, run_flags, train

from minitrans import cli
from minitrans.data.datamodule import TranslationDataModule
from minitrans.errors import UserError
from minitrans.files import lock_file
from minitrans.text.reading import split_lowercase_words
from minitrans.training.callbacks import TrainingConsole, TrainingProgress, ValidationScorer
from minitrans.training.module import TranslationModule
from minitrans.training.run_folder import begin_run
from minitrans.translate.bundle import load_bundle
from minitrans.translate.metrics import choose_threshold, score
from minitrans.translate.translator import Translator

Capture = pytest.CaptureFixture[str]
IN_USE_MESSAGE = "is in use by another process; wait for it to end"


# -- The folder -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("place", "name"), list(enumerate(("settings", "checkpoint", "tokenizer", "text"))))
def test_processes_with_different_settings_or_text_are_refused(
    place: int, name: str, corpus: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gather(facts: tuple[object, ...]) -> list[tuple[object, ...]]:
        return [facts, facts, (*facts[:place], "another", *facts[place + 1 :])]

    monkeypatch.setattr("minitrans.training.run.all_gather", gather)
    assert train(corpus, tmp_path / "run") == 2
    assert f"error: the processes do not have the same {name}; " in last_error(capsys)


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.EIO, "Input/output error")])
def test_training_goes_on_if_its_log_cannot_be_written(error: OSError) -> None:
    file = io.StringIO()
    file.write = mock.Mock(side_effect=error)  # type: ignore[method-assign]
    console = TrainingConsole(file=file)
    console.print("a line")
    assert console.quiet


def test_the_console_shows_codes_of_emoji_as_text() -> None:
    console = TrainingProgress(mock.Mock(), "").console
    console.file = io.StringIO()
    console.print(":heart: [red]", markup=False)
    assert console.file.getvalue() == ":heart: [red]\n"


def test_a_run_folder_holds_exactly_the_promised_files(tiny_run: Path) -> None:
    files = "config.yaml tokenizer.model model.safetensors model.json words.txt metrics.csv README.md curve.svg"
    assert {path.name for path in tiny_run.iterdir()} == {*files.split(), ".minitrans", "checkpoints", "tensorboard"}
    checkpoints = {path.name for path in (tiny_run / "checkpoints").iterdir()}
    assert checkpoints == {"best.ckpt", "step-196.ckpt", "step-200.ckpt"}
    assert "cache_dir" not in (tiny_run / "config.yaml").read_text()


def test_metrics_hold_losses_and_scores(tiny_run: Path) -> None:
    rows = read_metrics(tiny_run)
    losses = [float(row["train_loss"]) for row in rows if row["train_loss"]]
    assert len(losses) == 40  # 200 steps, every 5th
    assert losses[-1] < 0.8 * losses[0]
    assert [int(row["step"]) for row in rows if row["val_bleu"]] == list(range(19, 200, 20))
    assert all(row["val_loss"] and row["val_chrf"] for row in rows if row["val_bleu"])


def test_the_card_states_the_scores_that_evaluate_finds(tiny_run: Path, corpus: Path, capsys: Capture) -> None:
    flags = ["--source", str(corpus / "test.en"), "--reference", str(corpus / "test.zh")]
    assert cli.main(["evaluate", str(tiny_run), *flags]) == 0
    bleu, chrf, exact = re.findall(r"(?:BLEU|chrF|exact match) (\d+\.\d+)", capsys.readouterr().out)
    card = (tiny_run / "README.md").read_text(encoding="utf-8")
    assert f"| test | 15 | {bleu} | {chrf} | {exact}% |" in card
    assert ("sources in lower case" in card) == load_bundle(tiny_run).tokenizer.reader.plain


def test_words_txt_lists_the_words_of_the_sources_trained_on(tiny_run: Path, corpus: Path) -> None:
    bundle = load_bundle(tiny_run)
    pairs = list(zip(*bundle.tokenizer.reader.preprocess_pairs(*read_sides(corpus, "train")), strict=True))
    short = [pair for pair in pairs if all(len(ids) < 40 for ids in bundle.tokenizer.encode_batch(pair))]
    assert len(short) < len(pairs)  # those that the model cannot take are left out
    listed = (tiny_run / "words.txt").read_text(encoding="utf-8").splitlines()
    counts = Counter(word for source, _ in short for word in split_lowercase_words(source))
    assert listed == sorted(counts, key=lambda word: (-counts[word], word))
    assert bundle.source_words == {word: i for i, word in enumerate(listed)}


def test_the_threshold_is_chosen_on_valid(tiny_run: Path, corpus: Path) -> None:
    sources, references = read_sides(corpus, "valid")
    translator = Translator.load(tiny_run)
    chosen = choose_threshold(translator.translations(sources), [[line] for line in references])
    saved = translator.bundle.threshold
    assert saved is not None
    assert chosen is not None
    assert saved.score == pytest.approx(chosen.score, abs=1e-4)
    assert saved.chrf == chosen.chrf


@pytest.mark.parametrize(("every", "validated"), [("null", [19, 22]), ("99", [22])])
def test_the_last_step_is_validated_wherever_it_falls(
    every: str, validated: list[int], corpus: Path, tmp_path: Path
) -> None:
    """With at least one batch; a run folder may have a blank in its name."""
    run, flags = tmp_path / "a run", ["--trainer.limit_val_batches", "0.001"]
    assert train(corpus, run, "--trainer.check_val_every_n_epoch", every, *flags, max_steps=23) == 0
    assert [int(row["step"]) for row in read_metrics(run) if row["val_bleu"]] == validated
    assert f"    minitrans translate '{run}' " in (run / "README.md").read_text(encoding="utf-8")


def test_one_process_of_a_later_node_is_refused(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_RANK", "1")
    flags = run_flags(corpus, tmp_path / "run")
    assert "NODE_RANK in the environment says" in refusal_message("train", *flags, unchanged=tmp_path)


# -- On a terminal, and without a terminal ---------------------------------------------------------------------------


@pytest.mark.parametrize("force", ["", "1"])  # 1: a terminal, but one that cannot show a bar
def test_progress_is_printed_after_ten_seconds_and_each_minute(
    force: str, corpus: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", force)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "20")
    clock = iter(range(0, 10_000, 6)).__next__  # seconds: each step takes 6, and the first is not counted
    watch = SimpleNamespace(monotonic=clock, perf_counter=iter(range(0, 10**6, 60)).__next__)
    monkeypatch.setattr("minitrans.training.callbacks.time", watch)
    ended = record_calls(monkeypatch, TrainingProgress, "on_train_end")
    assert train(corpus, tmp_path / "run", max_steps=20) == 0
    err, rate = capsys.readouterr().err, ended[0][2].tgt_tokens / (20 * 60)
    said = re.findall(r"^step (\d+)/20  loss \d\.\d{3}  [\d,]+ tokens/s  (\d+) min left$", err, re.M)
    assert said == [("3", "2"), ("13", "1")]
    assert re.search(rf"^step 20  .* {rate:,.0f} tokens/s  20\.0 min$", err, re.M)
    watch.monotonic = iter(range(0, 10_000, 20)).__next__  # the line is due before the first step of three batches ends
    assert train(corpus, tmp_path / "slow", "--trainer.accumulate_grad_batches", "3", max_steps=2) == 0


def test_a_terminal_shows_a_bar(corpus: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    assert train(corpus, tmp_path / "run", max_steps=2) == 0
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert re.search(r"[\r\n]step 2/2 ━+ loss \d\.\d{3}  [1-9][\d,]* tokens/s 0:\d\d:\d\d left 0:00:00", shown)


@pytest.mark.parametrize(
    ("reversed_epochs", "said"),
    [("1 --trainer.accumulate_grad_batches 3", []), ("1", ["1, of 1.0"]), ("2 --data.streaming=true", [])],
)
def test_pairs_that_stay_reversed_are_reported(
    reversed_epochs: str, said: list[str], corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flags = f"--trainer.accumulate_grad_batches 2 --data.batch_tokens 5200 --data.reversed_epochs {reversed_epochs}"
    assert train(corpus, tmp_path / "run", *flags.split(), max_steps=2) == 0
    assert re.findall("data.reversed_epochs is (.*) epochs:", caplog.text) == said


@pytest.mark.parametrize("n", [1, 5])  # processes; of five, the last has none of twelve lines
def test_a_validation_logs_scores_and_shows_translations_with_sources(
    n: int, tiny_run: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = load_bundle(tiny_run)
    sources, references = read_sides(corpus, "valid")
    data = mock.Mock(spec=TranslationDataModule)
    data.tokenizer, data.config = bundle.tokenizer, SimpleNamespace(source="en", target="zh")
    data.texts.return_value = sources, references
    translations = Translator(bundle).translate(sources)
    scores = score(translations, references, "zh")
    logged = {"val_bleu": scores.bleu, "val_chrf": scores.chrf, "val_exact_match": scores.exact_match}

    def validate() -> list[tuple[str, str]]:
        module = mock.Mock(spec=TranslationModule)
        module.model = bundle.model
        callback = ValidationScorer("off")
        callback.samples = [("", "")] * (n == 1)  # as after an earlier validation, which warned of cut lines
        callback.on_validation_epoch_end(mock.Mock(datamodule=data, loggers=[]), module)
        module.log_dict.assert_called_once_with(logged, sync_dist=True)
        return callback.samples

    logging.getLogger("minitrans").setLevel(logging.INFO)
    first_lines = mock.Mock(wraps=Translator.translate)
    monkeypatch.setattr(Translator, "translate", lambda *args, **kwargs: first_lines(*args, **kwargs))
    for samples in run_as_processes(n, validate):
        assert len(set(logged.values())) == len(samples) == 3
        assert logging.getLogger("minitrans").level == logging.INFO
        assert set(samples) <= set(zip(sources, translations, strict=True))
    numbers = sorted(call.kwargs["first_line"] for call in first_lines.mock_calls)  # for warnings of lines that are cut
    assert numbers == ([1] if n == 1 else [1, 4, 7, 10, 13])


# -- From the weights of another run --------------------------------------------------------------------------------


def test_init_from_takes_weights_tokenizer_and_words_of_a_run(
    tiny_run: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If that run lists no words, or there are too many, the new one lists none either."""
    other = shutil.copytree(tiny_run, tmp_path / "other")
    sizes = json.loads((other / "model.json").read_text())
    known = (other / "words.txt").read_text(encoding="utf-8").splitlines()
    (other / "words.txt").write_text("love\nxyzzy\n")
    (other / "model.json").write_text(json.dumps(sizes | {"words": 2}))
    flags = ("--training.init_from", str(other))
    assert train(corpus, tmp_path / "a", *flags, max_steps=1) == 0
    assert [*(load_bundle(tmp_path / "a").source_words or ())] == [*known, "xyzzy"]
    monkeypatch.setattr("minitrans.training.run.MAX_SMALL_FILE_BYTES", sum(len(f"{word}\n") for word in known))
    assert train(corpus, tmp_path / "c", *flags, max_steps=1) == 0
    assert load_bundle(tmp_path / "c").source_words is None
    assert not (tmp_path / "c/words.txt").exists()
    del sizes["words"]
    (other / "model.json").write_text(json.dumps(sizes))
    still = "--training.learning_rate 1e-30 --model.dropout 0.3 --tokenizer.vocab_size 500 --model.max_len 41"
    assert train(corpus, tmp_path / "b", *flags, *still.split(), max_steps=1) == 0
    for name, tensor in load_file(tiny_run / "model.safetensors").items():
        assert torch.equal(tensor, load_file(tmp_path / "b/model.safetensors")[name]), name
    assert (tmp_path / "b/tokenizer.model").read_bytes() == (tiny_run / "tokenizer.model").read_bytes()
    assert load_bundle(tmp_path / "b").source_words is None
    assert not (tmp_path / "b/words.txt").exists()


# -- Files that are not ours ----------------------------------------------------------------------------------------


def test_overwrite_replaces_only_what_a_training_wrote(tiny_run: Path, corpus: Path, tmp_path: Path) -> None:
    run_dir = shutil.copytree(tiny_run, tmp_path / "run")
    theirs = ["thesis.doc", "config.yaml.bak", "checkpoints/step-one.ckpt", "tensorboard/notes.txt", "sources/main.c"]
    (run_dir / "sources").mkdir()
    for name in theirs:
        (run_dir / name).write_text("years of work")
    (run_dir / "model.json.123.tmp").write_text("half of it")
    before = load_file(run_dir / "model.safetensors")["encoder.norm.weight"]
    assert train(corpus, run_dir, "--overwrite", "--seed", "3", max_steps=5) == 0
    assert yaml.safe_load((run_dir / "config.yaml").read_text())["seed"] == 3
    assert not torch.equal(load_file(run_dir / "model.safetensors")["encoder.norm.weight"], before)
    for name in theirs:
        assert (run_dir / name).read_text() == "years of work"
    checkpoints = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    assert checkpoints == ["best.ckpt", "step-5.ckpt", "step-one.ckpt"]
    assert not (run_dir / "model.json.123.tmp").exists()


def test_a_folder_in_use_is_refused_until_that_process_is_dead(tiny_run: Path, corpus: Path, tmp_path: Path) -> None:
    run_dir, new = shutil.copytree(tiny_run, tmp_path / "run"), tmp_path / "new"
    new.mkdir()
    begun = mock.Mock(run_dir=new, yaml_text=""), False, ExitStack(), mock.Mock(proto=b""), None
    code = (
        "import pathlib, sys, time; from minitrans.files import lock_file\n"
        "with lock_file(pathlib.Path(sys.argv[1])), lock_file(pathlib.Path(sys.argv[2])):\n"
        "    print('held', flush=True); time.sleep(100)"
    )
    marks = [str(folder / ".minitrans") for folder in (run_dir, new)]
    with subprocess.Popen([sys.executable, "-c", code, *marks], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        for flag in ("--resume", "--overwrite"):
            flags = run_flags(corpus, run_dir, flag, max_steps=200)
            assert IN_USE_MESSAGE in refusal_message("train", *flags, unchanged=tmp_path)
        with pytest.raises(UserError, match=IN_USE_MESSAGE):
            begin_run(*begun)  # locked since the folder was checked
        process.kill()
    begin_run(*begun)


def test_training_locks_its_run_folder(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark, tried = tmp_path / "run/.minitrans", []

    def tries(*_: object) -> None:
        with pytest.raises(UserError, match=IN_USE_MESSAGE), lock_file(mark):
            pass
        tried.append(True)

    monkeypatch.setattr(ValidationScorer, "on_validation_start", tries)
    assert train(corpus, mark.parent, max_steps=2) == 0
    assert tried
    with lock_file(mark):
        pass
