"""What may import what: each file only files above it, and the heart nothing but PyTorch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import minitrans

PACKAGE = Path(minitrans.__file__).parent

# Each may import only those before it; a folder's files may also import each other.
ORDER = [
    "errors",
    "files",
    "text",
    "kernels",
    "masks",
    "cache",
    "dropout",
    "attention",
    "layers",
    "model",
    "fused",
    "engine",
    "loss",
    "decoding",
    "reference",
    "tokenizer",
    "scoring",
    "bundle",
    "translator",
    "workers",
    "export",
    "data",
    "verify",
    "training",
    "cli",
    "__main__",
]
HEART = ["masks", "cache", "dropout", "attention", "layers", "model", "loss", "decoding"]


def modules() -> dict[str, list[Path]]:
    """The package's top-level modules and folders, with the files of each."""
    found = {path.stem: [path] for path in PACKAGE.glob("*.py") if path.stem != "__init__"}
    for folder in PACKAGE.iterdir():
        files = sorted(folder.rglob("*.py")) if folder.is_dir() else []
        if files:
            found[folder.name] = files
    return found


def imports(source: str, siblings: set[str]) -> set[str]:
    """What a file imports: "minitrans.X" for our own modules, the top-level name for everything else."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide what is imported"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for top, *rest in (name.split(".") for name in names):
            ours = top == "minitrans"
            if not ours:
                found.add(top)
            elif rest and rest[0] in siblings:
                found.add(f"minitrans.{rest[0]}")
    return found


def imports_from_below(name: str, source: str) -> set[str]:
    """The imports of module `name` that it may not have."""
    allowed = {f"minitrans.{above}" for above in ORDER[: ORDER.index(name) + 1]}
    return {i for i in imports(source, set(ORDER)) if i.startswith("minitrans.")} - allowed


def run(program: str) -> None:
    """Run a program in a Python of its own; a failure shows what it printed."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr


def test_every_module_has_its_place() -> None:
    assert set(modules()) - set(ORDER) == set()


@pytest.mark.parametrize("name", sorted(set(modules()) & set(ORDER)))
def test_a_module_imports_only_modules_above_it(name: str) -> None:
    for path in modules()[name]:
        assert imports_from_below(name, path.read_text(encoding="utf-8")) == set(), path


@pytest.mark.parametrize(
    "line",
    [
        "import minitrans.model.decoding",
        "from minitrans.model.decoding import greedy_decode",
        "from minitrans import decoding",
        "def late():\n    from minitrans.model.decoding import greedy_decode",
    ],
)
def test_control_an_import_from_below_is_reported(line: str) -> None:
    assert imports_from_below("model", line) == {"minitrans.model.decoding"}


def test_the_heart_imports_pytorch_alone() -> None:
    for name in HEART:
        outside = {i for i in imports(modules()[name][0].read_text(), set(ORDER)) if not i.startswith("minitrans.")}
        assert outside - set(sys.stdlib_module_names) <= {"torch"}, name


def test_the_heart_works_where_nothing_but_pytorch_is_installed() -> None:
    blocked = ["lightning", "pytorch_lightning", "datasets", "sentencepiece", "jsonargparse", "sacrebleu"]
    lines = ["import sys"]
    lines += [f"sys.modules[{name!r}] = None" for name in blocked]
    lines += [f"import minitrans.{name}" for name in HEART]
    lines += [
        "from minitrans import MultiHeadAttention, Transformer, TransformerConfig",
        "from minitrans.model.decoding import greedy_decode",
        "import torch",
        "config = TransformerConfig(vocab_size=11, pad_id=0, bos_id=1, eos_id=2, d_model=8, n_heads=2, n_layers=1)",
        "assert len(greedy_decode(Transformer(config).eval(), torch.tensor([[5, 2]]))) == 1",
    ]
    run("\n".join(lines))


def test_importing_the_package_imports_no_library() -> None:
    run("import sys, minitrans\nassert 'torch' not in sys.modules\nassert 'numpy' not in sys.modules")


def test_public_names_come_from_their_homes() -> None:
    from minitrans.model.attention import MultiHeadAttention
    from minitrans.model.transformer import Transformer, TransformerConfig

    assert minitrans.MultiHeadAttention is MultiHeadAttention
    assert minitrans.Transformer is Transformer
    assert minitrans.TransformerConfig is TransformerConfig


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match=r"module 'minitrans' has no attribute 'Transfomer'"):
        getattr(minitrans, "Transfomer")  # noqa: B009
