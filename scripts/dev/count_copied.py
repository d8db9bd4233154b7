#!/usr/bin/env python3
"""Counts the sentences of data/en-zh in which a run copies a value or a name: `count_copied.py runs/en-zh`.

Numbers, times, addresses and names are copied where the translation has the ones of a reference, each as often. The
others are printed.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from minitrans.text.lines import read_lines
from minitrans.translate.translator import Translator

CORPUS_DIR = Path(__file__).resolve().parents[2] / "data" / "en-zh"


def ascii_runs(chinese: str) -> list[str]:
    """What is in ASCII in a Chinese text, in the order of its characters."""
    return sorted(re.findall("[!-~]+", chinese))


def main(argv: Sequence[str] | None = None) -> int:
    """Translate, compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="run folder")
    translator = Translator.load(parser.parse_args(argv).run, compiled="auto")
    for name in ("values", "names"):
        sources, *references = map(read_lines, (CORPUS_DIR / f"{name}.en", *sorted(CORPUS_DIR.glob(f"{name}.zh*"))))
        wrong = [
            f"{source}\t{output}"
            for source, output, *right in zip(sources, translator.translate(sources), *references, strict=True)
            if ascii_runs(output) not in map(ascii_runs, right)
        ]
        print(*wrong, f"{name}: {len(sources) - len(wrong)} of {len(sources)} copied", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
