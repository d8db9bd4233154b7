"""The page in a browser: by mouse and by keys, wide and narrow, and what it saves."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import PATIENCE, Browser, needs_chromium, started

import minitrans
from minitrans.translate.translator import Translator

pytestmark = needs_chromium
TEXTS = ["I love you.", "Machine <b>learning</b> is fun."]
INSIDE = ("data:image/svg", "blob:", "about:srcdoc")  # asks nobody
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def saved(translator: Translator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    minitrans.explain(translator, TEXTS).save(path)
    return path


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser, saved: Path) -> Iterator[Browser]:
    """The page, opened anew; whatever is done to it, it asks for nothing and has no error."""
    chromium.requests.clear()
    chromium.open(saved, 1200)
    yield chromium
    chromium.run("document.title")  # what has happened by now has been told
    assert chromium.errors == []
    assert {url for url in chromium.requests if not url.startswith(INSIDE)} == {saved.as_uri()}


def step_of(browser: Browser) -> int:
    """Which step is shown; all that shows it agrees."""
    shown: int = browser.run("Number(document.getElementById('step').value)")
    assert browser.run("document.getElementById('now').textContent").startswith(f"{shown} of ")
    assert browser.run("document.querySelector('#growing svg').getAttribute('aria-label')").startswith(f"Step {shown}:")
    assert browser.run("document.querySelectorAll('#slots .held').length") == shown - 1  # of the one layer
    assert browser.run("document.querySelectorAll('#slots .added').length") == 1
    assert f"Step {shown}," in browser.run("document.getElementById('differences').textContent")
    return shown


def test_steps_by_keys_buttons_and_slider(browser: Browser) -> None:
    assert step_of(browser) == 1
    browser.press("ArrowLeft")
    assert step_of(browser) == 1
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    assert step_of(browser) == 3
    browser.press("ArrowLeft")
    assert step_of(browser) == 2
    browser.click("#forward")
    assert step_of(browser) == 3
    browser.click("#back")
    assert step_of(browser) == 2
    browser.run("document.getElementById('step').focus()")
    browser.press("ArrowRight")
    assert step_of(browser) == 3
    pieces = browser.run("document.querySelectorAll('#growing .chip').length")
    browser.click("#forward")
    assert browser.run("document.querySelectorAll('#growing .chip').length") == pieces + 1
    assert browser.run("document.querySelectorAll('#growing .piece').length") == 5
    assert "✓ taken" in browser.run("document.querySelector('#growing svg').textContent")


def test_play_goes_on_by_itself_to_the_end(browser: Browser) -> None:
    browser.run("goTo(sentence.steps.length - 3)")
    browser.click("#play")
    assert browser.run("document.getElementById('play').textContent") == "Pause"
    browser.wait_for("state.step === sentence.steps.length - 1")
    assert browser.run("document.getElementById('play').textContent") == "Play"
    browser.click("#play")
    assert step_of(browser) == 1
    browser.click("#play")
    assert browser.run("playing") is None


def test_a_small_map_is_chosen_by_click_and_by_enter(browser: Browser) -> None:
    chosen = "document.getElementById('chosen').textContent"
    pressed = "document.querySelectorAll('.pick[aria-pressed=true]').length"
    assert browser.run(chosen) == "Cross-attention, layer 1, average of the heads"
    browser.click('#decoder .pick[data-head="1"]')
    assert browser.run(chosen) == "Decoder self-attention, layer 1, head 2"
    assert browser.run(pressed) == 1
    cells = browser.run("[...document.querySelectorAll('#map .cells rect')].map((r) => r.getAttribute('class'))")
    n = browser.run("sentence.steps.length")
    assert cells == ["w" if k <= q else "masked" for q in range(n) for k in range(n)]
    browser.run("document.querySelector('#encoder .pick[data-head=\"0\"]').focus()")
    browser.press("Enter")
    assert browser.run(chosen) == "Encoder self-attention, layer 1, head 1"
    assert browser.run(pressed) == 1
    assert browser.run("document.querySelectorAll('#map .masked').length") == 2 * browser.run("sentence.source.length")


def test_the_large_map_tells_its_numbers(browser: Browser) -> None:
    browser.click('#cross .pick[data-head="0"]')
    browser.point_at('#map [data-q="2"][data-k="1"]')
    told = "document.getElementById('weight').textContent"
    row = browser.run("[...weights.cross[0][0][2]]")
    assert browser.run(told).endswith(f": {row[1]:.3f}")
    assert browser.run("document.querySelectorAll('#lines .lit').length") == sum(weight >= 0.005 for weight in row)
    browser.run("document.querySelector('#map [tabindex=\"0\"]').focus()")
    browser.press("ArrowRight")
    browser.press("ArrowDown")
    assert browser.run(told).endswith(f": {browser.run('weights.cross[0][0][1][1]'):.3f}")
    assert step_of(browser) == 1
    browser.run("document.querySelector('#map .masked').focus()")
    assert browser.run(told).endswith("PAD: masked, it is padding")


def test_another_sentence_can_be_chosen_and_is_text(browser: Browser) -> None:
    browser.run("document.getElementById('sentence').selectedIndex = 1")
    browser.run("document.getElementById('sentence').dispatchEvent(new Event('change'))")
    assert browser.run("document.getElementById('text').textContent") == TEXTS[1]
    assert browser.run("document.querySelectorAll('b').length") == 0
    assert step_of(browser) == 1


def test_every_panel_is_saved_as_svg_and_png(browser: Browser) -> None:
    browser.run(
        "window.kept = {}; window.download = async (blob, name) => { kept[name] = await blob.slice(0, 4).text(); }"
    )
    panels = browser.run("[...document.querySelectorAll('.panel')].map((panel) => panel.id)")
    assert len(panels) == 11
    for panel in panels:
        for i, (ending, begin) in enumerate((("svg", "<svg"), ("png", "\ufffdPNG")), 1):
            browser.click(f"#{panel} .save button:nth-child({i})")
            browser.wait_for(f"kept['minitrans-{panel}.{ending}'] === {json.dumps(begin)}")
        ET.fromstring(browser.run(f"standalone(document.querySelector('#{panel} svg'))"))


def test_what_is_saved_looks_the_same_by_itself(browser: Browser, tmp_path: Path) -> None:
    browser.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.click("#map .save button")
    wait_for(tmp_path / "minitrans-map.svg", browser)
    drawn = ET.parse(tmp_path / "minitrans-map.svg").getroot()
    assert drawn.tag == f"{SVG}svg"
    assert all("class" not in each.attrib for each in drawn.iter())
    cells = [each for each in drawn.iter(f"{SVG}rect") if "data-q" in each.attrib]
    assert len(cells) == browser.run("document.querySelectorAll('#map .cells rect').length")
    opacities = [float(each.get("fill-opacity", "nan")) for each in cells if "hatch" not in each.get("fill", "")]
    expected = browser.run("weights.cross[0][MEAN].flatMap((row) => [...row])")
    assert opacities == pytest.approx(expected, abs=6e-5)
    assert {each.get("id") for each in drawn.iter(f"{SVG}pattern")} == {"hatch"}


def wait_for(path: Path, browser: Browser) -> None:
    """Wait for a file that the browser writes."""
    for _ in range(PATIENCE * 50):
        if path.exists() and path.stat().st_size:
            return
        browser.run("new Promise((done) => setTimeout(done, 20))")
    raise AssertionError(f"{path} has not been written")


@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_is_wider_than_the_window(browser: Browser, saved: Path, width: int) -> None:
    for dark in (False, True):
        browser.open(saved, width, dark)
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run("getComputedStyle(document.body).backgroundColor") == (
            "rgb(21, 23, 27)" if dark else "rgb(252, 252, 250)"
        )
        assert browser.run("[...document.querySelectorAll('.picture svg')].every((s) => s.clientWidth > 50)")


def test_a_notebooks_frame_works_too(chromium: Browser, translator: Translator, tmp_path: Path) -> None:
    notebook = tmp_path / "notebook.html"
    shown = minitrans.explain(translator, TEXTS[0])._repr_html_()
    notebook.write_text(f"<!DOCTYPE html><meta charset='utf-8'>{shown}", encoding="utf-8")
    chromium.requests.clear()
    chromium.open(notebook, 1200)
    with chromium.in_frame():
        chromium.wait_for("drawnFor > 1000 && document.querySelectorAll('.picture svg').length === 11")
        chromium.run("document.getElementById('forward').click()")
        assert step_of(chromium) == 2
        chromium.run("savePng('map')")
    assert chromium.errors == []
    assert {url for url in chromium.requests if not url.startswith(INSIDE)} == {notebook.as_uri()}
