"""How deviations are measured, what passes, and what is reported."""

import logging
import math
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from minitrans.cachecheck.measurement import (
    FLOAT64_TOLERANCE,
    LOWER_DTYPES,
    Caught,
    Check,
    Deviation,
    MeasureFn,
    Measurement,
    NotOfferedError,
    Report,
    Result,
    compare,
    deviation,
    dtype_name,
    new_check_group,
    to_str,
    worst,
)

NAN, INF = float("nan"), float("inf")


def run_measure(measure: MeasureFn, tolerance: float = 1e-12, *lower: torch.dtype, may_lack: bool = False) -> Result:
    """Run a check in float64 and in the lower dtypes given; `measure` gets the dtype itself."""
    subjects = {dtype: dtype for dtype in (torch.float64, *lower)}
    return Check("x", "A chapter", "A claim.", "what", tolerance, lower, measure).run(subjects, may_lack)


def make_result(id_: str = "x", measured: float = 0.0, passed: bool = True) -> Result:
    return Result(id_, "A chapter", "A claim.", "what", measured, 1e-12, passed, 0.5, {})


# Deviations


def test_a_deviation_is_the_largest_difference_of_two_elements() -> None:
    a = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    b = torch.tensor([[1.0, -2.5, 300.0]], dtype=torch.float64)
    assert deviation(a, a) == 0.0
    assert deviation(a, b) == deviation(b, a) == 297.0


def test_a_deviation_knows_where_it_first_exceeds_a_tolerance() -> None:
    """The first axis is that of rows, the last but one that of positions, whatever lies between."""
    for shape in ((3, 4, 5), (3, 2, 4, 5)):
        a = torch.zeros(shape, dtype=torch.float64)
        b = a.clone()
        b[2, ..., 1, 4], b[0, ..., 2, 0], b[1, ..., 3, 3] = 0.25, 9.0, 0.5
        largest = deviation(a, b)
        assert largest == 9.0
        assert largest.locate(0.1) == "position 1 of row 2 is the first that differs, by 0.25"
        assert largest.locate(0.3) == "position 2 of row 0 is the first that differs, by 9"
        moved = largest.named("fed one by one", 3).named(offset=4)
        assert moved == 9.0
        assert moved.locate(0.1) == "position 8 of row 2 is the first that differs, by 0.25, fed one by one"
        b[0, ..., 0, 0] = NAN
        assert deviation(a, b).locate(0.1) == "position 0 of row 0 is the first that differs, by NaN"
        assert largest.locate(10.0) == ""
    assert deviation(torch.zeros(2), torch.ones(2)).locate(0.0) == ""


def test_missing_weights_of_later_keys_count_as_zero() -> None:
    few, many = torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 3)
    assert compare([few], [many]) == compare([many], [few]) == 1.0
    many[..., 2] = 0.0
    assert compare([few], [many]) == compare([many], [few]) == 0.0
    assert compare([few[0]], [many[0]]) == INF  # with three axes, the last is not that of keys
    assert compare([few], [few, many]) == INF
    assert compare([few], [few, many]).locate(0.0) == "kinds of numbers: 1, to compare with 2"


@pytest.mark.parametrize("dtype", LOWER_DTYPES)
def test_in_a_lower_dtype_a_deviation_is_relative_to_the_largest_element_above_1(dtype: torch.dtype) -> None:
    want = torch.tensor([64.0, -256.0, 0.0], dtype=torch.float64)
    assert deviation(torch.tensor([64.0, -256.0, 4.0], dtype=dtype), want) == 4 / 256
    assert deviation(torch.tensor([0.25, 2.0], dtype=dtype), torch.zeros(2, dtype=dtype)) == 2.0
    finer = torch.tensor([1.0 + 1e-9], dtype=torch.float64)  # nothing is rounded before the difference is taken
    assert deviation(torch.ones(1, dtype=dtype), finer) == pytest.approx(1e-9)
    assert deviation(torch.ones(1, dtype=dtype), torch.full((1,), 2.0**-26, dtype=dtype)) == 1 - 2.0**-26


def test_nan_infinity_different_shapes_and_empty_tensors_do_not_agree() -> None:
    ones = torch.ones(2, 3)
    assert math.isnan(deviation(ones, ones * NAN))
    assert math.isnan(deviation(ones * NAN, ones))
    assert math.isnan(deviation(ones * INF, ones * INF))
    assert not deviation(ones, ones * INF) <= 1.0
    assert deviation(ones, torch.ones(3, 2)) == INF
    assert deviation(ones, torch.ones(1, 3)) == INF
    assert deviation(ones[:0], ones[:0]) == INF
    worded = worst([deviation(ones, torch.ones(1, 3)).named("fed in chunks of 2").named("fed one by one")])
    assert worded.locate(0.0) == "numbers of shape (2, 3), to compare with (1, 3), fed one by one"


def test_the_worst_of_nothing_is_infinite_nan_is_the_worst_of_all_and_descriptions_are_kept() -> None:
    known = Deviation(2.0).named("so and so")
    assert worst([1.0, known, 0.5]) == 2.0
    assert worst([1.0, known, 0.5]).locate(0.0) == "so and so"
    assert worst([]) == worst([INF, known]) == INF
    assert math.isnan(worst([INF, NAN, known]))


NUMBER_TEXTS = {0.0: "0", 3.0: "3", 12345.0: "12345", 0.05: "0.05", 0.125: "0.12", 1e-12: "1e-12", 1.526e-05: "1.5e-5",
           2e30: "2e30", 2.5e12: "2.5e12", 8.88e-16: "8.9e-16", INF: "∞", NAN: "NaN"}  # fmt: skip


@pytest.mark.parametrize(("x", "text"), [*NUMBER_TEXTS.items(), (-0.0, "0")])
def test_numbers_are_short(x: float, text: str) -> None:
    assert to_str(x) == text


# Checks


@pytest.mark.parametrize(("measured", "passed"), [(0.0, True), (0.5, True), (0.51, False), (INF, False), (NAN, False)])
def test_a_check_passes_up_to_its_tolerance(measured: float, passed: bool) -> None:
    assert run_measure(lambda dtype: measured, 0.5).passed == passed
    assert Measurement(measured, 0.5).passed == passed


@pytest.mark.parametrize("wrong", [torch.float64, *LOWER_DTYPES])
def test_a_check_that_fails_in_any_dtype_has_failed(wrong: torch.dtype) -> None:
    result = run_measure(lambda dtype: float(dtype == wrong), 1e-12, *LOWER_DTYPES)
    assert not result.passed
    want = {dtype_name(dtype): dtype == wrong for dtype in (torch.float64, *LOWER_DTYPES)}
    assert {name: m.measured for name, m in result.by_dtype.items()} == want


def test_a_check_that_raises_has_failed_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "minitrans"):
        result = run_measure(lambda dtype: 1 / 0, 0.5, torch.float32)
    assert not result.passed
    assert result.measured == result.lower["float32"].measured == INF
    assert result.detail == "ZeroDivisionError: division by zero"
    assert "x raised" in caplog.text
    assert "ZeroDivisionError: division by zero" in caplog.text


def test_an_interrupt_is_not_taken_for_a_failure() -> None:
    with pytest.raises(KeyboardInterrupt):
        run_measure(Mock(side_effect=KeyboardInterrupt))


def test_what_is_exact_in_float64_has_to_be_exact_in_every_dtype() -> None:
    result = run_measure(lambda dtype: 1e-30, 0.0, *LOWER_DTYPES)
    assert not result.passed
    assert [m.tolerance for m in result.lower.values()] == [0.0, 0.0]


def test_a_result_says_what_was_measured_what_is_allowed_and_how_long_it_took() -> None:
    assert FLOAT64_TOLERANCE == 1e-12
    result = run_measure(lambda dtype: 0.25, 0.5, *LOWER_DTYPES)
    assert (result.id, result.group, result.claim, result.what) == ("x", "A chapter", "A claim.", "what")
    assert (result.measured, result.tolerance, result.passed) == (0.25, 0.5, False)
    assert result.lower == {"float32": Measurement(0.25, 2.0**-16), "bfloat16": Measurement(0.25, 2.0**-4)}
    assert 0.0 <= result.seconds < 10.0


def test_the_detail_describes_the_first_dtype_that_exceeds_its_own_tolerance() -> None:
    def measure(dtype: torch.dtype) -> Deviation:
        return deviation(torch.tensor([[[1e-6], [0.5]]], dtype=dtype) * (dtype in LOWER_DTYPES), torch.zeros(1, 2, 1))

    assert run_measure(measure, 1e-12, *LOWER_DTYPES).detail == "position 1 is the first that differs, by 0.5"


def test_a_check_draws_the_same_random_numbers_every_time() -> None:
    assert len({run_measure(lambda dtype: float(torch.rand(()))).measured for _ in map(torch.rand, (1, 1))}) == 1


def test_a_chapter_registers_its_checks_in_order() -> None:
    chapter, checks = new_check_group("A chapter")

    @chapter("a", "one")
    def measure(subject: object) -> float:
        """A claim."""
        return float(torch.is_grad_enabled())

    chapter("b", "two", tolerance=0.5, lower=())(torch.enable_grad()(measure))
    first, second = checks
    assert first == Check("a", "A chapter", "A claim.", "one", FLOAT64_TOLERANCE, LOWER_DTYPES, first.measure)
    assert second == Check("b", "A chapter", "A claim.", "two", 0.5, (), second.measure)
    assert (first.measure(None), second.measure(None)) == (0.0, 1.0)


# Reports


PASSED_A, PASSED_B, FAILED_B = make_result("a"), make_result("b"), make_result("b", 1.0, passed=False)
NOT_OFFERED_B = replace(make_result("b", passed=False), offered=False)
CAUGHT, ESCAPED = Caught("s", "A fault.", ["a"]), Caught("t", "Another.", [])


@pytest.mark.parametrize(
    ("report", "passed", "blind"),
    [
        (Report([PASSED_A, PASSED_B]), True, []),
        (Report([PASSED_A, FAILED_B]), False, []),
        (Report([]), False, []),
        (Report([PASSED_A, NOT_OFFERED_B]), True, []),
        (Report([NOT_OFFERED_B]), False, []),  # nothing was shown
        (Report([PASSED_A], [CAUGHT]), True, []),
        (Report([PASSED_A], [CAUGHT, ESCAPED]), False, []),
        (Report([PASSED_A], []), False, ["a"]),
        (Report([PASSED_A, PASSED_B], [CAUGHT]), False, ["b"]),
        (Report([PASSED_A, PASSED_B], [CAUGHT], each_must_catch=False), True, []),
    ],
)
def test_a_report_passes_if_all_checks_do_every_fault_is_caught_and_no_check_is_blind(
    report: Report, passed: bool, blind: list[str]
) -> None:
    assert (report.passed, report.blind_checks) == (passed, blind)


def test_what_a_model_does_not_offer_is_a_failure_only_where_it_is_required() -> None:
    lacking = Mock(side_effect=NotOfferedError("there is no encoder"))
    measured = run_measure(lacking, may_lack=True)
    assert (measured.passed, measured.failed, measured.offered, measured.measured) == (False, False, False, None)
    assert measured.detail == "there is no encoder"
    bare = run_measure(Mock(side_effect=NotOfferedError), may_lack=True)
    assert (bare.failed, bare.offered, bare.detail) == (False, False, "no reason is given")
    later = run_measure(Mock(side_effect=[NotOfferedError("no"), 0.0]), 0.5, torch.float32, may_lack=True)
    assert (later.passed, later.offered, later.measured, [*later.lower]) == (True, True, None, ["float32"])
    partly = run_measure(Mock(side_effect=[0.0, NotOfferedError("no")]), 0.5, torch.float32, may_lack=True)
    assert (partly.passed, partly.failed, partly.measured) == (False, False, 0.0)
    partly = run_measure(Mock(side_effect=[1.0, NotOfferedError("no")]), 0.5, torch.float32, may_lack=True)
    assert (partly.failed, partly.offered) == (True, True)  # what is wrong in one dtype is wrong
    measured = run_measure(lacking)
    assert (measured.passed, measured.failed, measured.offered, measured.measured) == (False, True, True, INF)
