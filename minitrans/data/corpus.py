"""Parallel corpora: from a folder or the Hugging Face hub to pairs of sentences, and from those to token ids."""

import csv
import gzip
import hashlib
import json
import logging
import os
import re
import reprlib
import sys
import zlib
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice, zip_longest
from pathlib import Path
from textwrap import shorten

import datasets
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import sentencepiece
from datasets import Dataset, DatasetDict, IterableDataset, ReadInstruction
from jsonargparse import ArgumentParser

from minitrans.data.filters import (
    Hashes,
    copies,
    empty_sides,
    hash_pairs,
    leave_out,
    repeated_sources,
    report,
    wrong_lengths,
)
from minitrans.errors import UserError
from minitrans.files import open_aside
from minitrans.settings import Count, Ratio, read_settings
from minitrans.text.lines import clean, iter_lines
from minitrans.text.tokenizer import Tokenizer, TokenizerConfig

logger = logging.getLogger("minitrans")

_VALID_NAMES = ("valid", "val", "validation", "dev")  # the first of these that is there becomes `valid`

_SCHEMA = pa.schema({"source": pa.string(), "target": pa.string()})
_READER = 1  # raise it when the same files are read differently: what was kept on disk is then read again
_CHUNK = 1_000  # pairs in memory at once while they are read
_TOKENIZER_PAIRS = 100_000  # the tokenizer sees no more: a million take far longer, and spell no text shorter
_PAIRS_PER_PROCESS = 50_000  # with fewer to tokenize, starting another process takes longer than it saves

if not sys.stderr.isatty():
    datasets.disable_progress_bars()


@dataclass(frozen=True)
class DataConfig:
    """Which parallel text to train on, and how much of it at once.

    Args:
        path: Folder with train.SOURCE and train.TARGET, or train.tsv, .csv, .jsonl or .parquet, all but the last also
            with .gz at the end; or a hub name.
        source: Language to translate from, as the files or columns are named, such as en.
        target: Language to translate into.
        batch_tokens: Most tokens of either side in a batch, padding counted.
        cache_dir: Folder for downloaded, read and tokenized data; null is where Hugging Face keeps data sets.
        name: Configuration of a hub data set that has several, such as en-zh.
        source_column: Column, or ending of the files, of the source, if not named after the language.
        target_column: Column, or ending of the files, of the target, if not named after the language.
        splits: Which split, or which part of one, is train, valid and each test set, such as
            {train: "train[:-1000]", valid: "train[-1000:]"}; null uses all splits under their own names.
        min_length: Fewest tokens of either side of a training pair, EOS counted.
        max_length: Most tokens of either side of a training pair, EOS counted; null: as many as the model takes.
        max_length_ratio: Most tokens of a training pair's longer side per token of the shorter; null: any number.
        deduplicate: Leave out training pairs that are copies or whose source is in another split; else only count them.
        streaming: Read the training pairs one after another while training, and keep none: for corpora that do not fit.
        shuffle_buffer: Pairs that are held in memory, sorted by length and shuffled together when streaming.
    """

    path: str
    source: str
    target: str
    batch_tokens: Count = 4096
    cache_dir: str | None = None
    name: str | None = None
    source_column: str | None = None
    target_column: str | None = None
    splits: dict[str, str] | None = None
    min_length: Count = 1
    max_length: Count | None = None
    max_length_ratio: Ratio | None = None
    deduplicate: bool = False
    streaming: bool = False
    shuffle_buffer: Count = 100_000

    def __post_init__(self) -> None:
        """Check the values."""
        for flag, value in (("path", self.path), ("source", self.source), ("target", self.target)):
            if not value:
                raise UserError(f"data.{flag} is empty; give one")
            if flag != "path" and not value.isprintable():
                raise UserError(f"data.{flag} is {value!r}; a language's name has no such characters")
        if self.source == self.target:
            raise UserError(f"data.source and data.target are both {self.source}; they must differ")
        if self.columns[0] == self.columns[1]:
            raise UserError(f"the columns of source and target are both {self.columns[0]}; they must differ")
        for split, part in (self.splits or {}).items():
            if self.streaming and re.search(r"[\[+]", part):
                raise UserError(f"data.splits.{split} is {part}; with data.streaming it must be a whole split")

    @property
    def columns(self) -> tuple[str, str]:
        """Names of the two columns, or endings of the files."""
        return self.source_column or self.source, self.target_column or self.target

    @property
    def lengths(self) -> tuple[int, int | None, float | None]:
        """Limits of a training pair's lengths, as `wrong_lengths` takes them."""
        return self.min_length, self.max_length, self.max_length_ratio

    @property
    def train_split(self) -> str:
        """Name that the corpus gives to the training split."""
        return (self.splits or {}).get("train", "train")


def load_corpus(config: DataConfig) -> DatasetDict:
    """Load all splits of a parallel corpus, once: they are kept on disk for the same text, and mapped into memory.

    Training pairs with an empty side are left out and counted in the log; other splits keep them. So are those whose
    source stands in another split, and copies, if `deduplicate` says so; else they are only counted.

    With `streaming`, `train` holds only the first pairs, as many as a tokenizer is trained on; `stream_train` has all.

    Returns:
        Columns `source` and `target`, text as it was found. Splits `train`, `valid` (from `valid`, `val`,
        `validation` or `dev`), then the others under their own names; or those that `splits` names.

    Raises:
        UserError: The corpus is not there, lacks a split or a language, its text is faulty, or `cache_dir` cannot be
            written.
    """
    splits = _read_splits(config)
    valid = next((name for name in _VALID_NAMES if name in splits), "valid")
    for split in ("train", valid):
        if split not in splits:
            raise UserError(
                f"{config.path} has no {split} split, only: {', '.join(splits) or 'nothing'}; add "
                f"{split}.{config.columns[0]} and {split}.{config.columns[1]}, or {split}.tsv, or set data.splits"
            )
    train = splits.pop("train")
    others = {"valid": splits.pop(valid), **splits}
    return DatasetDict({"train": _without_faulty_pairs(train, others, config), **others})


def find_pairs(config: DataConfig, wanted: Container[tuple[str, str]]) -> list[int]:
    """Find training pairs by their clean text, in all of the training data: for messages only, as it is slow.

    Returns:
        Their numbers from 1 in the order of the data, which in files of lines are those of the lines.
    """
    if config.streaming:
        tables = stream_tables(stream_train(config), _CHUNK, config.path, config)
    else:
        tables = map(pa.Table.from_batches, ([batch] for batch in _read_splits(config)["train"].data.to_batches()))
    rows = chain.from_iterable(table.to_pylist() for table in tables)
    return [n for n, row in enumerate(rows, 1) if (clean(row["source"]), clean(row["target"])) in wanted]


def stream_train(config: DataConfig) -> IterableDataset:
    """Open the training pairs to be read one after another, none of them kept.

    Returns:
        Rows for `stream_tables`.

    Raises:
        UserError: The corpus is not there, or has no training split.
    """
    split = config.train_split
    if _is_local(config.path):
        files = _find_files(Path(config.path), config)
        streams = {
            name: IterableDataset.from_generator(_stream_files, gen_kwargs={"paths": tuple(paths), "config": config})
            for name, paths in files.items()
            if name == split
        }
    else:
        streams = _ask_hub(config)
    if split not in streams:
        raise UserError(f"{config.path} has no {split} split to stream; add it, or name another in data.splits.train")
    return streams[split]


def stream_tables(stream: IterableDataset, n_pairs: int, where: str, config: DataConfig) -> Iterator[pa.Table]:
    """Read a stream, `n_pairs` at a time, as tables with the columns `source` and `target`.

    Args:
        stream: What `stream_train` returns; between two tables, its state is that of the next one.
        n_pairs: Rows of each table but the last, which may have fewer.
        where: What to call the stream in a message.
        config: Names the columns.

    Raises:
        UserError: The stream breaks off, or a language is not among its columns or is not text.
    """
    try:
        for rows in stream.iter(n_pairs):
            yield from _select_columns(pa.table(rows).combine_chunks().to_batches(), where, config)
    except UserError:
        raise
    except Exception as error:  # whatever the network, the hub or the data set's files come up with
        raise UserError(
            f"{where}: cannot read further ({clean(str(error))}); use --resume to continue a run that has begun"
        ) from error


def run_corpus(run: Path, path: str | None = None) -> DatasetDict:
    """Load the corpus that a run was trained on, or another one of the same languages.

    Args:
        run: The run folder; the section `data` of its config.yaml says which corpus, by a path from the working folder,
            or from the run folder or one above it. Where to keep what is read it does not say: it may be a stranger's.
        path: Used instead of `data.path`.

    Raises:
        UserError: The run has no usable config.yaml, or `load_corpus` fails.
    """
    settings = read_settings(run / "config.yaml")
    try:
        settings["data"].pop("workers", None)  # a run from before has it
        parser = ArgumentParser(exit_on_error=False)
        parser.add_class_arguments(DataConfig)
        data = parser.parse_object(settings["data"] | {"cache_dir": None})  # what is read is written to the user's own
        config = DataConfig(**data.as_dict())
    except Exception as error:  # whatever the settings make of a damaged file
        raise UserError(f"{run / 'config.yaml'}: no usable data section ({clean(str(error))})") from error
    if path is not None:
        return load_corpus(replace(config, path=path))
    places = [Path(), run, *run.resolve().parents]  # it may have been moved, and the command be given anywhere
    found = next((place / config.path for place in places if (place / config.path).is_dir()), config.path)
    try:
        return load_corpus(replace(config, path=str(found)))
    except UserError as error:
        raise UserError(f"{error}; if the run's corpus has moved, give its place with --data") from error


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
    if "train" in tokenized:
        tokenized["train"] = drop_long_pairs(tokenized["train"], "training", max_len)
    return tokenized


def drop_long_pairs(pairs: Dataset, purpose: str, max_len: int, config: DataConfig | None = None) -> Dataset:
    """Leave out the pairs that a model of `max_len` positions cannot take, and count them in the log.

    Args:
        pairs: A split with `src_ids` and `tgt_ids`.
        purpose: What the pairs are for, for the message.
        max_len: Most tokens of either side, EOS (or BOS) counted.
        config: Its limits of length hold as well.

    Raises:
        UserError: No pair is left.
    """
    src, tgt = (pc.list_value_length(_column(pairs, side)).to_numpy() + 1 for side in ("src_ids", "tgt_ids"))
    faults = wrong_lengths(src, tgt, max_len, *config.lengths) if config else wrong_lengths(src, tgt, max_len)
    kept = leave_out(faults, purpose)
    if not kept.any():
        raise UserError(f"none of {len(pairs)} {purpose} pairs is left: {' or '.join(faults)}; set other limits")
    return pairs if kept.all() else pairs.select(np.flatnonzero(kept))


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


def _read_stream(stream: IterableDataset, where: str, config: DataConfig) -> Dataset:
    """Read a stream to its end, into memory."""
    content = pa.BufferOutputStream()
    with pa.ipc.new_stream(content, _SCHEMA) as writer:
        for table in stream_tables(stream, _CHUNK, where, config):
            writer.write_table(table)
    buffer = content.getvalue()
    digest = hashlib.sha256(buffer).hexdigest()[:32]
    return Dataset(datasets.table.InMemoryTable.from_buffer(buffer), fingerprint=digest)


def _read_splits(config: DataConfig) -> dict[str, Dataset]:
    """Read all splits under the names that they are to have; `valid` keeps the one that it has."""
    splits = _read_folder(Path(config.path), config) if _is_local(config.path) else _read_hub(config)
    if config.splits is None:
        return splits
    return {split: _part(splits, split, part) for split, part in config.splits.items()}


def _part(splits: dict[str, Dataset], split: str, part: str) -> Dataset:
    """Take a part of the splits, written as `load_dataset` has it: train, train[:90%], train+extra[-1000:]."""
    if part in splits:
        return splits[part]
    try:
        instructions = ReadInstruction.from_spec(part).to_absolute({name: len(rows) for name, rows in splits.items()})
    except ValueError as error:
        raise UserError(f"data.splits.{split} is {part}: {clean(str(error))}") from error
    return datasets.concatenate_datasets(
        [splits[i.splitname].select(range(len(splits[i.splitname]))[i.from_ : i.to]) for i in instructions]
    )


def _hashes(pairs: Dataset, config: DataConfig) -> Hashes:
    """Hash a split, once: the result is kept on disk, because a million pairs take seconds."""
    if config.streaming:
        return hash_pairs(pairs.data)
    path = _cache_folder(config.cache_dir) / f"{_key(_READER, 'blake2b', pairs._fingerprint)}.npy"
    if not path.is_file():
        with open_aside(path) as file:
            np.save(file, np.stack(hash_pairs(pairs.data)))
    return Hashes(*np.load(path))


def _without_faulty_pairs(train: Dataset, others: dict[str, Dataset], config: DataConfig) -> Dataset:
    hashes = {split: _hashes(pairs, config) for split, pairs in others.items()}
    tests = {split: other for split, other in hashes.items() if split != "valid"}
    report(repeated_sources(hashes["valid"], tests), "validation")
    own, empty = _hashes(train, config), empty_sides(train.data)
    faults = {"one side is empty": empty}
    repeated = repeated_sources(own, hashes) | {"the same as an earlier pair": copies(own)}
    purpose = "first training" if config.streaming else "training"
    if config.deduplicate:
        faults |= repeated
    else:
        report({fault: found & ~empty for fault, found in repeated.items()}, purpose)
    kept = leave_out(faults, purpose)
    if not kept.any():
        raise UserError(
            f"{config.path}: every training pair is left out: {' or '.join(faults)}; check data.source and data.target"
        )
    return train if kept.all() else train.select(np.flatnonzero(kept))


def _is_local(path: str) -> bool:
    """Tell a folder, existing or not, from a hub name: owner/name where `owner` is not a folder here."""
    return os.path.isdir(Path(path).parent) or not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", path)


def _ask_hub(config: DataConfig) -> dict[str, Dataset] | dict[str, IterableDataset]:
    source, target = config.columns
    try:
        return datasets.load_dataset(config.path, config.name, cache_dir=config.cache_dir, streaming=config.streaming)
    except Exception as error:  # whatever the network, the hub or the data set's files come up with
        raise UserError(
            f"data.path {config.path} is not a folder here, and could not be loaded from the hub "
            f"({clean(str(error))}); to use your own text, give a folder with train.{source} and "
            f"train.{target}, or train.tsv"
        ) from error


def _read_hub(config: DataConfig) -> dict[str, Dataset]:
    found = {}
    for split, pairs in _ask_hub(config).items():
        where = f"{config.path}, {split}"
        if not config.streaming:
            key = _key(_READER, config.columns, pairs._fingerprint)
            found[split] = _keep(key, _select_columns(pairs.data.to_batches(_CHUNK), where, config), config.cache_dir)
        elif split == config.train_split:
            found[split] = _read_stream(pairs.take(_TOKENIZER_PAIRS), where, config)
        elif config.splits is None or split in config.splits.values():
            found[split] = _read_stream(pairs, where, config)
    return found


def _read_folder(folder: Path, config: DataConfig) -> dict[str, Dataset]:
    splits = {}
    for split, paths in _find_files(folder, config).items():
        if config.streaming and split == config.train_split:
            splits[split] = _read_stream(stream_train(config).take(_TOKENIZER_PAIRS), str(paths[0]), config)
        else:
            key = _key(_READER, config.columns, *((_format(path), _digest(path)) for path in paths))
            splits[split] = _keep(key, _read_files(paths, config), config.cache_dir)
        if not len(splits[split]):
            raise UserError(f"{folder} holds no sentences for {split}; fill or remove its files")
    return splits


def _find_files(folder: Path, config: DataConfig) -> dict[str, list[Path]]:
    """Find the files of each split: source and target, or one for both."""
    sides = [f".{column}" for column in config.columns]
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise UserError(
            f"cannot read data.path {folder}: {error.strerror}; give a folder with train{sides[0]} and "
            f"train{sides[1]}, or train.tsv, or a hub name such as owner/name"
        ) from error
    found: dict[tuple[str, str], Path] = {}
    for path in paths:
        plain = Path(path.name.removesuffix(".gz"))
        if plain.suffix not in (*sides, ".tsv", ".csv", ".jsonl", ".parquet"):
            continue
        if (other := found.setdefault((plain.stem, plain.suffix), path)) is not path:
            raise UserError(f"{path}: there is also {other.name}; keep one of them")
    files: dict[str, list[Path]] = {}
    for split in sorted({split for split, suffix in found if suffix in sides}):
        for side, other_side in (sides, sides[::-1]):
            if (split, side) not in found:
                raise UserError(
                    f"{folder / f'{split}{side}'} is missing, the other side of {found[split, other_side]}; "
                    "add it, one sentence a line"
                )
        files[split] = [found[split, side] for side in sides]
    for (split, suffix), path in found.items():
        if suffix not in sides:
            if split in files:
                raise UserError(f"{path}: {split} exists in another format too; keep one of them")
            files[split] = [path]
    return files


def _format(path: Path) -> str:
    """Return the ending of a file's name that is not .gz."""
    return Path(path.name.removesuffix(".gz")).suffix


def _digest(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _read_files(paths: list[Path], config: DataConfig) -> Iterator[pa.Table]:
    """Read one file with a column for each language, or two files of lines, a chunk at a time."""
    path = paths[0]
    if _format(path) == ".parquet":
        return _select_columns(_parquet_batches(path), str(path), config)
    if len(paths) == 2:
        return _tables(_line_pairs(*paths), path)
    read = _json_pairs if _format(path) == ".jsonl" else _delimited_pairs
    return _tables(read(path, config), path)


def _stream_files(paths: tuple[Path, ...], config: DataConfig) -> Iterator[dict[str, str]]:
    for table in _read_files(list(paths), config):
        yield from table.rename_columns(config.columns).to_pylist()


def _tables(pairs: Iterator[tuple[str, str]], path: Path) -> Iterator[pa.Table]:
    while chunk := list(islice(pairs, _CHUNK)):
        try:
            table = pa.table(list(zip(*chunk, strict=True)), schema=_SCHEMA)
        except UnicodeEncodeError as error:  # from JSON such as "\ud800"
            text = reprlib.repr(error.object)
            raise UserError(f"{path}: {text} holds half a surrogate pair, which is not a character") from error
        yield table


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file, unpacked if its name ends in .gz."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as stream:
            yield from iter_lines(stream, str(path))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip file ({error}); copy it again, or unpack it") from error


def _line_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    n_sources = n_targets = 0
    for source_line, target_line in zip_longest(_lines(source), _lines(target)):
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
    rows = _split_csv(path) if _format(path) == ".csv" else _split_tsv(path)
    _, header = next(rows, (0, []))
    source, target = (_place(header, column, str(path)) for column in config.columns)
    for number, fields in rows:
        if len(fields) != len(header):
            raise UserError(f"{path}, line {number}: {len(fields)} fields, but the header has {len(header)}")
        yield fields[source], fields[target]


def _split_tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(_lines(path), start=1):
        yield number, line.split("\t")  # no quoting: a quotation mark is text


def _split_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    rows = csv.reader((line + "\n" for line in _lines(path)), strict=True)
    try:
        for fields in rows:
            yield rows.line_num, fields
    except csv.Error as error:
        raise UserError(f"{path}, line {rows.line_num}: {error}; check the quotation marks") from error


def _json_pairs(path: Path, config: DataConfig) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(_lines(path), start=1):
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # the latter from brackets in thousands
            raise UserError(f"{where}: not JSON ({error})") from error
        row = row["translation"] if isinstance(row, dict) and "translation" in row else row
        names = list(row) if isinstance(row, dict) else []
        source, target = (row[names[_place(names, column, where)]] for column in config.columns)
        if not isinstance(source, str) or not isinstance(target, str):
            raise UserError(f"{where}: {' and '.join(config.columns)} must both be strings")
        yield source, target


def _parquet_batches(path: Path) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_CHUNK):
                batch.validate(full=True)  # UTF-8 included
                yield batch
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:  # the last from the name of a column
        raise UserError(f"{path}: not a readable Parquet file ({clean(str(error))})") from error


def _select_columns(batches: Iterable[pa.RecordBatch], where: str, config: DataConfig) -> Iterator[pa.Table]:
    """Take the two languages out of tables, whose columns they are, or the fields of their column `translation`."""
    for batch in batches:
        table = pa.Table.from_batches([batch]).flatten()
        names = [name.removeprefix("translation.") for name in table.column_names]
        sides = []
        for name in config.columns:
            column = table.column(_place(names, name, where))
            if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
                raise UserError(f"{where}: column {name} holds {column.type}, not text")
            sides.append(column.fill_null("").cast(pa.string()))
        yield pa.table(sides, schema=_SCHEMA)


def _place(names: list[str], column: str, where: str) -> int:
    """Return the place of a column among all."""
    if column not in names:
        raise UserError(
            f"{where}: no column {column}, only: {shorten(clean(', '.join(names)), 200) or 'nothing'}; "
            "set data.source and data.target, or data.source_column and data.target_column"
        )
    return names.index(column)
