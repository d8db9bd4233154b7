"""Every sabotage is caught, every check has caught one, and afterwards the code is as it was."""

import inspect
import logging
import math
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any
from unittest.mock import patch

import pytest
import torch
from conftest import CAN_COMPILE

from minitrans import verify
from minitrans.cachecheck import cache_checks
from minitrans.cachecheck.measurement import Check, Result, dtype_name
from minitrans.errors import UserError
from minitrans.pages import grids
from minitrans.verify import run_checks
from minitrans.verify.checks import CHECK_MODULES, CHECKS
from minitrans.verify.model_and_pairs import fresh_model, model_and_random_pairs
from minitrans.verify.sabotage import SABOTAGES, Sabotage

LOGGER, TOKEN_IDS = logging.getLogger("minitrans"), torch.tensor([[5, 6, 7]])
IS_AVAILABLE_BY_PREFIX = {"compiled.": CAN_COMPILE, "export.": any(check.id.startswith("export.") for check in CHECKS)}
MISSING_PREFIXES = tuple(kind for kind, is_there in IS_AVAILABLE_BY_PREFIX.items() if not is_there)
AVAILABLE_CHECKS = [check for check in CHECKS if not check.id.startswith(MISSING_PREFIXES)]
AVAILABLE_SABOTAGES = [sabotage for sabotage in SABOTAGES if not sabotage.id.startswith(MISSING_PREFIXES)]


def code_by_function() -> dict[FunctionType, CodeType]:
    """The code of every function that a sabotage could edit: those of the package's modules and of their classes."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("minitrans.")]
    named = [value for module in modules for value in vars(module).values()]
    classes = [value for value in named if isinstance(value, type) and value.__module__.startswith("minitrans.")]
    inside = [
        value.__func__ if isinstance(value, staticmethod) else value for c in classes for value in vars(c).values()
    ]
    unwrapped = [inspect.unwrap(value) for value in (*named, *inside) if callable(value)]
    return {value: value.__code__ for value in unwrapped if isinstance(value, FunctionType)}


# -- Each sabotage and the checks that must notice it ----------------------------------------------------------------


def test_every_sabotage_must_be_noticed_by_a_check_that_can_run() -> None:
    available = {check.id for check in AVAILABLE_CHECKS}
    assert [sabotage.id for sabotage in AVAILABLE_SABOTAGES if not available.intersection(sabotage.noticed_by)] == []
    named = {id_ for sabotage in AVAILABLE_SABOTAGES for id_ in sabotage.noticed_by}
    assert {id_ for id_ in named if not id_.startswith(MISSING_PREFIXES)} == available


@pytest.mark.parametrize("check", AVAILABLE_CHECKS, ids=lambda check: check.id)
def test_a_check_and_all_its_comparisons_notice_sabotages_without_raising(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison is a place in the source that calls a function which returns a deviation."""
    largest: dict[object, float] = {}

    def noted(compared: Callable[..., float]) -> Callable[..., float]:
        def compare(*arguments: Any) -> float:
            caller, deviation = sys._getframe(1), compared(*arguments)
            place = caller.f_code.co_name, caller.f_lineno, caller.f_lasti
            largest[place] = max(largest.get(place, 0.0), math.inf if math.isnan(deviation) else deviation)
            return deviation

        return compare

    for chapter in (*CHECK_MODULES, cache_checks):
        for name in [name for name in vars(chapter) if name.endswith("deviation")]:
            monkeypatch.setattr(chapter, name, noted(getattr(chapter, name)))
    sabotages = [sabotage for sabotage in AVAILABLE_SABOTAGES if check.id in sabotage.noticed_by]
    noticed = []
    with patch.object(LOGGER, "info") as info:
        for sabotage in sabotages:
            with sabotage.apply_fault():
                noticed += [sabotage] * (not check.run(run_checks.fresh_float64_subjects()).passed)
    assert noticed == sabotages != []
    assert not [call.args for call in info.call_args_list if call.args[0] == "%s raised"]
    assert bool(largest) == ("deviation(" in inspect.getsource(check.measure))
    assert [place for place, deviation in largest.items() if deviation <= check.tolerance] == []


@pytest.mark.parametrize(("dtype", "times"), [(torch.float32, 10), (torch.bfloat16, 5)])
def test_large_faults_far_exceed_the_rounding_of_lower_dtypes(dtype: torch.dtype, times: float) -> None:
    """Each check that is measured in the dtype meets at least one such fault."""
    seen = {check.id: check for check in AVAILABLE_CHECKS if dtype in check.lower_dtypes}
    for sabotage in SABOTAGES:
        if sabotage.large_in_lower_dtypes:
            with sabotage.apply_fault():
                subjects = {dtype: model_and_random_pairs(fresh_model()).to(dtype)}
                results = [check.run(subjects).by_dtype[dtype_name(dtype)] for check in seen.values()]
            seen = {id_: check for (id_, check), result in zip(seen.items(), results, strict=True)
                    if not times * result.tolerance < result.measured < torch.inf}  # fmt: skip
    assert list(seen) == []


# -- All sabotages and all checks -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_checks_that_are_unrelated_to_a_fault_do_not_fail() -> None:
    """It takes minutes."""
    before = code_by_function()
    noticed = {caught.id: set(caught.caught_by) for caught in verify.self_test()}
    assert code_by_function() == before
    assert [*noticed] == [sabotage.id for sabotage in AVAILABLE_SABOTAGES]
    available = {check.id for check in AVAILABLE_CHECKS}
    only = {each.id: available.intersection(each.noticed_by) for each in AVAILABLE_SABOTAGES if each.no_other}
    assert {id_: noticed[id_] for id_ in only} == only


def test_compiled_checks_and_sabotages_are_left_out_only_without_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """When that is so, and what is reported then, is tested in tests/translate/test_backend.py."""
    monkeypatch.setattr(run_checks, "SABOTAGES", [s for s in SABOTAGES if s.id in ("rows.sorted", "compiled.unmasked")])
    monkeypatch.setattr(run_checks, "CHECKS", [c for c in CHECKS if c.id in ("cache.rows", "C20", "compiled.pass")])
    assert [result.id for result in verify.run(compiled="off").checks] == ["C20", "cache.rows"]
    assert [(caught.id, caught.caught_by) for caught in verify.self_test("off")] == [("rows.sorted", ["cache.rows"])]
    assert len(run_checks.checks_to_run("auto")) == 2 + CAN_COMPILE
    assert len(run_checks.sabotages_to_run("auto")) == 1 + CAN_COMPILE


@pytest.mark.parametrize("sabotage", AVAILABLE_SABOTAGES, ids=lambda sabotage: sabotage.id)
def test_a_sabotage_edits_what_it_names_and_is_undone(sabotage: Sabotage) -> None:
    assert sabotage.fault.endswith(".")
    before = code_by_function()
    with sabotage.apply_fault():
        edited = {f.__qualname__ for f, code in code_by_function().items() if code is not before[f]}
    assert edited == {name.split(":")[1] for name in sabotage.edits}
    assert code_by_function() == before


def test_a_sabotage_is_undone_when_what_runs_under_it_raises() -> None:
    model = fresh_model()
    sabotage = Sabotage("x", "A fault.", {"model.transformer:Transformer.forward": [("return", "1 / 0; return")]}, [])
    with pytest.raises(ZeroDivisionError), sabotage.apply_fault():
        model(TOKEN_IDS, TOKEN_IDS)
    assert model(TOKEN_IDS, TOKEN_IDS).isfinite().all()


def test_all_edits_of_one_function_are_applied() -> None:
    edits = {"pages.grids:_shorten_label": [("MAX_LABEL_LETTERS", "3"), ("…", "...")]}
    with Sabotage("x", "A fault.", edits, []).apply_fault():
        assert grids._shorten_label("abcd") == "ab..."
    assert grids._shorten_label("abcd") == "abcd"


def test_a_sabotage_of_code_that_has_changed_reports_what_it_cannot_find() -> None:
    message = r"x edits '/ 2' in model.loss:batch_loss, where it isn't; edit verify/sabotages.toml too"
    sabotage = Sabotage("x", "A fault.", {"model.loss:batch_loss": [("/ 2", "")]}, [])
    with pytest.raises(UserError, match=message), sabotage.apply_fault():
        pass


@pytest.mark.parametrize(
    ("before", "under", "noticed"),
    [
        (0.0, 1e-3, True),
        (0.0, math.inf, True),
        (0.0, math.nan, True),
        (0.0, 1e-13, False),  # it passes
        (1e-9, 9e-8, False),  # it fails without the fault too
        (1e-9, 1e-3, True),
        (math.inf, math.inf, False),
        (math.nan, 1e-3, False),
        (None, 1e-3, False),  # it is not measured without the fault
    ],
)
def test_a_fault_is_noticed_where_a_check_gets_much_worse(before: float | None, under: float, noticed: bool) -> None:
    def results(measured: float | None) -> Result:
        subjects = {} if measured is None else {torch.float64: measured}
        return Check("x", "A chapter", "A claim.", "what", 1e-12, (), lambda subject: subject).run(subjects)

    assert results(under).is_worse_than(results(before)) == noticed
