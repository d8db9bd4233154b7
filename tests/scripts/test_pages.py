"""The pages that are generated from the code are up to date."""

import re

import architecture_page
import pytest
from claims_page import PAGE_FILE, render_page
from conftest import HAS_COMPILED_FOLDER

from minitrans.verify.checks import CHECKS


@pytest.mark.skipif(not HAS_COMPILED_FOLDER, reason="the claims about compiled code are missing")
def test_the_claims_page_is_up_to_date() -> None:
    pytest.importorskip("ctranslate2")
    assert PAGE_FILE.read_text(encoding="utf-8") == render_page(), "run scripts/dev/claims_page.py"


def test_every_claim_has_a_row() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|", render_page().split("## The sabotages")[0], re.MULTILINE)
    assert rows == [check.id for check in CHECKS]


def test_the_architecture_page_is_up_to_date() -> None:
    assert architecture_page.PAGE_FILE.read_text("utf-8") == architecture_page.render_page(), "run the script"
