"""Which values and names count as copied."""

from types import SimpleNamespace

import count_copied
import pytest

from minitrans.text.lines import read_lines
from minitrans.translate.translator import Translator


def test_what_a_reference_has_as_often_is_copied(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values, names = (read_lines(count_copied.CORPUS_DIR / f"{name}.zh.2") for name in ("values", "names"))
    values[0] = "1931年，我奶奶出生了。"
    values[1:5] = ["这座房子是1878年建的。", "他们结婚了。", "2038 2038", "382岁了，这棵B树。"]
    names[0] = "Zoltan就是我。"
    names[1:5] = ["你好，我是隔壁的ingrid。", "我的新老板叫玛丽。", "你有Dimitri的新地址吗？", "Fatima和Fatima"]
    outputs = iter((values, names))
    monkeypatch.setattr(Translator, "load", lambda *_, **__: SimpleNamespace(translate=lambda _: next(outputs)))
    assert count_copied.main(["run"]) == 0
    printed = [line.split("\t")[-1] for line in capsys.readouterr().out.splitlines()]
    assert printed == [*values[1:5], "values: 96 of 100 copied", *names[1:5], "names: 96 of 100 copied"]
