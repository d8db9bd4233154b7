"""Parallel corpora: from a folder or the Hugging Face hub to pairs of sentences, and from those to token ids."""

import csv
import hashlib
import json
import logging
import os
import re
import reprlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice, zip_longest
from pathlib import Path
from textwrap import shorten
from typing import get_type_hints

import datasets
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import sentencepiece
import yaml
from datasets import Dataset, DatasetDict

from minitrans.errors import UserError
from minitrans.files import open_aside
from minitrans.text import clean, iter_lines, read_lines
from minitrans.tokenizer import Tokenizer, TokenizerConfig

logger = logging.getLogger("minitrans")

_VALID_NAMES = ("valid", "val", "validation", "dev")  # the first of these that is there becomes `valid`

_SCHEMA = pa.schema({"source": pa.string(), "target": pa.string()})
_READER = 1  # raise it when the same files are read differently: what was kept on disk is then read anew
_CHUNK = 1_000  # pairs in memory at once while they are read
_TOKENIZER_PAIRS = 100_000  # the tokenizer sees no more: a million take far longer, and spell no text shorter
_PAIRS_PER_PROCESS = 50_000  # with fewer to tokenize, starting another process takes longer than it saves

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
        cache_dir: Folder for downloaded, read and tokenized data; null is where Hugging Face keeps data sets.
        name: Configuration of a hub data set that has several, such as en-zh.
        workers: Processes that make batches ahead of the training. 0 makes each when it is due, which takes less
            time than handing one over from another process.
    """

    path: str
    source: str
    target: str
    batch_tokens: int = 4096
    cache_dir: str | None = None
    name: str | None = None
    workers: int = 0

    def __post_init__(self) -> None:
        """Check the values."""
        for name, kind in get_type_hints(DataConfig).items():
            if not isinstance(getattr(self, name), kind):
                raise UserError(f"data.{name} is {getattr(self, name)!r}, which is of the wrong type")
        for flag, value in (("path", self.path), ("source", self.source), ("target", self.target)):
            if not value:
                raise UserError(f"data.{flag} is empty; give one")
        if self.source == self.target:
            raise UserError(f"data.source and data.target are both {self.source}; they must differ")
        if self.batch_tokens < 1:
            raise UserError(f"data.batch_tokens is {self.batch_tokens}; it must be at least 1")
        if self.workers < 0:
            raise UserError(f"data.workers is {self.workers}; it must be at least 0")


def load_corpus(config: DataConfig) -> DatasetDict:
    """Load all splits of a parallel corpus, once: they are kept on disk for the same text, and mapped into memory.

    Training pairs with an empty side are left out and counted in the log; other splits keep them.

    Returns:
        Columns `source` and `target`, text as it was found. Splits `train`, `valid` (from `valid`, `val`,
        `validation` or `dev`), then the others under their own names.

    Raises:
        UserError: The corpus is not there, lacks a split or a language, its text is faulty, or `cache_dir` cannot be
            written.
    """
    splits = _read_folder(Path(config.path), config) if _is_local(config.path) else _read_hub(config)
    valid = next((name for name in _VALID_NAMES if name in splits), "valid")
    for split in ("train", valid):
        if split not in splits:
            raise UserError(
                f"{config.path} has no {split} split, only: {', '.join(splits) or 'nothing'}; "
                f"add {split}.{config.source} and {split}.{config.target}, or {split}.tsv"
            )
    train = _without_empty_sides(splits.pop("train"), config.path)
    return DatasetDict({"train": train, "valid": splits.pop(valid), **splits})


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
    except Exception as error:  # whatever YAML and the settings make of a damaged file
        raise UserError(f"{run / 'config.yaml'}: no usable data section ({clean(str(error))})") from error
    if path is not None:
        return load_corpus(replace(config, path=path))
    try:
        return load_corpus(config)
    except UserError as error:
        raise UserError(f"{error}; if the run's corpus has moved, say with --data where it is") from error


def train_tokenizer(train: Dataset, config: TokenizerConfig, cache_dir: str | None = None) -> Tokenizer:
    """Train a tokenizer on the text, once: it is kept on disk for the same text and the same settings.

    Of a large corpus it sees a random sample of pairs, always the same one.

    Args:
        train: The split `train` of what `load_corpus` returns.
        config: Size, algorithm and coverage.
        cache_dir: Folder to keep it in; None is where Hugging Face keeps data sets.

    Raises:
        UserError: The text does not fit the settings, or `cache_dir` cannot be written.
    """
    key = _key(train._fingerprint, config, _TOKENIZER_PAIRS, sentencepiece.__version__)
    path = _cache_folder(cache_dir) / f"{key}.model"
    if path.is_file():
        tokenizer = Tokenizer.load(path)
    else:
        if len(train) > _TOKENIZER_PAIRS:
            rng = np.random.default_rng(0)
            train = train.select(np.sort(rng.choice(len(train), _TOKENIZER_PAIRS, replace=False)))
        tokenizer = Tokenizer.train(chain(train["source"][:], train["target"][:]), config)
        tokenizer.save(path)
    if tokenizer.vocab_size < config.vocab_size:
        logger.warning(
            "the text yields only %d pieces of the %d asked for: tokenizer.vocab_size is lowered to that",
            tokenizer.vocab_size,
            config.vocab_size,
        )
    return tokenizer


def tokenize_corpus(
    corpus: DatasetDict, tokenizer: Tokenizer, max_len: int, cache_dir: str | None = None
) -> DatasetDict:
    """Turn text into piece ids, once: the result is kept on disk for the same text and the same tokenizer.

    Training pairs with a side longer than `max_len`, its EOS (or BOS) counted, are left out and counted in the log;
    other splits keep every pair.

    Args:
        corpus: What `load_corpus` returns.
        tokenizer: Encodes both sides.
        max_len: Most tokens of either side of a training pair.
        cache_dir: Folder to keep the result in; None is where Hugging Face keeps data sets.

    Returns:
        The same splits, with the columns `src_ids` and `tgt_ids`: lists of int32, without special ids.

    Raises:
        UserError: No training pair is short enough, or `cache_dir` cannot be written.
    """
    folder = _cache_folder(cache_dir)
    ids = datasets.Sequence(datasets.Value("int32"))
    tokenized = DatasetDict()
    for split, pairs in corpus.items():
        key = _key(pairs._fingerprint, tokenizer.digest)
        processes = min(_n_cores(), len(pairs) // _PAIRS_PER_PROCESS)
        tokenized[split] = pairs.map(
            _encode_pairs,
            batched=True,
            fn_kwargs={"tokenizer": tokenizer},
            remove_columns=pairs.column_names,
            features=datasets.Features({"src_ids": ids, "tgt_ids": ids}),
            cache_file_name=str(folder / f"{key}.arrow"),
            new_fingerprint=key,
            num_proc=processes if processes > 1 else None,
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
    lengths = [pc.list_value_length(_column(pairs, side)).to_numpy() for side in ("src_ids", "tgt_ids")]
    longest = np.maximum(*lengths) + 1
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
    rows = _column(pairs, column)
    return pc.list_flatten(rows).to_numpy(), pc.list_value_length(rows).to_numpy().astype(np.int64)


def _column(pairs: Dataset, column: str) -> pa.ChunkedArray:
    return pairs.select_columns(column).with_format("arrow")[:][column]


def _encode_pairs(pairs: dict[str, list[str]], tokenizer: Tokenizer) -> dict[str, list[list[int]]]:
    return {
        "src_ids": tokenizer.encode_batch(pairs["source"]),
        "tgt_ids": tokenizer.encode_batch(pairs["target"]),
    }


def _n_cores() -> int:
    """Return how many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cache_folder(cache_dir: str | None) -> Path:
    folder = Path(cache_dir or datasets.config.HF_DATASETS_CACHE) / "minitrans"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; set data.cache_dir to another folder") from error
    return folder


def _key(*parts: object) -> str:
    """Name a file in the cache after everything that decides what it holds."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _keep(key: str, tables: Iterable[pa.Table], cache_dir: str | None) -> Dataset:
    """Map the cached file that holds these tables into memory; they are only asked for if it is not there yet."""
    path = _cache_folder(cache_dir) / f"{key}.arrow"
    if not path.is_file():
        with open_aside(path) as file, pa.ipc.new_stream(file, _SCHEMA) as writer:
            for table in tables:
                writer.write_table(table)
    return Dataset(datasets.table.MemoryMappedTable.from_file(str(path)), fingerprint=key)


def _without_empty_sides(train: Dataset, where: str) -> Dataset:
    sides = train.data["source"], train.data["target"]
    # A character that is no separator, control or format character is enough; where there is none, `clean` decides.
    full = pc.and_(*(pc.match_substring_regex(side, r"[^\pZ\pC]") for side in sides)).to_numpy().copy()
    for row in np.flatnonzero(~full):
        full[row] = all(clean(side[row].as_py()) for side in sides)
    if not full.any():
        raise UserError(f"{where}: every training pair has an empty side; check data.source and data.target")
    if full.all():
        return train
    logger.warning("left out %d of %d training pairs: one side is empty", (~full).sum(), len(full))
    return train.select(np.flatnonzero(full))


def _is_local(path: str) -> bool:
    """Tell a folder, there or not, from a hub name: owner/name where `owner` is no folder here."""
    return os.path.isdir(Path(path).parent) or not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", path)


def _read_hub(config: DataConfig) -> dict[str, Dataset]:
    try:
        splits = datasets.load_dataset(config.path, config.name, cache_dir=config.cache_dir)
    except Exception as error:  # whatever the network, the hub or the data set's files come up with
        raise UserError(
            f"data.path {config.path} is no folder here, and the hub did not give it "
            f"({clean(str(error))}); to use your own text, give a folder with train.{config.source} and "
            f"train.{config.target}, or train.tsv"
        ) from error
    return {
        split: _keep(
            _key(_READER, config.source, config.target, pairs._fingerprint),
            _select_languages(pairs.data.to_batches(_CHUNK), f"{config.path}, {split}", config),
            config.cache_dir,
        )
        for split, pairs in splits.items()
    }


def _read_folder(folder: Path, config: DataConfig) -> dict[str, Dataset]:
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise UserError(
            f"cannot read data.path {folder}: {error.strerror}; give a folder with train.{config.source} and "
            f"train.{config.target}, or train.tsv, or a hub name such as owner/name"
        ) from error
    suffixes = f".{config.source}", f".{config.target}"
    files = {}
    for split in sorted({path.stem for path in paths if path.suffix in suffixes}):
        source, target = files[split] = [folder / f"{split}{suffix}" for suffix in suffixes]
        for path, other in ((source, target), (target, source)):
            if path not in paths:
                raise UserError(f"{path} is missing, the other side of {other}; add it, one sentence a line")
    for path in paths:
        if path.suffix in (".tsv", ".csv", ".jsonl", ".parquet"):
            if path.stem in files:
                raise UserError(f"{path}: {path.stem} is there in another format too; keep one of them")
            files[path.stem] = [path]
    splits = {}
    for split, sides in files.items():
        key = _key(_READER, config.source, config.target, *((path.suffix, _digest(path)) for path in sides))
        splits[split] = _keep(key, _read_files(sides, config), config.cache_dir)
        if not len(splits[split]):
            raise UserError(f"{folder} holds no sentences for {split}; fill or remove its files")
    return splits


def _digest(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _read_files(paths: list[Path], config: DataConfig) -> Iterator[pa.Table]:
    """Read one file with a column for each language, or two files of lines, a chunk at a time."""
    path = paths[0]
    if path.suffix == ".parquet":
        return _select_languages(_parquet_batches(path), str(path), config)
    if len(paths) == 2:
        return _tables(_line_pairs(*paths), path)
    read = _json_pairs if path.suffix == ".jsonl" else _delimited_pairs
    return _tables(read(path, config), path)


def _tables(pairs: Iterator[tuple[str, str]], path: Path) -> Iterator[pa.Table]:
    while chunk := list(islice(pairs, _CHUNK)):
        try:
            table = pa.table(list(zip(*chunk, strict=True)), schema=_SCHEMA)
        except UnicodeEncodeError as error:  # from JSON such as "\ud800"
            text = reprlib.repr(error.object)
            raise UserError(f"{path}: {text} holds half a surrogate pair, which is no character") from error
        yield table


def _line_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    n_sources = n_targets = 0
    with open(source, "rb") as source_file, open(target, "rb") as target_file:
        lines = zip_longest(iter_lines(source_file, str(source)), iter_lines(target_file, str(target)))
        for source_line, target_line in lines:
            n_sources += source_line is not None
            n_targets += target_line is not None
            if source_line is not None and target_line is not None:
                yield source_line, target_line
    if n_sources != n_targets:
        raise UserError(
            f"{source} has {n_sources} lines but {target.name} has {n_targets}; line n of one must "
            "translate line n of the other"
        )


def _delimited_pairs(path: Path, config: DataConfig) -> Iterator[tuple[str, str]]:
    with open(path, "rb") as stream:
        rows = _split_csv(stream, path) if path.suffix == ".csv" else _split_tsv(stream, path)
        _, header = next(rows, (0, []))
        source, target = (_place(header, language, str(path)) for language in (config.source, config.target))
        for number, fields in rows:
            if len(fields) != len(header):
                raise UserError(f"{path}, line {number}: {len(fields)} fields, but the header has {len(header)}")
            yield fields[source], fields[target]


def _split_tsv(stream: Iterable[bytes], path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(iter_lines(stream, str(path)), start=1):
        yield number, line.split("\t")  # no quoting: a quotation mark is text


def _split_csv(stream: Iterable[bytes], path: Path) -> Iterator[tuple[int, list[str]]]:
    rows = csv.reader((line + "\n" for line in iter_lines(stream, str(path))), strict=True)
    try:
        for fields in rows:
            yield rows.line_num, fields
    except csv.Error as error:
        raise UserError(f"{path}, line {rows.line_num}: {error}; check the quotation marks") from error


def _json_pairs(path: Path, config: DataConfig) -> Iterator[tuple[str, str]]:
    with open(path, "rb") as stream:
        for number, line in enumerate(iter_lines(stream, str(path)), start=1):
            where = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:  # the latter from brackets in thousands
                raise UserError(f"{where}: not JSON ({error})") from error
            row = row["translation"] if isinstance(row, dict) and "translation" in row else row
            names = list(row) if isinstance(row, dict) else []
            source, target = (row[names[_place(names, side, where)]] for side in (config.source, config.target))
            if not isinstance(source, str) or not isinstance(target, str):
                raise UserError(f"{where}: {config.source} and {config.target} must both be strings")
            yield source, target


def _parquet_batches(path: Path) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_CHUNK):
                batch.validate(full=True)  # UTF-8 included
                yield batch
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:  # the last from the name of a column
        raise UserError(f"{path}: not a readable Parquet file ({clean(str(error))})") from error


def _select_languages(batches: Iterable[pa.RecordBatch], where: str, config: DataConfig) -> Iterator[pa.Table]:
    """Take the two languages out of tables, whose columns they are, or the fields of their column `translation`."""
    for batch in batches:
        table = pa.Table.from_batches([batch]).flatten()
        names = [name.removeprefix("translation.") for name in table.column_names]
        sides = []
        for language in (config.source, config.target):
            column = table.column(_place(names, language, where))
            if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
                raise UserError(f"{where}: column {language} holds {column.type}, not text")
            sides.append(column.fill_null("").cast(pa.string()))
        yield pa.table(sides, schema=_SCHEMA)


def _place(names: list[str], language: str, where: str) -> int:
    """Return the place of a language among the columns."""
    if language not in names:
        raise UserError(
            f"{where}: no column {language}, only: {shorten(clean(', '.join(names)), 200) or 'nothing'}; "
            "set data.source and data.target"
        )
    return names.index(language)
