"""What is imported is declared in pyproject.toml, what is declared is imported, and an installed package is whole."""

import ast
import functools
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
MODULES = {"pyyaml": "yaml", "universal_pathlib": "upath"}  # where it is not called as what is installed
NOT_IMPORTED = {
    "tensorboard": "Lightning's logger writes with it",
    "httpx2": "starlette's test client asks with it",
    "python_multipart": "starlette reads forms with it",
    "import_linter": "a command",
    "mypy": "a command",
    "pre_commit": "a command",
    "pytest_timeout": "pytest's own setting timeout",
    "pytest_xdist": "pytest's own option --numprocesses",
    "ruff": "a command",
    "types_pyyaml": "mypy reads it",
}


def imports(source: str) -> set[str]:
    """The dotted names that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide what is imported"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def imported(texts: Iterable[str]) -> set[str]:
    """The libraries that these files import."""
    found = {name.split(".")[0] for text in texts for name in imports(text)}
    own = {path.stem for folder in ("scripts", "tests") for path in (ROOT / folder).rglob("*.py")}
    return found - own - sys.stdlib_module_names - {"minitrans"}


@functools.cache
def imported_in(folder: str) -> set[str]:
    return imported(path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob("*.py"))


def imported_anywhere() -> set[str]:
    return set().union(*map(imported_in, ("minitrans", "scripts", "tests")))


def declared(requirements: Iterable[str]) -> set[str]:
    """The modules that lines of pyproject.toml install; one like minitrans[export] stands for those of extras."""
    found = set()
    for line in requirements:
        if extras := re.fullmatch(r"minitrans\[(.*)\]", line):
            for extra in extras[1].split(","):
                found |= declared(PROJECT["optional-dependencies"][extra])
        else:
            name = re.match(r"[\w-]+", line)[0].lower().replace("-", "_")  # type: ignore[index]
            found.add(MODULES.get(name, name))
    return found


RUNTIME = declared(PROJECT["dependencies"])
EXTRA = {extra: declared(lines) for extra, lines in PROJECT["optional-dependencies"].items()}


@pytest.mark.parametrize(
    ("folder", "may"),
    [
        ("minitrans", RUNTIME | EXTRA["export"] | EXTRA["hf"] | EXTRA["serve"] | {"pytest"}),  # cachecheck's plugin
        ("scripts", RUNTIME | EXTRA["bench"] | EXTRA["dev"]),
        ("tests", RUNTIME | EXTRA["dev"]),
    ],
    ids=["minitrans", "scripts", "tests"],
)
def test_what_is_imported_is_declared(folder: str, may: set[str]) -> None:
    assert imported_in(folder) - may == set()


def test_what_is_declared_is_imported() -> None:
    assert RUNTIME - imported_in("minitrans") - set(NOT_IMPORTED) == set()
    assert set().union(*EXTRA.values()) - imported_anywhere() - set(NOT_IMPORTED) == set()


def test_what_is_said_not_to_be_imported_is_declared_and_is_not() -> None:
    assert set(NOT_IMPORTED) <= RUNTIME.union(*EXTRA.values()) - imported_anywhere()


def test_what_is_declared_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert all("==" in line for line in lines[1:])
    assert RUNTIME.union(*EXTRA.values()) - declared(lines[1:]) == set()


def test_what_is_no_python_is_installed_too() -> None:
    package = ROOT / "minitrans"
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["minitrans"]
    installed = {path for pattern in patterns for path in package.glob(pattern)}
    others = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert others - installed == set()


def test_cachecheck_can_be_installed_by_itself(tmp_path: Path) -> None:
    """Its own distribution says the same as the whole, and needs no file of the rest and no library but PyTorch."""
    folder = ROOT / "packages/cachecheck"
    alone = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    project, place = alone["project"], alone["tool"]["setuptools"]["package-dir"]["minitrans.cachecheck"]
    assert all(project[name] == PROJECT[name] for name in ("version", "requires-python", "license"))
    assert project["optional-dependencies"]["hf"] == PROJECT["optional-dependencies"]["hf"]
    assert next(line for line in PROJECT["dependencies"] if line.startswith("torch")) in project["dependencies"]
    assert len(project["dependencies"]) == 1
    shutil.copytree(folder / place, tmp_path / "minitrans/cachecheck")
    program = """
        import sys
        sys.path[:0] = sys.argv[1:]
        sys.modules |= dict.fromkeys(["lightning", "datasets", "rich", "sentencepiece", "transformers"])
        from minitrans.cachecheck import Functions, check_cache
        import minitrans, torch
        assert list(minitrans.__path__) == [sys.argv[1] + "/minitrans"]
        weights = torch.randn(9, 9, dtype=torch.float64)
        bigrams = Functions(lambda x: weights[x], lambda x, cache: (weights[x], cache), 9, dtype=torch.float64)
        check_cache(bigrams, skip=("reach",))
    """
    site = Path(torch.__file__).parents[1]
    command = [sys.executable, "-SP", "-c", textwrap.dedent(program), str(tmp_path), str(site)]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "import pandas as pd",
        "from pandas.api import types",
        "def late():\n    import pandas.util",
        "if 1: import pandas",
    ],
)
def test_control_an_import_is_found_in_any_form(line: str) -> None:
    assert imported([f"import os, torch\n{line}"]) == {"torch", "pandas"}


def test_control_lines_are_read_in_any_form() -> None:
    lines = ["a-b[c]>=1,<2", "PyYAML", "D==3", "minitrans[export,hf]", "e; python_version < '3.12'"]
    assert declared(lines) == {"a_b", "yaml", "d", "ctranslate2", "e"} | EXTRA["hf"]
