"""Declared packages are pinned, and an installed package is complete; deptry checks the imports (pyproject.toml)."""

import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]


def requirement_names(requirements: Iterable[str]) -> set[str]:
    return {re.split(r"[^\w-]", line)[0].lower().replace("-", "_") for line in requirements}


def test_declared_packages_are_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert all("==" in line for line in lines[1:])
    declared = requirement_names(chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()))
    assert declared - requirement_names(lines[1:]) == {"minitrans"}


def test_files_that_are_not_python_are_installed() -> None:
    package = ROOT / "minitrans"
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["minitrans"]
    installed = {path for pattern in patterns for path in package.glob(pattern)}
    others = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert others - installed == set()


def test_cachecheck_works_by_itself(tmp_path: Path) -> None:
    """Its own distribution declares the same as the whole, and needs no other file and no library but PyTorch."""
    folder = ROOT / "packages/cachecheck"
    alone = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    project, place = alone["project"], alone["tool"]["setuptools"]["package-dir"]["minitrans.cachecheck"]
    assert all(project[name] == PROJECT[name] for name in ("version", "requires-python", "license"))
    assert [*project["optional-dependencies"]["hf"], "protobuf>=7.36.1"] == PROJECT["optional-dependencies"]["hf"]
    assert project["optional-dependencies"]["hf"][0] == "transformers>=5.20"  # with 5.4 no small model can be made
    assert "needs transformers 5.20\n" in (ROOT / "docs/your-model.md").read_text(encoding="utf-8")
    assert next(line for line in PROJECT["dependencies"] if line.startswith("torch")) in project["dependencies"]
    assert len(project["dependencies"]) == 1
    assert alone["tool"]["setuptools"]["packages"] == ["minitrans.cachecheck"]
    assert alone["tool"]["setuptools"]["package-data"]["minitrans.cachecheck"] == ["py.typed"]
    assert (folder / place / "py.typed").is_file()
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
