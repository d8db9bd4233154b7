"""What is imported, and works without the rest; import-linter checks what may import what (pyproject.toml)."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import minitrans

PACKAGE = Path(minitrans.__file__).parent
ROOT = PACKAGE.parent
MODEL_DIR = PACKAGE / "model"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
IMPORT_LAYERS = re.findall(r"\w+", " ".join(PYPROJECT["tool"]["importlinter"]["contracts"][0]["layers"]))
LIBRARIES = {re.split(r"\W", line)[0].lower() for line in PYPROJECT["project"]["dependencies"]} | {"yaml", "upath"}


# -- the folders ----------------------------------------------------------------------------------------------------


def test_readme_lists_the_folders_in_their_order() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"`minitrans/(\w+)/?(?:\.py)?`", readme.split("## The files")[1])
    assert [*rows, "__main__"] == IMPORT_LAYERS[::-1]


def test_only_the_backend_imports_compiled_code_by_name() -> None:
    """Such imports are not seen by import-linter."""
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    asking = {name for name, text in texts.items() if re.search(r"""import_module\(f?["']minitrans\.compiled""", text)}
    assert asking == {"translate/backend.py"}


# -- the model ------------------------------------------------------------------------------------------------------


def test_the_model_does_not_mention_compiled_code() -> None:
    named = re.compile(r"compiled|kernel|c\+\+", re.IGNORECASE)
    assert [path.name for path in MODEL_DIR.glob("*.py") if named.search(path.read_text(encoding="utf-8"))] == []
    assert named.findall("# Compiled kernels, in C++: torch.compile is none.") == ["Compiled", "kernel", "C++"]


def test_the_model_is_short() -> None:
    """Not counting the reference, which is the same again in NumPy, and sampling, which nothing else needs."""
    files = [path for path in MODEL_DIR.glob("*.py") if path.stem not in ("reference", "sampling")]
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) < 1200


MODEL_USE_PROGRAM = """
from minitrans import MultiHeadAttention, Transformer, TransformerConfig
from minitrans.model.loss import batch_loss
from minitrans.model.decoding import CachedStepper, greedy_decode
import torch
config = TransformerConfig(vocab_size=11, pad_id=0, bos_id=1, eos_id=2, d_model=8, n_heads=2, n_layers=1)
ids = torch.tensor([[5, 2]])
model = Transformer(config)
batch_loss(model, ids, ids, ids, 0.1).backward()
assert len(greedy_decode(CachedStepper(model.eval()), ids)) == 1
"""
NON_MODEL_MODULES = [*(LIBRARIES - {"torch"}), *(f"minitrans.{name}" for name in IMPORT_LAYERS if name != "model")]


def test_the_model_works_where_nothing_but_pytorch_is_installed() -> None:
    assert {"numpy", "rich", "minitrans.translate"} <= {*NON_MODEL_MODULES}
    program = "\n".join(["import sys", *(f"sys.modules[{n!r}] = None" for n in NON_MODEL_MODULES), MODEL_USE_PROGRAM])
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


# -- the package ----------------------------------------------------------------------------------------------------


def test_names_that_are_not_public_are_refused() -> None:
    with pytest.raises(AttributeError, match=r"module 'minitrans' has no attribute 'Transfomer'"):
        getattr(minitrans, "Transfomer")  # noqa: B009
