"""The survey of Hugging Face's architectures: its page is complete, and every failure is explained."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

pytest.importorskip("transformers")
import hf_survey
from hf_survey import NOTES_FILE, PAGE_FILE, Entry, Finding, join_names, main, printed_by, read_entries_and_notes

from minitrans.cachecheck.measurement import Caught, Measurement, Result

Capture = pytest.CaptureFixture[str]
# The project promises these; five of each kind are also measured in the tests of users' models.
PROMISED_ARCHITECTURES = {
    *("marian", "m2m_100", "bart", "mbart", "pegasus", "pegasus_x", "blenderbot", "plbart", "led", "bigbird_pegasus"),
    *("t5", "mt5", "umt5", "longt5", "nllb-moe", "switch_transformers", "prophetnet"),
    *("gpt2", "llama", "mistral", "qwen2", "gemma", "phi", "falcon", "bloom", "opt", "gpt_neox", "mamba"),
}


def new_result(id_: str, measured: float, *, offered: bool = True) -> Result:
    passed = offered and measured <= 1e-12
    return Result(id_, "", "", "", measured, 1e-12, passed, 0.0, {}, offered, "" if offered else "it cannot")


FAKE_FINDINGS = {
    "gpt2": Finding(Entry("gpt2", "gpt2", {}, True), [new_result("steps", 0.0), new_result("chunks", 0.5)],
                [Caught("cut", "", ["steps"]), Caught("late", "", [])]),
    "opt": Finding(Entry("opt", "opt", {}, False), [new_result("steps", 0.0), new_result("rows", 0.0, offered=False)]),
    "llama": Finding(Entry("llama", "llama", {}, False), [new_result("steps", 1e-7)]),
    "xlm": Finding(Entry("xlm", "xlm", {}, False), [new_result("steps", 0, offered=False), new_result("reach", 1e-7)]),
    "bart": Finding(Entry("bart", "bart", {}, False), no_model_reason="it | has none"),
    "short": Finding(Entry("short", "gpt2", {"n_positions": 12}, False), [new_result("steps", float("nan"))]),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_survey, "check_entry", lambda entry: FAKE_FINDINGS[entry.name])
    monkeypatch.setattr(hf_survey, "ProcessPoolExecutor", ThreadPoolExecutor)
    monkeypatch.setattr(
        hf_survey, "adapter_by_name", lambda: {n: (n, None) for n in ("gpt2", "opt", "llama", "xlm", "bart")}
    )


def write_notes_file(folder: Path, *notes: dict[str, object]) -> Path:
    file = folder / "notes.yaml"
    short = {"name": "short", "architecture": "gpt2", "settings": {"n_positions": 12}}
    file.write_text(yaml.safe_dump({"with_faults": ["gpt2"], "with_settings": [short], "notes": list(notes)}))
    return file


def make_note(entries: list[str], checks: list[str], shown: str = "") -> dict[str, object]:
    return {"entries": entries, "checks": checks, "kind": "meant", "words": "Because of that.", "shown": shown}


def test_the_page_names_all_promised_architectures_and_explains_all_failures() -> None:
    _, notes = read_entries_and_notes(NOTES_FILE)
    page = PAGE_FILE.read_text(encoding="utf-8")
    assert PROMISED_ARCHITECTURES - {*page.replace(",", " ").replace(".", " ").split()} == set()
    assert "**?**" not in page
    sections = dict(part.split("\n\n", 1) for part in page.split("\n## "))
    reasons = [line for line in sections["Not offered"].splitlines() if "`steps`" in line]
    without_steps = {name for line in reasons for name in line.split(" | ")[-1].removesuffix(" |").split(", ")}
    for title in ("Exact", "Exact but for what is computed in float32"):
        assert without_steps.isdisjoint(sections[title].rstrip().removesuffix(".").split(", "))
    assert all(f'<a id="note-{i}"></a>' in page and f"(#note-{i})" in page for i in range(1, len(notes) + 1))


def test_every_failure_needs_a_note_and_every_note_a_failure(tmp_path: Path, capsys: Capture) -> None:
    output = tmp_path / "page.md"
    file = write_notes_file(tmp_path, make_note(["gpt2"], ["chunks"], "print(6 * 7)"), make_note(["llama"], ["steps"]))
    assert main(["--output", str(output)], file) == 1
    said = ["not explained: gpt2: late", "not explained: short: steps", "explains nothing: Because of that."]
    assert capsys.readouterr().out.splitlines() == said
    page = output.read_text(encoding="utf-8")
    assert "| gpt2 | `chunks` 0.5 | [1](#note-1) **?** |" in page
    assert "| short | `steps` NaN | **?** |" in page
    assert "## Exact\n\nopt.\n" in page
    assert "in float32\n\nllama.\n" in page
    assert "| it cannot | `rows`, `steps` | opt, xlm |" in page
    assert "2 differ by more, and 1 differ in nothing, but did not decode from a cache (xlm)." in " ".join(page.split())
    assert "| bart | it / has none |" in page
    words = " ".join(page.split())
    assert "Of 6 models 5 were measured: 1 decode exactly, 1 do but for" in words
    assert "Faults of 2 kinds, 2 in all, were put around 1 of the models; the checks caught 1." in words
    assert "print(6 * 7)\n```\n\n```text\n42\n```" in page
    assert main(["--output", str(output)], write_notes_file(tmp_path, make_note(["all"], ["all"]))) == 0
    assert "**?**" not in output.read_text(encoding="utf-8")


def test_results_for_given_names_are_printed_and_not_written(tmp_path: Path, capsys: Capture) -> None:
    before = PAGE_FILE.read_bytes()
    assert main(["gpt2", "opt"], write_notes_file(tmp_path, make_note(["all"], ["all"]))) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["| gpt2 | `chunks` 0.5 | [1](#note-1) |", "| opt |  |  |"]
    assert main(["bart"], write_notes_file(tmp_path)) == 1
    assert capsys.readouterr().out.splitlines()[0] == "not explained: bart: it | has none"
    with pytest.raises(SystemExit, match="2"):
        main(["bert"], write_notes_file(tmp_path))
    assert "there is no entry bert" in capsys.readouterr().err
    assert PAGE_FILE.read_bytes() == before


def test_only_the_worst_of_many_failing_checks_are_named_nan_first() -> None:
    results = [new_result(f"c{i}", 0.1 * i) for i in range(1, 7)] + [new_result("nan", float("nan"))]
    row = Finding(FAKE_FINDINGS["opt"].entry, results)
    *_, line = hf_survey.failure_table([row], [])
    assert line == "| opt | `nan` NaN, `c6` 0.6, `c5` 0.5, `c4` 0.4, `c3` 0.3, 2 more | **?** |"
    assert len([*hf_survey.failure_keys(row)]) == 7


def test_a_dtype_that_is_not_float64_is_named() -> None:
    results = [Result("steps", "", "", "", None, 1e-12, True, 0.0, {"float32": Measurement(0.0, 1e-5)})]
    assert join_names([Finding(FAKE_FINDINGS["opt"].entry, results), FAKE_FINDINGS["opt"]]) == "opt (float32), opt."


def test_many_entries_without_the_same_check_are_counted() -> None:
    rows = [Finding(Entry(f"n{i}", "", {}, False), [new_result("rows", 0.0, offered=False)]) for i in range(6)]
    assert [*hf_survey.unoffered_checks_table(rows)][-1] == "| it cannot | `rows` | 6 |"


def test_errors_that_differ_only_in_a_class_or_number_share_a_line() -> None:
    rows = [
        Finding(Entry(name, "", {}, False), [replace(new_result("rows", 0.0, offered=False), detail=detail)])
        for name, detail in [("a", "AForCausalLM takes 6, not x8"), ("b", "BForCausalLM takes 12, not x8")]
    ]
    assert [*hf_survey.unoffered_checks_table(rows)][2:] == ["| … takes …, not x8 | `rows` | a, b |"]


def test_a_program_can_use_the_names_of_the_preamble() -> None:
    assert printed_by("print(tuple(ids.shape), off(ids.double() * 2, ids.double()))") == "(3, 7) 1e+00"


@pytest.mark.slow
def test_an_architecture_is_measured_with_and_without_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    row = hf_survey.check_entry(Entry("gpt2", "gpt2", {"n_positions": 12}, True))
    assert [result.id for result in row.clear_failures] == ["padding.left-mask-alone"]
    assert row.fault_results
    assert hf_survey.check_entry(Entry("gpt2", "gpt2", {}, False)).fault_results == []
    assert hf_survey.check_entry(Entry("gone", "gone", {}, False)).no_model_reason == "KeyError: 'gone'"
