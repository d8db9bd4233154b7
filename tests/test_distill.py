"""Training on teachers' translations: what they are made from, that it goes on, and that it says what is wrong."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import tiny_settings

from minitrans.text import read_lines
from minitrans.translator import Translator

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import distill

Capture = pytest.CaptureFixture[str]
STEPS = 6


def pairs(folder: Path, split: str) -> tuple[list[str], list[str]]:
    return read_lines(str(folder / f"{split}.en")), read_lines(str(folder / f"{split}.zh"))


@pytest.fixture
def arguments(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Flags of a short run; two teachers of each direction will do."""
    monkeypatch.setattr(distill, "TEACHERS", 2)
    return [*tiny_settings(tiny_run.parent, STEPS), "--run-dir", str(tmp_path / "run")]


def settings(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    return found


def test_a_model_is_trained_on_the_corpus_and_all_teachers_translations(
    arguments: list[str], tiny_run: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert distill.main([*arguments, "--seed", "7"]) == 0
    folder = tmp_path / "run-teachers"
    corpus = folder / "corpus"
    sources, targets = pairs(corpus, "train")
    assert (sources, targets) == pairs(tiny_run.parent, "train")
    assert pairs(corpus, "valid") == pairs(tiny_run.parent, "valid")
    assert not list(corpus.glob("test*"))  # not even the scores of a teacher come from it

    def found(direction: str, name: str, sentences: list[str]) -> list[str]:
        penalty = distill.LENGTH_PENALTY[direction]
        return Translator.load(folder / name).translate(sentences, beam=distill.BEAM, length_penalty=penalty)

    names = ["train"]
    for seed in (1, 2):
        forward, backward = f"forward{seed}", f"backward{seed}"
        assert pairs(corpus, forward) == (sources, found("forward", forward, sources))
        assert pairs(corpus, backward) == (found("backward", backward, targets), targets)
        for name in (forward, backward):
            assert settings(folder / name)["trainer"]["max_steps"] == STEPS * 2 // 3
            assert settings(folder / name)["seed"] == seed
            names.append(name)
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == {"valid:", "BLEU", "chrF", "run"}

    student = settings(tmp_path / "run")
    assert student["trainer"]["max_steps"] == 2 * STEPS
    assert student["seed"] == 7
    assert student["data"]["path"] == str(corpus)
    assert student["data"]["splits"] == {"train": "+".join(names), "valid": "valid"}
    assert (Translator.load(tmp_path / "run").bundle.source, student["data"]["target"]) == ("en", "zh")


def test_it_goes_on_where_it_was_interrupted(arguments: list[str], tmp_path: Path) -> None:
    assert distill.main(arguments) == 0
    made = {path: path.read_bytes() for path in tmp_path.rglob("model.safetensors")}
    corpus = tmp_path / "run-teachers/corpus"
    for path in (corpus / "backward2.en", tmp_path / "run/model.json", tmp_path / "run/model.safetensors"):
        path.unlink()
    teacher = tmp_path / "run-teachers/forward1/model.safetensors"
    teacher.touch()
    before = teacher.stat().st_mtime_ns
    assert distill.main(arguments) == 0
    assert teacher.stat().st_mtime_ns == before
    assert len(read_lines(str(corpus / "backward2.en"))) == len(read_lines(str(corpus / "backward2.zh")))
    assert {path: path.read_bytes() for path in made} == made


def test_a_run_of_other_settings_is_not_taken_for_done(arguments: list[str], tmp_path: Path, capsys: Capture) -> None:
    assert distill.main(arguments) == 0
    capsys.readouterr()
    assert distill.main([*arguments, "--seed", "2"]) == 2  # the teachers' seeds are their own
    said = f"distill.py: error: {tmp_path / 'run'} was trained with other settings; remove it, or "
    assert capsys.readouterr().err.startswith(said)
    assert distill.main([*arguments, "--model.dropout", "0.3"]) == 2
    said = f"distill.py: error: {tmp_path / 'run-teachers/forward1'} was trained with other settings; remove it, or "
    assert capsys.readouterr().err.startswith(said)


def test_wrong_settings_are_told_in_a_line(capsys: Capture) -> None:
    assert distill.main(["--no-such"]) == 2
    assert capsys.readouterr().err.startswith("distill.py: error: there is no setting no-such; ")
