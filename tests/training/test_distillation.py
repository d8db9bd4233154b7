"""Training on teachers' translations: what they are made from, that it goes on, and that it says what is wrong."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from conftest import tiny_settings, wait_for_the_end_of

from minitrans import cli
from minitrans.serving.bundle import Bundle
from minitrans.serving.translator import Translation, Translator
from minitrans.text.lines import read_lines
from minitrans.training import distillation
from minitrans.training.precision import Precision

Capture = pytest.CaptureFixture[str]
STEPS = 6


def pairs(folder: Path, split: str) -> tuple[list[str], list[str]]:
    return read_lines(str(folder / f"{split}.en")), read_lines(str(folder / f"{split}.zh"))


@pytest.fixture
def arguments(few_sentences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Flags of a short run; two teachers of each direction will do."""
    monkeypatch.setattr(distillation, "SEEDS", (1, 2))
    return [*tiny_settings(few_sentences, STEPS), "--tokenizer.vocab_size", "600", "--run-dir", str(tmp_path / "run")]


def settings(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    return found


def test_a_model_is_trained_on_the_corpus_and_all_teachers_translations(
    arguments: list[str], few_sentences: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    translate, asked = Translator.translate, set()

    def noting(self: Translator, lines: list[str], **how: Any) -> Any:
        asked.add((self.bundle.target, how.get("beam"), how.get("length_penalty")))
        return translate(self, lines, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Translator, "translate", noting)
        assert cli.main(["distill", *arguments, "--seed", "7"]) == 0
    # Validations and scores are those of plain translations.
    assert asked == {("zh", None, None), ("en", None, None), ("zh", 5, 3.0), ("en", 5, 1.0)}
    folder = tmp_path / "run-teachers"
    corpus = folder / "corpus"
    sources, targets = pairs(corpus, "train")
    assert (sources, targets) == pairs(few_sentences, "train")
    assert pairs(corpus, "valid") == pairs(few_sentences, "valid")
    assert not list(corpus.glob("test*"))  # not even the scores of a teacher come from it

    def found(direction: str, name: str, sentences: list[str]) -> list[str]:
        penalty = distillation.LENGTH_PENALTY[direction]
        return Translator.load(folder / name).translate(sentences, beam=distillation.BEAM, length_penalty=penalty)

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

    for seed in (1, 2):
        student = settings(folder / f"student{seed}")
        assert student["trainer"]["max_steps"] == 2 * STEPS
        assert student["seed"] == seed
        assert student["data"]["path"] == str(corpus)
        assert student["data"]["splits"] == {"train": "+".join(names), "valid": "valid"}
    students = [Translator.load(folder / f"student{seed}") for seed in (1, 2)]
    sampled = [
        Translator.load(folder / f"backward{seed}").sample(targets, distillation.SAMPLE, seed) for seed in (1, 2)
    ]
    for n, lines in enumerate((sources, *sampled)):
        agreed = distillation.agree(students, Translator.load(folder / "backward1"), lines)
        assert pairs(corpus, f"agreed{n}") == (lines, agreed)

    model = settings(tmp_path / "run")
    assert model["trainer"]["max_steps"] == STEPS * 2 // 3
    assert model["training"]["learning_rate"] == 0.005
    assert model["training"]["init_from"] == str(folder / "student1")  # 7 is 1 modulo 2
    assert model["seed"] == 7
    assert model["data"]["path"] == str(corpus)
    assert model["data"]["splits"] == {"train": "train+backward1+backward2+agreed0+agreed1+agreed2", "valid": "valid"}
    assert (Translator.load(tmp_path / "run").bundle.source, model["data"]["target"]) == ("en", "zh")


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distillation, "choose_precision", lambda *_: Precision("fp32", "for the test"))


SOURCES = ["I love you.", "", "Machine learning is fun.", "We saw the dog.", "She reads a book."]


@pytest.mark.usefixtures("exact")
def test_the_log_probability_of_a_translation_is_its_score(tiny_run: Path) -> None:
    translator = Translator.load(tiny_run)
    found = [
        (source, translation)
        for source, translations in zip(SOURCES, translator.n_best(SOURCES, 4, length_penalty=0), strict=True)
        for translation in translations
        if source
    ]
    scores = distillation.log_probs(translator, [source for source, _ in found], [t.text for _, t in found])
    near = np.isclose(scores, [t.score for _, t in found], rtol=1e-4)
    assert near.mean() > 0.7  # pieces that spell the same are others now and then


def test_students_agree_on_the_candidate_that_they_and_the_teacher_like(
    tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers as they might be, and what each part of the formula makes of them."""
    bundle = Translator.load(tiny_run).bundle

    class Student(NamedTuple):
        bundle: Bundle
        found: list[list[Translation]]

        def n_best(self, lines: list[str], beam: int, length_penalty: float) -> list[list[Translation]]:
            assert (lines, beam, length_penalty) == (["a b", ""], distillation.BEAM, 0)
            return self.found

    lists = ({"x": -1.0, "y": -2.0}, {"y": -2.5, "z": -3.0}, {"y": -4.0, "z": -2.0})
    students = [
        Student(bundle, [[Translation(*each) for each in found.items()], [Translation("", 0)]]) for found in lists
    ]
    students[0].found[0].append(Translation("x", -9.0))  # once more, in other pieces
    backward = {"x": -5.0, "y": -9.0, "z": -9.0, "": 0.0}
    monkeypatch.setattr(distillation, "log_probs", lambda _, targets, sources: np.array([backward[t] for t in targets]))

    def agreed(vote: float, backward: float, length: float) -> str:
        for name, value in (("VOTE", vote), ("BACKWARD", backward), ("LENGTH", length)):
            monkeypatch.setattr(distillation, name, value)
        best, blank = distillation.agree(students, students[0], ["a b", ""])  # type: ignore[arg-type]
        assert blank == ""
        return best

    assert agreed(0, 0, 0) == "x"  # -1, the others' means are -2.83 and -2.5
    assert agreed(1, 0, 0) == "y"  # 0, .17, -.5
    assert agreed(1, 0.1, 0) == "x"  # -.5, -.73, -1.4
    monkeypatch.setattr(type(bundle.tokenizer), "encode_batch", lambda _, lines: [[5] * "xy z".find(t) for t in lines])
    assert agreed(0, 0, 1) == "z"  # -1, -1.83, .5


def test_it_goes_on_where_it_was_interrupted(arguments: list[str], tmp_path: Path) -> None:
    assert cli.main(["distill", *arguments]) == 0
    made = {path: path.read_bytes() for path in tmp_path.rglob("model.safetensors")}
    corpus = tmp_path / "run-teachers/corpus"
    for path in (corpus / "backward2.en", tmp_path / "run/model.json", tmp_path / "run/model.safetensors"):
        path.unlink()
    teacher = tmp_path / "run-teachers/forward1/model.safetensors"
    teacher.touch()
    before = teacher.stat().st_mtime_ns
    assert cli.main(["distill", *arguments]) == 0
    assert teacher.stat().st_mtime_ns == before
    assert len(read_lines(str(corpus / "backward2.en"))) == len(read_lines(str(corpus / "backward2.zh")))
    assert {path: path.read_bytes() for path in made} == made


def test_a_run_of_other_settings_is_not_taken_for_done(arguments: list[str], tmp_path: Path, capsys: Capture) -> None:
    assert cli.main(["distill", *arguments]) == 0
    capsys.readouterr()
    assert cli.main(["distill", *arguments, "--seed", "2"]) == 2  # the teachers' seeds are their own
    said = f"minitrans: error: {tmp_path / 'run'} was trained with other settings; remove it, or "
    assert capsys.readouterr().err.startswith(said)
    assert cli.main(["distill", *arguments, "--model.dropout", "0.3"]) == 2
    said = f"minitrans: error: {tmp_path / 'run-teachers/forward1'} was trained with other settings; remove it, or "
    assert capsys.readouterr().err.startswith(said)


def test_wrong_settings_are_told_in_a_line(capsys: Capture) -> None:
    assert cli.main(["distill", "--no-such"]) == 2
    assert capsys.readouterr().err.startswith(
        "minitrans: error: there is no flag --no-such (see minitrans distill --help); the nearest is "
    )


def test_ctrl_c_while_the_students_agree_leaves_no_part(
    arguments: list[str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(distillation, "agree", interrupted)
        assert cli.main(["distill", *arguments]) == 130
    assert capsys.readouterr().err.endswith(
        "minitrans: interrupted: run the same `minitrans distill` command to resume\n"
    )
    assert not list((tmp_path / "run-teachers/corpus").glob("agreed*.zh"))
    assert cli.main(["distill", *arguments]) == 0


def test_ctrl_c_while_a_teacher_is_trained_names_the_command(
    arguments: list[str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt("stopped at step 3; the same command with --resume continues")

    monkeypatch.setattr(distillation, "train", interrupted)
    assert cli.main(["distill", *arguments]) == 130
    assert capsys.readouterr().err.endswith(
        "minitrans: interrupted: run the same `minitrans distill` command to resume\n"
    )


def test_compiled_code_is_used_by_none_or_by_all(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    load = Translator.load

    def seen(run: Path, **settings: Any) -> Translator:
        loaded.append(settings["compiled"])
        return load(run, **settings)

    monkeypatch.setattr(Translator, "load", seen)
    assert cli.main(["distill", *arguments, "--compiled", "off"]) == 0
    assert len(loaded) >= 7
    assert set(loaded) == {"off"}
    for run in (tmp_path / "run", *(tmp_path / "run-teachers").glob("*[12]")):
        assert settings(run)["compiled"] == "off"


@pytest.mark.slow
def test_two_devices_train_each_model_and_one_process_does_the_rest(arguments: list[str], tmp_path: Path) -> None:
    program = (
        "import sys; from minitrans import cli; from minitrans.training import distillation; "
        "distillation.SEEDS = (1,); sys.exit(cli.main(sys.argv[1:]))"
    )
    script = tmp_path / "distill_once.py"
    script.write_text(program)
    two = ["--trainer.accelerator", "cpu", "--trainer.devices", "2", "--trainer.strategy", "ddp"]
    command = [sys.executable, str(script), "distill", *arguments, *two]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    with process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    wait_for_the_end_of(process.pid)
    assert out.count("run folder: ") == 4  # a teacher of each direction, a student, the model
    assert (tmp_path / "run/model.json").is_file()
