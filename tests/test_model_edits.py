"""The code you read is the code that runs: an edit reaches training and decoding, and one line says what computes.

Each edit is made in a copy of the package, with which a new process trains for 20 steps and translates, once with
compiled code if it is admitted, and once without.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_helpers import tiny_flags
from package_copy import run_copy

import minitrans

GUIDE_TEXT = (Path(__file__).parents[1] / "docs" / "change-the-model.md").read_text(encoding="utf-8")
SECTION_BY_TITLE = {text.split("\n", 1)[0]: text for text in GUIDE_TEXT.split("\n## ")[1:]}
PLAIN_WARNING = "takes the plain and slower path"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with only a copy of the package, to be changed."""
    package = Path(minitrans.__file__).parent
    shutil.copytree(package, tmp_path / "minitrans", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def apply_diffs(folder: Path, text: str) -> None:
    """Make the changes that a section of the guide shows; the lines to be replaced must occur exactly once."""
    diffs = re.findall(r"```diff\n--- (\S+)\n(.*?)```", text, re.DOTALL)
    assert diffs
    for name, body in diffs:
        before, after = (
            "".join(f"{line[1:]}\n" for line in body.splitlines() if line[0] in kinds) for kinds in (" -", " +")
        )
        replace_text(folder / name, before, after)


def replace_text(file: Path, before: str, after: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{file.name} has {before!r} {text.count(before)} times"
    file.write_text(text.replace(before, after), encoding="utf-8")


def train_and_translate_commands(corpus: Path) -> list[list[str]]:
    """Commands that train and translate, with compiled code if it is admitted, and without it."""
    commands = []
    for mode in ("auto", "off"):
        settings = [*tiny_flags(corpus, max_steps=20), "--model.n_heads", "4", "--training.checkpoint_every", "20"]
        commands.append(["train", *settings, "--run-dir", mode, "--compiled", mode])
        commands.append(["translate", mode, "--input", str(corpus / "test.en"), "--compiled", mode])
    return commands


def verify_in_float64_alone(folder: Path) -> None:
    replace_text(folder / "minitrans/cachecheck/measurement.py", "= tuple(TOLERANCES_IN_EPS)", "= ()")


def metrics_and_weights(folder: Path, mode: str) -> list[bytes]:
    return [(folder / mode / name).read_bytes() for name in ("metrics.csv", "model.safetensors")]


def assert_falls_back_and_verify(folder: Path, corpus: Path, reason: str) -> list[str]:
    """Assert that the reason is logged, and that a run and translations have the bytes of --compiled off.

    Returns the checks that `verify`, run in the same process, reports as failed.
    """
    results, err = run_copy(folder, [*train_and_translate_commands(corpus), ["verify", "--json"]])
    err = err[: err.rindex("$ verify")]
    assert [code for code, _ in results[:4]] == [0, 0, 0, 0]
    said = [line for line in err.splitlines() if PLAIN_WARNING in line]
    assert [line.split(": ")[2].split(" ", 1)[0] for line in said] == ["training", "decoding"]
    assert all(reason in line for line in said), said
    assert all(line not in err[err.rindex("$ train") :] for line in said)  # not with --compiled off
    assert metrics_and_weights(folder, "auto") == metrics_and_weights(folder, "off")
    assert results[1][1] == results[3][1]
    assert len(results[1][1].splitlines()) == 15
    return parse_failed_checks(*results[4])


def parse_failed_checks(code: int, out: str) -> list[str]:
    """The checks that `verify` reports as failed; assert that its exit code is 1 if any failed, else 0."""
    report: dict[str, Any] = json.loads(out)
    assert code == int(not report["passed"])
    return [check["id"] for check in report["checks"] if not check["passed"]]


REFUSAL_REASONS = {
    "GELU in place of ReLU": "compiled code is off by",
    "RMSNorm in place of layer norm": "encoder.norm is a torch.nn.modules.normalization.RMSNorm, not LayerNorm",
    "Norms after the sub-layers": "compiled code is off by",
    "Keys and values of two heads shared by four": "self_attn has an unknown attribute n_kv_heads",
    "Rotary positions in place of sinusoidal ones": "compiled code is off by",
    "A hook on the attention": "decoder.layers.0.cross_attn has a forward hook",
}


@pytest.mark.parametrize("title", REFUSAL_REASONS)
def test_an_edit_of_the_model_reaches_training_and_decoding(title: str, folder: Path, corpus: Path) -> None:
    text = SECTION_BY_TITLE[title]
    apply_diffs(folder, text)
    if title != "Rotary positions in place of sinusoidal ones":  # it alone makes tensors, which have to be of the dtype
        verify_in_float64_alone(folder)
    named = re.findall(r"`(\S+)`", text[text.index("Checks that turn red:") :])
    assert assert_falls_back_and_verify(folder, corpus, REFUSAL_REASONS[title]) == named


def test_every_change_of_the_guide_is_tried() -> None:
    assert [*REFUSAL_REASONS, "A new check"] == list(SECTION_BY_TITLE)


def test_the_new_check_of_the_guide_passes_and_catches_its_fault(folder: Path) -> None:
    apply_diffs(folder, SECTION_BY_TITLE["A new check"])
    with (folder / "minitrans/verify/run_checks.py").open("a", encoding="utf-8") as file:
        file.write('CHECKS = [check for check in CHECKS if check.id == "mask.first"]\n')
    (sound, broken), _ = run_copy(folder, [["verify", "--json"], ["verify", "--sabotage", "mask.first-late", "--json"]])
    assert parse_failed_checks(*sound) == []
    assert [check["id"] for check in json.loads(sound[1])["checks"]] == ["mask.first"]
    assert parse_failed_checks(*broken) == ["mask.first"]


def test_control_without_an_edit_compiled_code_is_used(folder: Path, corpus: Path) -> None:
    results, err = run_copy(folder, train_and_translate_commands(corpus))
    assert [code for code, _ in results] == [0, 0, 0, 0]
    assert PLAIN_WARNING not in err
    said = re.findall(r"computed: .*", err)
    assert said == [f"computed: training in {who}, decoding in {who}" for who in ("compiled C++", "PyTorch")]
    assert metrics_and_weights(folder, "auto") != metrics_and_weights(folder, "off")  # the same but for rounding


def test_wrong_compiled_code_is_not_admitted_and_verify_fails(folder: Path, corpus: Path) -> None:
    cpp = folder / "minitrans" / "compiled"
    replace_text(
        cpp / "training.cpp",
        "const A lowest = std::numeric_limits<A>::lowest() / 2, scale = 1 / std::sqrt(A(head.q.columns));",
        "const A lowest = std::numeric_limits<A>::lowest() / 2, scale = A(1.001) / std::sqrt(A(head.q.columns));",
    )
    replace_text(
        cpp / "stepper.cpp",
        "for (int64_t h = 0; h < s.H; h++) softmax(w.scores[h], n, 1 / std::sqrt(A(Dh)));",
        "for (int64_t h = 0; h < s.H; h++) softmax(w.scores[h], n, 1 / A(Dh));",
    )
    replace_text(cpp / "library.py", '"-O3"', '"-O1"')  # in a quarter of the time
    verify_in_float64_alone(folder)
    red = assert_falls_back_and_verify(folder, corpus, "compiled code is off by")
    assert red == ["compiled.admitted", "compiled.pass", "compiled.steps", "compiled.outputs"]


@pytest.mark.parametrize("lacking", ["folder", pytest.param("compiler", marks=pytest.mark.slow)])
def test_without_compiled_code_everything_works(lacking: str, folder: Path, corpus: Path) -> None:
    environment, source = {"XDG_CACHE_HOME": str(folder / "cache"), "CXX": ""}, str(corpus / "test.en")
    commands = [
        ["train", *tiny_flags(corpus, max_steps=20), "--run-dir", "run"],
        ["translate", "run", "--input", source],
        ["translate", "run", "--input", source, "--beam", "2"],
        ["evaluate", "run", "--source", source, "--reference", str(corpus / "test.zh")],
        ["verify", "run", "--json"],
        ["export", "run", "-o", "engine"],
    ]
    if lacking == "folder":  # verify measures this trained run in all dtypes
        shutil.rmtree(folder / "minitrans" / "compiled")
    else:
        verify_in_float64_alone(folder)
        environment["PATH"] = str(folder)
    results, err = run_copy(folder, commands, **environment)
    assert [code for code, _ in results] == [0] * 6
    assert (PLAIN_WARNING in err) == (lacking == "compiler")
    computed = re.findall(r"computed: .*", err)
    assert [line.endswith(" verification in PyTorch") for line in computed] == [False, True]
    report = json.loads(results[4][1])
    assert report["passed"]
    assert not [check["id"] for check in report["checks"] if check["id"].startswith("compiled.")]
    assert (folder / "engine" / "model.bin").is_file()
    refused, err = run_copy(folder, [["translate", "run", "--compiled", "require", "Hello."]], **environment)
    assert refused == [(2, "")]
    assert len(err.splitlines()) == 2
    assert "compiled code is required" in err
