"""The survey of Hugging Face's architectures: its page is whole, and nothing stays unexplained."""

from pathlib import Path

import pytest
import yaml

pytest.importorskip("transformers")
import survey
from survey import NOTES, OUTPUT, Note, as_entry, main, printed_by, read_notes

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.slow  # measuring two models with all faults
SHORT = {"name": "short", "architecture": "gpt2", "settings": {"n_positions": 12}}
# As the project promises; and five of each kind are measured in the tests of anyone's model.
PROMISED = {
    *("marian", "m2m_100", "bart", "mbart", "pegasus", "pegasus_x", "blenderbot", "plbart", "led", "bigbird_pegasus"),
    *("t5", "mt5", "umt5", "longt5", "nllb-moe", "switch_transformers", "prophetnet"),
    *("gpt2", "llama", "mistral", "qwen2", "gemma", "phi", "falcon", "bloom", "opt", "gpt_neox", "mamba"),
}


@pytest.fixture(scope="module")
def rows() -> dict[str, survey.Row]:
    """What is measured of the entries, once."""
    entries = [as_entry("gpt2"), as_entry(SHORT)]
    return {entry.name: survey.measure(entry) for entry in entries}


@pytest.fixture(autouse=True)
def _measured_once(rows: dict[str, survey.Row], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "measure", lambda entry: rows[entry.name])


def notes_file(folder: Path, *notes: dict[str, object]) -> Path:
    file = folder / "notes.yaml"
    listed = {"entries": {"Decoders": ["gpt2", SHORT]}, "notes": list(notes)}
    file.write_text(yaml.safe_dump(listed), encoding="utf-8")
    return file


def note(entries: list[str], checks: list[str], shown: str = "") -> dict[str, object]:
    return {"entries": entries, "checks": checks, "kind": "meant", "words": "Because of that.", "shown": shown}


def test_the_page_has_a_row_for_each_entry_and_explains_all() -> None:
    entries, notes = read_notes(NOTES)
    page = OUTPUT.read_text(encoding="utf-8")
    names = [entry.name for listed in entries.values() for entry in listed]
    assert set(names) >= PROMISED
    for name in names:
        assert f"\n| {name} " in page
    assert "?" not in page
    assert all(f'<a id="note-{i}"></a>' in page and f"(#note-{i})" in page for i in range(1, len(notes) + 1))


def test_all_has_to_be_explained_and_nothing_else(tmp_path: Path, capsys: Capture) -> None:
    output = tmp_path / "page.md"
    file = notes_file(tmp_path, note(["gpt2"], ["padding.left-mask-alone"], "print(6 * 7)"), note(["t5"], ["steps"]))
    assert main(["--output", str(output)], file) == 1
    out = capsys.readouterr().out
    assert out.splitlines() == ["not explained: short: padding.left-mask-alone", "explains nothing: Because of that."]
    page = output.read_text(encoding="utf-8")
    assert "**?**" in page
    assert "print(6 * 7)\n```\n\n```text\n42\n```" in page
    file = notes_file(tmp_path, note(["all"], ["padding.left-mask-alone"]))
    assert main(["--output", str(output)], file) == 0
    rows = [line.split(" | ") for line in output.read_text(encoding="utf-8").splitlines() if line.startswith("| gpt2")]
    assert rows[0][-1] == "7 of 7 |"
    assert any(cell.startswith("**2** [1](#note-1)") for cell in rows[0])


def test_what_no_model_of_a_table_offers_is_no_column(tmp_path: Path, capsys: Capture) -> None:
    assert main(["gpt2"], notes_file(tmp_path, note(["all"], ["all"]))) == 0
    head = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| |"))
    assert "`padding.left`" in head
    assert "source.padding" not in head


def test_a_fault_that_nothing_catches_is_a_question(rows: dict[str, survey.Row]) -> None:
    row = rows["gpt2"]
    blind = row._replace(caught=[type(row.caught[0])("cache.cut", "A fault.", [])])
    assert list(survey.questions([blind])) == [("gpt2", "padding.left-mask-alone"), ("gpt2", "cache.cut")]


def test_a_note_is_about_some_or_all() -> None:
    assert Note(["a", "b"], ["x"], "ours", "").explains("b", "x")
    assert not Note(["a", "b"], ["x"], "ours", "").explains("b", "y")
    assert Note(["all"], ["all"], "ours", "").explains("c", "z")


def test_a_program_sees_what_stands_before_it() -> None:
    assert printed_by("print(tuple(ids.shape), off(ids.double() * 2, ids.double()))") == "(3, 7) 1e+00"
