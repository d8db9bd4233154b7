"""Which values count as copied."""

from types import SimpleNamespace

import copied_values
import pytest

from minitrans.serving.translator import Translator
from minitrans.text.lines import read_lines


def test_a_value_is_copied_where_a_reference_has_it_as_often(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = read_lines(copied_values.DATA / "values.zh.2")
    found[0] = "1931年，我奶奶出生了。"
    found[1:5] = ["这座房子是1878年建的。", "他们结婚了。", "2038 2038", "382岁了，这棵B树。"]
    monkeypatch.setattr(Translator, "load", lambda *_, **__: SimpleNamespace(translate=lambda sources: found))
    assert copied_values.main(["run"]) == 0
    *wrong, last = capsys.readouterr().out.splitlines()
    assert last == "96 of 100 copied"
    assert [line.split("\t")[1] for line in wrong] == found[1:5]
