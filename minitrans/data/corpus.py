"""Parallel corpora: from a folder or the Hugging Face hub to pairs of sentences, and from those to token ids."""

import hashlib
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import chain
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import sentencepiece
from datasets import Dataset, DatasetDict
from jsonargparse import ArgumentParser

from minitrans.data import filters
from minitrans.data.batching import ID_ROWS, IdRows, id_rows, row_lengths
from minitrans.data.readers import CHUNK, PAIR_SCHEMA, OpenSplit, iter_pair_tables, open_splits, open_train
from minitrans.data.setting_types import read_safe_yaml
from minitrans.data.settings import DataConfig
from minitrans.errors import UserError, interrupt_once
from minitrans.files import atomic_open, make_folder, write_file
from minitrans.text import reading
from minitrans.text.reading import Reader, clean, collect_symbols
from minitrans.text.tokenizer import Tokenizer, TokenizerConfig

logger = logging.getLogger("minitrans")

_PIECE = r"(?s)(.*?)(?:\[(-?[0-9]{1,12}%?)?:(-?[0-9]{1,12}%?)?\])?"  # a split, or a slice of one: train[:90%]
_VALIDATION_SPLIT_NAMES = ("valid", "val", "validation", "dev")  # the first of these that is there becomes `valid`

_READER_VERSION = 1  # raise it when the same files are read differently: what was kept on disk is then read again
_TOKENIZER_PAIRS = 100_000  # the tokenizer sees no more: a million take far longer, and do not make its output shorter
_ID_SCHEMA = pa.schema({"src_ids": ID_ROWS, "tgt_ids": ID_ROWS})
# A process forked by Linux begins with the same signals blocked as this one.
_START_METHOD = get_context("fork") if sys.platform == "linux" else get_context("spawn")
_PAIRS_PER_PROCESS = 50_000  # with fewer to tokenize, starting another process takes longer than it saves


def load_corpus(config: DataConfig) -> DatasetDict:
    """Load all splits of a parallel corpus, once: they are kept on disk for the same text, and mapped into memory.

    Training pairs with an empty side are left out and counted in the log; other splits keep them. With `deduplicate`,
    copies and pairs whose source is in another split are left out too; otherwise they are only counted.

    With `streaming`, `train` holds only the first pairs, as many as a tokenizer is trained on; `open_train` has all.

    Returns:
        Columns `source` and `target`, text as it was found. Splits `train`, `valid` (from `valid`, `val`,
        `validation` or `dev`), then the others under their own names; or those that `splits` names.

    Raises:
        UserError: The corpus is missing, lacks a split or a language, its text is faulty, or `cache_dir` cannot be
            written.
    """
    splits = _read_splits(config)
    valid = next((name for name in _VALIDATION_SPLIT_NAMES if name in splits), "valid")
    for split in ("train", valid):
        if split not in splits:
            raise UserError(
                f"{config.path} has no {split} split, only: {', '.join(splits) or 'nothing'}; add "
                f"{split}.{config.columns[0]} and {split}.{config.columns[1]}, or {split}.tsv, or set data.splits"
            )
    train = splits.pop("train")
    others = {"valid": splits.pop(valid), **splits}
    return DatasetDict({"train": _drop_faulty_pairs(train, others, config), **others})


def find_pair_numbers(config: DataConfig, reader: Reader, wanted: Container[tuple[str, str]]) -> list[int]:
    """Find training pairs by their text as it is read, in all of the training data: for messages only, as it is slow.

    Returns:
        Their numbers in the order of `train`, from 1: for whole files of lines, the line numbers.
    """
    if config.streaming:
        rows = chain.from_iterable(table.to_pylist() for table in iter_pair_tables(open_train(config), CHUNK, config))
    else:
        rows = iter(_read_splits(config)["train"])
    pairs = (reader.preprocess_pairs([row["source"]], [row["target"]]) for row in rows)
    return [n for n, (sources, targets) in enumerate(pairs, 1) if (*sources, *targets) in wanted]


def load_run_corpus(run: Path, path: str | None = None) -> DatasetDict:
    """Load the corpus that a run was trained on, or another one in the same languages.

    Args:
        run: The run folder; the section `data` of its config.yaml names the corpus, by a path from the working folder,
            the run folder or one above it. Its `cache_dir` is ignored, because the run may be a stranger's.
        path: Used instead of `data.path`.

    Raises:
        UserError: The run has no usable config.yaml, its corpus is at an address, or `load_corpus` fails.
    """
    settings = read_safe_yaml(run / "config.yaml")
    try:
        parser = ArgumentParser(exit_on_error=False)
        parser.add_class_arguments(DataConfig)
        data = parser.parse_object(settings["data"] | {"cache_dir": None})  # the cache is the user's own
        config = DataConfig(**data.as_dict())
    except Exception as error:  # a damaged file may cause any error
        raise UserError(f"{run / 'config.yaml'}: no usable data section ({clean(str(error))})") from error
    if path is not None:
        return load_corpus(replace(config, path=path))
    if re.match(r"[A-Za-z][\w+.-]*:/|data:|.*::", config.path):  # never ask an address that a stranger's run names
        raise UserError(f"{run}: its corpus is at {config.path}; to read it there, give --data {config.path}")
    places = [Path(), run, *run.resolve().parents]  # the run may have been moved, and the command may be given anywhere
    folder = next((place / config.path for place in places if os.path.isdir(place / config.path)), config.path)
    try:
        return load_corpus(replace(config, path=str(folder)))
    except UserError as error:
        raise UserError(f"{error}; if the run's corpus has moved, say where it is with --data") from error


def train_tokenizer(train: Dataset, config: TokenizerConfig, cache_dir: str | None = None) -> Tokenizer:
    """Train a tokenizer on the split `train`, once: it is kept on disk for the same text and the same settings.

    It is kept in `cache_dir`, see `DataConfig`. Of a large corpus it sees a random sample of pairs, always the same.

    Raises:
        UserError: The text does not fit the settings, or `cache_dir` cannot be written.
    """
    parts = train._fingerprint, config, config.spm_options, _TOKENIZER_PAIRS, sentencepiece.__version__, _reader_code()
    path = _cache_path(cache_dir, ".model", *parts)
    if path.is_file():
        tokenizer = Tokenizer.load(path)
    else:
        if len(train) > _TOKENIZER_PAIRS:
            rng = np.random.default_rng(0)
            train = train.select(np.sort(rng.choice(len(train), _TOKENIZER_PAIRS, replace=False)))
        pairs = train["source"][:], train["target"][:]
        reader = Reader(config.plain_sources, collect_symbols(chain(*pairs)) if config.placeholders else None)
        tokenizer = Tokenizer.train(chain(*reader.preprocess_pairs(*pairs)), config)
        write_file(path, tokenizer.proto)
    if tokenizer.vocab_size < config.vocab_size:
        words = "the text yields only %d of the %d pieces asked for: tokenizer.vocab_size is lowered to that"
        logger.warning(words, tokenizer.vocab_size, config.vocab_size)
    return tokenizer


def tokenize_corpus(corpus: DatasetDict, tokenizer: Tokenizer, cache_dir: str | None = None) -> DatasetDict:
    """Turn text into piece ids, once: they are kept in `cache_dir`, see `DataConfig`, for the same text and tokenizer.

    Returns:
        The same splits, with the columns `src_ids` and `tgt_ids`: lists of int32, without special ids.

    Raises:
        UserError: `cache_dir` cannot be written.
    """
    tokenized = DatasetDict()
    for split, pairs in corpus.items():
        n = max(1, min(_n_cores(), len(pairs) // _PAIRS_PER_PROCESS))
        key = pairs._fingerprint, tokenizer.digest, _reader_code(), n
        paths = [_cache_path(cache_dir, ".arrow", *key, k) for k in range(n)]
        parts = [
            (path, pairs.shard(n, k, contiguous=True), tokenizer, "" if k else split) for k, path in enumerate(paths)
        ]
        if len(missing := [part for part in parts if not part[0].is_file()]) > 1:
            _run_processes([_START_METHOD.Process(target=_tokenize_in_worker, args=part) for part in missing])
        tokenized[split] = datasets.concatenate_datasets([_tokenize_part(*part) for part in parts])
    return tokenized


def read_id_rows(pairs: Dataset, purpose: str, max_len: int, limits: DataConfig | None = None) -> tuple[IdRows, IdRows]:
    """Read the ids of the pairs that a model of `max_len` positions can take; the log counts the others.

    If `limits` are given, the length limits in these settings apply as well.

    Raises:
        UserError: No pair is left.
    """
    table = pairs.with_format("arrow")[:]
    src, tgt = (table[side].combine_chunks() for side in ("src_ids", "tgt_ids"))
    faults = filters.length_faults(row_lengths(src) + 1, row_lengths(tgt) + 1, max_len, limits)
    kept = filters.mark_kept(faults, purpose)
    if not kept.any():
        found = " or ".join(fault for fault, is_wrong in faults.items() if is_wrong.any())
        raise UserError(f"none of {len(pairs)} {purpose} pairs is left: {found}; set other limits")
    return (src, tgt) if kept.all() else (src.filter(kept), tgt.filter(kept))


def _tokenize_part(path: Path, pairs: Dataset, tokenizer: Tokenizer, split: str) -> Dataset:
    """The ids of pairs, kept in a file; the part that is given the split's name shows a progress bar."""

    def encode() -> Iterator[pa.Table]:
        starts = range(0, len(pairs), CHUNK)
        for start in datasets.utils.tqdm(starts, f"tokenizing {split}", leave=False, disable=not split or None):
            texts = pairs[start : start + CHUNK]
            sides = tokenizer.reader.preprocess_pairs(texts["source"], texts["target"])
            yield pa.table([id_rows(tokenizer.encode_batch(side)) for side in sides], _ID_SCHEMA)

    return _cache_tables(path, _ID_SCHEMA, encode())


def _tokenize_in_worker(*part: Any) -> None:
    """Tokenize a part, until SIGTERM; if that fails, the main process tries again, and reports the error."""
    with suppress(BaseException):
        signal.signal(signal.SIGTERM, interrupt_once)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        _tokenize_part(*part)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends now anyway


def _run_processes(workers: Sequence[BaseProcess]) -> None:
    """Start the workers and wait until all have ended; if that is interrupted, end them."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])  # in the workers from the start
    try:
        for worker in workers:
            worker.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for worker in workers:
            worker.join()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for worker in filter(BaseProcess.is_alive, workers):
            worker.terminate()
            worker.join()


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cache_path(cache_dir: str | None, suffix: str, *key_parts: object) -> Path:
    """A file in the cache, named after everything that decides what it holds."""
    folder = Path(cache_dir or datasets.config.HF_DATASETS_CACHE) / "minitrans"
    make_folder(folder, "set data.cache_dir, or HF_DATASETS_CACHE in the environment, to another folder")
    return folder / f"{hashlib.sha256(repr(key_parts).encode()).hexdigest()[:32]}{suffix}"


def _reader_code() -> bytes:
    """The code that reads lines, for the keys of the cache: after an edit, text is read again."""
    return Path(reading.__file__).read_bytes()


def _read_split(split: OpenSplit, config: DataConfig) -> Dataset:
    """Read a split: once if its content is known, and mapped into memory from the cache; else each time."""
    tables = iter_pair_tables(split, CHUNK, config)
    if not split.content_key:
        return Dataset(datasets.table.InMemoryTable(pa.concat_tables([PAIR_SCHEMA.empty_table(), *tables])))
    path = _cache_path(config.cache_dir, ".arrow", _READER_VERSION, config.columns, *split.content_key)
    return _cache_tables(path, PAIR_SCHEMA, tables)


def _cache_tables(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> Dataset:
    """Write tables into a file of the cache, unless it exists; return its data set, mapped into memory."""
    if not path.is_file():
        with atomic_open(path) as file, pa.ipc.new_stream(file, schema) as writer:
            for table in tables:
                writer.write_table(table)
    return Dataset(datasets.table.MemoryMappedTable.from_file(str(path)), fingerprint=path.stem)


def _read_splits(config: DataConfig) -> dict[str, Dataset]:
    """Read the splits under the names that they are to have, no others; the validation split keeps its name."""
    opened = open_splits(config)

    @cache
    def read(name: str) -> Dataset:
        split = opened[name]()
        if config.streaming and name == config.train_split:
            split = split._replace(row_stream=split.row_stream.take(_TOKENIZER_PAIRS))
        pairs = _read_split(split, config)
        if not len(pairs):
            raise UserError(f"{config.path} holds no sentences for {name}; fill or remove it, or set data.splits")
        return pairs

    parts = config.splits or {name: name for name in opened}
    return {
        split: read(part) if part in opened else _take_part(f"data.splits.{split} is {part}", part, opened, read)
        for split, part in parts.items()
    }


def _take_part(setting: str, part: str, names: Collection[str], read: Callable[[str], Dataset]) -> Dataset:
    """Take a part of the splits, written as `load_dataset` has it: train[:90%], train+extra[-1000:]."""
    pieces = []
    for piece in re.split(r"\s*\+\s*", part):
        name, *span = re.fullmatch(_PIECE, piece).groups()  # type: ignore[union-attr]  # any text has a name
        if name not in names:
            there_are = ", ".join(names)
            raise UserError(f"{setting}: there is no split {name}, only: {there_are}; or a slice, such as train[1:9]")
        n = len(read(name))
        bounds = (  # -1% of few pairs is none: counted from the end, that is n, not 0
            b if b is None else round(int(b.strip("%")) * (n if "%" in b else 100) / 100) or n * ("-" in b)
            for b in span
        )
        if not (numbers := range(n)[slice(*bounds)]):
            raise UserError(f"{setting}: {piece} holds no pairs; {name} has {n}")
        pieces.append(read(name).select(numbers))
    return datasets.concatenate_datasets(pieces)


def _drop_faulty_pairs(train: Dataset, others: dict[str, Dataset], config: DataConfig) -> Dataset:
    hashes = {split: filters.hash_pairs(pairs.data) for split, pairs in others.items()}
    tests = {split: other for split, other in hashes.items() if split != "valid"}
    full = ~filters.empty_sides(others["valid"].data)
    filters.log_kept_faults(filters.source_overlaps(hashes["valid"], tests, full), "validation")
    own, empty = filters.hash_pairs(train.data), filters.empty_sides(train.data)
    faults = {"one side is empty": empty}
    repeated = filters.source_overlaps(own, hashes, ~empty)
    repeated["the same as an earlier pair"] = filters.duplicate_pairs(own) & ~empty
    purpose = "first training" if config.streaming else "training"
    if config.deduplicate:
        faults |= repeated
    else:
        filters.log_kept_faults(repeated, purpose)
    kept = filters.mark_kept(faults, purpose)
    if not kept.any():
        raise UserError(
            f"{config.path}: every training pair is left out: {' or '.join(faults)}; check data.source and data.target"
        )
    return train if kept.all() else train.select(np.flatnonzero(kept))
