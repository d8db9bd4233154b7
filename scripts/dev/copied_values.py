#!/usr/bin/env python3
"""Counts the sentences of data/en-zh/values whose values a run copies: `copied_values.py runs/en-zh`.

Numbers, times and addresses are copied where the translation has the ones of a reference, each as often. The others are
printed.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from minitrans.serving.translator import Translator
from minitrans.text.lines import read_lines

DATA = Path(__file__).resolve().parents[2] / "data" / "en-zh"


def values(chinese: str) -> list[str]:
    """What is in ASCII in a Chinese text, in the order of its characters."""
    return sorted(re.findall("[!-~]+", chinese))


def main(argv: Sequence[str] | None = None) -> int:
    """Translate, compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="run folder")
    translator = Translator.load(parser.parse_args(argv).run, compiled="auto")
    sources, *references = (read_lines(path) for path in (DATA / "values.en", *sorted(DATA.glob("values.zh*"))))
    found = translator.translate(sources)
    wrong = [
        f"{source}\t{output}"
        for source, output, *right in zip(sources, found, *references, strict=True)
        if values(output) not in map(values, right)
    ]
    print(*wrong, f"{len(sources) - len(wrong)} of {len(sources)} copied", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
