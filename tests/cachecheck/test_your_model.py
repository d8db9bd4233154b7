"""The code in docs/your-model.md is run unchanged, with a correct decoder and with a wrong one."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from test_imports import LIBRARIES
from torch import Tensor, nn

ROOT = Path(__file__).parents[2]
SNIPPETS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/your-model.md").read_text(encoding="utf-8"), re.M | re.S)
PLUGIN_SNIPPET = next(block for block in SNIPPETS if "pytest_plugins" in block)


class MyDecoder(nn.Module):
    """Attention of one head; its cache holds every vector so far, passed along, kept by the module, or in a buffer."""

    position_shift = 0  # by how many positions steps are off

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.positions, self.out = nn.Embedding(1000, 8), nn.Embedding(64, 8), nn.Linear(8, 1000)
        self.kept: Tensor | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        return self.step(tokens, self.kept)[0]

    def output_logits(self, x: Tensor, context: Tensor) -> Tensor:
        mask = torch.ones(x.size(1), context.size(1), dtype=torch.bool).tril(context.size(1) - x.size(1))
        return self.out(nn.functional.scaled_dot_product_attention(x, context, context, mask))

    def step(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        buffer, before = cache if isinstance(cache, tuple) else (None, cache)
        first = 0 if before is None else before.size(1)
        places = torch.arange(first, first + tokens.size(1)) + bool(first) * self.position_shift
        x = self.tokens(tokens) + self.positions(places)
        seen = x if before is None else torch.cat([before, x], 1)
        if buffer is None:
            return self.output_logits(x, seen), seen
        buffer[:, first : seen.size(1)] = x  # raises if there are more than it holds
        return self.output_logits(x, buffer[:, : seen.size(1)]), (buffer, buffer[:, : seen.size(1)])

    def static_cache(self, rows: int, length: int) -> tuple[Tensor, Tensor]:
        buffer = torch.zeros(rows, length, 8, dtype=torch.float64)
        return buffer, buffer[:, :0]

    def next_logits(self, tokens: Tensor) -> Tensor:
        logits, self.kept = self.step(tokens, self.kept)
        return logits


@pytest.fixture
def my_project(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that the snippets import."""
    module: Any = ModuleType("my_project")
    module.MyDecoder = MyDecoder
    monkeypatch.setitem(sys.modules, "my_project", module)
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compile_(function, backend="eager"))  # generates no code
    return module


def run_snippets_and_tests(blocks: list[str]) -> None:
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
        for test in [names.pop(name) for name in list(names) if name.startswith("test_")]:
            test()


def test_every_snippet_passes_for_a_right_model(my_project: Any) -> None:
    run_snippets_and_tests([block for block in SNIPPETS if block != PLUGIN_SNIPPET and "hugging_face" not in block])


@pytest.mark.usefixtures("float64_alone")
def test_a_users_own_cache_class_is_the_one_checked(my_project: Any) -> None:
    transformers = pytest.importorskip("transformers")
    from minitrans.cachecheck.hugging_face import small_model

    class MyCache(transformers.DynamicCache):  # type: ignore[misc,name-defined]
        def get_seq_length(self, layer_idx: int = 0) -> int:
            return wrong * super().get_seq_length(layer_idx)

    wrong: Any = 1
    my_project.MyCache, my_project.my_model = MyCache, small_model("opt").to(torch.float64).model
    snippets = [SNIPPETS[0], next(block for block in SNIPPETS if "hugging_face" in block)]
    run_snippets_and_tests(snippets)
    wrong = 0
    with pytest.raises(AssertionError, match="positions start at 0 again") as failed:
        run_snippets_and_tests(snippets)
    assert "static: " not in str(failed.value)  # it uses the library's own cache
    wrong = None  # so that it raises, and the library's own does not replace it
    with pytest.raises(AssertionError, match=r"\Asteps: TypeError: "):
        run_snippets_and_tests(snippets)


@pytest.mark.parametrize("snippet", [block for block in SNIPPETS if "MyDecoder" in block and block != PLUGIN_SNIPPET])
def test_control_snippets_fail_a_wrong_step(my_project: Any, monkeypatch: pytest.MonkeyPatch, snippet: str) -> None:
    monkeypatch.setattr(MyDecoder, "position_shift", 1)
    with pytest.raises(AssertionError, match=r"(?m)^steps: "):
        run_snippets_and_tests([SNIPPETS[0].split("def test")[0], snippet])


def test_with_pytest_each_check_is_a_test(tmp_path: Path) -> None:
    """A failure names the check, what is not offered is skipped with the reason, and only torch is needed."""
    imports = "from typing import Any\n\nimport torch\nfrom torch import Tensor, nn\n\n"
    (tmp_path / "my_project.py").write_text(imports + inspect.getsource(MyDecoder) + "\nMyDecoder.position_shift = 1\n")
    others = dict.fromkeys((LIBRARIES | {"transformers"}) - {"torch", "numpy"})
    (tmp_path / "conftest.py").write_text(f"import sys\nsys.modules |= {others}\nimport minitrans.verify\n")
    (tmp_path / "test_cache.py").write_text(PLUGIN_SNIPPET)
    unhashable = "    Functions.__hash__ = None  # as of a dataclass\n    return"
    (tmp_path / "test_no_steps.py").write_text(
        PLUGIN_SNIPPET.replace("model.step", "None").replace("    return", unhashable)
    )
    (tmp_path / "test_no_pass.py").write_text(PLUGIN_SNIPPET.replace("model.forward", "None"))
    tests = ["test_cache.py", "test_no_steps.py::test_cache[steps]", "test_no_pass.py::test_cache[reach]"]
    command = [sys.executable, "-m", "pytest", "-rfs", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"COLUMNS": "400"})
    assert done.returncode == 1
    assert done.stderr == ""
    for failure in (
        r"test_cache.py::test_cache\[steps\] - Failed: steps: .* position 1 of row 0",
        r"test_no_steps.py::test_cache\[steps\] - Failed: steps: TypeError: ",
        r"test_no_pass.py::test_cache\[reach\] - Failed: no full pass: TypeError: ",
    ):
        assert re.search(f"^FAILED {failure}", done.stdout, re.M)
    assert re.search(r"^SKIPPED .*there is no way to drop a cache's last tokens", done.stdout, re.M)
    assert "test_cache[causal.values]" not in done.stdout  # which does not look at steps, and passes
