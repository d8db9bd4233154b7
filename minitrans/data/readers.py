"""Reads parallel text from a folder or from the Hugging Face hub: every kind becomes a stream of source and target.

A folder may be remote, at an address such as s3://bucket/corpus that fsspec knows. A split may be in many files.

The hub is left to `datasets`. Files are read here, because its readers reject Parquet with columns of some types, and
change text silently: they fill up a row of a tsv or csv that is too short, shift the columns of one that is too long,
end a line at a carriage return in it, turn the JSON string "2020-01-01" into a time, and cannot say which line of a
file is not UTF-8.
"""

import csv
import gzip
import hashlib
import io
import json
import logging
import os
import re
import reprlib
import sys
import zlib
from collections.abc import Callable, Container, Iterator
from functools import partial
from itertools import zip_longest
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import IterableDataset
from datasets.iterable_dataset import ArrowExamplesIterable, ExamplesIterable
from upath import UPath

from minitrans.data.settings import DataConfig
from minitrans.errors import UserError
from minitrans.text.lines import MAX_LINE_BYTES, iter_lines
from minitrans.text.reading import clean

CHUNK = 1_000  # pairs in memory at once while they are read
PAIR_SCHEMA = pa.schema({"source": pa.string(), "target": pa.string()})

logging.getLogger("datasets").setLevel(logging.CRITICAL)  # it raises the errors that it logs, and we report them once
if not os.isatty(2):
    datasets.disable_progress_bars()


class OpenSplit(NamedTuple):
    """A split that is open, but not read yet.

    Attributes:
        where: What to call it in a message.
        row_stream: Its rows, for `iter_pair_tables`; between two tables of a stream, its state is that of the next one.
        content_key: What decides the text; empty if that is not known before the text is read.
    """

    where: str
    row_stream: IterableDataset
    content_key: tuple[object, ...]


def open_splits(config: DataConfig) -> dict[str, Callable[[], OpenSplit]]:
    """Find all splits of a corpus, under the names that its files or the hub give them; a call opens the split.

    Raises:
        UserError: The corpus is missing, or its files do not fit together; in the call, they cannot be read.
    """
    # A hub name is owner/name where `owner` is not a folder here.
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", config.path) and not os.path.isdir(Path(config.path).parent):
        return _open_hub(config)
    return {split: partial(_open_split_files, split, parts, config) for split, parts in _find_files(config).items()}


def open_train(config: DataConfig) -> OpenSplit:
    """Open the whole training split, which `load_corpus` has found there; raises as `open_splits` does."""
    return open_splits(config)[config.train_split]()


def iter_pair_tables(split: OpenSplit, n_pairs: int, config: DataConfig) -> Iterator[pa.Table]:
    """Read a split, `n_pairs` at a time (the last time perhaps fewer), as tables of the schema `PAIR_SCHEMA`.

    Raises:
        UserError: The text is faulty, a language is not among its columns or is not text, or the stream breaks off.
    """
    try:
        for rows in split.row_stream.iter(n_pairs):
            yield _select_columns(pa.table(rows), split.where, config)
    except UserError:
        raise
    except Exception as error:  # whatever the network, the hub or the data set's files come up with
        reason = shorten(clean(str(error)), 500)
        raise UserError(
            f"{split.where}: cannot read further ({reason}); use --resume to continue a run that has begun"
        ) from error


def _open_hub(config: DataConfig) -> dict[str, Callable[[], OpenSplit]]:
    source, target = config.columns
    if os.isatty(2):
        print(f"minitrans: loading {config.path} from the Hugging Face hub ...", file=sys.stderr)
    try:
        loaded = datasets.load_dataset(config.path, config.name, cache_dir=config.cache_dir, streaming=config.streaming)
    except Exception as error:  # whatever the network, the hub or the data set's files come up with
        raise UserError(
            f"data.path {config.path} is not a folder here, and could not be loaded from the hub "
            f"({clean(str(error))}); to use your own text, give a folder with train.{source} and "
            f"train.{target}, or train.tsv"
        ) from error
    splits: dict[str, Callable[[], OpenSplit]] = {}
    for split, pairs in loaded.items():
        texts = [name for name in pairs.features or () if name in ("translation", *config.columns)]
        if not config.streaming:
            rows = pairs.to_iterable_dataset().with_format("arrow")
        else:  # without images or sound that are beside the text
            rows = pairs.select_columns(texts) if len(texts) > 1 or "translation" in texts else pairs
        content = () if config.streaming else (pairs._fingerprint,)
        splits[split] = partial(OpenSplit, f"{config.path}, {split}", rows, content)
    return splits


def _open_split_files(split: str, parts: list[tuple[UPath, ...]], config: DataConfig) -> OpenSplit:
    streamed = config.streaming and split == config.train_split
    content = () if streamed else tuple((_file_format(path), _file_sha256(path)) for part in parts for path in part)
    if _file_format(parts[0][0]) == ".parquet":
        paths = [path for [path] in parts]
        rows = IterableDataset(ArrowExamplesIterable(_parquet_tables, {"paths": paths, "config": config}))
        rows = rows if streamed else rows.with_format("arrow")  # faster
    else:
        # `from_generator` would take a lock where Hugging Face keeps data sets.
        rows = IterableDataset(ExamplesIterable(_text_rows, {"parts": parts, "config": config}))
    where = str(parts[0][0]) if len(parts) == 1 else f"{parts[0][0]} to {parts[-1][0].name}"
    return OpenSplit(where, rows, content)


def _parquet_tables(paths: list[UPath], config: DataConfig) -> Iterator[tuple[int, pa.Table]]:
    """Read no columns but those of the two languages: others may be of any type; `datasets` wants a key."""
    for path in paths:
        try:
            with path.open("rb") as stream:
                file = pq.ParquetFile(stream)
                _select_columns(file.schema_arrow.empty_table(), str(path), config)  # its error names all columns
                for batch in file.iter_batches(CHUNK, columns=["translation", *config.columns]):
                    yield 0, _select_columns(pa.table(batch), str(path), config).rename_columns(config.columns)
        except UserError:
            raise
        except Exception as error:  # a damaged file may cause any error
            raise UserError(f"{path}: not a readable Parquet file ({shorten(clean(str(error)), 500)})") from error


def _find_files(config: DataConfig) -> dict[str, list[tuple[UPath, ...]]]:
    """Find the files of each split, part by part: source and target, or one for both."""
    sides = [f".{column}" for column in config.columns]
    try:
        folder = UPath(config.path)
        paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except Exception as error:  # whatever the file system comes up with
        raise UserError(
            f"cannot read data.path {config.path}: {_error_reason(error)}; give a folder with train{sides[0]} and "
            f"train{sides[1]}, or train.tsv, or a hub name such as owner/name"
        ) from error
    plain_files: dict[str, dict[str, UPath]] = {}  # of each split, by ending
    for path in paths:
        plain = path.name.removesuffix(".gz")
        # A side's ending may have a dot in it, and then end in the other's.
        if ending := max(filter(plain.endswith, (*sides, ".tsv", ".csv", ".jsonl", ".parquet")), key=len, default=""):
            other = plain_files.setdefault(plain.removesuffix(ending), {}).setdefault(ending, path)
            if other is not path:
                raise UserError(f"{path}: there is also {other.name}; keep one of them")
    files: dict[str, list[tuple[UPath, ...]]] = {}
    for name, endings in sorted(plain_files.items(), key=lambda item: _natural_sort_key(item[0])):
        lines = [side for side in sides if side in endings]
        tables = [ending for ending in endings if ending not in sides]
        if len(lines) == 1:
            [missing] = {*sides} - {*lines}
            raise UserError(
                f"{folder / f'{name}{missing}'} is missing, the other side of {endings[lines[0]]}; "
                "add it, one sentence per line, or move that file away"
            )
        if len(tables) > (not lines):
            raise UserError(f"{endings[tables[-1]]}: {name} exists in another format too; keep one of them")
        part = tuple(endings[ending] for ending in lines or tables)
        parts = files.setdefault(_split_of_stem(name, plain_files), [])
        if parts and [*map(_file_format, parts[0])] != [*map(_file_format, part)]:
            raise UserError(f"{part[0]} differs in format from {parts[0][0].name}; give all parts of a split the same")
        parts.append(part)
    return files


def _split_of_stem(stem: str, stems: Container[str]) -> str:
    """Return a file's split: of valid-00000-of-00004, valid; of train-news, train; unless a file has that very name."""
    split = re.sub(r"^(train)[-.].+$|-\d+-of-\d+(?:-[0-9a-f]{16})?$", r"\1", stem)
    return stem if split in stems else split


def _natural_sort_key(name: str) -> list[tuple[int, str]]:
    """Make a key that sorts numbers in a name by their value."""
    return [(int(part or 0), text) for part, text in re.findall(r"(\d+)|(\D+)", name)]


def _error_reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or clean(str(error))


def _file_format(path: UPath) -> str:
    """Return the ending of a file's name that is not .gz."""
    return Path(path.name.removesuffix(".gz")).suffix


def _file_sha256(path: UPath) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    except Exception as error:  # whatever the file system comes up with
        raise UserError(f"cannot read {path}: {_error_reason(error)}") from error


def _text_rows(parts: list[tuple[UPath, ...]], config: DataConfig) -> Iterator[tuple[int, dict[str, str]]]:
    """Read two files of lines, or one file with a column for each language, part by part; `datasets` wants a key."""
    for paths in parts:
        if len(paths) == 2:
            pairs = _line_pairs(*paths)
        else:
            read = _json_pairs if _file_format(paths[0]) == ".jsonl" else _delimited_pairs
            pairs = read(paths[0], config)
        for pair in pairs:
            yield 0, dict(zip(config.columns, pair, strict=True))


def _read_lines(path: UPath) -> Iterator[str]:
    """Yield the lines of a text file, unpacked if its name ends in .gz."""
    try:
        with path.open("rb") as stream:
            packed = path.suffix == ".gz"
            lines = gzip.GzipFile(fileobj=stream) if packed else io.BufferedReader(stream)  # type: ignore[type-var]
            yield from iter_lines(lines, str(path))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip file ({error}); copy it again, or unpack it") from error


def _line_pairs(source: UPath, target: UPath) -> Iterator[tuple[str, str]]:
    n_sources = n_targets = 0
    for source_line, target_line in zip_longest(_read_lines(source), _read_lines(target)):
        n_sources += source_line is not None
        n_targets += target_line is not None
        if source_line is not None and target_line is not None:
            yield source_line, target_line
    if n_sources != n_targets:
        raise UserError(
            f"{source} has {n_sources} lines but {target.name} has {n_targets}; line n of one must "
            "translate line n of the other"
        )


def _delimited_pairs(path: UPath, config: DataConfig) -> Iterator[tuple[str, str]]:
    lines = enumerate(_read_lines(path), start=1)
    tsv = ((number, line.split("\t")) for number, line in lines)  # no quoting: a quotation mark is text
    rows = _numbered_csv_rows(path) if _file_format(path) == ".csv" else tsv
    _, header = next(rows, (0, []))
    names = list(map(clean, header))
    source, target = (_column_index(names, column, str(path)) for column in config.columns)
    for number, fields in rows:
        if len(fields) != len(header):
            raise UserError(f"{path}, line {number}: {len(fields)} fields, but the header has {len(header)}")
        yield fields[source], fields[target]


def _numbered_csv_rows(path: UPath) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(MAX_LINE_BYTES)
    # For `csv` a carriage return ends a row; a surrogate, which is in no UTF-8, stands for those that are text.
    rows = csv.reader((line.replace("\r", "\udc0d") + "\n" for line in _read_lines(path)), strict=True)
    try:
        for fields in rows:
            yield rows.line_num, [field.replace("\udc0d", "\r") for field in fields]
    except csv.Error as error:
        raise UserError(f"{path}, line {rows.line_num}: {error}; check the quotation marks") from error


def _json_pairs(path: UPath, config: DataConfig) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(_read_lines(path), start=1):
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # the latter from thousands of brackets
            raise UserError(f"{where}: not JSON ({error})") from error
        row = row if isinstance(row, dict) else {}
        row = row["translation"] if isinstance(row.get("translation"), dict) else row
        names = list(row)
        source, target = (row[names[_column_index(names, column, where)]] for column in config.columns)
        source, target = ("" if text is None else text for text in (source, target))  # left out, as in other formats
        if not isinstance(source, str) or not isinstance(target, str):
            raise UserError(f"{where}: {' and '.join(config.columns)} must both be strings")
        try:
            (source + target).encode()
        except UnicodeEncodeError as error:  # from JSON such as "\ud800"
            text = reprlib.repr(error.object)
            raise UserError(f"{where}: {text} holds half a surrogate pair, which is not a character") from error
        yield source, target


def _select_columns(table: pa.Table, where: str, config: DataConfig) -> pa.Table:
    """Take the two languages out of a table: they are columns, or fields of the column `translation`."""
    table = table.flatten()
    names = [name.removeprefix("translation.") for name in table.column_names]
    sides = []
    for name in config.columns:
        column = table.column(_column_index(names, name, where))
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if kind not in (pa.string(), pa.large_string(), pa.string_view(), pa.null()):  # null: no texts in these rows
            raise UserError(f"{where}: column {name} holds {column.type}, not text")
        column.validate(full=True)  # UTF-8 included
        sides.append(column.cast(pa.string()).fill_null(""))
    return pa.table(sides, schema=PAIR_SCHEMA).combine_chunks()


def _column_index(names: list[str], column: str, where: str) -> int:
    if column not in names:
        raise UserError(
            f"{where}: no column {column}, only: {shorten(clean(', '.join(names)), 200) or 'nothing'}; "
            "set data.source and data.target, or data.source_column and data.target_column"
        )
    return names.index(column)
