import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import datasets
import pyarrow as pa
import pytest
from command_helpers import parquet_bytes, write_files
from corpora import Pairs, data_config, long_pairs, printed_int, stand_in_for_the_hub, write_pairs
from datasets import Dataset, DatasetDict
from memory_helpers import needs_proc_status

from minitrans.data import corpus as corpus_module
from minitrans.data import readers
from minitrans.data.batching import ID_ROWS
from minitrans.data.corpus import load_corpus, read_id_rows, tokenize_corpus, train_tokenizer
from minitrans.data.settings import DataConfig
from minitrans.errors import UserError
from minitrans.text.tokenizer import Tokenizer, TokenizerConfig

PAIRS = [("one", "一"), ('two "big" ones', "两个“大”的"), ("three, \u2028 three", "三\u3000三")]
TSV = "en\tzh\none\t一\n"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fail if an address is looked up, as it is before any connection to another machine."""
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=AssertionError("the network was used")))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf_cache")


def pairs_of_split(corpus: DatasetDict, split: str) -> Pairs:
    return list(zip(corpus[split]["source"], corpus[split]["target"], strict=True))


FORMATS = ["lines", "tsv", "csv", "jsonl", "translation jsonl", "parquet", "translation parquet"]
FORMATS += ["lines gz", "tsv gz", "csv gz", "jsonl gz"]


# -- readers: from files to text -------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_the_same_text(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Read in chunks, only once, whatever its columns or endings are called; only pairs of `train` need two sides."""
    monkeypatch.setattr(corpus_module, "CHUNK", 2)
    pairs = [*PAIRS, ("", "空"), (" \u3000", "三"), ("four", "\x00"), *PAIRS]
    splits = {"train": pairs, "val": pairs[1:], "test": PAIRS[1:], "test_2016": PAIRS[2:]}
    folder = write_pairs(tmp_path / "corpus [1] *", suffix, splits, ("src", "tok.src"))
    columns = {"source_column": "src", "target_column": "tok.src"}
    first = load_corpus(data_config(folder, **columns))
    assert list(first) == ["train", "valid", "test", "test_2016"]
    assert first.column_names == {split: ["source", "target"] for split in first}
    assert [pairs_of_split(first, split) for split in first] == [PAIRS * 2, *list(splits.values())[1:]]
    assert [m for m in caplog.messages if "left out" in m] == ["left out 3 of 9 training pairs: one side is empty"]
    swapped = load_corpus(data_config(folder, source_column="tok.src", target_column="src"))
    assert pairs_of_split(swapped, "test") == [(zh, en) for en, zh in PAIRS[1:]]
    message = "no train split" if "lines" in suffix else r"no column en, only: .*or data\.source_column and data\.targ"
    with pytest.raises(UserError, match=message):
        load_corpus(data_config(folder))

    monkeypatch.delattr(readers, "_select_columns")
    again = load_corpus(data_config(folder.rename(tmp_path / "moved"), **columns))
    assert [again[split]._fingerprint for split in again] == [first[split]._fingerprint for split in first]
    assert pairs_of_split(again, "valid") == splits["val"]
    assert all(data["filename"] for split in again.values() for data in split.cache_files)  # mapped, not copied


@pytest.mark.parametrize(
    ("name", "content", "pairs"),
    [
        ("tsv", "\ufeffen\tzh\r\na\tb\r\nc\td", [("a", "b"), ("c", "d")]),
        ("tsv", 'en\tzh\n"a\tb"\n"c"\t""d""\n', [('"a', 'b"'), ('"c"', '""d""')]),
        ("tsv", "en\tzh\nNA\tnull\n007\t1.0\nTrue\t\n", [("NA", "null"), ("007", "1.0"), ("True", "")]),
        ("tsv", "en\tzh\na\rb\tc\x85\u2028\0d\n \t e \n", [("a\rb", "c\x85\u2028\0d"), (" ", " e ")]),
        ("csv", '\ufeffen, zh\r\n"a ""b""",c\r\n', [('a "b"', "c")]),
        ("csv", 'en,zh\n"a\nb",\r\nN\rA,"c\r,\u2028d"\n', [("a\nb", ""), ("N\rA", "c\r,\u2028d")]),
        ("csv", f"en,zh\n{'a' * 200_000},b\n", [("a" * 200_000, "b")]),
        ("jsonl", '\ufeff{"zh": "2020-01-01", "n": 1, "en": "a\u2028"}\r\n', [("a\u2028", "2020-01-01")]),
        ("jsonl", '{"en": "1", "zh": "\\u0000", "n": 1}\n{"zh": "NA", "en": ""}', [("1", "\0"), ("", "NA")]),
        ("jsonl", '{"en": "a", "zh": "1", "translation": "no pair"}', [("a", "1")]),
        ("jsonl", '{"en": "a", "zh": null}', [("a", "")]),
        ("parquet", parquet_bytes(en=["a", None], zh=["1", "2"]), [("a", "1"), ("", "2")]),
        ("parquet", parquet_bytes(en=["a"], zh=pa.array(["1"], pa.large_string())), [("a", "1")]),
        ("parquet", parquet_bytes(translation=[{"zh": "1", "en": "a"}]), [("a", "1")]),
        ("parquet", parquet_bytes(en=[None], zh=["1"]), [("", "1")]),
        ("parquet", parquet_bytes(en=pa.array(["a"]).dictionary_encode(), zh=["1"]), [("a", "1")]),
        ("parquet", parquet_bytes(en=pa.array(["a"], pa.string_view()), zh=["1"]), [("a", "1")]),
    ],
)
def test_text_is_read_unchanged(tmp_path: Path, name: str, content: str | bytes, pairs: Pairs) -> None:
    """Even quotation marks in a tsv, text like a number, a date or a missing value, and unusual line ends."""
    folder = write_files(tmp_path / "corpus", {"train.tsv": TSV, "valid.tsv": TSV, f"test.{name}": content})
    assert pairs_of_split(load_corpus(data_config(folder)), "test") == pairs


@pytest.mark.parametrize("streaming", [False, True])
def test_other_columns_of_parquet_are_ignored(tmp_path: Path, streaming: bool) -> None:
    """The columns of a language may differ in type between files."""
    meta = pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string()))
    first = parquet_bytes(meta=meta, en=[None], zh=["1"], score=[1])
    second = parquet_bytes(zh=pa.array(["2"], pa.large_string()), score=[1.5], en=["b"])
    files = {"train-1.parquet": first, "train-2.parquet": second, "train-3.parquet": first, "valid.parquet": second}
    corpus = load_corpus(data_config(write_files(tmp_path / "corpus", files), streaming=streaming))
    assert [pairs_of_split(corpus, split) for split in corpus] == [[("b", "2")], [("b", "2")]]


def test_a_failed_read_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "CHUNK", 2)
    faulty = b"a\n" * 7 + b"\xff\n"
    folder = write_files(tmp_path / "corpus", {"train.en": faulty, "train.zh": "b\n" * 8, "valid.tsv": TSV})
    with pytest.raises(UserError, match=r"train\.en, line 8: byte 1 is not valid UTF-8"):
        load_corpus(data_config(folder))
    assert not list((tmp_path / "hf_cache" / "minitrans").iterdir())
    write_files(folder, {"train.en": "a\n" * 8})
    assert pairs_of_split(load_corpus(data_config(folder)), "train") == [("a", "b")] * 8
    write_files(folder, {"train.zh": "c\n" * 8})  # a target that is corrected is read again
    assert pairs_of_split(load_corpus(data_config(folder)), "train") == [("a", "c")] * 8


OPUS_CARD = """\
---
configs:
- config_name: en-zh
  data_files:
  - {split: test, path: en-zh/test*}
  - {split: train, path: en-zh/train*}
  - {split: validation, path: en-zh/validation*}
- config_name: en-fr
  data_files:
  - {split: train, path: en-fr/train*}
---
# OPUS-100
"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands in for the hub: owner/name in it is read as the repository of that name."""
    stand_in_for_the_hub(monkeypatch, tmp_path / "hub")
    monkeypatch.chdir(tmp_path)
    multi30k, opus = tmp_path / "hub" / "bentrevett" / "multi30k", tmp_path / "hub" / "Helsinki-NLP" / "opus-100"
    write_pairs(multi30k, "jsonl", {"train": PAIRS, "val": PAIRS[:2], "test": PAIRS[2:]}, ("en", "de"))
    write_files(opus, {"README.md": OPUS_CARD})
    splits = {"train": [*PAIRS, ("", "空")], "validation": PAIRS[:2], "test": PAIRS[2:]}
    write_pairs(opus / "en-zh", "translation parquet", splits)
    write_pairs(opus / "en-fr", "translation parquet", {"train": PAIRS[:1]}, ("en", "fr"))
    return tmp_path / "hub"


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("values", [("bentrevett/multi30k", "de", None), ("Helsinki-NLP/opus-100", "zh", "en-zh")])
def test_the_layouts_of_the_hub_are_read(values: tuple[str, str, str | None], streaming: bool) -> None:
    path, target, name = values
    settings = DataConfig(path, "en", target, name=name, streaming=streaming, cache_dir="cache")
    corpus = load_corpus(settings)
    assert list(corpus) == ["train", "valid", "test"]
    assert pairs_of_split(corpus, "train") == PAIRS
    assert pairs_of_split(corpus, "valid") == PAIRS[:2]
    assert pairs_of_split(corpus, "test") == PAIRS[2:]
    assert {entry.name for entry in Path().iterdir()} == {"hub", "cache"}  # nothing is kept elsewhere
    again = load_corpus(settings)
    assert [again[split]._fingerprint for split in again] == [corpus[split]._fingerprint for split in corpus]
    with pytest.raises(UserError, match=rf"{path}, \w+: no column fi, only: "):
        load_corpus(replace(settings, target="fi"))


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("streaming", [False, True])
def test_a_hub_data_set_without_configuration_or_valid_split_is_refused(streaming: bool) -> None:
    message = r"opus-100 is not a folder here, and .*'en-zh'.*; to use your own text"
    with pytest.raises(UserError, match=message) as caught:
        load_corpus(DataConfig("Helsinki-NLP/opus-100", "en", "zh", streaming=streaming))
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(UserError, match=r"opus-100 has no valid split, only: train; .* or set data\.splits"):
        load_corpus(DataConfig("Helsinki-NLP/opus-100", "en", "fr", name="en-fr", streaming=streaming))


def test_an_empty_split_of_the_hub_is_refused(hub: Path) -> None:
    features = datasets.Features({"en": datasets.Value("string"), "zh": datasets.Value("string")})
    for split, rows in {"train": ["cat"], "valid": ["cat"], "test": []}.items():
        Dataset.from_dict({"en": rows, "zh": rows}, features).to_parquet(hub / "a" / "b" / f"{split}.parquet")
    with pytest.raises(UserError, match="a/b holds no sentences for test; fill or remove it"):
        load_corpus(DataConfig("a/b", "en", "zh", streaming=True))


@pytest.mark.parametrize("streaming", [False, True])
def test_images_beside_the_text_are_not_decoded(hub: Path, streaming: bool) -> None:
    text = datasets.Value("string")
    features = datasets.Features({"en": text, "de": text, "image": datasets.Image()})
    rows = {"en": ["cat"], "de": ["Katze"], "image": [{"bytes": b"none", "path": None}]}
    for split in ("train", "validation"):
        Dataset.from_dict(rows, features).to_parquet(hub / "a" / "b" / f"{split}.parquet")
    corpus = load_corpus(DataConfig("a/b", "en", "de", streaming=streaming))
    assert pairs_of_split(corpus, "valid") == [("cat", "Katze")]


def test_an_unused_streamed_split_is_not_read(hub: Path) -> None:
    write_files(hub / "bentrevett" / "multi30k", {"test.jsonl": "no JSON"})
    settings = DataConfig("bentrevett/multi30k", "en", "de", streaming=True)
    with pytest.raises(UserError, match=r"multi30k, test: cannot read further"):
        load_corpus(settings)
    corpus = load_corpus(replace(settings, splits={"train": "train", "valid": "validation"}))
    assert pairs_of_split(corpus, "valid") == PAIRS[:2]


# -- corpus: splits and filters ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "files",  # of each split
    [
        {"train": "train", "valid": "valid"},
        {"train": "train", "valid": "val", "test": "test"},
        {"train": "train", "valid": "validation", "a_test": "a_test"},
        {"train": "train", "valid": "dev", "test": "test-00000-of-00001-9b0aa5b7e7f04a2a"},
        {"train": "train", "valid": "valid", "dev": "dev", "val": "val"},  # the second keeps its name
        # Parts of train may have any suffix, others only the hub's; beside a file of the whole split they are splits.
        {
            "train": "train-2 train-10 train-10b train.old",
            "valid": "valid-00000-of-00002 valid-00001-of-00002",
            "test-2016": "test-2016",
        },
        {"train": "train", "valid": "valid", "train-2": "train-2", "valid-00000-of-00002": "valid-00000-of-00002"},
    ],
)
def test_split_names_and_their_files_are_recognised(tmp_path: Path, files: dict[str, str]) -> None:
    """Other files in the folder are ignored."""
    names = " ".join(files.values()).split()
    folder = write_pairs(tmp_path / "corpus", "lines gz", {name: [(name, "x"), (name, "y")] for name in names})
    write_files(folder, {"README.md": "x", "train.de": "x", "._train.en": b"\xff", ".hidden.tsv": "x"})
    (folder / "more.tsv").mkdir()
    corpus = load_corpus(data_config(folder))
    assert {split: " ".join(pairs["source"][::2]) for split, pairs in corpus.items()} == files
    assert list(corpus)[:2] == ["train", "valid"]
    write_pairs(folder, "lines gz", {files["train"].split()[-1]: [("new", "x")]})  # the last of several parts
    assert load_corpus(data_config(folder))["train"]["source"][-1] == "new"


@pytest.mark.parametrize("name", ["all", "europarl-v7.de-en", "my news"])
def test_splits_can_be_parts_of_local_files(tmp_path: Path, name: str) -> None:
    """Files that no split uses may be faulty."""
    pairs = [(f"a{i}", f"b{i}") for i in range(100)]
    folder = write_pairs(tmp_path / "corpus", "lines", {name: [*pairs, ("", "x")]})
    write_files(folder, {"metadata.csv": "a,b\n1,2\n", "damaged.parquet": "PAR1"})
    splits = {"train": f"{name}[20:-0%]", "dev": f"{name}[:10%]", "test": f"{name}[10:15]+{name}[-86:-81]"}
    corpus = load_corpus(data_config(folder, splits=splits))
    assert list(corpus) == ["train", "valid", "test"]
    assert pairs_of_split(corpus, "train") == pairs[20:]
    assert pairs_of_split(corpus, "valid") == pairs[:10]
    assert pairs_of_split(corpus, "test") == pairs[10:20]
    again = load_corpus(data_config(folder, splits=splits))
    assert [again[split]._fingerprint for split in again] == [corpus[split]._fingerprint for split in corpus]


def test_pairs_in_two_splits_are_counted_or_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = [("a", "1"), ("b ", "2"), ("c", "3"), ("a", "1"), ("d", "4"), ("d", "5"), ("", "6"), ("", ""), ("e", "7")]
    splits = {"train": train, "valid": [("b", "2"), ("x", "y"), ("", "")], "test": [("c", "0"), ("x", "z"), ("", "")]}
    splits["another"] = [("q", "1")]  # about which nothing is logged
    folder = write_pairs(tmp_path / "corpus", "tsv", splits)
    corpus = load_corpus(data_config(folder))
    assert pairs_of_split(corpus, "train") == [pair for pair in train if pair[0]]
    counted = [
        "1 of 3 validation pairs: their source is also in test (0 with the same target)",
        "1 of 9 training pairs: their source is also in valid (1 with the same target)",
        "1 of 9 training pairs: their source is also in test (0 with the same target)",
        "1 of 9 training pairs: the same as an earlier pair",
        "left out 2 of 9 training pairs: one side is empty",
    ]
    assert caplog.messages == counted
    caplog.clear()
    fewer = load_corpus(data_config(folder, deduplicate=True))
    assert pairs_of_split(fewer, "train") == [("a", "1"), ("d", "4"), ("d", "5"), ("e", "7")]
    assert caplog.messages == [counted[0], counted[4], *(f"left out {message}" for message in counted[1:4])]
    assert [pairs_of_split(fewer, split) for split in ("valid", "test")] == [splits["valid"], splits["test"]]


# -- corpus: tokenizer and ids ----------------------------------------------------------------------------------------


TRAIN = [("a b c", "c d"), ("b", "a b a b a b"), ("c d", "d"), ("a", "a")]
VALID = [*TRAIN, ("b c a d", "b")]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([line for pair in TRAIN for line in pair], TokenizerConfig(vocab_size=268))


@pytest.fixture
def corpus(tmp_path: Path) -> DatasetDict:
    folder = write_pairs(tmp_path / "corpus", "tsv", {"train": TRAIN, "valid": VALID, "test": [("", "a"), *TRAIN]})
    return load_corpus(data_config(folder))


def test_a_tokenizer_is_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_pairs(tmp_path / "corpus", "tsv", {"train": TRAIN, "valid": VALID})
    train = load_corpus(data_config(folder))["train"]
    caplog.clear()
    first = train_tokenizer(train, TokenizerConfig(268))
    assert first.digest == Tokenizer.train(train["source"][:] + train["target"][:], TokenizerConfig(268)).digest
    assert not caplog.messages
    lowered = train_tokenizer(train, TokenizerConfig(8000))
    assert lowered.vocab_size < 8000
    warning = f"the text yields only {lowered.vocab_size} of the 8000 pieces asked for: tokenizer.vocab_size is lowered"
    assert [message[: len(warning)] for message in caplog.messages] == [warning]

    caplog.clear()
    (folder / "valid.tsv").write_text("en\tzh\nx\ty\n")  # not trained on
    train = load_corpus(data_config(folder))["train"]
    with monkeypatch.context() as patch:
        patch.delattr(Tokenizer, "train")
        assert train_tokenizer(train, TokenizerConfig(268)).digest == first.digest
        assert train_tokenizer(train, TokenizerConfig(8000)).digest == lowered.digest
        assert [message[: len(warning)] for message in caplog.messages] == [warning]
    assert train_tokenizer(train, TokenizerConfig(268, "bpe")).digest != first.digest
    with monkeypatch.context() as patch:
        edited = TokenizerConfig(268).spm_options | {"pad_id": 7}
        patch.setattr(TokenizerConfig, "spm_options", edited)
        assert train_tokenizer(train, TokenizerConfig(268)).pad_id == 7
    write_pairs(folder, "tsv", {"train": [*TRAIN, ("e f e f", "e f e f")]})
    assert train_tokenizer(load_corpus(data_config(folder))["train"], TokenizerConfig(268)).digest != first.digest


def test_a_tokenizer_sees_a_sample_of_a_large_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    train = Tokenizer.train

    def noted(sentences: Iterable[str], config: TokenizerConfig) -> Tokenizer:
        seen.append(list(sentences))
        return train(seen[-1], config)

    monkeypatch.setattr(Tokenizer, "train", noted)
    monkeypatch.setattr(corpus_module, "_TOKENIZER_PAIRS", 20)
    pairs = [(f"a{i}", f"b{i}") for i in range(200)]
    for cache, n in (("one", 20), ("two", 200), ("three", 200)):
        folder = write_pairs(tmp_path / "corpus", "tsv", {"train": pairs[:n], "valid": PAIRS})
        train_tokenizer(load_corpus(data_config(folder))["train"], TokenizerConfig(300), str(tmp_path / cache))
    assert seen[0] == [side for sides in zip(*pairs[:20], strict=True) for side in sides]
    assert seen[1] == seen[2]
    sources, targets = seen[1][:20], seen[1][20:]
    assert len(set(sources)) == 20
    assert [source[1:] for source in sources] == [target[1:] for target in targets]
    assert max(int(source[1:]) for source in sources) > 100  # from all over the corpus


def test_tokenized_columns(corpus: DatasetDict, tokenizer: Tokenizer, capfd: pytest.CaptureFixture[str]) -> None:
    tokenized = tokenize_corpus(corpus, tokenizer)
    assert list(tokenized) == list(corpus)
    for split, pairs in tokenized.items():
        assert pairs.features["src_ids"] == pairs.features["tgt_ids"] == datasets.LargeList(datasets.Value("int32"))
        assert pairs.column_names == ["src_ids", "tgt_ids"]
        assert pairs["src_ids"][:] == tokenizer.encode_batch(corpus[split]["source"][:])
        assert pairs["tgt_ids"][:] == tokenizer.encode_batch(corpus[split]["target"][:])
    valid = tokenized["valid"]
    lengths = [max(map(len, pair)) for pair in zip(valid["src_ids"], valid["tgt_ids"], strict=True)]
    for max_len in (max(lengths) + 1, max(lengths)):
        kept = [i for i, length in enumerate(lengths) if length < max_len]
        for side, rows in zip(valid.column_names, read_id_rows(valid, "validation", max_len), strict=True):
            assert (rows.to_pylist(), rows.type) == ([valid[i][side] for i in kept], ID_ROWS)
    assert capfd.readouterr() == ("", "")  # no progress bar without a terminal


def test_readers_can_be_imported_without_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    runpy.run_path(readers.__file__)


def test_text_and_ids_are_made_once_for_the_same_text(
    corpus: DatasetDict, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In other processes too; changed text is noticed, even if the size and the time of its file stay the same."""
    cache = tmp_path / "hf_cache" / "minitrans"

    def made() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in cache.iterdir()}

    tokenize_corpus(corpus, tokenizer)
    (tmp_path / "tokenizer.model").write_bytes(tokenizer.proto)
    before = made()
    assert len(before) == 3 * 2  # the text and the ids of each split
    program = (
        "from minitrans.data.corpus import *\n"
        "tokenize_corpus(load_corpus(DataConfig('corpus', 'en', 'zh')), Tokenizer.load('tokenizer.model'))"
    )
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf_cache"))
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert made() == before

    path = tmp_path / "corpus" / "valid.tsv"
    stat = path.stat()
    path.write_text(path.read_text(encoding="utf-8").replace("b c a d", "b d a c"), encoding="utf-8")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    tokenized = tokenize_corpus(load_corpus(data_config(tmp_path / "corpus")), tokenizer)
    assert tokenized["valid"][-1]["src_ids"] == tokenizer.encode("b d a c")
    assert len(made()) == len(before) + 2

    with monkeypatch.context() as patch:
        patch.setattr("minitrans.data.corpus._reader_code", lambda: b"edited")
        tokenize_corpus(corpus, tokenizer)
    assert len(made()) == len(before) + 2 + 3
    other = Tokenizer.train(["c a b", "b a d"], TokenizerConfig(vocab_size=266))
    assert tokenize_corpus(corpus, other)["train"][0]["src_ids"] == other.encode("a b c")
    assert len(made()) == len(before) + 2 + 3 + 3
    assert made().items() >= before.items()


def test_the_cache_is_kept_in_cache_dir(corpus: DatasetDict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The home folder is not used then."""
    usual = set((tmp_path / "hf_cache" / "minitrans").iterdir())
    mine = str(tmp_path / "mine")
    corpus = load_corpus(data_config(tmp_path / "corpus", cache_dir=mine))
    tokenize_corpus(corpus, train_tokenizer(corpus["train"], TokenizerConfig(268), mine), cache_dir=mine)
    suffixes = sorted(path.suffix for path in (tmp_path / "mine" / "minitrans").iterdir())
    assert suffixes == [".arrow"] * 6 + [".model"]
    assert set((tmp_path / "hf_cache" / "minitrans").iterdir()) == usual
    write_pairs(tmp_path / "corpus", "parquet", {"more": VALID})
    (tmp_path / "file").touch()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "file" / "cache")
    assert pairs_of_split(load_corpus(data_config(tmp_path / "corpus", cache_dir=mine)), "more") == VALID
    for cache in ({}, {"cache_dir": str(tmp_path / "file")}):
        advice = "set data.cache_dir, or HF_DATASETS_CACHE in the environment, to another folder"
        with pytest.raises(UserError, match=rf"cannot write .*Not a directory; {advice}"):
            load_corpus(data_config(tmp_path / "corpus", **cache))


def test_many_pairs_are_tokenized_by_several_processes(
    corpus: DatasetDict, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = tokenize_corpus(corpus, tokenizer, cache_dir=str(tmp_path / "one"))
    here, encode_batch, fails_elsewhere = os.getpid(), Tokenizer.encode_batch, False

    def encode_in_one_place(self: Tokenizer, lines: list[str]) -> list[list[int]]:
        assert (os.getpid() == here) == fails_elsewhere
        return encode_batch(self, lines)

    monkeypatch.setattr(Tokenizer, "encode_batch", encode_in_one_place)
    monkeypatch.setattr(corpus_module, "_PAIRS_PER_PROCESS", 2)
    monkeypatch.setattr(corpus_module, "_n_cores", lambda: 2)
    for _ in range(2):
        for split, pairs in tokenize_corpus(corpus, tokenizer).items():
            assert pairs[:] == expected[split][:]
    fails_elsewhere = True
    for split, pairs in tokenize_corpus(corpus, tokenizer, cache_dir=str(tmp_path / "failing")).items():
        assert pairs[:] == expected[split][:]


MEMORY_PROGRAM = """
import sys
from corpora import data_config
from memory_helpers import peak_private_kb_during
from minitrans.data.corpus import load_corpus, tokenize_corpus, train_tokenizer
from minitrans.text.tokenizer import TokenizerConfig

def prepare(folder: str) -> None:
    corpus = load_corpus(data_config(folder, cache_dir=sys.argv[1]))
    tokenizer = train_tokenizer(corpus["valid"], TokenizerConfig(400), sys.argv[1])
    tokenize_corpus(corpus, tokenizer, sys.argv[1])

before = peak_private_kb_during(prepare, sys.argv[2])  # imports, thread pools and the like
print(peak_private_kb_during(prepare, sys.argv[3]) - before)
"""


@needs_proc_status
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    folders = [
        write_pairs(tmp_path / name, "lines", {"train": long_pairs(n, 59), "valid": long_pairs(100, 59)})
        for name, n in (("small", 4_000), ("large", 16_000))
    ]
    # The text and its ids, or the text alone as strings of Python, would take more than the files themselves.
    small, large = (sum(path.stat().st_size for path in folder.iterdir()) / 1024 for folder in folders)
    assert printed_int(MEMORY_PROGRAM, tmp_path / "cache", *folders) < large - small


@pytest.mark.parametrize("work", [int, partial(signal.raise_signal, signal.SIGTERM)])
def test_a_process_that_has_tokenized_or_been_told_to_end_ignores_another_sigterm(
    work: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_module, "_tokenize_part", work)
    before = signal.getsignal(signal.SIGTERM)
    try:
        corpus_module._tokenize_in_worker()
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
