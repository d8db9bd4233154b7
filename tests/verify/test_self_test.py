"""Every sabotage is caught, every check has caught one, and afterwards the code is as it was."""

import inspect
import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, get_args
from unittest.mock import Mock, patch

import pytest
import torch
from conftest import COMPILED, needs_compiled

from minitrans import verify
from minitrans.cachecheck.measure import Caught, Check, Report, Result, name_of
from minitrans.cachecheck.self_test import is_worse
from minitrans.errors import UserError
from minitrans.pages import pictures
from minitrans.translate.backend import Mode
from minitrans.verify import proof
from minitrans.verify.checks import CHAPTERS, CHECKS
from minitrans.verify.sabotage import SABOTAGES, Sabotage
from minitrans.verify.subject import fresh_model, random_subject

LOGGER, IDS = logging.getLogger("minitrans"), torch.tensor([[5, 6, 7]])
SelfTest = list[tuple[Caught, set[str]]]  # for each sabotage what caught it, and the checks that raised
EXPORTED = {check.id for check in CHECKS if check.id.startswith("export.")}  # none where CTranslate2 is not installed
OF_COMPILED = {check.id for check in CHECKS if check.id.startswith("compiled.")} if COMPILED else set()
MEASURED = [check for check in CHECKS if COMPILED or not check.id.startswith("compiled.")]
APPLIED = [sabotage for sabotage in SABOTAGES if COMPILED or not sabotage.id.startswith("compiled.")]
# The probe and the checks of the pass, the decoder and its outputs see any other model.
WHOLE_MODEL = OF_COMPILED - {"compiled.loss"}


def ids_of_raised(info: Mock) -> set[str]:
    """The ids of the checks that have raised."""
    return {call.args[1] for call in info.call_args_list if call.args[0] == "%s raised"}


def functions() -> dict[FunctionType, CodeType]:
    """All that a sabotage could edit: the functions of the package's modules, and of their classes; with their code."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("minitrans.")]
    named = [value for module in modules for value in vars(module).values()]
    classes = [value for value in named if isinstance(value, type) and value.__module__.startswith("minitrans.")]
    inside = [
        value.__func__ if isinstance(value, staticmethod) else value for c in classes for value in vars(c).values()
    ]
    unwrapped = [inspect.unwrap(value) for value in (*named, *inside) if callable(value)]
    return {value: value.__code__ for value in unwrapped if isinstance(value, FunctionType)}


# -- Each sabotage and the checks that must notice it ----------------------------------------------------------------

# For each sabotage checks that have to notice it by what they measure; they are all checks.
NOTICED_BY = {
    "softmax.hard": "C1.query C1.values C2 C4",
    "softmax.naive": "C3",
    "softmax.base-2": "C2 C3",
    "softmax.clipped": "C1.query C3",
    "softmax.axis": "C1.queries C2 C4 C6",
    "values.cut": "C1.values C23",
    "scale.missing": "C5.variance C5.gradient C14 C15.torch",
    "scale.outside": "C6 C18",
    "scale.d_model": "C7 C11",
    "heads.unsplit": "C12",
    "heads.rolled": "C11 C12 C15.numpy",
    "heads.interleaved": "C9 C10 C15.numpy C15.torch",
    "heads.mixed": "C9 C15.torch",
    "heads.wide": "C13",
    "heads.no-w_o": "C8 C14",
    "projections.swapped": "C9 model.numpy model.torch",
    "projections.first": "C9 C15.numpy",
    "projections.list": "C8",
    "queries.first": "C16 C1.queries",
    "cross.own-keys": "C16",
    "batch.second": "C24",
    "batch.centred": "C17.ignored",
    "mask.leak": "C19.prefix C19.gradient model.numpy model.torch C20 C21 C22 cache.steps",
    "mask.late": "C19.prefix C20",
    "mask.alone": "C19.gradient model.numpy",
    "mask.only-cached": "C19.prefix cache.steps",
    "mask.only-uncached": "cache.chunks",
    "mask.only-training": "C19.prefix cache.training",
    "mask.only-eval": "cache.training",
    "mask.top-left": "cache.steps cache.shapes",
    "mask.square": "cache.steps cache.shapes",
    "mask.inverted": "C18 C15.numpy",
    "mask.after-softmax": "C18 C15.numpy",
    "mask.fill-1e6": "C17.zero C25",
    "mask.fill-inf": "C25",
    "mask.nan-gradient": "C25",
    "padding.seen": "C17.zero C17.ignored",
    "padding.queries": "C17.zero C18",
    "padding.other-id": "model.torch model.numpy",
    "padding.centred": "C17.ignored",
    "heat-map.unmarked": "C22",
    "layer.post-norm": "model.layers model.torch model.numpy",
    "layer.no-residual": "model.layers model.torch",
    "layer.no-relu": "model.layers model.numpy",
    "embedding.unscaled": "model.torch model.numpy",
    "dropout.always": "C19.prefix cache.steps",
    "gradient.detached": "C8",
    "state.incomplete": "cache.saved",
    "loss.padding": "C20 loss.chunks",
    "loss.first-chunk": "loss.chunks",
    "loss.sharp-gradient": "loss.chunks",
    "target.unshifted": "C20 C26",
    "batches.replayed": "batches.resumed",
    "batches.skipped": "batches.resumed",
    "batches.restarted": "batches.resumed",
    "batches.dropped": "batches.resumed",
    "positions.restart": "cache.steps cache.shapes cache.chunks cache.rows cache.score",
    "positions.ahead": "cache.steps cache.score",
    "cache.wrong-slot": "cache.steps cache.two",
    "cache.empty-slots": "cache.steps C21",
    "cache.forgets": "cache.steps cache.alternating",
    "cache.cross-layout": "cache.steps cache.saved",
    "cache.on-module": "cache.two",
    "cache.emptied": "cache.alternating",
    "rows.dropped": "cache.rows cache.beams",
    "rows.sorted": "cache.rows cache.beams",
    "rows.inverse": "cache.rows cache.beams",
    "rows.not-source": "cache.rows",
    "rows.not-target": "cache.rows cache.beams",
    "rows.first": "cache.rows C21",
    "rows.not-values": "cache.rows cache.beams",
    "rows.not-mask": "cache.rows",
    "decode.stale-token": "C21 C26",
    "decode.past-eos": "C21 C26",
    "decode.second-best": "C21",
    "decode.uncached-rows": "C21",
    "decode.limit-of-batch": "C21 beam.greedy",
    "beam.logits": "beam.score",
    "beam.second-best": "C21",
    "compiled.unscaled-gradient": "compiled.loss compiled.pass",
    "compiled.forgotten-token": "compiled.loss compiled.pass",
    "compiled.unmasked": "compiled.pass",
    "compiled.overwritten-table": "compiled.pass",
    "compiled.other-dropout": "compiled.pass",
    "compiled.no-residual": "compiled.pass",
    "compiled.forgotten-source": "compiled.pass",
    "compiled.forgotten-rows": "compiled.steps compiled.outputs",
    "compiled.cut-source": "compiled.steps compiled.outputs",
    "compiled.admits-all": "compiled.admitted",
    "compiled.ignores-hooks": "compiled.admitted",
    "export.own-positions": "export.score export.greedy",
    "export.unscaled": "export.score export.greedy",
    "export.values-first": "export.score export.greedy",
    "export.no-eos": "export.score export.greedy",
    "export.writes-padding": "export.score",
    "export.no-limit": "export.greedy",
}


@pytest.mark.parametrize("sabotage", APPLIED, ids=lambda sabotage: sabotage.id)
def test_the_checks_that_must_notice_do_so_by_what_they_measure(sabotage: Sabotage) -> None:
    must = set(NOTICED_BY[sabotage.id].split())
    with patch.object(LOGGER, "info") as info, sabotage.applied():
        subjects = proof.fresh_subjects()
        noticed = {check.id for check in CHECKS if check.id in must and not check.run(subjects).passed}
    assert noticed - ids_of_raised(info) == must


def test_every_check_must_notice_a_sabotage() -> None:
    notice = {check for sabotage in APPLIED for check in NOTICED_BY[sabotage.id].split()}
    assert [check.id for check in MEASURED if check.id not in notice] == []


COMPARING = [check for check in MEASURED if "deviation(" in inspect.getsource(check.measure)]


@pytest.mark.parametrize("check", COMPARING, ids=lambda check: check.id)
def test_every_comparison_of_a_check_must_notice_a_sabotage(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison is a place in the source that calls a function which returns a deviation."""
    largest: dict[object, float] = {}

    def noted(compared: Callable[..., float]) -> Callable[..., float]:
        def compare(*arguments: Any) -> float:
            caller, found = sys._getframe(1), compared(*arguments)
            place = caller.f_code.co_name, caller.f_lineno, caller.f_lasti
            largest[place] = max(largest.get(place, 0.0), math.inf if math.isnan(found) else found)
            return found

        return compare

    for chapter in CHAPTERS:
        for name in [name for name in vars(chapter) if name.endswith("deviation")]:
            monkeypatch.setattr(chapter, name, noted(getattr(chapter, name)))
    for sabotage in APPLIED:
        if check.id in NOTICED_BY[sabotage.id].split():
            with sabotage.applied():
                check.run(proof.fresh_subjects())
    assert [place for place, found in largest.items() if found <= check.tolerance] == []


# Faults that are as plain in a lower dtype: between them, each check that is measured in it meets one.
PLAIN = "softmax.axis softmax.hard scale.outside heads.interleaved heads.mixed heads.wide projections.swapped mask.leak"
PLAIN += " mask.fill-1e6 beam.logits"


@pytest.mark.parametrize(("dtype", "times"), [(torch.float32, 10), (torch.bfloat16, 5)])
def test_a_fault_lies_far_above_what_a_lower_dtype_may_round(dtype: torch.dtype, times: float) -> None:
    seen = {check.id: check for check in MEASURED if dtype in check.lower}
    for sabotage in SABOTAGES:
        if sabotage.id in PLAIN.split():
            with sabotage.applied():
                subjects = {dtype: random_subject(fresh_model()).to(dtype)}
                results = [check.run(subjects).by_dtype[name_of(dtype)] for check in seen.values()]
            seen = {id_: check for (id_, check), result in zip(seen.items(), results, strict=True)
                    if not times * result.tolerance < result.measured < torch.inf}  # fmt: skip
    assert list(seen) == []


# -- All sabotages and all checks -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def self_test() -> SelfTest:
    """Run it once; it takes minutes."""
    found = []
    before = functions()
    with patch.object(LOGGER, "info") as info:
        for caught in verify.self_test():
            found.append((caught, ids_of_raised(info)))
            info.reset_mock()
    assert functions() == before
    return found


@pytest.mark.slow
def test_every_sabotage_is_caught_and_every_check_catches_one_by_what_it_measures(self_test: SelfTest) -> None:
    assert [caught.id for caught, _ in self_test] == [sabotage.id for sabotage in APPLIED]
    measured = {caught.id: set(caught.caught_by) - raised for caught, raised in self_test}
    assert [id_ for id_, noticed in measured.items() if not noticed] == []  # not by crashes alone
    assert {check.id for check in MEASURED} - set().union(*measured.values()) == set()
    report = verify.run()
    assert report.passed  # the code is right again
    assert Report(report.checks, [caught for caught, _ in self_test]).passed


# The only checks that may notice these.
GRADIENT, DECODER = {"compiled.admitted", "compiled.pass"}, WHOLE_MODEL - {"compiled.pass"}
ONLY = {
    "batches.skipped": {"batches.resumed"},
    "heat-map.unmarked": {"C22"},
    "embedding.unscaled": {"model.torch", "model.numpy"} | EXPORTED | WHOLE_MODEL,
    "layer.no-relu": {"model.layers", "model.torch", "model.numpy"} | EXPORTED | WHOLE_MODEL,
    "rows.not-mask": {"cache.rows"},
    "cache.on-module": {"cache.two"},
    "compiled.unmasked": GRADIENT,
    "compiled.overwritten-table": GRADIENT,
    "compiled.other-dropout": GRADIENT,
    "compiled.no-residual": GRADIENT,
    "compiled.forgotten-source": GRADIENT,
    "compiled.forgotten-rows": DECODER,
    "compiled.cut-source": DECODER,
    "compiled.unscaled-gradient": {*GRADIENT, "compiled.loss"},
    "compiled.admits-all": {"compiled.admitted"},
    "compiled.ignores-hooks": {"compiled.admitted"},
    **{sabotage.id: EXPORTED for sabotage in SABOTAGES if sabotage.id.startswith("export.")},
    "export.no-limit": EXPORTED - {"export.score"},
}


@pytest.mark.slow
def test_checks_that_have_nothing_to_do_with_a_fault_do_not_fail(self_test: SelfTest) -> None:
    found = {caught.id: set(caught.caught_by) for caught, _ in self_test if caught.id in ONLY}
    assert found == {id_: ids for id_, ids in ONLY.items() if id_ in {sabotage.id for sabotage in APPLIED}}


@pytest.mark.parametrize("lacking", ["wanted", "compiler", "folder"])
def test_without_compiled_code_its_checks_and_sabotages_are_left_out(
    lacking: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, falls_back: list[str]
) -> None:
    """Where it is there but cannot be compiled, one line says so; where it is required, it is an error."""
    if lacking == "folder":
        monkeypatch.setitem(sys.modules, "minitrans.compiled", None)
    if lacking == "compiler":
        library = pytest.importorskip("minitrans.compiled.library")
        monkeypatch.setattr(library, "_compile", lambda source: "no C++ compiler is here")
    monkeypatch.setattr(proof, "SABOTAGES", [s for s in SABOTAGES if s.id in ("rows.sorted", "compiled.unmasked")])
    monkeypatch.setattr(proof, "CHECKS", [c for c in CHECKS if c.id in ("cache.rows", "C20", "compiled.loss")])
    mode: Mode = "off" if lacking == "wanted" else "auto"
    assert [result.id for result in verify.run(compiled=mode).checks] == ["C20", "cache.rows"]
    assert [(caught.id, caught.caught_by) for caught in verify.self_test(mode)] == [("rows.sorted", ["cache.rows"])]
    line = "verification takes the plain and slower path: no C++ compiler is here"
    assert set(falls_back) == ({line} if lacking == "compiler" else set())
    if lacking != "wanted":
        refused = pytest.raises(UserError, match="compiled code is required, and may not do the verification: ")
        with refused:
            verify.run(compiled="require")
        with refused:
            list(verify.self_test("require"))


@needs_compiled
def test_with_compiled_code_its_checks_and_sabotages_are_there() -> None:
    for mode in get_args(Mode):
        for registered, chosen in ((CHECKS, proof.checks_for(mode)), (SABOTAGES, proof.sabotages_for(mode))):
            assert chosen == [each for each in registered if mode != "off" or not each.id.startswith("compiled.")]


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.id)
def test_a_sabotage_edits_what_it_names_and_is_undone(sabotage: Sabotage) -> None:
    assert sabotage.fault.endswith(".")
    before = functions()
    with sabotage.applied():
        edited = {f.__qualname__ for f, code in functions().items() if code is not before[f]}
    assert edited == {name.split(":")[1] for name, _, _ in sabotage.edits}
    assert functions() == before


def test_a_sabotage_is_undone_when_what_runs_under_it_raises() -> None:
    model = fresh_model()
    sabotage = Sabotage("x", "A fault.", [("model.transformer:Transformer.hidden", "return", "1 / 0; return")])
    with pytest.raises(ZeroDivisionError), sabotage.applied():
        model(IDS, IDS)
    assert model(IDS, IDS).isfinite().all()


def test_several_edits_of_a_function_add_up_wherever_the_piece_stands() -> None:
    edits = [("pages.pictures:_short", "LONGEST_LABEL", "3"), ("pages.pictures:_short", "…", "...")]
    with Sabotage("x", "A fault.", edits).applied():
        assert pictures._short("abcd") == "ab..."
    assert pictures._short("abcd") == "abcd"


def test_a_sabotage_of_code_that_was_edited_for_good_says_what_it_misses() -> None:
    message = r"x edits '/ 2' in model.loss:batch_loss, where it isn't; edit verify/sabotages.toml too"
    sabotage = Sabotage("x", "A fault.", [("model.loss:batch_loss", "/ 2", "")])
    with pytest.raises(UserError, match=message), sabotage.applied():
        pass


@pytest.mark.parametrize(
    ("before", "under", "noticed"),
    [
        (0.0, 1e-3, True),
        (0.0, math.inf, True),
        (0.0, math.nan, True),
        (0.0, 1e-13, False),  # it passes
        (1e-9, 1e-8, False),  # it fails without the fault too
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

    assert is_worse(results(under), results(before)) == noticed
