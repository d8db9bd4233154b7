"""The page in a browser: by mouse and by keys, wide and narrow, and what it saves."""

import json
import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser import needs_browser, open_page_and_record_events, visit

import minitrans
from minitrans.explain.page import ExplanationPage
from minitrans.translate.translator import Translator

if TYPE_CHECKING:
    from playwright.sync_api import Frame, Page

pytestmark = needs_browser
TEXTS = ["I love you.", "Machine <b>learning</b> is fun."]
LOCAL_URL_PREFIXES = ("data:image/svg", "blob:", "about:srcdoc")  # no request leaves the page
SVG_TAG_PREFIX = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def saved_page(translator: Translator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    minitrans.explain(translator, TEXTS).save(path)
    return path


@pytest.fixture(scope="module")
def page_with_logs() -> Iterator[tuple["Page", list[str], list[str]]]:
    with open_page_and_record_events() as page:
        yield page


@pytest.fixture
def monitored_page(page_with_logs: tuple["Page", list[str], list[str]]) -> Iterator["Page"]:
    """A page; the test fails if anything opened in it sends a request or has an error."""
    page, requests, errors = page_with_logs
    requests.clear()
    yield page
    page.title()  # by now, all events so far have been reported
    assert errors == []
    assert {url for url in requests if not url.startswith(LOCAL_URL_PREFIXES)} == {page.url}


@pytest.fixture
def page(monitored_page: "Page", saved_page: Path) -> "Page":
    visit(monitored_page, saved_page.as_uri(), 1200)
    return monitored_page


def shown_step(page: "Page | Frame") -> int:
    """The number of the step that is shown; all parts of the page that show it must agree."""
    shown: int = page.evaluate("Number(document.getElementById('step').value)")
    assert page.evaluate("document.getElementById('now').textContent").startswith(f"{shown} of ")
    assert page.locator(f'#growing svg[aria-label^="Step {shown}:"]').count() == 1
    assert page.locator("#slots .held").count() == shown - 1  # of the one layer
    assert page.locator("#slots .added").count() == 1
    assert f"Step {shown}," in page.evaluate("document.getElementById('differences').textContent")
    return shown


def test_steps_by_keys_buttons_and_slider(page: "Page") -> None:
    assert shown_step(page) == 1
    page.keyboard.press("ArrowLeft")
    assert shown_step(page) == 1
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert shown_step(page) == 3
    page.keyboard.press("ArrowLeft")
    assert shown_step(page) == 2
    page.click("#forward")
    assert shown_step(page) == 3
    page.click("#back")
    assert shown_step(page) == 2
    page.focus("#step")
    page.keyboard.press("ArrowRight")
    assert shown_step(page) == 3
    pieces = page.locator("#growing .chip").count()
    page.click("#forward")
    assert page.locator("#growing .chip").count() == pieces + 1
    assert page.locator("#growing .piece").count() == 5
    assert "✓ taken" in page.evaluate("document.querySelector('#growing svg').textContent")


def test_play_runs_to_the_end(page: "Page") -> None:
    page.evaluate("goTo(sentence.steps.length - 3)")
    page.click("#play")
    assert page.text_content("#play") == "Pause"
    page.wait_for_function("() => state.step === sentence.steps.length - 1")
    assert page.text_content("#play") == "Play"
    page.click("#play")
    assert shown_step(page) == 1
    page.click("#play")
    assert page.evaluate("playing") is None


def test_a_small_map_is_chosen_by_click_and_by_enter(page: "Page") -> None:
    chosen = "document.getElementById('chosen').textContent"
    pressed = "document.querySelectorAll('.pick[aria-pressed=true]').length"
    assert page.evaluate(chosen) == "Cross-attention, layer 1, average of the heads"
    page.click('#decoder .pick[data-head="1"]')
    assert page.evaluate(chosen) == "Decoder self-attention, layer 1, head 2"
    assert page.evaluate(pressed) == 1
    cells = page.evaluate("[...document.querySelectorAll('#map .cells rect')].map((r) => r.getAttribute('class'))")
    n = page.evaluate("sentence.steps.length")
    assert cells == ["w" if k <= q else "masked" for q in range(n) for k in range(n)]
    page.focus('#encoder .pick[data-head="0"]')
    page.keyboard.press("Enter")
    assert page.evaluate(chosen) == "Encoder self-attention, layer 1, head 1"
    assert page.evaluate(pressed) == 1
    assert page.locator("#map .masked").count() == 2 * page.evaluate("sentence.source.length")


def test_the_large_map_shows_its_numbers(page: "Page") -> None:
    page.click('#cross .pick[data-head="0"]')
    page.hover('#map [data-q="2"][data-k="1"]')
    weight_text = "document.getElementById('weight').textContent"
    row = page.evaluate("[...weights.cross[0][0][2]]")
    assert page.evaluate(weight_text).endswith(f": {row[1]:.3f}")
    assert page.locator("#lines .lit").count() == sum(weight >= 0.005 for weight in row)
    page.focus('#map [tabindex="0"]')
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(weight_text).endswith(f": {page.evaluate('weights.cross[0][0][1][1]'):.3f}")
    assert shown_step(page) == 1
    page.focus("#map .masked")
    assert page.evaluate(weight_text).endswith("PAD: masked (padding)")


def test_another_sentence_is_shown_as_text_and_kept_after_going_back(page: "Page") -> None:
    page.select_option("#sentence", index=1)
    assert page.text_content("#text") == TEXTS[1]
    assert page.locator("b").count() == 0
    assert page.evaluate("label('\ue02f')") == "(empty copy)"
    assert shown_step(page) == 1
    page.click("#forward")
    page.goto("about:blank")
    page.go_back()
    assert (page.text_content("#text"), shown_step(page)) == (TEXTS[1], 2)


def test_a_nan_does_not_break_the_page(monitored_page: "Page", translator: Translator, tmp_path: Path) -> None:
    (sentence,) = minitrans.explain(translator, TEXTS[0]).sentences
    broken = replace(sentence, max_forbidden_weight=math.nan)
    ExplanationPage([broken]).save(tmp_path / "page.html")
    visit(monitored_page, (tmp_path / "page.html").as_uri(), 1200)
    assert monitored_page.text_content("#forbidden") == "NaN"
    assert shown_step(monitored_page) == 1


def test_every_panel_is_saved_as_svg_and_png(page: "Page") -> None:
    page.evaluate(
        "window.kept = {}; window.download = async (blob, name) => { kept[name] = await blob.slice(0, 4).text(); }; 0"
    )
    panels = page.evaluate("[...document.querySelectorAll('.panel')].map((panel) => panel.id)")
    assert len(panels) == 11
    for panel in panels:
        for i, (ending, begin) in enumerate((("svg", "<svg"), ("png", "\ufffdPNG")), 1):
            page.click(f"#{panel} .save button:nth-child({i})")
            page.wait_for_function(f"() => kept['minitrans-{panel}.{ending}'] === {json.dumps(begin)}")
        ET.fromstring(page.evaluate(f"standalone(document.querySelector('#{panel} svg'))"))


def test_a_saved_figure_looks_the_same_without_the_page(page: "Page") -> None:
    with page.expect_download() as download:
        page.click("#map .save button")
    assert download.value.suggested_filename == "minitrans-map.svg"
    drawn = ET.parse(download.value.path()).getroot()
    assert drawn.tag == f"{SVG_TAG_PREFIX}svg"
    assert all("class" not in each.attrib for each in drawn.iter())
    cells = [each for each in drawn.iter(f"{SVG_TAG_PREFIX}rect") if "data-q" in each.attrib]
    assert len(cells) == page.locator("#map .cells rect").count()
    opacities = [float(each.get("fill-opacity", "nan")) for each in cells if "hatch" not in each.get("fill", "")]
    expected = page.evaluate("weights.cross[0][MEAN].flatMap((row) => [...row])")
    assert opacities == pytest.approx(expected, abs=6e-5)
    assert {each.get("id") for each in drawn.iter(f"{SVG_TAG_PREFIX}pattern")} == {"hatch"}


@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_is_wider_than_the_window(page: "Page", saved_page: Path, width: int) -> None:
    for dark in (False, True):
        visit(page, saved_page.as_uri(), width, dark)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(21, 23, 27)" if dark else "rgb(252, 252, 250)"
        )
        assert page.evaluate("[...document.querySelectorAll('.picture svg')].every((s) => s.clientWidth > 50)")


def test_the_page_works_in_a_notebooks_frame(monitored_page: "Page", translator: Translator, tmp_path: Path) -> None:
    notebook = tmp_path / "notebook.html"
    shown = minitrans.explain(translator, TEXTS[0])._repr_html_()
    notebook.write_text(f"<!DOCTYPE html><meta charset='utf-8'>{shown}", encoding="utf-8")
    visit(monitored_page, notebook.as_uri(), 1200)
    _, frame = monitored_page.frames
    frame.wait_for_function("() => drawnFor > 1000 && document.querySelectorAll('.picture svg').length === 11")
    frame.click("#forward")
    frame.click("text=Where the heads look")
    frame.wait_for_function("() => location.hash === '#heads' && scrollY > 0")
    assert shown_step(frame) == 2
    frame.evaluate("savePng('map')")
