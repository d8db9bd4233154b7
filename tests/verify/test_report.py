"""The report in the terminal, and as JSON."""

import io
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

import pytest
from conftest import CAN_COMPILE
from rich.console import Console

from minitrans.cachecheck import cache_checks
from minitrans.cachecheck.measurement import Caught, Check, Measurement, Report, Result
from minitrans.verify.checks import CHECKS
from minitrans.verify.report import as_json, print_report


def make_result(id_: str, group: str = "A chapter", **changes: object) -> Result:
    fields = {"claim": "A claim.", "what": "what is measured", "measured": 2.5e-15, "tolerance": 1e-12, "passed": True}
    return Result(**({"id": id_, "group": group, "seconds": 0.75, "lower": {}} | fields | changes))  # type: ignore[arg-type]


def make_results(checks: Iterable[Check]) -> list[Result]:
    return [make_result(c.id, c.group, claim=c.claim, what=c.what, tolerance=c.tolerance) for c in checks]


def printed_report(
    checks: Sequence[Result], sabotages: list[Caught] | None = None, *, width: int = 160, colours: bool | None = None
) -> str:
    file = io.StringIO()
    print_report(Report(list(checks), sabotages), Console(file=file, width=width, force_terminal=colours))
    return file.getvalue()


def line_words(text: str, id_: str) -> list[str]:
    """The words of the one line that begins with this id."""
    (line,) = (line for line in text.splitlines() if line.split()[:1] == [id_])
    return line.split()


def test_all_checks_are_listed_in_order_under_their_chapters() -> None:
    ids, titles = {check.id for check in CHECKS}, {check.group for check in CHECKS}
    lines = printed_report(make_results(CHECKS)).splitlines()
    assert re.findall(r"<= (\S+)", "".join(lines[:3])) == ["1.5e-5", "0.062"]
    names = [line.strip() if line.strip() in titles else line.split(" ")[0] for line in lines]
    expected = [name for title, chapter in groupby(CHECKS, lambda check: check.group)
                for name in (title, *(check.id for check in chapter))]  # fmt: skip
    assert [name for name in names if name in ids | titles] == expected
    assert len([line for line in lines if line.endswith(" pass")]) == len(CHECKS)


def test_on_a_narrow_terminal_nothing_is_cut() -> None:
    checks = [*CHECKS, *cache_checks.CHECKS]
    text = printed_report(make_results(checks), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert all(f"\n{check.id} " in text for check in checks)


def test_a_line_has_the_numbers_and_the_verdict() -> None:
    lower = {"float32": Measurement(3e-7, 2.0**-16), "bfloat16": Measurement(0.0, 0.125)}
    text = printed_report([make_result("one", lower=lower), make_result("two", measured=0.0, tolerance=0.0)])
    assert line_words(text, "one") == ["one", "A", "claim.", "2.5e-15", "1e-12", "3e-7", "0", "pass"]
    assert line_words(text, "two") == ["two", "A", "claim.", "0", "0", "pass"]
    assert "what is measured" in text
    assert "who chose these limits" in " ".join(text.split())
    assert "sabotage" not in text


def test_failures_and_checks_that_are_not_offered_are_shown_and_counted() -> None:
    nan, infinite = (
        make_result(id_, measured=x, passed=False) for id_, x in (("nan", math.nan), ("infinite", math.inf))
    )
    lacking = make_result("lacking", measured=None, passed=False, offered=False, detail="there is no [encoder]")
    text = printed_report([make_result("one"), make_result("two", measured=0.5, passed=False), nan, infinite])
    for id_, shown in (("two", "0.5"), ("nan", "NaN"), ("infinite", "∞")):
        assert line_words(text, id_) == [id_, "A", "claim.", shown, "1e-12", "FAIL"]
    assert text.endswith("\n1 passed, 3 failed in 3.0 s\n")
    text = printed_report([make_result("one"), lacking])
    assert line_words(text, "lacking") == ["lacking", "A", "claim.", "1e-12", "not", "offered"]
    assert "there is no [encoder]" in text
    assert text.endswith("\n1 passed, 0 failed, 1 not offered in 1.5 s\n")
    text = printed_report([make_result("one"), replace(lacking, id="steps")])
    assert "1 passed, 0 failed, 1 not offered (but steps are required) in 1.5 s" in " ".join(text.split())


def test_the_report_is_plain_text_in_a_pipe_and_coloured_on_a_terminal() -> None:
    report = [make_result("one"), make_result("two", passed=False)], [Caught("s", "A fault.", [])]
    assert "\x1b" not in printed_report(*report)
    assert "\x1b[32mpass" in printed_report(*report, colours=True)


def test_brackets_in_a_text_are_not_taken_for_markup() -> None:
    text = printed_report(
        [make_result("one", claim="It is [red]x[/].", what="y[0]")], [Caught("s", "A [bold]fault[/].", ["one"])]
    )
    assert "It is [red]x[/]." in text
    assert "y[0]" in text
    assert "A [bold]fault[/]." in text


def test_sabotages_are_listed_with_the_checks_that_caught_them_and_blind_checks_are_named() -> None:
    both, first, none = Caught("a.b", "A fault.", ["one", "two"]), Caught("c", "C.", ["one"]), Caught("d", "D.", [])
    text = printed_report([make_result("one"), make_result("two")], [both, first])
    assert line_words(text, "a.b") == ["a.b", "A", "fault.", "one,", "two"]
    assert line_words(text, "c") == ["c", "C.", "one"]
    assert "2 sabotages, 2 caught; every check caught at least one\n" in text
    assert text.endswith("\n2 passed, 0 failed in 1.5 s\n")
    text = printed_report([make_result("one"), make_result("two")], [first, none])
    assert line_words(text, "d") == ["d", "D.", "NOTHING"]
    assert "2 sabotages, 1 caught; checks that caught none: two\n" in text


def test_the_json_report_has_the_expected_fields_and_types(fresh_model_report: Report) -> None:
    report = json.loads(as_json(fresh_model_report))
    assert set(report) == {"passed", "checks"}
    assert report["passed"] is True
    assert [c["id"] for c in report["checks"]] == [
        check.id for check in CHECKS if CAN_COMPILE or not check.id.startswith("compiled.")
    ]
    types = {"id": str, "group": str, "claim": str, "what": str, "measured": float, "tolerance": float, "passed": bool,
             "seconds": float, "lower": dict, "offered": bool, "detail": str}  # fmt: skip
    for c in report["checks"]:
        assert {key: type(value) for key, value in c.items()} == types
        assert all(set(m) == {"measured", "tolerance"} for m in c["lower"].values())


def test_the_json_has_null_for_nan_and_infinity_and_the_sabotages_after_a_self_test() -> None:
    bad = Result("x", "g", "c", "w", math.nan, 1e-12, False, 0.5, {"float32": Measurement(math.inf, 2.0**-16)})
    assert not json.loads(as_json(Report([make_result("a")], [Caught("s", "A fault.", [])])))["passed"]
    report = json.loads(as_json(Report([bad], [Caught("s", "A fault.", ["a"])])), parse_constant=pytest.fail)
    assert report["passed"] is False
    assert report["checks"][0]["measured"] is None
    assert report["checks"][0]["lower"] == {"float32": {"measured": None, "tolerance": 2.0**-16}}
    assert report["sabotages"] == [{"id": "s", "fault": "A fault.", "caught_by": ["a"]}]
