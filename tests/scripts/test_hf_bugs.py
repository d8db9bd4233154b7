"""The published bugs: their list is complete, and what the page says about each follows from the checks."""

from pathlib import Path

import hf_bugs
import pytest
from hf_bugs import PAGE_FILE, Bug, Outcome, catching_checks, read_bugs, render_page, table_row, unexpected_outcomes

from minitrans.cachecheck.cache_checks import CHECKS

CACHE_CHECK_IDS = {check.id for check in CHECKS}
BUG = Bug([7, 8], "a window is off", "gemma2", "1.0", "1.1", {})
ALL_EXACT = {
    "steps": Outcome(1e-15, True, ""),
    "chunks": Outcome(1e-15, True, ""),
    "static": Outcome(None, False, "KeyError"),
}
ONE_FAILS = {**ALL_EXACT, "chunks": Outcome(0.5, False, "first at 3; this looks like: the mask is late")}


def test_the_list_is_complete_and_the_page_has_a_row_for_each_bug() -> None:
    bugs, page = read_bugs(), PAGE_FILE.read_text(encoding="utf-8")
    assert len(bugs) >= 12
    assert sum(not bug.missed for bug in bugs) >= 10
    assert len({(*bug.issues, bug.architecture) for bug in bugs}) == len(bugs)
    for bug in bugs:
        assert bug.issues
        assert bug.what
        assert tuple(map(int, bug.bad.split("."))) < tuple(map(int, bug.fixed.split(".")))
        start = table_row(bug, ALL_EXACT, ALL_EXACT).split(" | no | ")[0]
        (line,) = (line for line in page.splitlines() if line.startswith(start))
        assert (" no | " in line) == bool(bug.missed)


def test_a_row_names_the_catching_check_its_symptom_and_what_fails_after_the_fix() -> None:
    line = table_row(BUG, ONE_FAILS, ALL_EXACT)
    assert line.startswith("| [#7](https://github.com/huggingface/transformers/issues/7), [#8](")
    assert line.endswith("a window is off | gemma2 | 1.0 | 1.1 | `chunks` | the mask is late | 0.5 | 1e-15 | nothing |")
    steps = {"steps": Outcome(0.25, False, "")}
    assert table_row(BUG, ONE_FAILS | steps, ALL_EXACT | steps).endswith("| 0.5 | 1e-15 | `steps` 0.25 |")
    assert "0 of 1 are caught, 0 of these" in render_page([(BUG, ALL_EXACT, ALL_EXACT)])
    assert "1 of 1 are caught, 1 of these" in render_page([(BUG, ONE_FAILS, ALL_EXACT)])


@pytest.mark.parametrize(
    ("bad", "fixed", "caught"),
    [
        (ONE_FAILS, ALL_EXACT, ["chunks"]),
        (ALL_EXACT, ALL_EXACT, []),
        (ONE_FAILS, ONE_FAILS, []),  # it fails as before
        (ONE_FAILS, {**ALL_EXACT, "chunks": Outcome(None, False, "KeyError")}, []),  # nothing shows that it is fixed
        ({**ALL_EXACT, "chunks": Outcome(None, False, "KeyError")}, ALL_EXACT, []),  # an error is not a wrong number
        ({**ALL_EXACT, "chunks": Outcome(1e-7, False, "")}, ALL_EXACT, []),  # rounding in float32
        ({**ALL_EXACT, "chunks": Outcome(1.2e-5, True, "")}, ALL_EXACT, []),  # allowed in float32
        ({**ALL_EXACT, "chunks": Outcome(float("nan"), False, "")}, ALL_EXACT, ["chunks"]),
    ],
)
def test_caught_is_what_the_fix_corrects(bad: dict[str, Outcome], fixed: dict[str, Outcome], caught: list[str]) -> None:
    assert catching_checks(bad, fixed) == caught


def test_a_bug_is_caught_or_has_a_reason_and_not_both() -> None:
    missed = BUG._replace(missed="it raises an error")
    assert list(unexpected_outcomes([(BUG, ONE_FAILS, ALL_EXACT), (missed, ALL_EXACT, ALL_EXACT)])) == []
    assert list(unexpected_outcomes([(BUG, ALL_EXACT, ALL_EXACT), (missed, ONE_FAILS, ALL_EXACT)])) == [
        "gemma2 [7, 8]: missed",
        "gemma2 [7, 8]: caught, but said to be missed",
    ]


def test_an_unknown_bug_number_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        hf_bugs.main(["99999999"])
    assert "there is no bug with the number 99999999" in capsys.readouterr().err


def test_a_release_is_measured_with_all_checks(tmp_path: Path) -> None:
    """The installed release stands in for any: its GPT-2 is right, except with the mask alone."""
    pytest.importorskip("transformers")
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 12}
    bug = Bug([1], "nothing", "gpt2", "0", "0", sizes)
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "installed").touch()
    (checks,) = hf_bugs.measure_in_release("0", [bug], tmp_path)
    assert set(checks) == CACHE_CHECK_IDS
    assert [id_ for id_, each in checks.items() if each.clearly_fails] == ["padding.left-mask-alone"]
    assert checks["steps"].passed
    assert checks["rollback"].passed
