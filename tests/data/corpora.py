"""Small corpora in every supported format, the content of their batches, and programs that read them."""

import csv
import gzip
import io
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest
from command_helpers import parquet_bytes, write_files

from minitrans.data.batching import Batch
from minitrans.data.settings import DataConfig
from minitrans.text.tokenizer import Tokenizer

Pairs = list[tuple[str, str]]


def data_config(path: object, **values: Any) -> DataConfig:
    return DataConfig(**({"path": str(path), "source": "en", "target": "zh"} | values))


def write_pairs(folder: Path, kind: str, splits: Mapping[str, Pairs], names: tuple[str, str] = ("en", "zh")) -> Path:
    for split, pairs in splits.items():
        write_files(folder, {f"{split}.{ending}": content for ending, content in contents(kind, pairs, names).items()})
    return folder


def contents(kind: str, pairs: Pairs, names: tuple[str, str]) -> dict[str, bytes]:
    """The content of each ending; kinds: lines, tsv, csv, jsonl, translation jsonl, parquet, ..., lines gz, ..."""
    if kind.endswith(" gz"):
        plain = contents(kind.removesuffix(" gz"), pairs, names)
        return {f"{ending}.gz": gzip.compress(content) for ending, content in plain.items()}
    one, other = names
    rows = [{"id": str(i), other: zh, one: en} for i, (en, zh) in enumerate(pairs)]
    if kind == "lines":
        return {name: "".join(f"{row[name]}\n" for row in rows).encode() for name in names}
    if kind == "csv":
        csv.writer(text := io.StringIO(), quoting=csv.QUOTE_ALL).writerows([(other, one), *((b, a) for a, b in pairs)])
        return {kind: text.getvalue().encode()}
    if kind == "tsv":
        lines = [f"{other}\tid\t{one}", *(f"{zh}\tx\t{en}" for en, zh in pairs)]
        return {kind: "".join(f"{line}\n" for line in lines).encode()}
    if kind == "parquet":
        return {kind: parquet_bytes(**{name: [row[name] for row in rows] for name in ("id", *names)})}
    if kind == "translation parquet":
        return {"parquet": parquet_bytes(translation=rows)}
    objects = [{"translation": row} for row in rows] if kind == "translation jsonl" else rows
    return {"jsonl": "".join(json.dumps(row) + "\n" for row in objects).encode()}


def stand_in_for_the_hub(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Read a repository owner/name from that path in `folder` instead of from the hub."""
    load = datasets.load_dataset
    patch.setattr(datasets, "load_dataset", lambda path, *rest, **named: load(str(folder / path), *rest, **named))


def decode_pairs(batches: Iterable[Batch], tokenizer: Tokenizer) -> Pairs:
    sides = ([[*map(tokenizer.decode, ids.tolist())] for ids in (batch.src_ids, batch.tgt_out)] for batch in batches)
    return [pair for source, target in sides for pair in zip(source, target, strict=True)]


def batch_source_ids(batches: Iterable[Batch]) -> list[list[list[int]]]:
    return [batch.src_ids.tolist() for batch in batches]


# -- Programs in their own process, to measure the memory of reading -------------------------------------------------


def long_pairs(n: int, n_words: int) -> Pairs:
    lines = [" ".join(f"{i * k % 997} words" for k in range(1, n_words + 1)) for i in range(n + 2)]
    return list(zip(lines, lines[2:], strict=False))


def printed_int(program: str, *arguments: object) -> int:
    program = f"import sys\nsys.path += {sys.path!r}\n{program}"  # so that it finds this file and its like
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout)
