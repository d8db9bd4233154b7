#!/usr/bin/env python3
"""Counts what a run still translates right as phones and keyboards type it: `typing_noise.py runs/en-zh`.

The first table is of those sentences of data/en-zh/everyday and everyday_dev that the run translates right, equal to a
reference, as they stand. Each is typed with one kind of change after the other: in capitals, without its end mark, with
a typing error. A kind's row says how many sentences it changes, how many of them are still right, and how many of the
wrong ones the run marks unsure. The second table is of formulas and of the 300 single words of the phrasebook that
training has most often, right or not as they stand. Last, of the sets `values` and `names`, it counts the sentences in
which numbers, times, addresses and names are copied: the translation has the ones of a reference, each as often.

A translation of what was typed is right where it says what a reference says: both are compared without punctuation,
quotation marks, dashes, blanks and what only changes the look of an emoji, and Latin letters in lower case. So it may
copy "!!", or leave it. But an emoji that was typed belongs at its end, a number at its beginning, and after the first
sentence the second one, translated as one of its references has it. (1.5 and 15 are the same here, not in `values`.)

"!!" and dots take the place of the end mark, or stand at the end where there is none. The same line is typed the same
way for every run; but a second sentence is one of those that the run has right.
"""

import argparse
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from random import Random
from typing import NamedTuple

from minitrans.errors import UserError
from minitrans.text.lines import read_lines
from minitrans.text.reading import TEXTING_ABBREVIATIONS, split_lowercase_words
from minitrans.translate.translator import Translator

CORPUS_DIR = Path(__file__).resolve().parents[2] / "data" / "en-zh"
N_SINGLE_WORDS = 300
EMOJI = ("😊", "😂", "❤️", "👍", "🙏", "😭", "😍", "🎉", "😅", "🔥", "👋🏽", "🤷‍♀️")
KEYS_AND_NEIGHBOURS = (  # each letter key of a QWERTY keyboard, and those around it
    "qwa wqeas ewrsd retdf tryfg ytugh uyihj iuojk oipkl pol aqwsz sawedzx dsferxc fdgrtcv gfhtyvb hgjyubn jhkuinm"
    " kjliom lkop zasx xzcsd cxvdf vcbfg bvngh nbmhj mnjk"
)
ABBREVIATIONS = {form: short for short, form in TEXTING_ABBREVIATIONS.items()}
NEIGHBOURS_BY_KEY = {keys[0]: keys[1:] for keys in f"{KEYS_AND_NEIGHBOURS} {KEYS_AND_NEIGHBOURS.upper()}".split()}


class TypedLine(NamedTuple):
    """A line as it is typed, and what its translation has before the reference and, any one of several, after it."""

    line: str
    output_prefix: str = ""
    output_suffixes: Sequence[str] = ("",)


class Outcome(NamedTuple):
    """A typed line and what the run made of it."""

    line: str
    output: str
    is_right: bool
    unsure: bool


TypingNoise = Callable[[str, Random], TypedLine | None]  # None, or the line as it was, where it does not apply
ReferencesByLine = dict[str, list[str]]  # each with its references


def normalize(text: str) -> str:
    """What a text says: no punctuation, blanks, skin tones, variation selectors or joiners, and in lower case."""
    seen = re.sub(r"[\s\ufe00-\ufe0f]", "", text)
    return "".join(c for c in seen if not re.match("P|Sk|Cf", unicodedata.category(c))).lower()


def with_end_mark(line: str, mark: str) -> TypedLine:
    """A line with this end mark, in place of its own if it has one."""
    return TypedLine(re.sub(r"[.!?]*$", mark, line, count=1))


def typing_error_noise(change_letter_pair: Callable[[str, str, Random], str]) -> TypingNoise:
    """A kind of noise that changes two different neighbouring letters in a word of four or more.

    In shorter words an error often makes another word: he of she, is of it.
    """

    def kind(line: str, rng: Random) -> TypedLine | None:
        spans = [word.span() for word in re.finditer("[A-Za-z]{4,}", line)]
        places = [i for start, end in spans for i in range(start, end - 1) if line[i] != line[i + 1]]
        if not places:
            return None
        i = rng.choice(places)
        return TypedLine(line[:i] + change_letter_pair(line[i], line[i + 1], rng) + line[i + 2 :])

    return kind


def second_sentence_noise(lines: ReferencesByLine) -> TypingNoise:
    """A kind of noise that writes another one of `lines` after a line with an end mark."""

    def kind(line: str, rng: Random) -> TypedLine | None:
        others = [other for other in lines if other != line]
        if not others or line[-1] not in ".!?":
            return None
        other = rng.choice(others)
        return TypedLine(f"{line} {other}", output_suffixes=lines[other])

    return kind


WORD_NOISES: dict[str, TypingNoise] = {  # for single words too
    "lower case": lambda line, _: TypedLine(line.lower()),
    "capitals": lambda line, _: TypedLine(line.upper()),
    "no end mark": lambda line, _: with_end_mark(line, ""),
    "!! or ??": lambda line, rng: with_end_mark(line, rng.choice((2, 3)) * ("?" if line.endswith("?") else "!")),
    "blank before end mark": lambda line, _: TypedLine(re.sub(r"([.!?]+)$", r" \1", line)),
    "ellipsis": lambda line, _: with_end_mark(line, "…"),
    "emoji after": lambda line, rng: TypedLine(f"{line} {(mark := rng.choice(EMOJI))}", output_suffixes=[mark]),
    "- before": lambda line, _: TypedLine(f"- {line}"),
    "quotation marks": lambda line, rng: TypedLine(rng.choice(("“{}”", '"{}"')).format(line)),
}
SENTENCE_NOISES: dict[str, TypingNoise] = {
    **WORD_NOISES,
    "capitals": lambda line, _: TypedLine(line.upper() if " " in line else line),
    "title case": lambda line, _: TypedLine(" ".join(word[:1].upper() + word[1:] for word in line.split(" "))),
    "stop for ?": lambda line, _: with_end_mark(line, ".") if line.endswith("?") else None,
    "three stops": lambda line, _: with_end_mark(line, "..."),
    "curly apostrophes": lambda line, _: TypedLine(line.replace("'", "’")),
    "no apostrophes": lambda line, _: TypedLine(line.replace("'", "")),
    "short forms": lambda line, _: TypedLine(re.sub(r"[\w']+", lambda w: ABBREVIATIONS.get(w[0].lower(), w[0]), line)),
    "number before": lambda line, rng: TypedLine(f"{(n := rng.randint(1, 9))}. {line}", output_prefix=str(n)),
    "more blanks": lambda line, rng: TypedLine(rng.choice((f" {line} ", line.replace(" ", "  ", 1)))),
    "no blank after comma": lambda line, _: TypedLine(line.replace(", ", ",")),
}
TYPING_ERROR_NOISES: dict[str, TypingNoise] = {
    "letters swapped": typing_error_noise(lambda letter, after, _: after + letter),
    "letter left out": typing_error_noise(lambda letter, after, _: after),
    "letter doubled": typing_error_noise(lambda letter, after, _: 2 * letter + after),
    "neighbouring key": typing_error_noise(lambda letter, after, rng: rng.choice(NEIGHBOURS_BY_KEY[letter]) + after),
}


def translate_noisy(
    translator: Translator, kinds: Mapping[str, TypingNoise], lines: ReferencesByLine
) -> dict[str, list[Outcome]]:
    """What a run makes of the lines that each kind changes, all translated at once."""
    typed: list[tuple[str, TypedLine, list[str]]] = []
    for name, kind in kinds.items():
        for line, references in lines.items():
            sentence = kind(line, Random(f"{name}: {line}"))
            if sentence and (sentence.line != line or name == "clean"):
                typed.append((name, sentence, references))
    seen: dict[str, list[Outcome]] = {name: [] for name in kinds}
    outputs = translator.translations([sentence.line for _, sentence, _ in typed])
    for (name, sentence, references), output in zip(typed, outputs, strict=True):
        right = {normalize(sentence.output_prefix + ref + s) for ref in references for s in sentence.output_suffixes}
        seen[name].append(Outcome(sentence.line, output.text, normalize(output.text) in right, output.unsure))
    return seen


def read_sets(*names: str) -> ReferencesByLine:
    """The sentences of some sets of data/en-zh."""
    lines: ReferencesByLine = {}
    for name in names:
        texts = map(read_lines, (CORPUS_DIR / f"{name}.en", *sorted(CORPUS_DIR.glob(f"{name}.zh*"))))
        for line, *references in zip(*texts, strict=True):
            lines.setdefault(line, []).extend(filter(None, references))
    return lines


def frequent_words() -> ReferencesByLine:
    """The single words of the phrasebook that training has most often, as they are first written there."""
    entries: dict[str, tuple[str, list[str]]] = {}
    for row in chain.from_iterable(map(read_lines, sorted(CORPUS_DIR.glob("phrasebook/*.tsv")))):
        line, *references = row.split("\t")
        if references and len(split_lowercase_words(line)) == 1 and not re.search("[{ ]", line):
            entries.setdefault(split_lowercase_words(line)[0], (line, []))[1].extend(references)
    often = Counter(chain.from_iterable(map(split_lowercase_words, read_lines(CORPUS_DIR / "train.en"))))
    return dict(entries[word] for word in sorted(entries, key=lambda word: -often[word])[:N_SINGLE_WORDS])


def ascii_runs(chinese: str) -> list[str]:
    """The runs of ASCII characters in a Chinese text, sorted."""
    return sorted(re.findall("[!-~]+", chinese))


def percent(which: Sequence[bool]) -> str:
    """How many are true, in percent."""
    return f"{100 * sum(which) / len(which):.1f}%" if which else "-"


def table_row(name: str, seen: Sequence[Outcome]) -> str:
    """A row of the first table."""
    unsure = percent([each.unsure for each in seen if not each.is_right])
    return f"{name:22}{len(seen):>10}{percent([each.is_right for each in seen]):>10}{unsure:>10}"


def main(argv: Sequence[str] | None = None) -> int:
    """Translate, compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--examples", type=int, default=3, help="wrong translations to print of each kind")
    args = parser.parse_args(argv)
    try:
        translator = Translator.load(args.run, compiled="auto")
    except UserError as error:
        parser.error(str(error))
    lines = read_sets("everyday", "everyday_dev")
    outputs = translator.translations([*lines])
    lines = {line: lines[line] for line, output in zip(lines, outputs, strict=True) if output.text in lines[line]}
    seen = translate_noisy(
        translator, {**SENTENCE_NOISES, **TYPING_ERROR_NOISES, "second sentence": second_sentence_noise(lines)}, lines
    )
    print(f"{len(lines)} of {len(outputs)} sentences are right as they stand\n")
    print(f"{'kind':22}{'sentences':>10}{'right':>10}{'unsure':>10}")
    for name, sentences in seen.items():
        print(table_row(name, sentences))
        for wrong in [each for each in sentences if not each.is_right][: args.examples]:
            print(f"    {wrong.line}\t{wrong.output}")
        if name == [*TYPING_ERROR_NOISES][-1]:
            print(table_row("typing errors", [each for name in TYPING_ERROR_NOISES for each in seen[name]]))
    print(table_row("all", [*chain.from_iterable(seen.values())]))
    noises: dict[str, TypingNoise] = {"clean": lambda line, _: TypedLine(line), **WORD_NOISES}
    formulas, alone = (
        translate_noisy(translator, noises, each) for each in (read_sets("phrasebook/formulas"), frequent_words())
    )
    print(f"\n{'noise':22}{'formulas':>10}{'':>7}{'words':>10}")
    for name in noises:
        cells = (
            f"{percent([each.is_right for each in of[name]]):>10} of {len(of[name]):<3}" for of in (formulas, alone)
        )
        print(f"{name:22}{''.join(cells)}")
    print()
    for name in ("values", "names"):
        lines = read_sets(name)
        not_copied = [
            f"{line}\t{output}"
            for (line, right), output in zip(lines.items(), translator.translate([*lines]), strict=True)
            if ascii_runs(output) not in map(ascii_runs, right)
        ]
        print(*not_copied, f"{name}: {len(lines) - len(not_copied)} of {len(lines)} copied", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
