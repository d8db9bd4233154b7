"""Noise for training: text as people type it, drawn anew in each epoch."""

import bisect
import random
import re
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from minitrans.data.batching import BoolArray, IdRows, IntArray, id_rows
from minitrans.text.lines import base_language
from minitrans.text.reading import QUESTION_MARKS, STOPS, lower, neighbouring_keys, strip_end_marks
from minitrans.text.tokenizer import Tokenizer

Pair = tuple[str, str]

END_MARKS = f"{STOPS}{QUESTION_MARKS}!！"
EMOJI = [*"😀😂😊😍😭😅😉😎👍🙏🎉🔥🥰😢😡🤔👋💪✨🌹", "❤️", "☀️"]
QUOTES_BY_LANGUAGE = {"zh": "“”", "ja": "「」", "de": "„“", "fr": "«»", "ru": "«»", "pl": "„”"}  # else plain


def repeat_end_mark(source: str, target: str, rng: random.Random, _: str) -> Pair:
    """Repeat the end mark in the source; a full stop becomes dots in both."""
    if source[-1] == ".":
        return source + "..", target.rstrip(STOPS) + ("……" if target[-1] == "。" else "...")
    return source + source[-1] * rng.randint(1, 2) * (source[-1] in END_MARKS), target


def replace_end_mark(source: str, target: str, rng: random.Random, language: str) -> Pair:
    """Replace a question mark by a stop in the source; replace a stop, or no end mark, by exclamation marks in both."""
    if source[-1] in QUESTION_MARKS:
        return f"{source[:-1]}.", target
    if source[-1] in END_MARKS and target[-1] in END_MARKS and not {source[-1], target[-1]} <= {*STOPS}:
        return source, target
    mark = "！" if language in ("zh", "ja") else "!"
    return source.rstrip(STOPS) + "!" * rng.randint(1, 2), target.rstrip(STOPS) + mark


def add_emoji(source: str, target: str, rng: random.Random, _: str) -> Pair:
    """An emoji, or two, at the end of both."""
    sign = rng.choice(EMOJI) * rng.choice((1, 1, 1, 2))
    return source + rng.choice((" ", " ", "")) + sign, target + (" " if " " in target else "") + sign


def add_list_mark(source: str, target: str, rng: random.Random, _: str) -> Pair:
    """A dash or a number before both, as in a list."""
    mark = rng.choice(("- ", f"{rng.randint(1, 20)}. "))
    return mark + source, mark + target


def misspell_word(word: str, rng: random.Random) -> str:
    """A word with one typing error inside: letters swapped, or one left out, doubled, or hit on the key beside it."""
    i, kind = rng.randrange(1, len(word) - 1), rng.randrange(4)
    before, letter, after = word[:i], word[i], word[i + 1 :]
    beside = rng.choice(neighbouring_keys(letter) or letter)
    return before + (after[0] + letter + after[1:], after, letter * 2 + after, beside + after)[kind]


def change_word(text: str, least: int, rng: random.Random, change: Callable[[str, random.Random], str]) -> str:
    """Change one word of a text, of those with at least `least` letters."""
    if not (words := list(re.finditer(rf"[^\W\d_]{{{least},}}", text))):
        return text
    word = rng.choice(words)
    return text[: word.start()] + change(word[0], rng) + text[word.end() :]


# What each kind makes of a pair of clean texts, by changing the source or both; the last input is the target language.
NOISES: dict[str, Callable[[str, str, random.Random, str], Pair]] = {
    "capitals": lambda s, t, rng, _: (change_word(s, 2, rng, lambda word, _: word.upper()), t),
    "title": lambda s, t, *_: (re.sub(r"(?<![\w'])[^\W\d_]", lambda letter: letter[0].upper(), s), t),
    "lower": lambda s, t, *_: (lower(s), t),
    "no_end": lambda s, t, *_: (strip_end_marks(s, END_MARKS), strip_end_marks(t, END_MARKS)),
    "more_ends": repeat_end_mark,
    "other_end": replace_end_mark,
    "blank_before_end": lambda s, t, *_: (re.sub(rf"([{END_MARKS}]+)$", r" \1", s), t),
    "no_apostrophes": lambda s, t, *_: (re.sub(r"(?<=\w)'(?=\w)", "", s), t),
    "no_blanks": lambda s, t, *_: (re.sub(r"(?<=,) ", "", s), t),
    "typo": lambda s, t, rng, _: (change_word(s, 4, rng, misspell_word), t),
    "emoji": add_emoji,
    "item": add_list_mark,
    "quotes": lambda s, t, _, language: (f'"{s}"', t.join(QUOTES_BY_LANGUAGE.get(language, '""'))),
}


class Noise:
    """Changes some of the pairs to train on.

    What a pair becomes depends only on the seed, the epoch and the number of the pair. The same share of the changed
    pairs is changed once more, and so on.

    Args:
        shares: For each kind of noise, the share of pairs that get it first.
        tokenizer: The pairs' tokenizer.
        language: Language of the targets.
        max_len: Most tokens of either side, EOS (or BOS) counted; what would become longer or empty stays as it is.
        seed: Seed of what is drawn, 0 or more.
    """

    def __init__(
        self, shares: Mapping[str, float], tokenizer: Tokenizer, language: str, max_len: int, seed: int
    ) -> None:
        self._kinds, self._bounds = sorted(shares), np.cumsum([shares[kind] for kind in sorted(shares)]).tolist()
        self._tokenizer, self._language = tokenizer, base_language(language)
        self._longest, self._seed = max_len - 1, seed

    def __call__(
        self, src: IdRows, tgt: IdRows, epoch: int, numbers: IntArray, which: BoolArray
    ) -> tuple[IdRows, IdRows]:
        """Return the rows, which have no special ids, with noise in some of those that `which` marks.

        `numbers` (N,) are those of the pairs in the epoch; where `which` (N,) is True, a pair may be changed.
        """
        drawn = draw_bits(self._seed, epoch, numbers)
        chosen = np.flatnonzero((drawn / 2.0**64 < self._bounds[-1]) & which)
        if not chosen.size:
            return src, tgt
        clean = (map(self._tokenizer.decode, rows.take(chosen).to_pylist()) for rows in (src, tgt))
        changed = map(self._add_noise, *clean, drawn[chosen].tolist())
        noisy = [[*map(self._tokenizer.encode, side)] for side in zip(*changed, strict=True)]  # too few for threads
        fits = [all(0 < len(side) <= self._longest for side in pair) for pair in zip(*noisy, strict=True)]
        place = np.arange(len(numbers))  # among the rows as they are and, behind them, the changed ones
        place[chosen[fits]] = len(numbers) + np.flatnonzero(fits)
        noisy_src, noisy_tgt = map(id_rows, noisy)
        return pa.concat_arrays([src, noisy_src]).take(place), pa.concat_arrays([tgt, noisy_tgt]).take(place)

    def _add_noise(self, source: str, target: str, random_bits: int) -> Pair:
        """A pair with noise, chosen by `random_bits`, which must be low enough to give some."""
        rng, first, before = random.Random(random_bits), random_bits / 2.0**64, target
        while source and target and first < self._bounds[-1]:
            kind = self._kinds[bisect.bisect(self._bounds, first)]
            source, target = NOISES[kind](source, target, rng, self._language)
            first = rng.random()
        reader = self._tokenizer.reader
        source = reader.normalize_punctuation(source)
        return (reader.lower_if_plain(source), target) if target in before else reader.replace_copies(source, target)


def draw_bits(seed: int, epoch: int, numbers: IntArray) -> npt.NDArray[np.uint64]:
    """64 random bits for each pair of an epoch, which depend on nothing else (Steele et al. 2014, SplitMix64)."""
    start = np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)
    x = start + numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))
