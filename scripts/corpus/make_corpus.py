#!/usr/bin/env python3
"""Write the English-Chinese corpus: what people say, from a phrasebook whose slots are filled with words.

The tables and their format are in `data/en-zh`. The same seed gives the same bytes on every Python from 3.11 on.
"""

import argparse
import bisect
import collections
import math
import random
import re
import string
import sys
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import cache
from itertools import accumulate, chain, zip_longest
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")

CORPUS_DIR = Path(__file__).parents[2] / "data" / "en-zh"
N_HELD_OUT = 500  # lines left out for `valid`, as many for `test`, and pairs of line and word for `test_compositional`
SENTENCES_PER_LINE = 11  # sentences made of a line with slots
SENTENCES_PER_DIGIT_LINE = 24  # of a line with numbers
COPIES_BY_LINE_KIND = {"formula": 15, "word": 8, "line": 3}  # in train of lines without slots, which no other teaches
EXPAND_CONTRACTION_ONE_IN = 3  # of so many contracted sentences, one is also written out: do not
SET_PHRASES_FILE = "greetings.tsv"  # what is always said in the same words: never left out; nor is what formulas.en has
HAND_WRITTEN_SETS = ("everyday", "everyday_dev", "values", "names", "phrasebook/formulas")  # only the last is in train
MIN_SLOT_WORDS_TO_HOLD_OUT = 8  # a word is left out of a line only if at least so many fill the slot
MIN_USES_LEFT = 2  # lines that must still have a word when a line with it is left out

SLOT_PATTERN = re.compile(r"\{(\w+?)(\d?)(?:\.(\w+))?\}")
SENTENCE_END_MARKS = ".?!"
SENTENCE_END_PATTERN = re.compile(r"[.?!]+(?:\s+|$)")  # where a sentence ends
CHINESE_COLUMN_NAME_PATTERN = re.compile(r"zh|m$|ta$")  # how the names of Chinese columns begin
NONUNIQUE_COLUMNS = frozenset({"m", "ta", "he", "him", "his"})  # columns in which different words may look alike
WILDCARD_MARKS = "#&~"  # in a word: a digit, a capital letter, a name that nobody has, drawn anew in each sentence
MADE_UP_NAME_WEIGHT = 130  # of a row with a made-up name: five in six names and four in five cities are made up

VERB_BY_CONTRACTION = {"m": "am", "re": "are", "ll": "will", "ve": "have", "d better": "had better", "d": "would"}
EXPANSIONS = (
    (r"\b([Ll])et's\b", r"\1et us"),
    (r"\b([Ii]t|[Tt]here|[Hh]e|[Ss]he)'s (?=(?:been|got)\b)", r"\1 has "),
    (r"\b([Ii]t|[Hh]e|[Ss]he|[Tt]h(?:at|ere|is)|[Hh]ere|[Ww]h(?:at|ere|o|en|y)|[Hh]ow)'s\b", r"\1 is"),
    *((rf"'{short}\b", f" {full}") for short, full in VERB_BY_CONTRACTION.items()),
)
NEGATION_EXPANSIONS = ((r"\b([Cc])an't\b", r"\1annot"), (r"\b([Ww])on't\b", r"\1ill not"), (r"n't\b", " not"))


class TableError(Exception):
    """A mistake in a table: the file, the line and what is wrong."""


class Line(NamedTuple):
    """A line of the phrasebook: English and its right translations, with slots."""

    file: str
    number: int
    english: str
    chinese_translations: tuple[str, ...]

    def sides(self) -> list[tuple[str, bool]]:
        """List the texts, each with whether it is Chinese."""
        return [(self.english, False), *((text, True) for text in self.chinese_translations)]


class Slot(NamedTuple):
    """A place for a word: of which kind, which of two of that kind, and in which form."""

    kind: str
    number: str
    column: str


class Pair(NamedTuple):
    """What is made of a line: English, its right translations, and the words (kind, English) that fill the slots."""

    line: Line
    english: str
    translations: tuple[str, ...]
    slot_words: frozenset[tuple[str, str]] = frozenset()


Splits = dict[str, Sequence[tuple[str, ...]]]  # English and its right translations
WordsByKind = dict[str, list[dict[str, str]]]
PairsByLine = dict[Line, list[Pair]]


class StableRandom:
    """Random choices made only from `random.Random.random`, whose sequence Python keeps from version to version."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def below(self, bound: int) -> int:
        """Draw an integer from 0 to `bound` - 1."""
        return int(self._random() * bound)

    def pick(self, items: Sequence[T]) -> T:
        """Draw one item, each with the same probability."""
        return items[self.below(len(items))]

    def pick_for_wildcard(self, mark: str) -> str:
        """Draw what a mark stands for."""
        if mark != "~":
            return self.pick(string.digits if mark == "#" else string.ascii_uppercase)
        letters = ("bdfghjklmnprstvyz", "aeiou", ("", "", "n", "r")) * 3
        return "".join(map(self.pick, letters)).capitalize()

    def shuffled(self, items: Iterable[T]) -> list[T]:
        """Copy items in a random order."""
        return sorted(items, key=lambda _: self._random())


def read_table(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Read the lines of a table that are not comments: their number and fields, none of them empty."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        number = 1 + error.object[: error.start].count(b"\n")
        raise TableError(f"{path}:{number}: it is not UTF-8; save the table as that") from error
    for number, line in enumerate(text.splitlines(), 1):
        if line and not line.startswith("# "):
            fields = line.split("\t")
            if not all(field and field == field.strip() for field in fields):
                raise TableError(f"{path}:{number}: a field is empty, or begins or ends with a space")
            yield number, fields


def check_ascii_in_chinese(where: str, zh: str, en: str) -> None:
    """Refuse ASCII in Chinese, unless it is a number, or copied from the English without a stop at its end."""
    copied = re.sub(r"[ ,]", "", en)
    for run in re.findall("[ -~]+", zh):
        inside = re.fullmatch(r"[^ ].*[^ .,:;?!]|[\w~]", run) and re.search(r"[\w~]", run)
        if not re.fullmatch(r"[\d#]+(\.[\d#]+)?%?", run) and not (inside and run.replace(" ", "") in copied):
            raise TableError(f"{where}: the Chinese has {run!r}, neither full-width nor copied from the English")


def read_words(folder: Path) -> WordsByKind:
    """Read the word tables: for each kind its rows, which give a text to each column."""
    kinds: WordsByKind = {}
    for path in sorted(folder.glob("*.tsv")):
        (_, header), *table = list(read_table(path)) or [(1, [])]
        kinds[path.stem] = []
        for number, fields in table:
            if len(fields) != len(header):
                raise TableError(f"{path}:{number}: {len(fields)} fields, but the header has {len(header)}")
            row = dict(zip(header, fields, strict=True))
            marks = {text: [sign for sign in text if sign in WILDCARD_MARKS] for text in row.values()}
            english = [text for column, text in row.items() if not CHINESE_COLUMN_NAME_PATTERN.match(column)]
            for text in (text for column, text in row.items() if CHINESE_COLUMN_NAME_PATTERN.match(column)):
                check_ascii_in_chinese(f"{path}:{number}", text, " ".join(english))
                if marks[text] not in (marks[each] for each in english):
                    raise TableError(f"{path}:{number}: {text!r} has other marks, #, & or ~, than the English")
            kinds[path.stem].append(row)
        if not kinds[path.stem] or not {"en", "zh"}.issubset(header):
            raise TableError(f"{path}:1: a word table needs a header with en and zh, and words")
    return kinds


@cache
def slots(text: str, is_chinese: bool) -> list[Slot]:
    """List the slots of one side of a line."""
    return [Slot(kind, n, column or ("zh" if is_chinese else "en")) for kind, n, column in SLOT_PATTERN.findall(text)]


def check_line(where: str, line: Line, kinds: WordsByKind) -> None:
    """Refuse a line with an unknown slot, with a slot on one side alone, or with wrong Chinese."""
    names = {slot[:2] for slot in slots(line.english, False)}
    for text, is_chinese in line.sides():
        for slot in slots(text, is_chinese):
            columns = kinds.get(slot.kind, [{}])[0]
            if slot.column not in columns or bool(CHINESE_COLUMN_NAME_PATTERN.match(slot.column)) != is_chinese:
                side = "Chinese" if is_chinese else "English"
                raise TableError(f"{where}: no {side} words for {{{slot.kind}{slot.number}.{slot.column}}}")
        if alone := names ^ {slot[:2] for slot in slots(text, is_chinese)}:
            raise TableError(f"{where}: the slot {{{''.join(min(alone))}}} is on one side alone")
        if re.search("[{}]", rest := SLOT_PATTERN.sub("\n", text)):
            raise TableError(f"{where}: a brace that belongs to no slot")
        if is_chinese:
            check_ascii_in_chinese(where, rest, line.english)


def read_phrases(folder: Path, kinds: WordsByKind) -> list[Line]:
    """Read the phrasebook."""
    known: dict[str, Line] = {}
    for path in sorted(folder.glob("*.tsv")):
        for number, fields in read_table(path):
            where = f"{path}:{number}"
            if not 2 <= len(fields) <= 5:
                raise TableError(f"{where}: {len(fields)} fields; English and one to four translations are needed")
            line = Line(path.name, number, fields[0], tuple(fields[1:]))
            check_line(where, line, kinds)
            if first := known.get(line.english):
                raise TableError(f"{where}: the same English is in {first.file}:{first.number}")
            known[line.english] = line
    return sorted(known.values(), key=lambda line: line.file != SET_PHRASES_FILE)  # these go first: their Chinese wins


def without_contractions(en: str) -> str:
    """Write out what is contracted: It's, don't; but not "Don't you know?", whose word order would change."""
    patterns = EXPANSIONS if "?" in en else (*NEGATION_EXPANSIONS, *EXPANSIONS)
    for pattern, full in patterns if "'" in en else ():  # most texts have no apostrophe
        en = re.sub(pattern, full, en)
    return en


@cache
def variant_key(en: str) -> str:
    """Reduce an English text to what its variants have in common: its words, in lower case and written out."""
    text = without_contractions(SENTENCE_END_PATTERN.sub(" ", en.replace("’", "'")).lower())
    return " ".join(re.sub(r"[^\w\s]", "", text.replace("can not", "cannot")).split())


def word_set(en: str) -> set[str]:
    """List the words of an English text, in lower case and written out."""
    return set(variant_key(en).split())


def digit_words(en: str) -> set[str]:
    """List the words of a text that have digits, without the days of dates."""
    return set(re.findall(r"\S*\d(?:\S*\w)?%?", re.sub(r"\d+(?=, \d{4})", "", en)))


def sentence_run_keys(en: str) -> set[str]:
    """Give the keys of all sentences of a text, and of all runs of consecutive sentences."""
    parts = [part for part in SENTENCE_END_PATTERN.split(en) if part]
    return {variant_key(" ".join(parts[i:j])) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1)}


class SlotFiller:
    """Fills the slots of lines with words, more often with those that the lines without slots use often."""

    def __init__(self, draw: StableRandom, kinds: WordsByKind, lines: Sequence[Line]) -> None:
        self._draw = draw
        self.kinds = kinds
        said = "".join(f" {variant_key(line.english)} " for line in lines if "{" not in line.english)
        self._bounds: dict[str, list[int]] = {}  # of the stretch that belongs to each row of a kind
        for kind, rows in kinds.items():
            weights = (
                MADE_UP_NAME_WEIGHT if "~" in row["en"] else 1 + math.isqrt(said.count(f" {variant_key(row['en'])} "))
                for row in rows
            )
            self._bounds[kind] = list(accumulate(weights))

    def _draw_row(self, kind: str, others: list[dict[str, str]], columns: Set[str]) -> dict[str, str]:
        """Draw a row that differs from the others in each of the columns."""
        bounds = self._bounds[kind]
        for _ in range(1000):
            row = self._fill_wildcards(self.kinds[kind][bisect.bisect(bounds, self._draw.below(bounds[-1]))])
            if not any(row[column] == other[column] for other in others for column in columns):
                return row
        raise TableError(f"{kind}.tsv:1: too few words for a line with two slots")

    def _fill_wildcards(self, row: dict[str, str]) -> dict[str, str]:
        """Replace the marks of a row by drawn characters: the first `#` of all columns by the same digit, and so on."""
        for mark in WILDCARD_MARKS:
            while any(mark in text for text in row.values()):
                sign = self._draw.pick_for_wildcard(mark)
                row = {column: text.replace(mark, sign, 1) for column, text in row.items()}
        return row

    def fill(self, line: Line) -> Pair:
        """Draw the words of a line, and put them into all its texts; two slots of a kind show different words."""
        shown = [slot for text, is_chinese in line.sides() for slot in slots(text, is_chinese)]
        rows: dict[tuple[str, str], dict[str, str]] = {}
        for kind, number in sorted({(slot.kind, slot.number) for slot in shown}):
            columns = {"en", "zh"} | {slot.column for slot in shown if slot.kind == kind} - NONUNIQUE_COLUMNS
            rows[kind, number] = self._draw_row(kind, [r for (other, _), r in rows.items() if other == kind], columns)

        def put(text: str, is_chinese: bool) -> str:
            words = (rows[slot.kind, slot.number][slot.column] for slot in slots(text, is_chinese))
            return SLOT_PATTERN.sub(lambda _: next(words), text)

        en, *zh = (put(text, is_chinese) for text, is_chinese in line.sides())
        if en[-1] in SENTENCE_END_MARKS:
            en = en[0].upper() + en[1:]
        return Pair(line, en, tuple(dict.fromkeys(zh)), frozenset((kind, row["en"]) for (kind, _), row in rows.items()))

    def fill_often(self, line: Line) -> list[Pair]:
        """Fill a line several times, with different words where there are enough."""
        often = SENTENCES_PER_DIGIT_LINE if line.file.startswith("digits") else SENTENCES_PER_LINE
        filled = (self.fill(line) for _ in range(often if "{" in line.english else 1))
        pairs = {pair.english: pair for pair in filled}
        for pair in [pair for pair in pairs.values() if not self._draw.below(EXPAND_CONTRACTION_ONE_IN)]:
            en = without_contractions(pair.english)
            pairs.setdefault(en, pair._replace(english=en))
        return list(pairs.values())


def hold_out_lines(draw: StableRandom, lines: Sequence[Line], kinds: WordsByKind, left_out: set[str]) -> list[Pair]:
    """Choose sentences without slots for valid and test; their words are in enough other lines or word tables."""
    uses = collections.Counter(word for line in lines for word in word_set(SLOT_PATTERN.sub(" ", line.english)))
    for rows in kinds.values():
        texts = (" ".join(row.values()) for row in rows)
        uses.update(word for text in texts if not re.search(r"[\d#]", text) for word in word_set(text))
    chosen: list[Pair] = []
    for line in draw.shuffled(line for line in lines if line.file != SET_PHRASES_FILE and "{" not in line.english):
        own = word_set(line.english)
        fits = line.english[-1] in SENTENCE_END_MARKS and all(uses[word] > MIN_USES_LEFT for word in own)
        if fits and left_out.isdisjoint(sentence_run_keys(line.english)) and len(chosen) < 2 * N_HELD_OUT:
            uses.subtract(own)
            left_out.add(variant_key(line.english))
            chosen.append(Pair(line, line.english, line.chinese_translations))
    return chosen


def hold_out_words(draw: StableRandom, lines: Sequence[Line], filler: SlotFiller, left_out: set[str]) -> list[Pair]:
    """Choose lines and a word for each, not a value to copy, that train must not show in it; a few more than needed."""
    chosen: list[Pair] = []
    for line in draw.shuffled(line for line in lines if "{" in line.english):
        pair = filler.fill(line)
        many = sorted(word for word in pair.slot_words if len(filler.kinds[word[0]]) >= MIN_SLOT_WORDS_TO_HOLD_OUT)
        fitting = [word for word in many if not re.search(r"\d", word[1])]
        if fitting and left_out.isdisjoint(sentence_run_keys(pair.english)) and len(chosen) < N_HELD_OUT * 1.3:
            left_out.add(variant_key(pair.english))
            chosen.append(pair._replace(slot_words=frozenset([draw.pick(fitting)])))
    return chosen


def make_train_split(draw: StableRandom, pairs_by_line: PairsByLine, formulas: Set[str]) -> list[tuple[str, str]]:
    """Make what to train on: the pairs of each line, those without slots several times."""
    pairs = list(chain.from_iterable(pairs_by_line.values()))
    train = {pair.english: pair.translations[0] for pair in reversed(pairs)}  # of two with the same text the first wins
    again: list[tuple[str, str]] = []
    for pair in (pair for pair in pairs if not pair.slot_words and train[pair.english] == pair.translations[0]):
        formula = pair.line.file == SET_PHRASES_FILE or variant_key(pair.english) in formulas
        kind = "formula" if formula else "line" if " " in pair.english else "word"
        again += [(pair.english, pair.translations[0])] * (COPIES_BY_LINE_KIND[kind] - 1)
    return draw.shuffled([*train.items(), *again])


def make_corpus(lines: Sequence[Line], kinds: WordsByKind, kept_out: Set[str], formulas: Set[str], seed: int) -> Splits:
    """Make all splits; train has no key and no value of `kept_out`, and keeps the texts whose key is in `formulas`."""
    draw = StableRandom(seed)
    filler = SlotFiller(draw, kinds, lines)
    left_out = {*kept_out, *formulas}
    tests = hold_out_lines(draw, lines, kinds, left_out)
    compositional = hold_out_words(draw, lines, filler, left_out)
    left_out -= formulas
    not_shown = {pair.line: pair.slot_words for pair in compositional}
    pairs_by_line: PairsByLine = collections.defaultdict(list)
    for pair in chain.from_iterable(map(filler.fill_often, lines)):
        parts = sentence_run_keys(pair.english) | digit_words(pair.english)
        if pair.slot_words.isdisjoint(not_shown.get(pair.line, ())) and left_out.isdisjoint(parts):
            pairs_by_line[pair.line].append(pair)
    shown = frozenset().union(*(pair.slot_words for pairs in pairs_by_line.values() for pair in pairs))
    fair = [pair for pair in compositional if pair.line in pairs_by_line and pair.slot_words <= shown]
    train = make_train_split(draw, pairs_by_line, formulas)
    splits = {"valid": tests[::2], "test": tests[1::2], "test_compositional": fair[:N_HELD_OUT]}
    return {"train": train, **{split: [(p.english, *p.translations) for p in pairs] for split, pairs in splits.items()}}


def write_corpus(folder: Path, splits: Splits) -> None:
    """Write the files of all splits; further right translations, where a test has them, in files of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, pairs in splits.items():
        for path in folder.glob(f"{split}.zh.[0-9]"):  # another draw may have had more translations
            path.unlink()
        for i, texts in enumerate(zip_longest(*pairs, fillvalue="")):
            ending = ("en", "zh")[i] if i < 2 else f"zh.{i}"
            lines = "".join(f"{text}\n" for text in texts)
            (folder / f"{split}.{ending}").write_text(lines, encoding="utf-8", newline="\n")


def print_pairs_of_line(name: str, lines: Sequence[Line], kinds: WordsByKind, seed: int) -> None:
    """Print the pairs that are made of a line, named as FILE:LINE."""
    draw, chosen = StableRandom(seed), [line for line in lines if f"{line.file}:{line.number}" == Path(name).name]
    if not chosen:
        raise TableError(f"{name}: not a line of the phrasebook")
    for pair in SlotFiller(draw, kinds, lines).fill_often(chosen[0]):
        print(pair.english, *pair.translations, sep="\t")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the corpus, or show a line's pairs; return 0, or 2 if a table has a mistake or a file cannot be used."""
    parser = argparse.ArgumentParser(description="Write the English-Chinese corpus.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, metavar="DIR", help="folder to write to")
    action.add_argument("--show", metavar="FILE:LINE", help="print the pairs made of a line of the phrasebook")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="seed of the random choices (default: 1)")
    arguments = parser.parse_args(argv)
    try:
        kinds = read_words(CORPUS_DIR / "words")
        lines = read_phrases(CORPUS_DIR / "phrasebook", kinds)
        if arguments.show:
            print_pairs_of_line(arguments.show, lines, kinds, arguments.seed)
        else:
            texts = {
                name: (CORPUS_DIR / f"{name}.en").read_text(encoding="utf-8").splitlines() for name in HAND_WRITTEN_SETS
            }
            *kept_out, formulas = (set(map(variant_key, each)) for each in texts.values())
            kept_out.append(digit_words(" ".join(texts["values"])))
            write_corpus(arguments.out, make_corpus(lines, kinds, set().union(*kept_out), formulas, arguments.seed))
    except (TableError, OSError) as error:
        print(f"make_corpus: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
