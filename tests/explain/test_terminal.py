"""The terminal's view, and the command."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_helpers import run_cli

import minitrans
from minitrans.explain.terminal import draw_cross_attention
from minitrans.explain.tracing import TracedTranslation
from minitrans.translate.translator import Translator


@pytest.fixture(scope="module")
def traced(translator: Translator) -> TracedTranslation:
    return minitrans.explain(translator, "I love you.").sentences[0]


def replace_attention_and_texts(
    traced: TracedTranslation, source: list[str], target: list[str], cross: torch.Tensor
) -> TracedTranslation:
    attention = traced.attention._replace(source=source, target=target, cross=cross)
    return replace(traced, text="a\x1b[2Jb", translation=traced.translation._replace(text="译", attention=attention))


def test_a_row_for_each_piece_written_a_column_for_each_piece_read(traced: TracedTranslation) -> None:
    cross = torch.zeros(2, 2, 3, 4)
    cross[1, 0] = torch.tensor([[1.0, 0, 0, 0], [0, 0.5, 0.5, 0], [0.1, 0.1, 0.1, 0.7]])
    cross[1, 1] = torch.tensor([[1.0, 0, 0, 0], [0, 0.3, 0.7, 0], [0.1, 0.1, 0.2, 0.6]])
    drawn = replace_attention_and_texts(
        traced, ["\u2581I", "\ue02f", "\u0e31", "</s>"], ["<s>", "我们", "\x1b", "</s>"], cross
    )
    assert list(draw_cross_attention(drawn, 80)) == [
        "a [2Jb → 译",
        "     ␣I (empty copy) ◌\u0e31 EOS",
        "我们 ██",
        "◌       ▒▒▒▒▒▒▒▒▒▒▒▒ ▓",
        "EOS                    ▓▓▓",
    ]


def test_columns_that_do_not_fit_stand_below(traced: TracedTranslation) -> None:
    cross = torch.full((1, 1, 1, 4), 0.25)
    drawn = replace_attention_and_texts(traced, ["aaaa", "bbbb", "cccc", "</s>"], ["<s>", "x"], cross)
    assert list(draw_cross_attention(drawn, 11))[1:] == ["  aaaa bbbb", "x ░░░░ ░░░░", "  cccc EOS", "x ░░░░ ░░░"]
    assert list(draw_cross_attention(drawn, 10))[1::2] == ["  aaaa", "  bbbb", "  cccc EOS"]
    assert list(draw_cross_attention(drawn, 1))[1::2] == ["  aaaa", "  bbbb", "  cccc", "  EOS"]


def test_the_command_prints_texts(tiny_run: Path, traced: TracedTranslation, caplog: pytest.LogCaptureFixture) -> None:
    one = "\n".join(draw_cross_attention(traced, 10_000)) + "\n"
    assert run_cli("explain", tiny_run, "I love you. I love you.", "?", " ")[:2] == (0, f"{one}\n{one}")
    assert caplog.messages == [f"text {number}: what has no words is left out" for number in (2, 3)]


def test_the_command_writes_a_page_of_a_file(tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("I love you.\nMachine learning is fun.\n")
    path = tmp_path / "page.html"
    assert run_cli("explain", tiny_run, "--input", tmp_path / "texts", "-o", path) == (0, "", f"page: {path}\n")
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
