"""What the README tells a reader to do can be done."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

import minitrans
from minitrans import cli
from minitrans.verify.check import CHECKS
from minitrans.verify.sabotage import SABOTAGES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_commands_have_the_flags_it_gives_them() -> None:
    commands = [shlex.split(line.split("  #")[0])[1:] for line in README.splitlines() if "    minitrans " in line]
    assert {command for command, *_ in commands} == {*cli.COMMANDS}
    for words in commands:
        assert cli.parse_command(words)[0] == words[0]


def test_its_make_targets_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"make (\w+)", "\n".join(re.findall(r"^    make .*|`make \w+`", README, re.M)))):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_its_python_example_runs(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # it writes a page
    (example,) = re.findall(r"```python\n(.*?)```", README, re.S)
    scope: dict[str, object] = {}
    exec(example.replace("runs/en-zh", str(tiny_run)), scope)
    assert scope["minitrans"] is minitrans


def test_its_file_map_is_complete() -> None:
    listed = set(re.findall(r"`(minitrans/[\w.]+/?)`", README))
    package = ROOT / "minitrans"
    there = {f"minitrans/{p.name}{'/' if p.is_dir() else ''}" for p in package.iterdir()}
    assert there - listed <= {
        "minitrans/__init__.py",
        "minitrans/__main__.py",
        "minitrans/py.typed",
        "minitrans/__pycache__/",
    }
    assert listed <= there


@pytest.mark.skipif(find_spec("ctranslate2") is None, reason="the extra `export` is not installed")
def test_its_numbers_of_checks_and_sabotages_are_right() -> None:
    assert f"{len(CHECKS)} passed, 0 failed" in README
    assert f"sabotages the code in {len(SABOTAGES)} ways" in " ".join(README.split())
