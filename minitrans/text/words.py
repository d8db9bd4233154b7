"""The words that training has shown, and the numbers that a translation changes. Standard library only."""

import logging
import re
from collections import Counter
from collections.abc import Iterable

from minitrans.text.reading import split_words

MAX_WORDS = 1_000_000  # different words of a training text that are kept; they take 10 MB on disk, and 100 in memory

logger = logging.getLogger("minitrans")


def has_changed_numbers(line: str, translation: str) -> bool:
    """Whether a translation has digits, but lacks a number (a run of digits) of its line.

    A translation that spells numbers out changes none, nor does one with other signs in them: 1374 for 1,374.
    """
    return bool(re.search(r"\d", translation)) and any(n not in translation for n in re.findall(r"\d+", line))


def add_word_counts(counts: Counter[str] | None, lines: Iterable[str]) -> Counter[str] | None:
    """Add the words of some lines to `counts`; return None if there are too many different ones, now or before."""
    if counts is None:
        return None
    for part, n in Counter(part for line in lines for part in line.split()).items():  # most stand there many times
        for word in split_words(part):
            counts[word] += n
        if len(counts) > MAX_WORDS:
            logger.warning(
                "more than %d different words are in the training data: the run keeps none of them", MAX_WORDS
            )
            return None
    return counts
