"""The pictures in docs/pictures are what the script draws, show the right numbers, and appear on pages."""

import re
from pathlib import Path
from xml.etree import ElementTree

import draw_pictures
import pytest
from draw_pictures import PICTURE_DIR, SHOWN_STEP, draw_backends, draw_cached_step, draw_cross_attention, draw_masks

import minitrans
from minitrans import Translator
from minitrans.explain.tracing import TracedTranslation

ROOT = Path(__file__).parents[2]
PICTURE_NAMES = ("cached-step", "cross-attention", "masks", "who-computes")


@pytest.fixture(scope="module")
def traced(tiny_run: Path) -> TracedTranslation:
    return minitrans.explain(Translator.load(tiny_run), [draw_pictures.EXAMPLE_SENTENCE]).sentences[0]


def rects_of_class(picture: str, kind: str) -> list[ElementTree.Element]:
    """The rectangles of a class."""
    return ElementTree.fromstring(picture).findall(f".//{{*}}rect[@class='{kind}']")


def test_pictures_that_need_no_run_are_up_to_date() -> None:
    for name, picture in (("masks", draw_masks()), ("who-computes", draw_backends())):
        assert (PICTURE_DIR / f"{name}.svg").read_text(encoding="utf-8") == picture, "run scripts/dev/draw_pictures.py"


def test_masks_hide_padding_and_the_future() -> None:
    # twice ten future tokens; the padding of pair 2 from four source and five target tokens; that of pair 1 in the loss
    assert len(rects_of_class(draw_masks(), "masked")) == 2 * 10 + 4 + 5 + 1


def test_cross_attention_has_a_cell_for_each_pair_of_pieces(traced: TracedTranslation) -> None:
    weights = traced.attention.cross[-1].mean(0)
    drawn = [float(cell.attrib["fill-opacity"]) for cell in rects_of_class(draw_cross_attention(traced), "w")]
    assert drawn == pytest.approx(weights.flatten().tolist(), abs=0.005)


def test_the_cached_step_equals_the_row_of_the_full_pass(traced: TracedTranslation) -> None:
    picture = draw_cached_step(traced)
    drawn = [float(cell.attrib["fill-opacity"]) for cell in rects_of_class(picture, "w")]
    of_step, of_full = drawn[-2 * (SHOWN_STEP + 1) : -(SHOWN_STEP + 1)], drawn[-(SHOWN_STEP + 1) :]
    assert of_step == pytest.approx(
        traced.stepwise_decoder[-1].mean(0)[SHOWN_STEP, : SHOWN_STEP + 1].tolist(), abs=0.005
    )
    assert of_full == of_step
    assert len(rects_of_class(picture, "new")) == 2  # one key and one value


def test_every_picture_is_committed_and_shown_and_there_are_no_others() -> None:
    assert sorted(path.stem for path in PICTURE_DIR.glob("*.svg")) == [*PICTURE_NAMES]
    pages = [page.read_text("utf-8") for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    for name in PICTURE_NAMES:
        ElementTree.parse(PICTURE_DIR / f"{name}.svg")
        assert any(re.search(rf"!\[.+\]\((docs/)?pictures/{name}\.svg\)", page) for page in pages), name
