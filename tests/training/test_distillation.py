"""Training on teachers' translations: what they are made from, resuming, and the refusals."""

import errno
import io
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
import yaml
from command_helpers import refusal_message, write_files
from train_helpers import fail, finish_process, last_error, read_sides, run_flags, spawn, train

from minitrans.errors import UserError
from minitrans.training import distillation
from minitrans.training.config import parse_config
from minitrans.training.run_folder import with_resume_or_overwrite
from minitrans.translate.bundle import Bundle
from minitrans.translate.translator import Translation, Translator

Capture = pytest.CaptureFixture[str]
STEPS = 6
DISTILL_FLAGS = ("--tokenizer.vocab_size", "600", "--compiled", "off", "--data.reversed_epochs", "1")


def distill(corpus: Path, run_dir: Path, *flags: str) -> int:
    return train(corpus, run_dir, *DISTILL_FLAGS, *flags, max_steps=STEPS, command="distill")


def load_config(run: Path) -> dict[str, Any]:
    return yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))


class DistilledRun(NamedTuple):
    """A finished run, its teachers beside it, and the options that its translators were called and loaded with."""

    run: Path
    searches: set[tuple[Any, ...]]
    compiled_modes: list[str]
    out: str


@pytest.fixture(scope="module")
def distilled(sixty_pair_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DistilledRun]:
    """Made once, with two teachers for each direction; its tests use two as well, and copy what they change."""
    noted = DistilledRun(tmp_path_factory.mktemp("distilled") / "run", set(), [], "")
    translate, load = Translator.translate, Mock(wraps=Translator.load)

    def noting(self: Translator, lines: list[str], **options: Any) -> Any:
        noted.searches.add((self.bundle.target, options.get("beam"), options.get("length_penalty")))
        return translate(self, lines, **options)

    with pytest.MonkeyPatch.context() as two_seeds:
        two_seeds.setattr(distillation, "SEEDS", (1, 2))
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as out:
            patch.setattr(Translator, "translate", noting)
            patch.setattr(Translator, "load", load)
            assert distill(sixty_pair_corpus, noted.run, "--seed", "7") == 0
        noted.compiled_modes.extend(call.kwargs["compiled"] for call in load.call_args_list)
        yield noted._replace(out=out.getvalue())


def test_a_model_is_trained_on_the_corpus_and_all_teachers_translations(
    distilled: DistilledRun, sixty_pair_corpus: Path
) -> None:
    # Validations and scores use plain translations.
    assert distilled.searches == {("zh", None, None), ("en", None, None), ("zh", 5, 3.0), ("en", 5, 1.0)}
    assert {line.split()[0] for line in distilled.out.splitlines()} == {"valid:", "BLEU", "chrF", "run"}
    folder = distilled.run.with_name("run-teachers")
    corpus = folder / "corpus"
    sources, targets = read_sides(corpus, "train")
    assert (sources, targets) == read_sides(sixty_pair_corpus, "train")
    assert read_sides(corpus, "valid") == read_sides(sixty_pair_corpus, "valid")
    assert not list(corpus.glob("test*"))  # not even a teacher is scored on it

    def translated(direction: str, name: str, sentences: list[str]) -> list[str]:
        penalty = distillation.PENALTY_BY_DIRECTION[direction]
        return Translator.load(folder / name).translate(sentences, beam=distillation.BEAM_SIZE, length_penalty=penalty)

    names = ["train"]
    for seed in (1, 2):
        forward, backward = f"forward{seed}", f"backward{seed}"
        assert read_sides(corpus, forward) == (sources, translated("forward", forward, sources))
        assert read_sides(corpus, backward) == (translated("backward", backward, targets), targets)
        for name in (forward, backward):
            assert load_config(folder / name)["trainer"]["max_steps"] == STEPS * 2 // 3
            assert load_config(folder / name)["seed"] == seed
            assert load_config(folder / name)["data"]["reversed_epochs"] == 1
            names.append(name)

    for seed in (1, 2):
        student = load_config(folder / f"student{seed}")
        assert student["trainer"]["max_steps"] == 2 * STEPS
        assert student["seed"] == seed
        assert student["data"]["path"] == str(corpus)
        assert student["data"]["splits"] == {"train": "+".join(names), "valid": "valid"}
    students = [Translator.load(folder / f"student{seed}") for seed in (1, 2)]
    backward1, backward2 = (Translator.load(folder / name) for name in ("backward1", "backward2"))
    sampled = [each.sample(targets, distillation.SAMPLING_TOP_K, i) for i, each in enumerate((backward1, backward2), 1)]
    for n, lines in enumerate((sources, *sampled)):
        agreed = distillation.rerank_translations(students, backward1, lines)
        assert read_sides(corpus, f"agreed{n}") == (lines, agreed)

    model = load_config(distilled.run)
    assert model["trainer"]["max_steps"] == STEPS * 2 // 3
    assert model["training"]["learning_rate"] == 0.005
    assert model["training"]["init_from"] == str(folder / "student1")  # 7 is 1 modulo 2
    assert model["seed"] == 7
    assert model["data"]["path"] == str(corpus)
    assert model["data"]["reversed_epochs"] == student["data"]["reversed_epochs"] == 0
    assert model["data"]["splits"] == {"train": "train+backward1+backward2+agreed0+agreed1+agreed2", "valid": "valid"}
    assert (Translator.load(distilled.run).bundle.source, model["data"]["target"]) == ("en", "zh")


def test_the_seed_chooses_the_student(sixty_pair_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distillation, "SEEDS", (1, 2, 3))
    for seed, student in ((1, 1), (2, 2), (3, 3), (4, 1)):
        flags = ("--seed", str(seed), "--data.source_column", "english", "--data.target_column", "chinese")
        config = parse_config(run_flags(sixty_pair_corpus, tmp_path / "run", *flags))
        model = distillation.final_config(config, tmp_path)
        assert model.data.columns == ("en", "zh")  # the names of the files that it reads
        assert (model.training.init_from, model.seed) == (str(tmp_path / f"student{student}"), seed)
        assert model.trainer["max_steps"] == 17  # two thirds of 25
    epochs = replace(config, trainer={"max_steps": -1, "max_epochs": 3})
    assert distillation.final_config(epochs, tmp_path).trainer == epochs.trainer


def test_the_log_probability_of_a_translation_is_its_score(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distillation, "precision_and_reason", lambda *_: ("fp32", "for the test"))
    translator = Translator.load(tiny_run)
    sources = ["I love you.", "Machine learning is fun.", "We saw the dog.", "She reads a book."]
    ranked = zip(sources, translator.n_best(sources, 4, length_penalty=0), strict=True)
    pairs = [(source, translation) for source, translations in ranked for translation in translations]
    scores = distillation.target_log_probs(translator, [source for source, _ in pairs], [t.text for _, t in pairs])
    near = np.isclose(scores, [t.score for _, t in pairs], rtol=1e-4)
    assert near.mean() > 0.7  # the same text is sometimes split into other pieces


def test_reranking_combines_votes_backward_scores_and_length(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up scores, and what each term of the formula makes of them."""
    bundle = Translator.load(tiny_run).bundle

    class Student(NamedTuple):
        bundle: Bundle
        n_best_list: list[list[Translation]]

        def n_best(self, lines: list[str], beam: int, length_penalty: float) -> list[list[Translation]]:
            assert (lines, beam, length_penalty) == (["a b", ""], distillation.BEAM_SIZE, 0)
            return self.n_best_list

    lists = ({"x": -1.0, "y": -2.0}, {"y": -2.5, "z": -3.0}, {"y": -4.0, "z": -2.0})
    students = [
        Student(bundle, [[Translation(*each) for each in scores.items()], [Translation("", 0)]]) for scores in lists
    ]
    backward = {"x": -5.0, "y": -9.0, "z": -9.0, "": 0.0}
    monkeypatch.setattr(
        distillation, "target_log_probs", lambda _, targets, sources: np.array([backward[t] for t in targets])
    )

    def agreed(vote: float, backward: float, length: float) -> str:
        for name, value in (("VOTE_WEIGHT", vote), ("BACKWARD_WEIGHT", backward), ("LENGTH_WEIGHT", length)):
            monkeypatch.setattr(distillation, name, value)
        best, blank = distillation.rerank_translations(students, students[0], ["a b", ""])  # type: ignore[arg-type]
        assert blank == ""
        return best

    assert agreed(0, 0, 0) == "x"  # -1, the others' means are -2.83 and -2.5
    assert agreed(1, 0, 0) == "y"  # 0, .17, -.5
    assert agreed(1, 0.1, 0) == "x"  # -.5, -.73, -1.4
    monkeypatch.setattr(type(bundle.tokenizer), "encode_batch", lambda _, lines: [[5] * "xy z".find(t) for t in lines])
    assert agreed(0, 0, 1) == "z"  # -1, -1.83, .5


@pytest.fixture
def distilled_copy(distilled: DistilledRun, tmp_path: Path) -> Path:
    """A copy of the run and its teachers that a test may break, with the new paths in its settings."""
    shutil.copytree(distilled.run.parent, tmp_path, dirs_exist_ok=True)
    for path in tmp_path.rglob("config.yaml"):
        path.write_text(path.read_text().replace(str(distilled.run.parent), str(tmp_path)))
    return tmp_path / "run"


def test_an_interrupted_distillation_can_be_resumed(
    sixty_pair_corpus: Path, distilled_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teachers = distilled_copy.with_name("run-teachers")
    made = {path: path.read_bytes() for path in distilled_copy.parent.rglob("model.safetensors")}
    for path in (teachers / "corpus/backward2.en", distilled_copy / "model.json", distilled_copy / "model.safetensors"):
        path.unlink()
    kept = [teachers / "forward1/model.safetensors", teachers / "corpus/backward1.en"]
    before = [path.stat().st_mtime_ns for path in kept]
    assert distill(sixty_pair_corpus, distilled_copy, "--seed", "7") == 0
    assert [path.stat().st_mtime_ns for path in kept] == before
    assert len(read_sides(teachers / "corpus", "backward2")[0]) == len(read_sides(teachers / "corpus", "backward2")[1])
    assert {path: path.read_bytes() for path in made} == made
    monkeypatch.chdir(distilled_copy)
    monkeypatch.delattr(distillation, "train")
    for same in ("../run", "."):  # however it is spelled, and whatever is logged
        assert distill(sixty_pair_corpus, Path(same), "--seed", "7", "--trainer.log_every_n_steps", "7") == 0


def test_the_texts_of_a_model_that_was_removed_are_made_anew(sixty_pair_corpus: Path, distilled_copy: Path) -> None:
    teachers = distilled_copy.with_name("run-teachers")
    texts = {path: path.read_bytes() for path in (teachers / "corpus").iterdir()}
    shutil.rmtree(teachers / "forward2")
    for name in ("forward2.zh", "agreed1.zh"):
        (teachers / "corpus" / name).write_bytes(b"of the model that was removed\n")
    assert distill(sixty_pair_corpus, distilled_copy, "--seed", "7") == 0
    assert {path: path.read_bytes() for path in texts} == texts


def test_a_run_with_other_settings_is_refused(sixty_pair_corpus: Path, distilled_copy: Path, capsys: Capture) -> None:
    teacher = distilled_copy.with_name("run-teachers") / "forward1"
    for flags, other, name in (("2", distilled_copy, "seed"), ("7 --model.dropout 0.3", teacher, "model")):
        assert distill(sixty_pair_corpus, distilled_copy, "--seed", *flags.split()) == 2
        said = f"minitrans: error: {other} was trained with other settings ({name}); give the same, remove it, or "
        assert last_error(capsys).startswith(said)
        shutil.rmtree(distilled_copy, ignore_errors=True)  # else refused before its teachers are looked at
    write_files(teacher.parent / "corpus", {"valid.en": b"as of another corpus\n"})
    assert distill(sixty_pair_corpus, distilled_copy, "--seed", "7") == 2
    assert last_error(capsys).endswith(f"corpus; remove {teacher.parent}, or give another --run-dir")


def test_an_unusable_run_folder_is_refused_before_the_teachers_are_trained(
    tiny_run: Path, sixty_pair_corpus: Path, capsys: Capture
) -> None:
    for run, said in (
        (tiny_run, f"{tiny_run} was trained with other settings (tokenizer); give the same, remove it, or "),
        (sixty_pair_corpus, f"{sixty_pair_corpus} is not marked as a run folder by a file .minitrans, so "),
    ):
        assert distill(sixty_pair_corpus, run) == 2
        assert last_error(capsys).startswith(f"minitrans: error: {said}")
        assert not run.with_name(f"{run.name}-teachers").exists()


def test_ctrl_c_names_the_command_to_resume_and_leaves_no_partial_file(
    sixty_pair_corpus: Path, distilled_copy: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = distilled_copy.with_name("run-teachers") / "corpus"
    for path in (*corpus.glob("agreed*"), distilled_copy / "model.json"):
        path.unlink()
    stopped = KeyboardInterrupt("stopped at step 3; the same command with --resume continues")
    fail(monkeypatch, "distillation.rerank_translations", stopped)
    assert distill(sixty_pair_corpus, distilled_copy, "--seed", "7") == 130
    assert last_error(capsys) == "minitrans: interrupted: run the same `minitrans distill` command to resume"
    assert not list(corpus.glob("agreed*.zh"))
    monkeypatch.undo()
    assert distill(sixty_pair_corpus, distilled_copy, "--seed", "7") == 0


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.EIO, "Input/output error")])
def test_the_next_training_begins_even_if_the_last_scores_cannot_be_printed(
    error: OSError, sixty_pair_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = iter([("settings", "scores")] * 2)
    monkeypatch.setattr(distillation, "distill", lambda _: trained)
    monkeypatch.setattr("minitrans.cli.train.print_run", Mock(side_effect=error))
    assert distill(sixty_pair_corpus, tmp_path / "run") == 0
    assert not list(trained)


@pytest.mark.parametrize("error", ["the disk is full; use --resume to continue", "no such text"])
def test_an_error_does_not_advise_a_flag_that_distill_lacks(
    error: str, sixty_pair_corpus: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distillation, "distill", Mock(side_effect=UserError(error)))
    assert distill(sixty_pair_corpus, tmp_path / "run") == 2
    hint = " (distill has neither flag: it resumes; to begin anew, remove the folder)" if "--resume" in error else ""
    assert last_error(capsys) == f"minitrans: error: {error}{hint}"


def test_a_training_begins_anew_without_a_checkpoint_to_resume_from(sixty_pair_corpus: Path, tmp_path: Path) -> None:
    config = parse_config(run_flags(sixty_pair_corpus, tmp_path))
    for name in ("best.ckpt", "step-7.ckpt"):
        write_files(tmp_path / "checkpoints", {name: b""})
        assert with_resume_or_overwrite(config).resume == (name == "step-7.ckpt")


def test_the_compiled_setting_applies_to_all_models(distilled: DistilledRun) -> None:
    assert len(distilled.compiled_modes) >= 7
    assert set(distilled.compiled_modes) == {"off"}
    for run in (distilled.run, *distilled.run.with_name("run-teachers").glob("*[12]")):
        assert load_config(run)["compiled"] == "off"


@pytest.mark.slow
def test_two_devices_train_each_model_and_one_process_does_the_rest(sixty_pair_corpus: Path, tmp_path: Path) -> None:
    script = tmp_path / "distill_once.py"
    script.write_text(
        "import sys; from minitrans import cli; from minitrans.training import distillation; "
        "distillation.SEEDS = (1,); sys.exit(cli.main(sys.argv[1:]))"
    )
    two = ("--trainer.accelerator", "cpu", "--trainer.devices", "2", "--trainer.strategy", "ddp")
    flags = run_flags(sixty_pair_corpus, tmp_path / "run", *DISTILL_FLAGS, *two, max_steps=STEPS)
    out, _ = finish_process(spawn(script, "distill", *flags))
    assert out.count("run folder: ") == 4  # a teacher of each direction, a student, the model
    assert (tmp_path / "run/model.json").is_file()


@pytest.mark.parametrize("variables", [{"TORCHELASTIC_RUN_ID": "1"}, {"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "a"}])
def test_processes_of_another_launcher_are_refused(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the first process end with each training, and the launcher would not start them again."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    words = ["distill", "--config", "configs/en-zh.yaml", "--run-dir", "new", "--data.path", "gone"]
    assert refusal_message(*words).startswith("distill trains on one machine, and starts its processes itself: ")
