"""What may import what: each folder only those below it, and the model nothing but PyTorch."""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from test_dependencies import RUNTIME, imports

import minitrans

PACKAGE = Path(minitrans.__file__).parent
MODEL = PACKAGE / "model"

# Each may import only those before it; a folder's files may also import each other.
ORDER = [
    "errors",
    "files",
    "cachecheck",
    "pages",
    "model",
    "compiled",
    "text",
    "data",
    "translate",
    "export",
    "training",
    "verify",
    "explain",
    "server",
    "cli",
    "__main__",
]
# Each file may import only those before it, and none the reference, which stands alone.
MODEL_ORDER = [
    "reference",
    "masks",
    "cache",
    "dropout",
    "attention",
    "layers",
    "transformer",
    "loss",
    "decoding",
    "sampling",
    "__init__",
]
# The others go by what `backend.py` finds; those of verification are loaded only where the folder is.
ASKS_COMPILED = {"translate/backend.py", "verify/checks/compiled.py"}


def children(source: str, parent: str) -> set[str]:
    """The modules and names right below `parent` that a file imports."""
    return {name.removeprefix(f"{parent}.").split(".")[0] for name in imports(source) if name.startswith(f"{parent}.")}


def imports_from_above(name: str, source: str) -> set[str]:
    """What a file of `minitrans.NAME` imports and may not."""
    return children(source, "minitrans") & set(ORDER[ORDER.index(name) + 1 :])


def faults_in_model(name: str, source: str) -> set[str]:
    """What the file NAME of the model imports and may not."""
    libraries = {"numpy"} if name == "reference" else {"torch"}
    siblings = set(MODEL_ORDER[1 : MODEL_ORDER.index(name)])
    others = {full.split(".")[0] for full in imports(source)} - sys.stdlib_module_names - libraries - {"minitrans"}
    return others | children(source, "minitrans") - {"model"} | children(source, "minitrans.model") - siblings


def asks_compiled(source: str) -> bool:
    return "compiled" in children(source, "minitrans") or 'import_module("minitrans.compiled")' in source


def words_of_compiled_code(source: str) -> list[str]:
    return re.findall(r"compiled|kernel|c\+\+", source, re.IGNORECASE)


def files() -> Iterator[tuple[str, Path]]:
    """All files of the package but its `__init__.py`, each with its place in the order."""
    for path in PACKAGE.rglob("*.py"):
        if path != PACKAGE / "__init__.py":
            yield path.relative_to(PACKAGE).parts[0].removesuffix(".py"), path


def run(program: str, without: Sequence[str] = ()) -> None:
    """Run a program in a Python of its own that lacks some modules; a failure shows what it printed."""
    program = "\n".join(["import sys", *(f"sys.modules[{name!r}] = None" for name in without), program])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted((PACKAGE / "cachecheck").glob("*.py")), ids=lambda path: path.stem)
def test_what_asks_anyones_model_needs_torch_alone(path: Path) -> None:
    found = imports(path.read_text(encoding="utf-8"))
    ours = {full for full in found if full.startswith("minitrans.")}
    libraries = {"torch", {"hugging_face": "transformers", "pytest_plugin": "pytest"}.get(path.stem, "torch")}
    assert {full.split(".")[0] for full in found - ours} <= libraries | sys.stdlib_module_names
    assert all(full.startswith("minitrans.cachecheck") for full in ours)


# -- the folders ----------------------------------------------------------------------------------------------------


def test_every_module_has_its_place() -> None:
    """In the order, and in that of README's table of files."""
    assert {name for name, _ in files()} - set(ORDER) == set()
    readme = (PACKAGE.parent / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"`minitrans/(\w+)/?(?:\.py)?`", readme.split("## The files")[1])
    assert rows == [name for name in ORDER if name != "__main__"]


def test_a_module_imports_only_those_below_it() -> None:
    found = {path: imports_from_above(name, path.read_text(encoding="utf-8")) for name, path in files()}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import minitrans.translate.translator",
        "from minitrans.translate.translator import Translator",
        "from minitrans import translate",
        "def late():\n    from minitrans.translate.translator import Translator",
    ],
)
def test_control_an_import_from_above_is_reported(line: str) -> None:
    assert imports_from_above("model", line) == {"translate"}
    assert imports_from_above("training", line) == set()


def test_only_the_backend_asks_compiled_code() -> None:
    others = (path for name, path in files() if name != "compiled")
    asking = {
        path.relative_to(PACKAGE).as_posix() for path in others if asks_compiled(path.read_text(encoding="utf-8"))
    }
    assert asking == ASKS_COMPILED


@pytest.mark.parametrize(
    "line",
    [
        "from minitrans import compiled",
        "import minitrans.compiled.kernels as kernels",
        'return import_module("minitrans.compiled")',
    ],
)
def test_control_asking_compiled_code_is_reported(line: str) -> None:
    assert asks_compiled(line)


def test_all_can_be_imported_where_there_is_no_compiled_code() -> None:
    run(
        "import minitrans.cli, minitrans.training.run, minitrans.verify\n"
        "from minitrans.translate.backend import is_measured\n"
        "assert not is_measured('auto')",
        without=["minitrans.compiled"],
    )


# -- the model ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(MODEL.glob("*.py")), ids=lambda path: path.stem)
def test_the_model_imports_pytorch_alone_and_each_file_those_before_it(path: Path) -> None:
    assert faults_in_model(path.stem, path.read_text(encoding="utf-8")) == set()


@pytest.mark.parametrize(
    ("name", "line", "fault"),
    [
        ("layers", "from minitrans.model.decoding import greedy_decode", "decoding"),
        ("layers", "from minitrans.model import decoding", "decoding"),
        ("layers", "from minitrans.model import Transformer", "Transformer"),
        ("layers", "from minitrans.errors import UserError", "errors"),
        ("layers", "import numpy as np", "numpy"),
        ("reference", "import torch", "torch"),
        ("reference", "from minitrans.model.masks import causal_mask", "masks"),
        ("layers", "from minitrans.model import reference", "reference"),
    ],
)
def test_control_a_wrong_import_in_the_model_is_reported(name: str, line: str, fault: str) -> None:
    assert faults_in_model(name, line) == {fault}


def test_the_model_names_nothing_compiled() -> None:
    found = {path.name: words_of_compiled_code(path.read_text(encoding="utf-8")) for path in MODEL.glob("*.py")}
    assert {name: words for name, words in found.items() if words} == {}
    control = words_of_compiled_code("# Compiled kernels, in C++: torch.compile is none.")
    assert control == ["Compiled", "kernel", "C++"]


def test_the_model_is_short() -> None:
    """But for the reference, which is the same once more in NumPy, and for sampling, which nothing else needs."""
    files = [path for path in MODEL.glob("*.py") if path.stem not in ("reference", "sampling")]
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) < 1200


MODEL_AT_WORK = """
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
OTHERS = [*(RUNTIME - {"torch"}), *(f"minitrans.{name}" for name in ORDER if name != "model")]


def test_the_model_works_where_nothing_but_pytorch_is_installed() -> None:
    run(MODEL_AT_WORK, without=OTHERS)


@pytest.mark.parametrize("name", ["numpy", "rich", "minitrans.translate"])
def test_control_what_is_not_installed_is_missed(name: str) -> None:
    with pytest.raises(AssertionError, match=f"import of {name} halted"):
        run(f"import torch, {name}", without=OTHERS)


# -- the package ----------------------------------------------------------------------------------------------------


def test_importing_the_package_imports_no_library() -> None:
    run("import minitrans\nassert 'torch' not in sys.modules\nassert 'numpy' not in sys.modules")


def test_public_names_come_from_their_homes_and_others_are_refused() -> None:
    from minitrans.model.attention import MultiHeadAttention
    from minitrans.model.transformer import Transformer, TransformerConfig

    assert minitrans.MultiHeadAttention is MultiHeadAttention
    assert minitrans.Transformer is Transformer
    assert minitrans.TransformerConfig is TransformerConfig
    with pytest.raises(AttributeError, match=r"module 'minitrans' has no attribute 'Transfomer'"):
        getattr(minitrans, "Transfomer")  # noqa: B009
