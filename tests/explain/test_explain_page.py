"""The page holds the right numbers, is small and self-contained, and treats no text as markup."""

import base64
import hashlib
import html as escapes
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor

import minitrans
from minitrans.errors import UserError
from minitrans.explain.page import MAX_WEIGHT_BYTES, ExplanationPage, fitting_counts
from minitrans.explain.tracing import ATTENTION_KINDS
from minitrans.model.transformer import Transformer
from minitrans.translate.translator import Translator

TEXTS = ["I love you.", "Machine learning is fun."]
HTML_INJECTION = "</script><script>alert(1)</script><b>&amp;\u2028\"'<!--"


@pytest.fixture(scope="module")
def explanation(translator: Translator) -> ExplanationPage:
    return minitrans.explain(translator, TEXTS)


def page_data(html: str) -> dict[str, Any]:
    """The numbers that the page holds."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    return json.loads(text, parse_constant=pytest.fail)  # a browser refuses NaN


def unpack_weights(packed: str, like: Tensor) -> Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(packed), "<f4").copy()).view(like.shape)


def test_the_numbers_of_the_page_are_the_translators(translator: Translator, explanation: ExplanationPage) -> None:
    data = page_data(explanation.html)
    one = data["sentences"][0]
    script = {*re.findall(r"\w+", explanation.html.rpartition("<script>")[2])}
    assert {*data, *one, *one["steps"][0]} <= script  # which reads each by its name
    expected = translator.translations(TEXTS, attention=True)
    assert (data["layers"], data["heads"]) == ([1], 2)
    for text, one, sentence, other in zip(TEXTS, data["sentences"], explanation.sentences, expected, strict=True):
        assert other.attention is not None
        assert (one["text"], one["translation"]) == (text, other.text)
        assert (one["source"], one["target"]) == (other.attention.source, other.attention.target)
        for kind in ATTENTION_KINDS:
            weights = getattr(other.attention, kind)
            assert torch.equal(unpack_weights(one["full"][kind], weights), weights)
            assert one["without"][kind] == sentence.head_ablation_log_probs[kind].tolist()
        assert torch.equal(
            unpack_weights(one["cached"]["decoder"], sentence.stepwise_decoder), sentence.stepwise_decoder
        )
        assert torch.equal(unpack_weights(one["cached"]["cross"], sentence.stepwise_cross), sentence.stepwise_cross)
        assert one["log_prob"] == sentence.log_prob
        for step, known in zip(one["steps"], sentence.steps, strict=True):
            assert step == known._asdict() | {"top_pieces": [list(each) for each in known.top_pieces]}


def test_the_page_is_small_loads_nothing_and_runs_only_its_own_script(translator: Translator) -> None:
    html = minitrans.explain(translator, TEXTS[0]).html
    assert len(html.encode()) < 100_000
    assert "To keep the page small" not in html
    *_, script = re.findall(r"<script>(.*?)</script>", html, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'\"" in html
    assert re.findall(r"""\s(?:src|srcset|poster|href)=["'](?!#)""", html) == []
    outside = html.replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"https?:|@import|@font-face|innerHTML|document\.write|eval\(", outside) == []
    assert set(re.findall(r"url\((.*?)\)", html)) == {"#hatch"}


def test_markup_in_a_text_is_escaped(translator: Translator) -> None:
    html = minitrans.explain(translator, HTML_INJECTION).html
    assert html.count("<script") == html.count("</script") == 2
    assert "<b>" not in html
    assert "<!--" not in html
    assert page_data(html)["sentences"][0]["text"] == HTML_INJECTION


def test_a_notebook_shows_the_page_in_a_frame(explanation: ExplanationPage) -> None:
    shown = explanation._repr_html_()
    (inside,) = re.findall(
        r'^<iframe [^>]*sandbox="allow-scripts allow-downloads"[^>]* srcdoc="([^"]*)"></iframe>$', shown
    )
    assert escapes.unescape(inside) == explanation.html.replace("<head>", '<head><base href="about:srcdoc">')


@pytest.mark.parametrize(
    ("sizes", "n_layers", "expected"),
    [
        ([100], 6, (6, 1)),
        ([MAX_WEIGHT_BYTES // 3], 6, (3, 1)),
        ([MAX_WEIGHT_BYTES // 2, MAX_WEIGHT_BYTES // 4], 2, (1, 2)),
        ([MAX_WEIGHT_BYTES // 2, MAX_WEIGHT_BYTES // 4, MAX_WEIGHT_BYTES // 2], 2, (1, 2)),
        ([MAX_WEIGHT_BYTES, 1], 2, (1, 1)),
        ([MAX_WEIGHT_BYTES + 1, 1], 2, (1, 0)),
    ],
)
def test_fitting_counts_of_layers_and_sentences(sizes: list[int], n_layers: int, expected: tuple[int, int]) -> None:
    assert fitting_counts(sizes, n_layers) == expected


def test_omissions_are_reported_and_the_last_layers_are_kept(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    deep = Transformer(replace(translator.bundle.model.config, n_layers=3)).eval()
    (traced,) = minitrans.explain(Translator(replace(translator.bundle, model=deep)), TEXTS[0]).sentences
    cross, stepwise = traced.attention.cross, (traced.stepwise_decoder, traced.stepwise_cross)
    n_weights = sum(weights[0].numel() for weights in (*traced.attention[2:5], *stepwise))
    monkeypatch.setattr("minitrans.explain.page.MAX_WEIGHT_BYTES", n_weights * 16 // 3)
    html = ExplanationPage([replace(traced, max_forbidden_weight=0.25, n_padded=1)] * 2).html
    assert "only the attention of the last 1 of 3 layers is shown." in html
    assert "only the first 1 sentences are shown." in html
    data = page_data(html)
    assert data["layers"] == [3]
    (shown,) = data["sentences"]
    assert torch.equal(unpack_weights(shown["full"]["cross"], cross[2:]), cross[2:])
    for kind, weights in zip(("decoder", "cross"), stepwise, strict=True):
        assert torch.equal(unpack_weights(shown["cached"][kind], weights[2:]), weights[2:])
    assert (shown["forbidden"], shown["padded"]) == (0.25, 1)


def test_sentences_without_room_on_the_page_are_not_traced(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minitrans.explain.MAX_WEIGHT_BYTES", 1)
    translated = Mock(wraps=translator.translations)
    monkeypatch.setattr(translator, "translations", translated)
    page = minitrans.explain(translator, ["I love you."] * 3)
    assert (len(page.sentences), "only the first 1 sentences are shown." in page.html) == (1, True)
    assert translated.call_count == 2  # one more than fits, and no third
    with pytest.raises(UserError, match="there is no text to explain"):
        minitrans.explain(translator, "I love you.", limit=0)


def test_the_page_is_saved_or_refused_in_one_line(
    explanation: ExplanationPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    explanation.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == explanation.html
    monkeypatch.setattr("minitrans.explain.page.MAX_WEIGHT_BYTES", 10)
    n_pieces = len(explanation.sentences[0].attention.source)
    with pytest.raises(UserError, match=f"the first sentence is too long to show as a page: {n_pieces} pieces; give a"):
        ExplanationPage(explanation.sentences).save(tmp_path / "another.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
