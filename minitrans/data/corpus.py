"""Parallel corpora: from a folder or the Hugging Face hub to pairs of sentences, and from those to token ids."""

import csv
import hashlib
import json
import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import datasets
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml
from datasets import Dataset, DatasetDict

from minitrans.errors import UserError
from minitrans.text import clean, iter_lines, read_lines
from minitrans.tokenizer import Tokenizer

logger = logging.getLogger("minitrans")

_VALID_NAMES = ("valid", "val", "validation", "dev")  # the first of these that is there becomes `valid`

_SCHEMA = pa.schema({"source": pa.string(), "target": pa.string()})

if not sys.stderr.isatty():
    datasets.disable_progress_bars()


@dataclass(frozen=True)
class DataConfig:
    """Which parallel text to train on, and how much of it at once.

    Args:
        path: Folder with train.SOURCE and train.TARGET, or train.tsv, .csv, .jsonl or .parquet; or a hub name.
        source: Language to translate from, as the files or columns are named, such as en.
        target: Language to translate into.
        batch_tokens: Most tokens of either side in a batch, padding counted.
        cache_dir: Folder for downloaded and tokenized data; null is where Hugging Face keeps data sets.
        name: Configuration of a hub data set that has several, such as en-zh.
    """

    path: str
    source: str
    target: str
    batch_tokens: int = 4096
    cache_dir: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        for flag, value in (("path", self.path), ("source", self.source), ("target", self.target)):
            if not value:
                raise UserError(f"data.{flag} is empty; give one")
        if self.source == self.target:
            raise UserError(f"data.source and data.target are both {self.source}; they must differ")
        if self.batch_tokens < 1:
            raise UserError(f"data.batch_tokens is {self.batch_tokens}; it must be at least 1")


def load_corpus(config: DataConfig) -> DatasetDict:
    """Load all splits of a parallel corpus.

    Training pairs with an empty side are left out and counted in the log; other splits keep them.

    Returns:
        Columns `source` and `target`, text as it was found. Splits `train`, `valid` (from `valid`, `val`,
        `validation` or `dev`), then the others under their own names.

    Raises:
        UserError: The corpus is not there, lacks a split or a language, or its text is faulty.
    """
    tables = _read_folder(Path(config.path), config) if _is_local(config.path) else _read_hub(config)
    valid = next((name for name in _VALID_NAMES if name in tables), "valid")
    for split in ("train", valid):
        if split not in tables:
            raise UserError(
                f"{config.path} has no {split} split, only: {', '.join(tables) or 'nothing'}; "
                f"add {split}.{config.source} and {split}.{config.target}, or {split}.tsv"
            )
    train = _without_empty_sides(tables.pop("train"), config.path)
    tables = {"train": train, "valid": tables.pop(valid), **tables}
    return DatasetDict({split: Dataset(datasets.table.InMemoryTable(table)) for split, table in tables.items()})


def run_corpus(run: Path, path: str | None = None) -> DatasetDict:
    """Load the corpus that a run was trained on, or another one of the same languages.

    Args:
        run: The run folder; the section `data` of its config.yaml says which corpus.
        path: Used instead of `data.path`.

    Raises:
        UserError: The run has no usable config.yaml, or `load_corpus` fails.
    """
    text = "\n".join(read_lines(run / "config.yaml"))
    try:
        config = DataConfig(**yaml.safe_load(text)["data"])
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise UserError(f"{run / 'config.yaml'}: no usable data section ({clean(str(error))})") from error
    if path is not None:
        return load_corpus(replace(config, path=path))
    try:
        return load_corpus(config)
    except UserError as error:
        raise UserError(f"{error}; if the run's corpus has moved, say with --data where it is") from error


def tokenize_corpus(
    corpus: DatasetDict, tokenizer: Tokenizer, max_len: int, cache_dir: str | None = None
) -> DatasetDict:
    """Add piece ids to the text, once: the result is kept on disk for the same text and the same tokenizer.

    Training pairs with a side longer than `max_len`, its EOS (or BOS) counted, are left out and counted in the log;
    other splits keep every pair.

    Args:
        corpus: What `load_corpus` returns.
        tokenizer: Encodes both sides.
        max_len: Most tokens of either side of a training pair.
        cache_dir: Folder to keep the result in; None is where Hugging Face keeps data sets.

    Returns:
        The same splits with two more columns, `src_ids` and `tgt_ids`: lists of int32, without special ids.

    Raises:
        UserError: No training pair is short enough, or `cache_dir` cannot be written.
    """
    folder = Path(cache_dir or datasets.config.HF_DATASETS_CACHE) / "minitrans"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; set data.cache_dir to another folder") from error
    ids = datasets.Sequence(datasets.Value("int32"))
    tokenized = DatasetDict()
    for split, pairs in corpus.items():
        key = hashlib.sha256(f"{pairs._fingerprint} {tokenizer.digest}".encode()).hexdigest()[:32]
        tokenized[split] = pairs.map(
            _encode_pairs,
            batched=True,
            fn_kwargs={"tokenizer": tokenizer},
            features=datasets.Features(pairs.features | {"src_ids": ids, "tgt_ids": ids}),
            cache_file_name=str(folder / f"{key}.arrow"),
            new_fingerprint=key,
            desc=f"tokenizing {split}",
        )
    tokenized["train"] = drop_long_pairs(tokenized["train"], "training", max_len)
    return tokenized


def drop_long_pairs(pairs: Dataset, purpose: str, max_len: int) -> Dataset:
    """Leave out the pairs that a model of `max_len` positions cannot take, and count them in the log.

    Args:
        pairs: A split with `src_ids` and `tgt_ids`.
        purpose: What the pairs are for, for the message.
        max_len: Most tokens of either side, EOS (or BOS) counted.

    Raises:
        UserError: No pair is left.
    """
    longest = np.maximum(column_arrays(pairs, "src_ids")[1], column_arrays(pairs, "tgt_ids")[1]) + 1
    kept = np.flatnonzero(longest <= max_len)
    if not len(kept):
        raise UserError(f"all {len(pairs)} {purpose} pairs are longer than max_len, {max_len} tokens; raise it")
    if len(kept) == len(pairs):
        return pairs
    logger.warning(
        "left out %d of %d %s pairs: longer than max_len, %d tokens",
        len(pairs) - len(kept),
        len(pairs),
        purpose,
        max_len,
    )
    return pairs.select(kept)


def column_arrays(pairs: Dataset, column: str) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Read a whole column of lists of ids at once, which is far quicker than row by row.

    Returns:
        The ids of all rows one after another (int32), and the (N,) lengths of the rows (int64).
    """
    rows = pairs.select_columns(column).with_format("arrow")[:][column]
    return pc.list_flatten(rows).to_numpy(), pc.list_value_length(rows).to_numpy().astype(np.int64)


def _encode_pairs(pairs: dict[str, list[str]], tokenizer: Tokenizer) -> dict[str, list[list[int]]]:
    return {
        "src_ids": tokenizer.encode_batch(pairs["source"]),
        "tgt_ids": tokenizer.encode_batch(pairs["target"]),
    }


def _without_empty_sides(train: pa.Table, where: str) -> pa.Table:
    sides = train["source"].to_pylist(), train["target"].to_pylist()
    full = [bool(clean(source) and clean(target)) for source, target in zip(*sides, strict=True)]
    if not any(full):
        raise UserError(f"{where}: every training pair has an empty side; check data.source and data.target")
    if not all(full):
        logger.warning("left out %d of %d training pairs: one side is empty", full.count(False), len(full))
    return train.filter(pa.array(full))


def _is_local(path: str) -> bool:
    """Tell a folder, there or not, from a hub name: owner/name where `owner` is no folder here."""
    return Path(path).parent.is_dir() or not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", path)


def _read_hub(config: DataConfig) -> dict[str, pa.Table]:
    try:
        splits = datasets.load_dataset(config.path, config.name, cache_dir=config.cache_dir)
    except Exception as error:  # whatever the network, the hub or the data set's files come up with
        raise UserError(
            f"data.path {config.path} is no folder here, and the hub did not give it "
            f"({clean(str(error))}); to use your own text, give a folder with train.{config.source} and "
            f"train.{config.target}, or train.tsv"
        ) from error
    return {
        split: _select_languages(pairs.data.table, f"{config.path}, {split}", config) for split, pairs in splits.items()
    }


def _read_folder(folder: Path, config: DataConfig) -> dict[str, pa.Table]:
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise UserError(
            f"cannot read data.path {folder}: {error.strerror}; give a folder with train.{config.source} and "
            f"train.{config.target}, or train.tsv, or a hub name such as owner/name"
        ) from error
    suffixes = f".{config.source}", f".{config.target}"
    splits = sorted({path.stem for path in paths if path.suffix in suffixes})
    tables = {split: _read_line_files(*(folder / f"{split}{suffix}" for suffix in suffixes)) for split in splits}
    for path in paths:
        if path.suffix in (".tsv", ".csv", ".jsonl", ".parquet"):
            if path.stem in tables:
                raise UserError(f"{path}: {path.stem} is there in another format too; keep one of them")
            tables[path.stem] = _read_parquet(path, config) if path.suffix == ".parquet" else _read_rows(path, config)
    for split, table in tables.items():
        if not table.num_rows:
            raise UserError(f"{folder} holds no sentences for {split}; fill or remove its files")
    return tables


def _read_line_files(source: Path, target: Path) -> pa.Table:
    for path, other in ((source, target), (target, source)):
        if not path.is_file():
            raise UserError(f"{path} is missing, the other side of {other}; add it, one sentence a line")
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise UserError(
            f"{source} has {len(sources)} lines but {target.name} has {len(targets)}; line n of one must "
            "translate line n of the other"
        )
    return pa.table({"source": sources, "target": targets}, schema=_SCHEMA)


def _read_rows(path: Path, config: DataConfig) -> pa.Table:
    """Read a text file of one pair a row: .tsv, .csv or .jsonl."""
    read = _json_rows if path.suffix == ".jsonl" else _delimited_rows
    try:
        with open(path, "rb") as stream:
            pairs = list(read(stream, path, config))
        sources, targets = zip(*pairs, strict=True) if pairs else ((), ())
        return pa.table({"source": sources, "target": targets}, schema=_SCHEMA)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeEncodeError as error:  # from JSON such as "\ud800"
        raise UserError(f"{path}: {error.object!r} holds half a surrogate pair, which is no character") from error


def _delimited_rows(stream: BinaryIO, path: Path, config: DataConfig) -> Iterator[tuple[str, str]]:
    rows = _split_csv(stream, path) if path.suffix == ".csv" else _split_tsv(stream, path)
    _, header = next(rows, (0, []))
    columns = [_column(header, language, str(path)) for language in (config.source, config.target)]
    for number, fields in rows:
        if len(fields) != len(header):
            raise UserError(f"{path}, line {number}: {len(fields)} fields, but the header has {len(header)}")
        yield fields[columns[0]], fields[columns[1]]


def _split_tsv(stream: BinaryIO, path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(iter_lines(stream, str(path)), start=1):
        yield number, line.split("\t")  # no quoting: a quotation mark is text


def _split_csv(stream: BinaryIO, path: Path) -> Iterator[tuple[int, list[str]]]:
    rows = csv.reader((line + "\n" for line in iter_lines(stream, str(path))), strict=True)
    try:
        for fields in rows:
            yield rows.line_num, fields
    except csv.Error as error:
        raise UserError(f"{path}, line {rows.line_num}: {error}; check the quotation marks") from error


def _json_rows(stream: BinaryIO, path: Path, config: DataConfig) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(iter_lines(stream, str(path)), start=1):
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{where}: not JSON ({error})") from error
        row = row["translation"] if isinstance(row, dict) and "translation" in row else row
        names = list(row) if isinstance(row, dict) else []
        source, target = (row[names[_column(names, language, where)]] for language in (config.source, config.target))
        if not isinstance(source, str) or not isinstance(target, str):
            raise UserError(f"{where}: {config.source} and {config.target} must both be strings")
        yield source, target


def _read_parquet(path: Path, config: DataConfig) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
        table.validate(full=True)  # UTF-8 included
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path}: not a readable Parquet file ({clean(str(error))})") from error
    return _select_languages(table, str(path), config)


def _select_languages(table: pa.Table, where: str, config: DataConfig) -> pa.Table:
    """Take the two languages out of a table, whose columns they are, or the fields of its column `translation`."""
    table = table.flatten()
    names = [name.removeprefix("translation.") for name in table.column_names]
    columns = [table.column(_column(names, language, where)) for language in (config.source, config.target)]
    for column, language in zip(columns, (config.source, config.target), strict=True):
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            raise UserError(f"{where}: column {language} holds {column.type}, not text")
    return pa.table([column.fill_null("") for column in columns], names=["source", "target"])


def _column(names: list[str], language: str, where: str) -> int:
    """Return the place of a language among the columns."""
    if language not in names:
        raise UserError(
            f"{where}: no column {language}, only: {', '.join(names) or 'nothing'}; set data.source and data.target"
        )
    return names.index(language)
