"""Noise for training: text as people type it, drawn anew in each epoch.

Each kind of noise changes a pair of clean texts: the source, or both sides where the target has to follow.
"""

import bisect
import random
import re
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from minitrans.data.batching import IntArray, Rows
from minitrans.text.reading import neighbours
from minitrans.text.tokenizer import Tokenizer

Pair = tuple[str, str]
Kind = Callable[[str, str, random.Random, str], Pair]  # source, target, what draws, and the target's language

STOPS = ".?!。？！"
EMOJI = [*"😀😂😊😍😭😅😉😎👍🙏🎉🔥🥰😢😡🤔👋💪✨🌹", "❤️", "☀️"]
QUOTES = {"zh": "“”", "ja": "「」", "de": "„“", "fr": "«»", "ru": "«»", "pl": "„”"}  # of others the plain ones


def capitals(source: str, target: str, rng: random.Random, _: str) -> Pair:
    """One word in capitals."""
    return _change_word(source, 2, rng, lambda word: word.upper()), target


def title(source: str, target: str, rng: random.Random, _: str) -> Pair:
    """Each Word With A Capital."""
    return re.sub(r"(?<![\w'])[^\W\d_]", lambda letter: letter[0].upper(), source), target


def lower(source: str, target: str, rng: random.Random, _: str) -> Pair:
    """All in lower case."""
    return source.lower(), target


def no_end(source: str, target: str, rng: random.Random, _: str) -> Pair:
    """No end mark, on both sides."""
    return source.rstrip(STOPS), target.rstrip(STOPS)


def more_ends(source: str, target: str, rng: random.Random, _: str) -> Pair:
    """The end mark several times; dots are dots in the target too, and of others it has one."""
    if source[-1] not in STOPS:
        return source, target
    if source[-1] == "." and rng.random() < 0.6:
        wide = target[-1] in "。？！"
        return f"{source.rstrip('.')}...", target.rstrip("。.") + ("……" if wide else "...")
    return source + source[-1] * rng.randint(1, 2), target


def other_end(source: str, target: str, rng: random.Random, _: str) -> Pair:
    """A stop for a question mark, in the source alone; one or two exclamation marks for a stop, on both sides."""
    if source[-1] == "?":
        return f"{source.rstrip('?')}.", target
    if source[-1] != "." or target[-1] not in ".。":
        return source, target
    return source[:-1] + "!" * rng.randint(1, 2), target[:-1] + ("！" if target[-1] == "。" else "!")


def blank_before_end(source: str, target: str, rng: random.Random, _: str) -> Pair:
    """A blank before the end mark."""
    return re.sub(rf"([{STOPS}]+)$", r" \1", source), target


def no_apostrophes(source: str, target: str, rng: random.Random, _: str) -> Pair:
    """Apostrophes left out."""
    return re.sub(r"(?<=\w)'(?=\w)", "", source), target


def no_blanks(source: str, target: str, rng: random.Random, _: str) -> Pair:
    """No blank after commas."""
    return re.sub(r"(?<=,) ", "", source), target


def typo(source: str, target: str, rng: random.Random, _: str) -> Pair:
    """One typing error: two letters swapped, one left out, doubled, or that beside it on the keyboard."""

    def wrong(word: str) -> str:
        i, how = rng.randrange(1, len(word) - 1), rng.randrange(4)
        before, letter, after = word[:i], word[i], word[i + 1 :]
        beside = neighbours(letter)
        return before + (after[0] + letter + after[1:], after, letter * 2 + after, (beside or letter)[0] + after)[how]

    return _change_word(source, 4, rng, wrong), target


def emoji(source: str, target: str, rng: random.Random, _: str) -> Pair:
    """An emoji at the end of both sides, or two."""
    sign, space = rng.choice(EMOJI) * rng.choice((1, 1, 1, 2)), " " if " " in target else ""
    return f"{source} {sign}" if rng.random() < 0.7 else source + sign, target + space + sign


def item(source: str, target: str, rng: random.Random, _: str) -> Pair:
    """A dash or a number before both sides, as in a list."""
    mark = rng.choice(("- ", f"{rng.randint(1, 20)}. "))
    return mark + source, mark + target


def quotes(source: str, target: str, rng: random.Random, language: str) -> Pair:
    """In quotation marks, those of each language."""
    marks = QUOTES.get(language, '""')
    return f'"{source}"', marks[0] + target + marks[1]


# In the order in which they are drawn.
KINDS: Mapping[str, Kind] = {
    kind.__name__: kind
    for kind in (
        *(capitals, title, lower, no_end, more_ends, other_end, blank_before_end, no_apostrophes, no_blanks, typo),
        *(emoji, item, quotes),
    )
}


class Noise:
    """Changes some of the pairs to train on.

    What a pair becomes depends on the seed, the epoch and the number of the pair alone. Of the changed ones as large a
    share is changed once more, and so on.

    Args:
        shares: Of the pairs, which share has each kind of noise first.
        tokenizer: Of the pairs.
        language: That of the targets.
        max_len: Most tokens of either side, EOS (or BOS) counted; what would be longer or empty is not changed.
        seed: Seed of what is drawn, 0 or more.
    """

    def __init__(
        self, shares: Mapping[str, float], tokenizer: Tokenizer, language: str, max_len: int, seed: int
    ) -> None:
        self._kinds = [KINDS[name] for name in KINDS if name in shares]
        self._bounds = np.cumsum([shares[name] for name in KINDS if name in shares]).tolist()
        self._tokenizer, self._language, self._longest, self._seed = tokenizer, language, max_len - 1, seed

    def __call__(self, src: Rows, tgt: Rows, epoch: int, numbers: IntArray) -> tuple[Rows, Rows]:
        """Return the rows with noise.

        Args:
            src: N sources, as pieces without special ids.
            tgt: N targets.
            epoch: Number of the epoch.
            numbers: (N,) numbers of the pairs in the epoch.
        """
        drawn = draw(self._seed, epoch, numbers)
        chosen = np.flatnonzero(drawn / 2.0**64 < self._bounds[-1])
        if not chosen.size:
            return src, tgt
        clean = (self._tokenizer.decode_batch(rows.lists(chosen)) for rows in (src, tgt))
        changed = map(self._changed, *clean, drawn[chosen].tolist())
        noisy = [self._tokenizer.encode_batch(side) for side in zip(*changed, strict=True)]
        fits = [all(0 < len(side) <= self._longest for side in pair) for pair in zip(*noisy, strict=True)]
        place = np.arange(len(numbers))  # among the rows as they are and, behind them, the changed ones
        place[chosen[fits]] = len(numbers) + np.flatnonzero(fits)
        noisy_src, noisy_tgt = (
            Rows.joined([rows, Rows.of(more)]).take(place) for rows, more in zip((src, tgt), noisy, strict=True)
        )
        return noisy_src, noisy_tgt

    def _changed(self, source: str, target: str, drawn: int) -> Pair:
        """A pair with noise; `drawn` decides which, and is among the numbers that give some."""
        rng, first, before = random.Random(drawn), drawn / 2.0**64, target
        while source and target and first < self._bounds[-1]:
            kind = self._kinds[bisect.bisect(self._bounds, first)]
            source, target = kind(source, target, rng, self._language)
            first = rng.random()
        reader = self._tokenizer.reader
        return (reader.lowered(source), target) if target in before else reader.set_aside(source, target)


def draw(seed: int, epoch: int, numbers: IntArray) -> npt.NDArray[np.uint64]:
    """64 random bits for each pair of an epoch, which depend on nothing else (Steele et al. 2014, SplitMix64)."""
    start = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)
    x = start + numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


def _change_word(text: str, least: int, rng: random.Random, change: Callable[[str], str]) -> str:
    """A text with one of its words of at least so many letters changed."""
    words = list(re.finditer(rf"[^\W\d_]{{{least},}}", text))
    if not words:
        return text
    word = rng.choice(words)
    return text[: word.start()] + change(word[0]) + text[word.end() :]
