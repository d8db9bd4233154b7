"""The mutants that the tests are tested with: each changes one thing, and those listed as equivalent exist."""

import ast
import sys
from importlib import import_module
from importlib.machinery import SourceFileLoader

import mutants
import pytest

from minitrans import model
from minitrans.model import masks

SMALL_SOURCE = '''
"""A cache."""
from torch import Tensor

def has_room(length: int, keys: Tensor, capacity: int = 256) -> bool:
    """Whether one more fits."""
    if length < 0:
        raise ValueError(f"{length} is below 0")
    return length + keys.size(2) <= capacity
'''


def source_of(module: str) -> str:
    return (mutants.ROOT / mutants.module_path(module)).read_text(encoding="utf-8")


def unmutated_parts(source: str) -> list[str | None]:
    """All docstrings, annotations and imports, in order."""
    parts: list[str | None] = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef():
                parts.append(ast.get_docstring(node))
            case ast.arg(annotation=ast.AST()) | ast.Import() | ast.ImportFrom():
                parts.append(ast.unparse(node))
    return parts


def test_a_small_module_has_exactly_these_mutants() -> None:
    definition = "def has_room(length: int, keys: Tensor, capacity: int={}) -> bool:"
    assert [(mutant.lines.start, mutant.after) for mutant in mutants.make_mutants("small", SMALL_SOURCE)] == [
        (5, definition.format(257)),
        (5, definition.format(255)),
        (7, "if True:"),
        (7, "if False:"),
        (7, "if length <= 0:"),
        (7, "if length >= 0:"),
        (7, "if capacity < 0:"),
        (7, "if length < 1:"),
        (7, "if length < -1:"),
        (8, "pass"),
        (8, "raise f'{length} is below 0'"),
        (8, "raise TypeError(f'{length} is below 0')"),
        (9, "return"),
        (9, "return length + keys.size(2) < capacity"),
        (9, "return length + keys.size(2) > capacity"),
        (9, "return length <= capacity"),
        (9, "return keys.size(2) <= capacity"),
        (9, "return length - keys.size(2) <= capacity"),
        (9, "return capacity + keys.size(2) <= capacity"),
        (9, "return length + keys <= capacity"),
        (9, "return length + keys.size(3) <= capacity"),
        (9, "return length + keys.size(1) <= capacity"),
        (9, "return length + keys.size(2) <= length"),
    ]


@pytest.mark.parametrize("module", ["model.masks", "model.sampling"])
def test_every_mutant_is_another_program_with_the_same_documentation(module: str) -> None:
    source = source_of(module)
    made = list(mutants.make_mutants(module, source))
    programs = {ast.dump(ast.parse(mutant.source)) for mutant in made} | {ast.dump(ast.parse(source))}
    assert len(programs) == len(made) + 1
    assert all(unmutated_parts(mutant.source) == unmutated_parts(source) for mutant in made)


@pytest.mark.slow
def test_every_listed_equivalent_mutant_exists() -> None:
    for module, changes in mutants.EQUIVALENT_MUTANTS.items():
        made = list(mutants.make_mutants(module, source_of(module)))
        for change in changes:  # one statement's alone
            assert len({m.before for m in made if change in (m.after, f"{m.before}  ->  {m.after}")}) == 1, change


def test_the_score_leaves_out_equivalent_mutants(capsys: pytest.CaptureFixture[str]) -> None:
    made = [mutants.Mutant("masks.py", range(i, i + 1), "x = 0", f"x = {i}", "") for i in range(1, 41)]
    made[0] = made[0]._replace(equivalent_because="it is all one")
    assert mutants.report_survivors_and_scores(made[:3], made[3:]) == 1
    assert mutants.report_survivors_and_scores(made[:2], made[2:]) == 0
    assert "masks.py 38/39, score 97.4% (38 killed of 39)" in capsys.readouterr().out
    assert mutants.report_survivors_and_scores([made[1]._replace(path="loss.py")], made[2:]) == 0
    assert "masks.py 38/38, loss.py 0/1, score" in capsys.readouterr().out
    assert mutants.report_survivors_and_scores([], made) == 1
    assert "not equivalent: masks.py:1  x = 0  ->  x = 1\n" in capsys.readouterr().out


def test_every_listed_module_and_its_tests_exist() -> None:
    for module in mutants.MODULES:
        assert (mutants.ROOT / mutants.module_path(module)).is_file()
        assert (mutants.ROOT / "tests" / module.split(".")[0]).is_dir()


def test_a_mutant_is_run_against_the_quickest_tests_that_execute_its_statement() -> None:
    tests = {"small": {"3": ["slow", "quick"], "4": ["longest", "quick"], "7": ["other"]}}
    seconds = {"slow": 5.0, "quick": 0.5, "longest": mutants.TEST_SECONDS_PER_MUTANT, "other": 0.1}
    mutant = mutants.Mutant("small", range(2, 5), "", "", "")
    assert [*mutants.choose_tests(mutant, tests, seconds)] == ["quick", "slow"]
    assert [*mutants.choose_tests(mutant._replace(lines=range(4, 5)), tests, {**seconds, "quick": 99.0})] == ["longest"]
    assert mutants.choose_tests(mutant._replace(lines=range(5, 7)), tests, seconds) == {}


def test_a_sample_is_always_the_same() -> None:
    made = list(mutants.make_mutants("small", SMALL_SOURCE))
    some = mutants.sample_mutants(made, 5)
    assert some == mutants.sample_mutants(made, 5) == [mutant for mutant in made if mutant in some]
    assert len(some) == 5
    assert mutants.sample_mutants(made, 99) == made


def test_a_mutant_is_imported_in_place_of_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SourceFileLoader, "get_code", SourceFileLoader.get_code)  # all three are put back
    source = source_of("model.masks") + "MUTATED = True"
    mutants.patch_loader_with_mutant(mutants.Mutant("minitrans/model/masks.py", range(0), "", "", source))
    monkeypatch.delitem(sys.modules, "minitrans.model.masks")
    monkeypatch.setattr(model, "masks", masks)
    assert import_module("minitrans.model.masks").MUTATED
