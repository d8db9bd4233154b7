"""The words of a line: what training has shown of them, and what it has not. Standard library only."""

import logging
import re
import unicodedata
from collections.abc import Iterable

from minitrans.text.lines import clean

MOST = 1_000_000  # different words of a training text that are kept; they take 10 MB on disk, and 100 in memory

# Beginnings of the names of characters that are written without blanks: each is a word.
_WITHOUT_BLANKS = "CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR"

logger = logging.getLogger("minitrans")


def words(line: str) -> list[str]:
    """Return the words of a line, in lower case and in their order, repeated ones too.

    A word is a run of letters, digits and the marks on them, with apostrophes inside, of whatever kind; in Chinese,
    Japanese, Thai, Lao, Khmer and Burmese, each character. Nothing in it controls a terminal.
    """
    parts = clean(line).lower().translate(_PARTS).split()
    stripped = (part.strip("'") for part in parts)
    return [word for word in stripped if word.isalnum() or any(map(str.isalnum, word))]


def changes_numbers(line: str, translation: str) -> bool:
    """Whether a translation has digits, and lacks a number of its line: a run of digits.

    A translation in words changes none, nor does one with other signs between the digits: 1374 for 1,374.
    """
    return bool(re.search(r"\d", translation)) and any(n not in translation for n in re.findall(r"\d+", line))


def add_words(known: set[str] | None, lines: Iterable[str]) -> set[str] | None:
    """Add the words of some lines to those that are known; None, then and from then on, where they are too many."""
    if known is None:
        return None
    for part in {part for line in lines for part in line.split()}:  # most stand there many times
        known.update(words(part))
        if len(known) > MOST:
            logger.warning("more than %d different words are in the training data: the run keeps none of them", MOST)
            return None
    return known


class _Parts(dict[int, str]):
    """What `words` makes of each character, found out when it is first met."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        name, category = unicodedata.name(character, ""), unicodedata.category(character)
        if character in "'\u2019\u02bc":
            part = "'"
        elif category == "Cf" or name.startswith("VARIATION SELECTOR"):  # joiners, soft hyphens: they are not seen
            part = ""
        elif category[0] not in "LMN":
            part = " "
        else:
            part = f" {character} " if name.startswith(_WITHOUT_BLANKS) else character
        self[code] = part
        return part


_PARTS = _Parts()
