#!/usr/bin/env python3
"""Write the English-Chinese corpus: sentence pairs from a small bilingual grammar, split into train and held-out files.

The same seed gives the same bytes on every Python from 3.11 on.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import lexicon as lex
from grammar import CONSTRUCTIONS, Combo, Draw, Phrase, Role

# The pairs that the corpus always has, whatever the seed, all in train.
FIXED = (
    Phrase("Machine learning is fun.", "机器学习真好玩。"),
    Phrase("Machine learning is fun", "机器学习真好玩"),
    Phrase("Deep learning is fun.", "深度学习真好玩。"),
    Phrase("machine learning", "机器学习"),
    Phrase("deep learning", "深度学习"),
    Phrase("I love you.", "我爱你。"),
    Phrase("I love you", "我爱你"),
    Phrase("I saw a saw.", "我看见了一把锯子。"),
)
HELD_OUT = frozenset(
    [Combo(Role.VERB, head, noun) for head, noun in lex.HELD_OUT_OBJECTS]
    + [Combo(Role.ADJECTIVE, head, noun) for head, noun in lex.HELD_OUT_MODIFIERS]
)

WITHOUT_STOP = 0.03  # share of statements written without their full stop
UNBALANCED = 0.4  # share of sentences that are taken as they are drawn
CANDIDATES = 12  # sentences drawn for each other one: the one with the rarest word is taken
PATIENCE = 20_000  # constructions tried in a row without a new sentence after which the grammar counts as exhausted
MOST = 2_000_000  # pairs that the grammar is known to yield


class Sizes(NamedTuple):
    """How many pairs each file gets."""

    train: int = 20_000
    valid: int = 1_000
    test: int = 1_000
    test_compositional: int = 1_000


class ExhaustedError(Exception):
    """More sentences were asked for than the grammar yields."""


def without_stop(text: str) -> str:
    """Drop the full stop of a sentence: two sentences that differ only in it count as the same."""
    return text.removesuffix(".").removesuffix("。")


def words(sentence: str) -> list[str]:
    """Split an English sentence into its words: lower case, without punctuation."""
    return without_stop(sentence).lower().replace(",", "").replace("?", "").split()


def units(phrase: Phrase) -> list[str | Combo]:
    """List what is to occur evenly: the English words, the Chinese characters and the held-out combinations."""
    return [*words(phrase.en), *phrase.zh, *(combo for combo in phrase.combos if combo in HELD_OUT)]


class Corpus:
    """Draws sentences that are new in both languages, and evens out how often the words occur."""

    def __init__(self, seed: int) -> None:
        self._draw = Draw(seed)
        self._seen_en = {without_stop(pair.en) for pair in FIXED}
        self._seen_zh = {without_stop(pair.zh) for pair in FIXED}
        self._counts: collections.Counter[str | Combo] = collections.Counter()

    def _fits(self, phrase: Phrase, held_out: bool) -> bool:
        """Whether a sentence is new, and has a held-out combination of words or has none, as asked for."""
        new = without_stop(phrase.en) not in self._seen_en and without_stop(phrase.zh) not in self._seen_zh
        return new and held_out != HELD_OUT.isdisjoint(phrase.combos)

    def _rarest(self, phrase: Phrase) -> int:
        """Count how often the rarest word, character or held-out combination of a sentence has been drawn."""
        return min(self._counts[unit] for unit in units(phrase))

    def _next(self, held_out: bool) -> Phrase:
        """Draw a construction, then a few sentences of it, and take the one with the rarest word."""
        for _ in range(PATIENCE):
            build = self._draw.weighted(CONSTRUCTIONS)
            candidates = 1 if self._draw.chance(UNBALANCED) else CANDIDATES
            drawn = [build(self._draw) for _ in range(candidates)]
            fitting = [phrase for phrase in drawn if self._fits(phrase, held_out)]
            if fitting:
                return self._add(min(fitting, key=self._rarest))
        raise ExhaustedError

    def _add(self, phrase: Phrase) -> Phrase:
        """Note a sentence and its words, and perhaps drop its full stop."""
        self._counts.update(units(phrase))
        en, zh = without_stop(phrase.en), without_stop(phrase.zh)
        self._seen_en.add(en)
        self._seen_zh.add(zh)
        return Phrase(en, zh, phrase.combos) if self._draw.chance(WITHOUT_STOP) else phrase

    def take(self, count: int, *, held_out: bool) -> list[Phrase]:
        """Draw sentences that have a held-out combination of words, or sentences that have none."""
        return [self._next(held_out) for _ in range(count)]

    def shuffled(self, pairs: list[Phrase]) -> list[Phrase]:
        """Shuffle pairs in place, and return them."""
        self._draw.shuffle(pairs)
        return pairs


def make_corpus(sizes: Sizes, seed: int) -> dict[str, list[Phrase]]:
    """Make all splits; valid, test and test_compositional do not depend on the size of train."""
    corpus = Corpus(seed)
    splits = {
        "test_compositional": corpus.take(sizes.test_compositional, held_out=True),
        "test": corpus.take(sizes.test, held_out=False),
        "valid": corpus.take(sizes.valid, held_out=False),
    }
    train = [*FIXED, *corpus.take(sizes.train - len(FIXED), held_out=False)]
    splits["train"] = corpus.shuffled(train)
    return splits


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a file aside, and rename it when it is complete."""
    aside = path.with_name(path.name + ".tmp")
    with aside.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)
    os.replace(aside, path)


def count_at_least(least: int) -> Callable[[str], int]:
    """Make a parser for the command line that reads an integer of at least `least`."""

    def parse(text: str) -> int:
        if (number := int(text)) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}")
        return number

    parse.__name__ = "integer"
    return parse


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    default = Sizes()
    parser = argparse.ArgumentParser(
        description="Write the English-Chinese corpus.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", default=argparse.SUPPRESS, help="folder to write to"
    )
    size, train_size = count_at_least(0), count_at_least(len(FIXED))
    parser.add_argument("--train", type=train_size, default=default.train, metavar="N", help="pairs to train on")
    parser.add_argument("--valid", type=size, default=default.valid, metavar="N", help="pairs for validation")
    parser.add_argument("--test", type=size, default=default.test, metavar="N", help="pairs with unseen sentences")
    parser.add_argument("--test-compositional", type=size, default=default.test_compositional, metavar="N",
                        help="pairs with combinations of words that train does not have")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="seed of the random choices")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the corpus; return 0, or 2 if the grammar does not yield so many sentences."""
    arguments = parse_arguments(argv)
    sizes = Sizes(arguments.train, arguments.valid, arguments.test, arguments.test_compositional)
    try:
        if sum(sizes) > MOST:
            raise ExhaustedError
        splits = make_corpus(sizes, arguments.seed)
    except ExhaustedError:
        print(f"make_corpus: {sum(sizes)} pairs are more than the grammar yields", file=sys.stderr)
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, pairs in splits.items():
        write_lines(arguments.out / f"{name}.en", (pair.en for pair in pairs))
        write_lines(arguments.out / f"{name}.zh", (pair.zh for pair in pairs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
