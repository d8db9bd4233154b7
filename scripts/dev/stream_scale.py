#!/usr/bin/env python3
"""Read a stream of pairs that are made on the fly, as a training would, and print its memory and its speed."""

import argparse
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from datasets import IterableDataset

from minitrans.cli.arguments import positive_int
from minitrans.data import stream
from minitrans.data.readers import OpenSplit
from minitrans.data.settings import DataConfig
from minitrans.text.tokenizer import Tokenizer, TokenizerConfig

WORDS = [f"{first}{middle}{last}" for first in "bdfgklmnprst" for middle in "aeiou" for last in "bdfgklmnprst"]
MILLION = 1_000_000


def make_sentence(number: int) -> str:
    """Six to fifteen words, by its number."""
    return " ".join(WORDS[number * step % len(WORDS)] for step in range(7, 13 + number % 10))


def make_pairs(n: int) -> Iterator[dict[str, str]]:
    """As many pairs as asked for."""
    for number in range(n):
        yield {"en": make_sentence(number), "zh": make_sentence(number + 3)}


def private_memory_mb() -> int:
    """Memory that this process has for itself alone, without what is mapped from files."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) // 1024


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each part of the stream."""
    parser = argparse.ArgumentParser(prog="stream_scale.py", description=__doc__)
    parser.add_argument("--pairs", type=positive_int, default=10 * MILLION, help="length of the stream")
    parser.add_argument("--parts", type=positive_int, default=10, help="lines to print")
    args = parser.parse_args(argv)
    tokenizer = Tokenizer.train(map(make_sentence, range(10_000)), TokenizerConfig(vocab_size=2000))
    rows = IterableDataset.from_generator(make_pairs, gen_kwargs={"n": args.pairs})
    stream.open_train = lambda _: OpenSplit("pairs made on the fly", rows, ())  # type: ignore[attr-defined, assignment]
    batches = iter(stream.StreamLoader(DataConfig("none", "en", "zh", streaming=True), tokenizer, 128, 1, {}))
    done = 0
    for part in range(1, args.parts + 1):
        start, before, most = time.perf_counter(), done, 0
        while done < part * args.pairs // args.parts:
            done += len(next(batches).src_ids)
            most = max(most, private_memory_mb()) if done % 50 == 0 else most
        speed = (done - before) / (time.perf_counter() - start)
        print(f"{done:>12,} pairs  {speed:>9,.0f} pairs/s  {max(most, private_memory_mb()):>6,} MB", flush=True)
    print(f"most that was in memory, files included: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024:,} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
