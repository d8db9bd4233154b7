"""The system's Chromium, driven by Playwright."""

import contextlib
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM_PATH = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(
    not (CHROMIUM_PATH and find_spec("playwright")), reason="Chromium or Playwright is not installed (`rm .venv/ready`)"
)


@contextlib.contextmanager
def open_page_and_record_events() -> Iterator[tuple["Page", list[str], list[str]]]:
    """A page, all addresses that it requests, and the errors and warnings of its console and its scripts."""
    from playwright.sync_api import sync_playwright

    requests: list[str] = []
    errors: list[str] = []
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=CHROMIUM_PATH) as chromium:
        page = chromium.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda said: errors.extend([said.text] * (said.type in ("error", "warning", "assert"))))
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page, requests, errors


def visit(page: "Page", address: str, width: int, dark: bool = False) -> None:
    """Open an address in a window of this width."""
    page.set_viewport_size({"width": width, "height": 844})
    page.emulate_media(color_scheme="dark" if dark else "light")
    page.goto(address)
