"""What the README and the guides tell a reader to do can be done, and their links lead somewhere."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from inspect import signature
from pathlib import Path

import pytest
from command_helpers import run_cli, write_files

import minitrans
from minitrans import cli
from minitrans.cachecheck.measurement import dtype_name, to_str
from minitrans.cli.arguments import Parser
from minitrans.compiled.probe import LENGTH, TOLERANCES
from minitrans.data.corpus import _TOKENIZER_PAIRS
from minitrans.errors import UserError
from minitrans.model.transformer import TransformerConfig
from minitrans.server.queue import MAX_BATCH_LINES
from minitrans.training.config import SECTIONS, TRAINING_BYTES_PER_PARAMETER
from minitrans.verify.checks import CHECKS
from minitrans.verify.model_and_pairs import N_TEXT_PAIRS
from minitrans.verify.sabotage import SABOTAGES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE_PATTERNS = "README.md", "CHANGELOG.md", "data/en-zh/README.md", "docs/*.md"
PAGES = {path: path.read_text(encoding="utf-8") for pattern in PAGE_PATTERNS for path in sorted(ROOT.glob(pattern))}
NOT_IN_A_CLONE = {"words.txt", "onnx/"}  # files and folders that pages name and a clone does not have
BENCH_FLAGS = {"--d-model", "--minutes"}  # from scripts that make flags of setting names
MODEL_FILES_TO_READ = [ROOT / f"minitrans/model/{name}.py" for name in
        ("masks", "attention", "cache", "layers", "transformer", "decoding", "loss", "dropout")]  # fmt: skip


def minitrans_commands(page: str) -> list[list[str]]:
    """The words of each command line of ours on a page."""
    lines = re.findall(r"^(?:    |\$ )minitrans (.*)$", re.sub(r"\\\n *", "", page), re.M)
    return [shlex.split(line.split(" #")[0]) for line in lines]


def lines_to_type() -> list[str]:
    """What the README has a reader type into a shell, from its top to its end; the rest of its blocks is output."""
    return re.findall(r"^    ((?:\.|make|minitrans) .*)$", README, re.M)


@pytest.fixture
def demo_clone_folder(tiny_run: Path, tmp_path: Path) -> Path:
    """A folder which has what a clone has after `make demo`, with small runs in place of those that take minutes."""
    runs = [(f"runs/{name}", tiny_run) for name in ("en-zh", "seed2")]
    (tmp_path / "runs").mkdir()
    for name, place in (("data", ROOT / "data"), (".venv", Path(sys.prefix)), *runs):
        (tmp_path / name).symlink_to(place)
    return tmp_path


venv_only = pytest.mark.skipif(not Path(sys.prefix, "bin/activate").exists(), reason="not in a .venv, as make has it")


@venv_only
def test_a_shell_finds_every_command_of_the_readme_and_commands_on_a_run_succeed(
    demo_clone_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell that knows only the system's commands."""
    folder, lines = demo_clone_folder, lines_to_type()
    script = "\n".join(line if line[0] == "." else f"command -v {line.split()[0]}" for line in lines)
    subprocess.run(["sh", "-ec", script], cwd=folder, env=os.environ | {"PATH": os.defpath}, check=True)
    monkeypatch.chdir(folder)
    with_a_run = [line for line in lines if re.match("minitrans (translate|evaluate|explain|export)", line)]
    done = [run_cli(*shlex.split(line, comments=True)[1:]) for line in with_a_run]
    assert {(code, err) for code, _, err in done if code} == set()
    assert "".join(out for _, out, _ in done).count("BLEU ") == 4  # two runs and their mean, and how it was computed
    assert (folder / "page.html").exists()
    assert (folder / "engine/model.bin").exists()


def run_make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run our Makefile in a folder, as if no other make ran these tests."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    command = ["make", "-f", str(ROOT / "Makefile"), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@venv_only
def test_make_runs_the_code_of_its_folder_though_the_venv_is_of_another_clone(demo_clone_folder: Path) -> None:
    (demo_clone_folder / "minitrans.py").write_text("raise SystemExit('this folder')")
    done = run_make(demo_clone_folder, "-o", "runs/en-zh/model.json", "demo")
    assert done.stderr.startswith("this folder\n")


CONFIG, CORPUS, STARTED = "configs/en-zh.yaml", "data/en-zh/train.en", "runs/en-zh/config.yaml"
STEP, MODEL = "runs/en-zh/checkpoints/step-7.ckpt", "runs/en-zh/model.json"


@pytest.mark.parametrize(
    ("oldest_to_newest", "flag"),
    [
        ((CONFIG, CORPUS), "--overwrite"),
        ((CONFIG, CORPUS, STARTED, STEP), "--resume"),
        ((CORPUS, STARTED, STEP, CONFIG), "--overwrite"),  # a run of other settings cannot be resumed
        ((CONFIG, CORPUS, STARTED, STEP, MODEL, "data/en-zh/README.md", "data/en-zh/everyday.en"), None),
        ((CONFIG, STARTED, STEP, MODEL, CORPUS), "--overwrite"),
    ],
)
def test_make_trains_unless_the_model_is_newer_than_settings_and_corpus(
    tmp_path: Path, oldest_to_newest: tuple[str, ...], flag: str | None
) -> None:
    write_files(tmp_path, dict.fromkeys(oldest_to_newest, "") | {"bin/minitrans": "#!/bin/sh\necho $*\n"})
    (tmp_path / "bin/minitrans").chmod(0o700)
    for second, name in enumerate(oldest_to_newest, 1):
        os.utime(tmp_path / name, (second, second))
    done = run_make(tmp_path, "-s", "BIN=bin", "-o", ".venv/ready", MODEL)
    assert done.returncode == 0
    trained = f"train --config {CONFIG} --run-dir runs/en-zh {flag}\n"
    assert done.stdout == (trained if flag else "")


def test_make_says_what_to_do_in_a_folder_that_was_moved(tmp_path: Path) -> None:
    names = ("pyproject.toml", "constraints.txt", ".venv/bin/pip", ".venv/ready")
    write_files(tmp_path, dict.fromkeys(names, "#!/gone/.venv/bin/python\n"))
    (tmp_path / ".venv/bin/pip").chmod(0o700)
    done = run_make(tmp_path, "-s", "test")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("the programs in .venv do not run (another folder, or another Python?); rm -r .venv")


def test_the_demo_ends_with_valid_commands() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = re.findall(r"@echo '    (.*)'", makefile.replace("$(BIN)", ".venv/bin").replace("$(RUN)", "runs/en-zh"))
    activate, *lines = lines
    assert any(typed.startswith(activate) for typed in lines_to_type())
    assert [line.split()[1] for line in lines] == ["translate", "explain", "serve"]
    assert all(cli.parse_command(shlex.split(line)[1:]) for line in lines)


def test_the_readme_shows_every_command() -> None:
    assert {command for command, *_ in minitrans_commands(README)} == {*cli.COMMANDS}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_on_a_page_can_be_parsed(path: Path) -> None:
    for words in minitrans_commands(PAGES[path]):
        assert cli.parse_command(words)[0] == words[0]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_on_a_page_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[path]):
        if not target.startswith("https://"):
            name, _, anchor = target.partition("#")
            file = path.parent / name if name else path
            assert file.exists(), target
            text = file.read_text(encoding="utf-8") if anchor else ""
            titles = [
                re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)", text, re.M)
            ]
            assert not anchor or anchor in titles or f'<a id="{anchor}"></a>' in text, target


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_make_targets_on_pages_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = "\n".join(PAGES.values())
    for target in set(re.findall(r"make (\w+)", "\n".join(re.findall(r"^    make .*|`make \w+`", text, re.M)))):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_the_readmes_python_example_runs(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # it writes a page
    monkeypatch.setattr("minitrans.verify.run_checks.checks_to_run", lambda _: CHECKS[:3])
    (example,) = re.findall(r"```python\n(.*?)```", README, re.S)
    scope: dict[str, object] = {}
    exec(example.replace("runs/en-zh", str(tiny_run)), scope)
    assert scope["minitrans"] is minitrans


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_files_and_folders_named_on_a_page_exist(path: Path) -> None:
    folders = [ROOT, ROOT / "docs", *(ROOT / "minitrans").glob("**/")]
    named = re.findall(r"`([\w./-]+(?:\.(?:py|cpp|h|toml|yaml|md|txt|ipynb)|/))`", PAGES[path])
    gone = {name for name in named if not any((folder / name).exists() for folder in folders)}
    assert gone <= NOT_IN_A_CLONE


def test_names_on_pages_exist_in_the_code() -> None:
    files = [path for name in ("minitrans", "scripts") for path in (ROOT / name).rglob("*.*")]
    texts = [path.read_text("utf-8") for path in files if path.suffix in {".py", ".cpp", ".yaml"}]
    words = set(re.findall(r"\w+", "\n".join(texts)))
    named = {name for page in PAGES.values() for name in re.findall(r"`(?:\w+\.)*([a-z_]+_[a-z_]+)(?:\(\))?`", page)}
    assert named <= words | {"minitrans_translate_seconds", "n_kv_heads"}  # put together; added by the guide's diff


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_flags_and_settings_named_on_a_page_exist(path: Path) -> None:
    settings = {f"{name}.{field}" for name, kind in SECTIONS.items() for field in signature(kind).parameters}
    parsers = [*(ROOT / "minitrans").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    added = re.findall(r'add_argument\(\s*"(--[\w-]+)"', "\n".join(file.read_text("utf-8") for file in parsers))
    known = {"--print-config", *BENCH_FLAGS, *added, *(f"--{name}" for name in settings)}
    assert set(re.findall(r"`(--[\w.-]+)", PAGES[path])) <= known
    of_runs = {"model.json", "model.safetensors"}
    named = re.findall(r"`((?:model|tokenizer|data|training|trainer)\.[\w.]+)`", PAGES[path])
    assert set(named) <= settings | of_runs | {check.id for check in CHECKS}


def test_statements_about_commands_are_true() -> None:
    guide, training = (" ".join(PAGES[ROOT / "docs" / f"{n}.md"].split()) for n in ("change-the-model", "training"))
    (said,) = re.findall(r"turns that warning into an error\. (.*?) have this flag", guide)
    taking = {name for name, (add, _) in cli.COMMANDS.items() if add is None}
    for name, (add, _) in cli.COMMANDS.items():
        if add is not None:
            add(parser := Parser(name, ""))
            taking |= {name} if "--compiled" in parser._option_string_actions else set()
    assert set(re.findall(r"`(\w+)`", said)) == taking
    with pytest.raises(ValueError, match=(refusal := "model.n_layers must be at least 1, got 0")):
        TransformerConfig(vocab_size=9, pad_id=0, bos_id=1, eos_id=2, n_layers=0)
    assert f"`--model.n_layers 0` gives exit code 2 and the message `{refusal}`" in training
    assert "and no `--resume` or `--overwrite`" in training
    for flag in ("--resume", "--overwrite"):
        with pytest.raises(UserError, match=flag):
            cli.parse_command(["distill", "--config", str(ROOT / "configs/en-zh.yaml"), flag])


def test_extras_installed_on_pages_are_declared() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = re.findall(r"(\S+)\[(\w+)\]'", "\n".join(re.findall(r"pip install.*", "\n".join(PAGES.values()))))
    assert {(place.strip("'"), extra in extras) for place, extra in named if extra != "onnxruntime"} == {(".", True)}


@pytest.mark.skipif(find_spec("ctranslate2") is None, reason="the extra `export` is not installed")
def test_counts_on_pages_are_right() -> None:
    guide, lesson, verification, scale, training, serve, unsure = (
        " ".join(PAGES[ROOT / "docs" / f"{name}.md"].split())
        for name in ("change-the-model", "attention", "verification", "scale", "training", "serve", "unsure")
    )
    changes = " ".join(PAGES[ROOT / "CHANGELOG.md"].split())
    assert f"{len(CHECKS)} passed, 0 failed" in README
    assert f"{len(CHECKS)} checks in nine chapters" in changes
    assert len({check.group for check in CHECKS}) == 9
    assert all(f"sabotages the code in {len(SABOTAGES)} ways" in page for page in (verification, changes))
    assert [*re.findall(r" ## (\d+)\. ", lesson)][-1] == "17"
    assert "seventeen questions" in README
    n_lines = sum(len(file.read_text("utf-8").splitlines()) for file in MODEL_FILES_TO_READ)
    assert f"fewer than {-(-n_lines // 100) * 100:,} lines" in README
    assert f"{TRAINING_BYTES_PER_PARAMETER} bytes a parameter" in scale
    assert f"trained on at most {_TOKENIZER_PAIRS:,} pairs" in training
    assert f"up to {MAX_BATCH_LINES} lines" in serve
    assert (N_TEXT_PAIRS, "twelve pairs of `valid`" in verification) == (12, True)
    assert f"on rows of up to {LENGTH} tokens" in guide
    rows = re.findall(r"below 40 \| \S+ \| \S+ \| ([\d.]+)% \| \S+ \| ([\d.]+)%", unsure)
    ratios = [float(precision) / float(unmarked) for precision, unmarked in rows]
    assert f"is {min(ratios):.1f} to {max(ratios):.1f} times as likely to be wrong" in unsure
    for dtype, limit in TOLERANCES.items():
        assert re.search(rf"by {to_str(limit)} (of their size )?in {dtype_name(dtype)}", guide), dtype
