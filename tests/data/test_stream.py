"""Training from a stream: a pass has every pair once, nothing is kept, and resuming gives the same batches."""

import itertools
import json
import logging
import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path

import corpora
import datasets
import pytest
from corpora import Pairs, batch_source_ids, decode_pairs, long_pairs, printed_int, write_pairs
from datasets import Dataset
from fake_processes import run_as_processes
from hypothesis import given
from hypothesis import strategies as st
from memory_helpers import needs_proc_status
from upath import UPath

from minitrans.data import corpus as corpus_module
from minitrans.data import readers
from minitrans.data.batching import Batch
from minitrans.data.corpus import load_corpus, train_tokenizer
from minitrans.data.datamodule import TranslationDataModule
from minitrans.data.settings import DataConfig
from minitrans.data.stream import StreamLoader, add_word_counts
from minitrans.errors import UserError
from minitrans.text.reading import split_lowercase_words
from minitrans.text.tokenizer import Tokenizer, TokenizerConfig

TRAIN = [(" ".join(words), " ".join(reversed(words))) for n in (2, 3) for words in itertools.product("abcd", repeat=n)]
VALID = [("a b c d", "d c b a"), ("b", "b")]
BUFFER_PAIRS = 30  # TRAIN has 80 pairs: two full buffers and a part of one


@pytest.fixture(autouse=True)
def cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf_cache")
    return tmp_path / "hf_cache" / "minitrans"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["a b c d"], TokenizerConfig(vocab_size=266))


def write(folder: Path, train: Pairs = TRAIN) -> Path:
    return write_pairs(folder, "lines", {"train": train, "valid": VALID})


def data_config(path: object, **values: object) -> DataConfig:
    return corpora.data_config(path, **{"batch_tokens": 40, "streaming": True, "shuffle_buffer": BUFFER_PAIRS} | values)


def loader(config: DataConfig, tokenizer: Tokenizer) -> StreamLoader:
    others = {split: pairs for split, pairs in load_corpus(config).items() if split != "train"}
    return StreamLoader(config, tokenizer, max_len=20, seed=5, others=others)


def read_until(stream: StreamLoader, n_pairs: int) -> list[Batch]:
    batches, n = [], 0
    for batch in stream:
        batches.append(batch)
        n += len(batch.src_ids)
        if n >= n_pairs:
            break
    return batches


@pytest.fixture(
    params=[f"{place} {kind}" for place in ("parts", "memory") for kind in ("lines gz", "jsonl", "translation parquet")]
    + ["one lines", "one translation parquet", "hub jsonl", "hub translation parquet"]
)
def stream_config(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataConfig:
    """The same pairs from every kind of source; the training split is in three files, or in one of another name."""
    place, kind = request.param.split(maxsplit=1)
    folder = UPath(f"memory:/{tmp_path}/corpus" if place == "memory" else tmp_path / "owner" / "name")
    splits = {"big": TRAIN, "validation": VALID}
    if place != "one":
        parts = [TRAIN[:7], TRAIN[7:50], TRAIN[50:]]
        splits = {f"train-{i:05}-of-00003": part for i, part in enumerate(parts)} | {"validation-00000-of-00001": VALID}
    write_pairs(folder, kind, splits)  # type: ignore[arg-type]
    if place != "hub":
        return data_config(folder, splits={"train": "big", "valid": "validation"} if place == "one" else None)
    corpora.stand_in_for_the_hub(monkeypatch, tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return data_config("owner/name")


def test_a_corpus_is_read_through_a_web_server(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = write_pairs(tmp_path / "corpus", "jsonl", {"train-1": TRAIN[:30], "train-2": TRAIN[30:]})
    write_pairs(folder, "parquet", {"dev": VALID})
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/corpus"
        read, same = (read_until(loader(data_config(path), tokenizer), len(TRAIN)) for path in (address, folder))
        assert batch_source_ids(read) == batch_source_ids(same)
        assert load_corpus(data_config(address))["valid"][:] == load_corpus(data_config(folder))["valid"][:]
        message = r"cannot read data\.path http://127.*/gone: .*; give a folder with train\.en"
        with pytest.raises(UserError, match=message):
            load_corpus(data_config(f"{address}/gone"))
        server.shutdown()


def test_a_pass_holds_every_pair_once(stream_config: DataConfig, tokenizer: Tokenizer) -> None:
    stream = loader(stream_config, tokenizer)
    passes = [read_until(stream, len(TRAIN)) for _ in range(2)]
    for batches in passes:
        pairs = decode_pairs(batches, tokenizer)
        assert sorted(pairs) == sorted(TRAIN)
        assert sorted(pairs[:BUFFER_PAIRS]) == sorted(TRAIN[:BUFFER_PAIRS])  # one buffer after another
        assert pairs[:BUFFER_PAIRS] != TRAIN[:BUFFER_PAIRS]
        assert all(tensor.numel() <= 40 for batch in batches for tensor in batch)
    assert batch_source_ids(passes[0]) != batch_source_ids(passes[1])


def test_a_stream_can_be_resumed_anywhere(
    stream_config: DataConfig, tokenizer: Tokenizer, request: pytest.FixtureRequest
) -> None:
    whole = loader(stream_config, tokenizer)
    unbroken = batch_source_ids(islice(whole, 40))
    n_pass = len(read_until(loader(stream_config, tokenizer), len(TRAIN)))
    assert 3 < n_pass < 20
    stops = {0, n_pass // 2, n_pass - 2, n_pass, n_pass + 1, 2 * n_pass}
    for stop in range(2 * n_pass + 2) if "one lines" in request.node.name else stops:
        stopped = loader(stream_config, tokenizer)
        assert batch_source_ids(islice(stopped, stop)) == unbroken[:stop]
        state = json.loads(json.dumps(stopped.state_dict()))  # plain enough for any checkpoint
        resumed = loader(stream_config, tokenizer)
        resumed.load_state_dict(state)
        assert batch_source_ids(islice(resumed, 3)) == unbroken[stop : stop + 3]
        twice = loader(stream_config, tokenizer)
        twice.load_state_dict(json.loads(json.dumps(resumed.state_dict())))
        assert batch_source_ids(islice(twice, 37 - stop)) == unbroken[stop + 3 :], f"after {stop} batches, and 3"
        assert twice.words == whole.words
        again = batch_source_ids(islice(stopped, 3))  # the same loader, asked again
        assert again == unbroken[stop : stop + 3]


@pytest.mark.parametrize("n", [2, 3])
def test_several_processes_take_the_batches_of_one_in_turn(n: int, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Even of buffers that they cannot share equally; only the last batches of a buffer may have no rows."""
    settings = data_config(write(tmp_path / "corpus", TRAIN[:43]))
    parts = [loader(settings, tokenizer) for _ in range(n)]
    dealt = run_as_processes(n, lambda: batch_source_ids(islice(parts.pop(), 10)))
    in_turn = [batch for step in zip(*dealt, strict=True) for batch in step if batch != [[tokenizer.pad_id]]]
    assert len(in_turn) < 10 * n
    assert in_turn == batch_source_ids(islice(loader(settings, tokenizer), len(in_turn)))


def test_the_words_of_the_pairs_read_are_kept(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Not those of pairs that are left out or of later buffers; a resumed stream continues with the same words."""
    first = [("One", "x"), ("", "blank"), ("long " * 30, "x"), *TRAIN][:BUFFER_PAIRS]
    settings = data_config(write(tmp_path / "corpus", [*first, ("two", "x"), *TRAIN]))
    data = TranslationDataModule(settings, tokenizer, max_len=20, seed=5)
    assert data.source_words() == []
    stream = data.train_dataloader()
    next(iter(stream))
    assert {*(data.source_words() or ())} == {"one", *"abcd"}
    n_first = len(first) - 2
    read_until(stream, n_first + 1)  # type: ignore[arg-type]
    assert {*(data.source_words() or ())} == {"one", "two", *"abcd"}

    resumed = loader(settings, tokenizer)
    resumed.load_state_dict(json.loads(json.dumps(data.state_dict())))
    assert {*(resumed.words or ())} == {*(data.source_words() or ())}
    resumed.load_state_dict(data.state_dict() | {"words": None})  # they were too many
    next(iter(resumed))
    assert resumed.words is None
    assert resumed.state_dict()["words"] is None


def test_training_pairs_are_not_kept_on_disk(
    tmp_path: Path, tokenizer: Tokenizer, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_module, "_TOKENIZER_PAIRS", 20)
    settings = data_config(write(tmp_path / "corpus"))
    corpus = load_corpus(settings)
    assert list(zip(corpus["train"]["source"], corpus["train"]["target"], strict=True)) == TRAIN[:20]
    train_tokenizer(corpus["train"], TokenizerConfig(266))
    data = TranslationDataModule(settings, tokenizer, 20, 5, corpus)
    assert len(read_until(data.train_dataloader(), len(TRAIN))) > 3  # type: ignore[arg-type]
    kept = [Dataset.from_file(str(path)) for path in cache_folder.glob("*.arrow")]
    assert sorted(map(len, kept)) == [len(VALID), len(VALID)]  # text and ids
    again = load_corpus(settings)["train"]
    assert again._fingerprint == corpus["train"]._fingerprint  # else the tokenizer would be trained anew


def test_filters_apply_to_streams(tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    bad = [("", "a"), ("a", "a b c d a b c d"), ("b ", "c"), ("a " * 30, "b"), ("c", "d"), ("c", "d")]
    good = [*TRAIN, ("c", "d")]
    settings = data_config(write(tmp_path / "corpus", bad + TRAIN), deduplicate=True, max_length_ratio=3, min_length=2)
    stream = loader(settings, tokenizer)
    got = decode_pairs(read_until(stream, len(good)), tokenizer)
    assert sorted(got) == sorted(good)
    assert caplog.messages == [
        "left out 1 of 86 first training pairs: one side is empty",
        "left out 1 of 86 first training pairs: their source is also in valid (0 with the same target)",
        "left out 1 of 86 first training pairs: the same as an earlier pair",
        "left out 1 of 27 first training pairs: longer than max_len, 20 tokens",
        "left out 1 of 27 first training pairs: lengths further apart than data.max_length_ratio, 3",
    ]
    caplog.clear()
    plain = loader(replace(settings, deduplicate=False, max_length_ratio=None), tokenizer)
    got = decode_pairs(read_until(plain, len(good) + 3), tokenizer)
    assert sorted(got) == sorted([*good, bad[1], ("b", "c"), ("c", "d")])


def test_a_stream_without_usable_pairs_ends_in_one_line(tmp_path: Path, tokenizer: Tokenizer) -> None:
    settings = data_config(write(tmp_path / "corpus"), min_length=15)
    with pytest.raises(UserError, match=r"corpus: no training pair is left; set other limits in data"):
        next(iter(loader(settings, tokenizer)))
    first = loader(data_config(write(tmp_path / "first", TRAIN[:3] + [("a", "")] * 2 * BUFFER_PAIRS)), tokenizer)
    assert sorted(decode_pairs(read_until(first, 6), tokenizer)) == sorted(TRAIN[:3] * 2)  # the last buffer has none


def test_a_later_bad_line_is_reported(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "_TOKENIZER_PAIRS", 20)
    monkeypatch.setattr(corpus_module, "CHUNK", 20)
    folder = write(tmp_path / "corpus")
    with open(folder / "train.en", "ab") as file:
        file.write(b"\xff\n")
    with pytest.raises(UserError, match=r"train\.en, line 81: byte 1 is not valid UTF-8"):
        read_until(loader(data_config(folder), tokenizer), 1000)


def test_a_lost_connection_is_reported(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = loader(data_config(write(tmp_path / "corpus")), tokenizer)

    def broken(*_: object) -> None:
        raise ConnectionError("the line\nis dead")

    monkeypatch.setattr(readers, "_line_pairs", broken)
    with pytest.raises(UserError, match=r"train\.en: cannot read further \(the line is dead\); use --resume"):
        next(iter(stream))


MEMORY_PROGRAM = """
import sys
from itertools import pairwise
from corpora import data_config
from memory_helpers import peak_private_kb_during
from minitrans.data.stream import StreamLoader, add_word_counts
from minitrans.text.reading import split_lowercase_words
from minitrans.text.tokenizer import Tokenizer, TokenizerConfig

def read(n_pairs: int) -> None:
    while n_pairs > 0:
        n_pairs -= len(next(batches).src_ids)

settings = data_config(sys.argv[1], cache_dir=sys.argv[2], streaming=True, shuffle_buffer=500)
tokenizer = Tokenizer.train(["0 1 2 3 4 5 6 7 8 9 words"], TokenizerConfig(280))
batches = iter(StreamLoader(settings, tokenizer, 10_000, 0, {}))
peaks = [peak_private_kb_during(read, 5_500) for _ in range(4)]
print(min(later - peak for peak, later in pairwise(peaks)))  # what is kept adds to all of them, a busy machine to one
"""


@needs_proc_status
def test_memory_does_not_grow_with_what_has_been_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "corpus", long_pairs(23_100, 29))
    text = sum(path.stat().st_size for path in folder.iterdir()) / 1024
    assert printed_int(MEMORY_PROGRAM, folder, tmp_path / "cache") < text / 12


@given(st.lists(st.text()))
def test_word_counts_add_up_over_lines(lines: list[str]) -> None:
    assert add_word_counts(Counter(), lines) == Counter(word for line in lines for word in split_lowercase_words(line))


def test_words_are_counted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("minitrans.data.stream.MAX_WORDS", 4)
    with caplog.at_level(logging.WARNING, "minitrans"):
        counts = add_word_counts(add_word_counts(Counter(), ["a B c", "b b"]), ["D a"])
        assert counts == {"a": 2, "b": 3, "c": 1, "d": 1}
        assert not caplog.messages
        assert add_word_counts(counts, ["e"]) is None
        assert add_word_counts(None, ["e"]) is None
    assert caplog.messages == ["more than 4 different words are in the training data: the run keeps none of them"]
