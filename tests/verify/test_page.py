"""The page shows the report, is self-contained, and is small."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from test_pictures import cell_indices, elements_of_class, parse_svg

from minitrans.cachecheck.measurement import Caught, Measurement, Report, Result
from minitrans.model.transformer import Transformer, TransformerConfig
from minitrans.verify.model_and_pairs import fresh_model, model_and_random_pairs
from minitrans.verify.page import figures, page_html
from minitrans.verify.page.figures import MAX_SHOWN_TOKENS, choose_longest_fitting_pair

VOID_ELEMENTS = {"meta", "br", "hr", "img", "link", "input"}


def make_result(id_: str, group: str = "One", measured: float = 0.0, passed: bool = True) -> Result:
    lower = {"float32": Measurement(2e-7, 4e-6)} if passed else {}
    return Result(id_, group, f"Claim of {id_} < 1 & so on.", "what of it", measured, 1e-12, passed, 0.5, lower)


REPORT = Report([make_result("C1"), make_result("C2", measured=3e-16), make_result("C3", "Two")])
SUBJECT = model_and_random_pairs(fresh_model())


class PageParser(HTMLParser):
    """Fails unless all elements are closed in the right order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def visible_text(html: str) -> str:
    """What a reader sees."""
    return re.sub(r"<[^>]+>", " ", html[html.index("</head>") :])


def test_the_page_is_balanced_loads_nothing_and_has_no_dead_links() -> None:
    report = replace(REPORT, sabotages=[Caught("leak", "It leaks.", ["C1"]), Caught("C1", "No name is taken.", [])])
    html = page_html(report, SUBJECT)
    PageParser(html)
    ids, links = (re.findall(rf'\s{name}="(.*?)"', html) for name in ("id", "href"))
    assert len(set(ids)) == len(ids)
    assert links
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert html.startswith("<!DOCTYPE html>")
    assert "default-src 'none'" in html
    assert re.findall(r"<(?:script|link|iframe|object|embed|base)\b", html) == []
    html = re.sub(r'src="data:[^"]*"', "", html)
    assert re.findall(r"\s(?:src|srcset|data|poster)=", html) == []
    assert re.findall(r"https?:|//[a-z]|@import|@font-face", html) == []
    assert set(re.findall(r"url\((.*?)\)", html)) == {"#hatch"}


def test_the_table_says_what_the_report_says() -> None:
    html = page_html(REPORT, SUBJECT)
    for check in REPORT.checks:
        assert f'<th scope="row" class="id">{check.id}</th>' in html
        assert f"Claim of {check.id} &lt; 1 &amp; so on.<small>what of it</small>" in html
    assert [title.strip() for title in re.findall(r'rowgroup" colspan="6">(\w+)', html)] == ["One", "Two"]
    assert "3e-16<small>≤ 1e-12</small>" in html
    assert html.count("2e-7<small>≤ 4e-6</small>") == 3
    assert "✓ 3 checks passed in 1.5 s on a model of 2+2 layers, d_model 12, 3 heads" in visible_text(html).replace(
        "&nbsp;", " "
    )
    assert "FAIL" not in html


def test_a_failure_stands_out() -> None:
    bad = [make_result("C8", measured=math.nan, passed=False), make_result("C9", measured=math.inf, passed=False)]
    html = page_html(replace(REPORT, checks=[*REPORT.checks, *bad]), SUBJECT)
    assert "✗ 2 of 5 checks failed" in html
    assert html.count("✗ FAIL") == 2
    assert 'bad" data-label="float64">NaN<' in html
    assert 'bad" data-label="float64">∞<' in html
    assert 'Failed: <a href="#check.C8">C8</a> <a href="#check.C9">C9</a>' in html


def test_sabotages_are_shown_if_there_are_any() -> None:
    assert "sabotage" not in visible_text(page_html(REPORT, SUBJECT)).lower()
    caught = [Caught("leak", "It <leaks>.", ["C1", "C3"]), Caught("late", "Too late.", [])]
    html = page_html(replace(REPORT, sabotages=caught), SUBJECT)
    assert "1 of 2 sabotages caught" in html
    assert "It &lt;leaks&gt;." in html
    assert html.count('class="dot"') == 2
    assert 'Caught by no check: <a href="#sabotage.late">late</a>' in html
    assert 'Caught no sabotage: <a href="#check.C2">C2</a>' in html


def test_pieces_are_escaped_and_special_ones_named() -> None:
    html = page_html(REPORT, replace(SUBJECT, piece=lambda id_: f"\u2581<b>&{id_}"))
    assert "<b>" not in html
    assert "␣&lt;b&gt;&amp;" in html
    assert {"PAD", "BOS", "EOS"} <= set(re.findall(r">(\w+)</text>", html))
    PageParser(html)


def test_every_layer_has_three_heat_maps_with_masked_cells_and_weights_that_sum_to_1() -> None:
    html = page_html(REPORT, SUBJECT)
    maps = re.findall(r'<div class="panels".*?</div>', html, re.S)
    assert len(set(maps)) == len(maps) == 3 * SUBJECT.model.config.n_layers
    for picture in maps:
        heads = elements_of_class(parse_svg(picture), "head")
        assert len(heads) == SUBJECT.model.config.n_heads
        for head in heads:
            assert elements_of_class(head, "masked")
            sums: dict[str, float] = {}
            for cell in elements_of_class(head, "w"):
                q = cell.attrib["data-q"]
                sums[q] = sums.get(q, 0.0) + float(cell.attrib["fill-opacity"])
            assert list(sums.values()) == pytest.approx([1.0] * len(sums), abs=0.01)
    assert html.count("<details open>") == 1


def test_errors_by_position_are_charted_for_each_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "step_deviations", lambda case: [torch.finfo(case.model.dtype).eps])
    assert figures.decoding_error_chart(SUBJECT)["positions"] == [(2**-52, 2**-23, 2**-7)]


def test_the_masks_are_drawn() -> None:
    pictures = figures.mask_pictures()
    visible = {name: picture.count('class="may"') for name, picture in pictures.items()}
    assert visible == {"causal": 21, "cached": 5 + 6, "padding": 6 + 4 + 2, "both": 1 + 2 + 3 + 4 + 4 + 4}
    (masked,) = elements_of_class(parse_svg(pictures["cached"]), "masked")
    assert cell_indices(masked) == (0, 5)


def test_the_pair_shown_is_the_longest_that_fits() -> None:
    short, middling, long = ([1] * n for n in (3, MAX_SHOWN_TOKENS, MAX_SHOWN_TOKENS + 1))
    assert choose_longest_fitting_pair([(short, short), (middling, short), (middling, long)]) == (middling, short)
    assert choose_longest_fitting_pair([(long, long), (long * 2, short)]) == (middling, middling)


@pytest.mark.parametrize(
    ("n_layers", "n_heads", "max_len", "shown"),
    [(4, 4, 40, None), (6, 8, 40, "the last 2 of 6 layers and the first 8 of 8"), (1, 32, 10, "the first 16 of 32")],
)
def test_the_page_stays_small_whatever_the_model(n_layers: int, n_heads: int, max_len: int, shown: str | None) -> None:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "n_heads": n_heads, "n_layers": n_layers, "max_len": max_len}
    model = Transformer(TransformerConfig(vocab_size=29, pad_id=0, bos_id=1, eos_id=2, d_ff=8, **sizes))  # type: ignore[arg-type]
    ids = torch.full((2, min(MAX_SHOWN_TOKENS, max_len)), 5)
    subject = replace(model_and_random_pairs(model), src_ids=ids, tgt_in=ids, piece=lambda _: "Donaudampfschiff")
    html = page_html(REPORT, subject)
    assert len(html.encode()) < 2_000_000
    assert ("To keep the page small" in html) == (shown is not None)
    assert shown is None or shown in html
    assert f"Layer {n_layers}, the last" in html
