"""The terminal's view, and the command."""

from pathlib import Path
from typing import cast

import pytest
import torch
from command_helpers import run_cli

from minitrans.explain.terminal import draw_cross_attention
from minitrans.translate.translator import AttentionWeights, Translation, Translator


@pytest.fixture(scope="module")
def translation(translator: Translator) -> Translation:
    return translator.translations(["I love you."], attention=True)[0]


def replace_attention_and_text(
    translation: Translation, source: list[str], target: list[str], cross: torch.Tensor
) -> Translation:
    attention = cast(AttentionWeights, translation.attention)._replace(source=source, target=target, cross=cross)
    return translation._replace(text="译", attention=attention)


def test_rows_are_output_pieces_and_columns_source_pieces(translation: Translation) -> None:
    cross = torch.zeros(2, 2, 3, 4)
    cross[1, 0] = torch.tensor([[1.0, 0, 0, 0], [0, 0.5, 0.5, 0], [0.1, 0.1, 0.1, 0.7]])
    cross[1, 1] = torch.tensor([[1.0, 0, torch.nan, 9], [0, 0.3, 0.7, 0], [0.1, 0.1, 0.2, 0.6]])
    drawn = replace_attention_and_text(
        translation, ["\u2581I", "\ue02f", "\u0e31", "</s>"], ["<s>", "我们", "\x1b", "</s>"], cross
    )
    assert list(draw_cross_attention("a\x1b[2Jb", drawn, 80)) == [
        "a [2Jb → 译",
        "     ␣I (empty copy) ◌\u0e31 EOS",
        "我们 ██              ? ???",
        "◌       ▒▒▒▒▒▒▒▒▒▒▒▒ ▓",
        "EOS                    ▓▓▓",
    ]


def test_columns_that_do_not_fit_are_drawn_below(translation: Translation) -> None:
    cross = torch.full((1, 1, 1, 4), 0.25)
    drawn = replace_attention_and_text(translation, ["aaaa", "bbbb", "cccc", "</s>"], ["<s>", "x"], cross)
    assert list(draw_cross_attention("", drawn, 11))[1:] == ["  aaaa bbbb", "x ░░░░ ░░░░", "  cccc EOS", "x ░░░░ ░░░"]
    assert list(draw_cross_attention("", drawn, 10))[1::2] == ["  aaaa", "  bbbb", "  cccc EOS"]
    assert list(draw_cross_attention("", drawn, 1))[1::2] == ["  aaaa", "  bbbb", "  cccc", "  EOS"]


def test_the_command_prints_texts(tiny_run: Path, translation: Translation, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "minitrans")
    one = "\n".join(draw_cross_attention("I love you.", translation, 10_000)) + "\n"
    assert run_cli("explain", tiny_run, "I love you. I love you.", "?", " ")[:2] == (0, f"{one}\n{one}")
    left_out = [f"text {number}: a sentence without words is left out" for number in (2, 3)]
    assert [message for message in caplog.messages if message.startswith("text")] == left_out


def test_the_command_writes_a_page_of_a_file(tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("I love you.\nMachine learning is fun.\n")
    path = tmp_path / "page.html"
    assert run_cli("explain", tiny_run, "--input", tmp_path / "texts", "-o", path) == (0, "", f"page: {path}\n")
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
