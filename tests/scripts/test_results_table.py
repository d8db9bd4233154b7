"""The table of results: what is trained and scored for it, how often, and what it prints."""

import json
import re
import time
from pathlib import Path

import pytest
import results_table
import yaml
from command_helpers import run_cli, tiny_flags

from minitrans.text.lines import read_lines
from minitrans.training import distillation
from minitrans.translate.metrics import score
from minitrans.translate.translator import Translator

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def argv(sixty_pair_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments for two short runs on few sentences, with a teacher for each direction and a student."""
    monkeypatch.setattr(distillation, "SEEDS", (1,))
    monkeypatch.setattr("minitrans.training.run.chart_as_svg", lambda _: "")
    settings = *tiny_flags(sixty_pair_corpus, 4), "--tokenizer.vocab_size", "600"
    config = yaml.safe_load(run_cli("train", *settings, "--print-config")[1])
    config["data"]["path"] = "nowhere/at-all"
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (tmp_path / "tiny").symlink_to(sixty_pair_corpus)
    flags = {"--corpora": tmp_path, "--runs": tmp_path / "runs", "--seeds": 2}
    return [str(tmp_path / "tiny.yaml"), *(str(word) for flag in flags.items() for word in flag)]


def test_runs_are_trained_and_scored_once_and_can_be_resumed(
    argv: list[str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert results_table.main(argv) == 0
    header, line, row = capsys.readouterr().out.splitlines()
    assert header.count("|") == line.count("|") == row.count("|")
    number = r"\d+\.\d\d ± \d+\.\d\d"
    assert re.fullmatch(
        rf"\| `configs/tiny.yaml` \| `test` \| [\d,]+( \| \d+ min){{2}} \| {number} \(zh\)( \| {number}){{3}} \|", row
    ), row
    references = read_lines(str(tmp_path / "tiny/test.zh"))
    for seed in (1, 2):
        run = tmp_path / "runs" / f"tiny-{seed}"
        config = yaml.safe_load((run / "config.yaml").read_text())
        assert (config["seed"], config["data"]["path"]) == (seed, str(tmp_path / "runs/tiny-teachers/corpus"))
        translator = Translator.load(run)
        saved = json.loads((run / results_table.SCORES_FILE).read_text())
        assert saved["parameters"] == sum(p.numel() for p in translator.bundle.model.parameters())
        for beam in (1, 5):
            outputs = translator.translate(read_lines(str(tmp_path / "tiny/test.en")), beam=beam)
            assert saved["scores"]["test"][str(beam)]["chrf"] == score(outputs, references, "zh").chrf
    weights = (tmp_path / "runs/tiny-1/model.safetensors").read_bytes()
    # Once more: nothing is trained, nothing is translated.
    for path in (tmp_path / "runs").glob("*/model.*"):
        path.write_bytes(b"")
    assert results_table.main(argv) == 0
    assert capsys.readouterr().out.splitlines()[2] == row
    # The first run, interrupted before its end, is resumed, for a corpus whose text is split at spaces.
    tokenizers = results_table.BLEU_TOKENIZER_BY_CONFIG
    monkeypatch.setitem(tokenizers, "tiny", tokenizers["multi30k-en-de-lc"])
    run = tmp_path / "runs" / "tiny-1"
    for name in ("model.json", "model.safetensors", results_table.SCORES_FILE):
        (run / name).unlink()
    for name, minutes in (("tiny-teachers", "3.0"), ("tiny-1", "2.0")):
        (tmp_path / "runs" / f"{name}.minutes").write_text(minutes)
    monkeypatch.chdir(tmp_path)
    assert results_table.main([*argv, "--seeds", "1", "--runs", "runs"]) == 0  # the same folder, spelled differently
    number = r"\d+\.\d\d"
    assert re.search(rf"\| 3 min \| 2 min \| {number} \(none\)( \| {number}){{3}} \|$", capsys.readouterr().out)
    assert (run / "model.safetensors").read_bytes() == weights
    config = Path(argv[0])  # its settings are changed
    config.write_text(config.read_text().replace("max_steps: 4", "max_steps: 9"))
    assert results_table.main(argv) == 2
    assert "tiny-1 was trained with other settings (max_steps); " in capsys.readouterr().err


@pytest.mark.parametrize("minutes", [None, "nan"])
def test_no_minutes_are_shown_if_some_are_unknown(minutes: str | None, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    if minutes:
        (tmp_path / "run.minutes").write_text(minutes)
    spent = results_table.run_timed_stage([], tmp_path / "run")
    assert results_table.mean_minutes([1.0, spent]) == "-"


def test_minutes_count_until_interrupted(argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, spent = time.perf_counter(), tmp_path / "runs" / "tiny-teachers.minutes"

    def interrupted(*_: object) -> None:
        assert spent.read_text() == "nan\n"  # what a kill leaves
        raise KeyboardInterrupt

    monkeypatch.setattr(distillation, "make_distillation_inputs", lambda *_: map(interrupted, "x"))
    assert results_table.main([*argv, "--seeds", "1"]) == 130
    assert 0 < float(spent.read_text()) * 60 < time.perf_counter() - began


def test_errors_are_reported_in_one_line(argv: list[str], tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "tiny").unlink()
    assert results_table.main(argv) == 2
    assert capsys.readouterr().err.startswith(f"results_table.py: error: cannot read data.path {tmp_path / 'tiny'}")
    assert results_table.main(["--seeds", "0"]) == 2
    assert capsys.readouterr().err.startswith(
        "results_table.py: error: argument --seeds: it must be a whole number from 1 to 2147483647, not 0"
    )
