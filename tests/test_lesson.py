"""The lesson runs and prints what it shows; what it names is there and does what it says, in both languages."""

import contextlib
import io
import re
from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest
import torch

from minitrans.verify.checks import CHECKS
from minitrans.verify.model_and_pairs import fresh_model, model_and_random_pairs
from minitrans.verify.sabotage import SABOTAGES

DOCS = Path(__file__).parents[1] / "docs"
ENGLISH, CHINESE = ((DOCS / name).read_text(encoding="utf-8") for name in ("attention.md", "attention.zh.md"))
CHAPTER_LABELS = ("- Read: ", "- Proved by: ", "- Broken by: ")
CHINESE_CHAPTER_LABELS = ("- 阅读：", "- 检查：", "- 破坏：")
CODE_LINK = r"\[`([\w.]+)`\]\(\.\./([\w/]+)\.py\)"
OMITTED_ID_PREFIXES = ("compiled.", "export.")
CHECK_BY_ID = {check.id: check for check in CHECKS if not check.id.startswith(OMITTED_ID_PREFIXES)}
SABOTAGE_BY_ID = {sabotage.id: sabotage for sabotage in SABOTAGES if not sabotage.id.startswith(OMITTED_ID_PREFIXES)}


def split_chapters(lesson: str) -> list[str]:
    return lesson.split("\n## ")[1:]


def blocks(chapter: str) -> list[tuple[str, str]]:
    """The language and the text of each block of code."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", chapter, re.M | re.S)


def terms(chapter: str, label: str) -> list[str]:
    """What the one line with this label has in backquotes."""
    (line,) = (line for line in chapter.splitlines() if line.startswith(label))
    return re.findall(r"`(\S+?)`", line)


def wrong_output_titles(lesson: str) -> list[str]:
    """Run the chapters in order; the titles of those that print something other than they show."""
    scope: dict[str, object] = {}
    titles = []
    for chapter in split_chapters(lesson):
        (python, code), (text, shown) = blocks(chapter)
        assert (python, text) == ("python", "text")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, scope)
        if printed.getvalue() != shown:
            titles.append(chapter.splitlines()[0])
    return titles


def unresolved_references(lesson: str) -> list[str]:
    """The names in the lesson of things that do not exist."""
    names = []
    for chapter in split_chapters(lesson):
        read, proved, broken = (terms(chapter, label) for label in CHAPTER_LABELS)
        links = re.findall(CODE_LINK, chapter)
        assert [name for name, _ in links] == read
        for name, file in links:
            module = import_module(file.replace("/", "."))
            try:
                names += [name] if attrgetter(name)(module).__module__ != module.__name__ else []
            except AttributeError:
                names.append(name)
        names += [id_ for id_ in proved if id_ not in CHECK_BY_ID]
        names += [id_ for id_ in broken if id_ not in SABOTAGE_BY_ID]
    return names


def language_neutral_parts(lesson: str, labels: tuple[str, ...]) -> list[object]:
    """For each chapter what has to be the same in every language."""
    return [
        (
            chapter.split(".")[0],
            blocks(chapter),
            re.findall(CODE_LINK, chapter),
            [terms(chapter, label) for label in labels],
        )
        for chapter in split_chapters(lesson)
    ]


@pytest.fixture(autouse=True)
def _restore_random_state() -> Iterator[None]:
    """The lesson sets a seed."""
    with torch.random.fork_rng(devices=[]):
        yield


def test_the_lesson_prints_what_it_shows() -> None:
    assert wrong_output_titles(ENGLISH) == []


def test_control_a_fault_in_the_package_is_noticed() -> None:
    with SABOTAGE_BY_ID["mask.after-softmax"].apply_fault():
        assert "3. Why is the mask put in before the softmax?" in wrong_output_titles(ENGLISH)


def test_everything_that_the_lesson_names_exists() -> None:
    assert unresolved_references(ENGLISH) == []


@pytest.mark.parametrize(
    ("there", "not_there"),
    [
        ("`C5.variance`", "`C5.median`"),
        ("`C9`", "`compiled.loss`"),
        ("`scale.missing`", "`scale.double`"),
        ("[`batch_loss`]", "[`loss_of_batch`]"),
    ],
)
def test_control_a_name_of_nothing_is_noticed(there: str, not_there: str) -> None:
    assert there in ENGLISH
    assert set(unresolved_references(ENGLISH.replace(there, not_there))) == {not_there.strip("[`]")}


@pytest.mark.parametrize("chapter", split_chapters(ENGLISH), ids=lambda chapter: chapter.splitlines()[0])
def test_each_fault_of_a_chapter_is_noticed_by_its_checks_and_each_check_notices_one(chapter: str) -> None:
    proved, broken = (terms(chapter, label) for label in CHAPTER_LABELS[1:])
    noticed = {}
    for id_ in broken:
        with SABOTAGE_BY_ID[id_].apply_fault():
            subjects = {torch.float64: model_and_random_pairs(fresh_model())}
            noticed[id_] = {check for check in proved if not CHECK_BY_ID[check].run(subjects).passed}
    assert [id_ for id_ in broken if not noticed[id_]] == []
    assert set().union(*noticed.values()) == set(proved)


def test_both_languages_have_the_same_chapters_code_outputs_and_ids() -> None:
    assert language_neutral_parts(CHINESE, CHINESE_CHAPTER_LABELS) == language_neutral_parts(ENGLISH, CHAPTER_LABELS)


@pytest.mark.parametrize("shown", ["show(weights)", "[15.0]", "`C25`", "`mask.fill-inf`", "[`masked_softmax`]"])
def test_control_a_language_that_differs_is_noticed(shown: str) -> None:
    assert shown in CHINESE
    other = CHINESE.replace(shown, shown.replace("s", "z").replace("5", "6"))
    assert language_neutral_parts(other, CHINESE_CHAPTER_LABELS) != language_neutral_parts(ENGLISH, CHAPTER_LABELS)
