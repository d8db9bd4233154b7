import json
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import DatasetDict

from minitrans.data.corpus import DataConfig, column_arrays, drop_long_pairs, load_corpus, run_corpus, tokenize_corpus
from minitrans.errors import UserError
from minitrans.tokenizer import Tokenizer, TokenizerConfig

CORPORA = Path(__file__).parents[2].parent / "shared" / "corpora"

PAIRS = [("one", "一"), ('two "big" ones', "两个“大”的"), ("three, \u2028 three", "三\u3000三")]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf_cache")


def config(folder: Path | str, **values: str) -> DataConfig:
    return DataConfig(**({"path": str(folder), "source": "en", "target": "zh"} | values))  # type: ignore[arg-type]


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def write_pairs(folder: Path, suffix: str, splits: dict[str, list[tuple[str, str]]]) -> Path:
    """Writes a corpus in any of the formats: .lines, .tsv, .csv, .jsonl, .translation.jsonl, .parquet, ..."""
    folder.mkdir(exist_ok=True)
    for split, pairs in splits.items():
        dicts = [{"id": str(i), "zh": zh, "en": en} for i, (en, zh) in enumerate(pairs)]
        if suffix == "lines":
            write(folder, {f"{split}.en": "".join(f"{en}\n" for en, _ in pairs)})
            write(folder, {f"{split}.zh": "".join(f"{zh}\n" for _, zh in pairs)})
        elif suffix == "tsv":
            lines = ["zh\tid\ten", *(f"{zh}\tx\t{en}" for en, zh in pairs)]
            write(folder, {f"{split}.tsv": "".join(f"{line}\n" for line in lines)})
        elif suffix == "csv":
            rows = [("zh", "en"), *((zh, en) for en, zh in pairs)]
            quoted = [['"' + field.replace('"', '""') + '"' for field in row] for row in rows]
            write(folder, {f"{split}.csv": "".join(",".join(row) + "\r\n" for row in quoted)})
        elif suffix == "jsonl":
            write(folder, {f"{split}.jsonl": "".join(json.dumps(row) + "\n" for row in dicts)})
        elif suffix == "translation jsonl":
            write(folder, {f"{split}.jsonl": "".join(json.dumps({"translation": row}) + "\n" for row in dicts)})
        elif suffix == "parquet":
            pq.write_table(pa.Table.from_pylist(dicts), folder / f"{split}.parquet")
        elif suffix == "translation parquet":
            pq.write_table(pa.Table.from_pylist([{"translation": row} for row in dicts]), folder / f"{split}.parquet")
    return folder


def pairs_of(corpus: DatasetDict, split: str) -> list[tuple[str, str]]:
    return list(zip(corpus[split]["source"], corpus[split]["target"], strict=True))


FORMATS = ["lines", "tsv", "csv", "jsonl", "translation jsonl", "parquet", "translation parquet"]


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_the_same_text(tmp_path: Path, suffix: str) -> None:
    folder = write_pairs(
        tmp_path / "corpus", suffix, {"train": PAIRS, "val": PAIRS[:1], "test": PAIRS[1:], "test_2016": PAIRS[2:]}
    )
    corpus = load_corpus(config(folder))
    assert list(corpus) == ["train", "valid", "test", "test_2016"]
    assert corpus.column_names == {split: ["source", "target"] for split in corpus}
    assert pairs_of(corpus, "train") == PAIRS
    assert pairs_of(corpus, "valid") == PAIRS[:1]
    assert pairs_of(corpus, "test") == PAIRS[1:]
    assert pairs_of(corpus, "test_2016") == PAIRS[2:]
    backwards = load_corpus(config(folder, source="zh", target="en"))
    assert pairs_of(backwards, "train") == [(zh, en) for en, zh in PAIRS]


@pytest.mark.parametrize("name", ["valid", "val", "validation", "dev"])
def test_names_of_the_validation_split(tmp_path: Path, name: str) -> None:
    corpus = load_corpus(config(write_pairs(tmp_path / "corpus", "tsv", {"train": PAIRS, name: PAIRS[:2]})))
    assert list(corpus) == ["train", "valid"]
    assert pairs_of(corpus, "valid") == PAIRS[:2]


def test_a_second_validation_split_keeps_its_name(tmp_path: Path) -> None:
    folder = write_pairs(tmp_path / "corpus", "lines", {"train": PAIRS, "val": PAIRS[:1], "valid": PAIRS[1:]})
    corpus = load_corpus(config(folder))
    assert list(corpus) == ["train", "valid", "val"]
    assert pairs_of(corpus, "valid") == PAIRS[1:]


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    folder = write_pairs(tmp_path / "corpus", "lines", {"train": PAIRS, "valid": PAIRS})
    write(folder, {"README.md": "x", "train.de": "x", "._train.en": b"\xff", ".hidden.tsv": "x"})
    (folder / "more.tsv").mkdir()
    assert list(load_corpus(config(folder))) == ["train", "valid"]


@pytest.mark.parametrize("suffix", FORMATS)
def test_pairs_with_an_empty_side_stay_out_of_train_only(
    tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = [("", "一"), ("two", "二"), (" \u3000", "三"), ("four", "\x00"), ("five", "五")]
    folder = write_pairs(tmp_path / "corpus", suffix, {"train": pairs, "valid": pairs, "test": pairs})
    corpus = load_corpus(config(folder))
    assert pairs_of(corpus, "train") == [("two", "二"), ("five", "五")]
    assert pairs_of(corpus, "valid") == pairs_of(corpus, "test") == pairs
    assert caplog.messages == ["left out 3 of 5 training pairs: one side is empty"]


def test_a_null_is_an_empty_side(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split in ("train", "valid"):
        pq.write_table(pa.table({"en": ["one", None], "zh": ["一", "二"]}), folder / f"{split}.parquet")
    corpus = load_corpus(config(folder))
    assert pairs_of(corpus, "train") == [("one", "一")]
    assert pairs_of(corpus, "valid") == [("one", "一"), ("", "二")]


TSV = "en\tzh\none\t一\n"
JSONL = '{"en": "one", "zh": "一"}\n'


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"valid.tsv": TSV}, r"corpus has no train split, only: valid; add train\.en and train\.zh, or train\.tsv"),
        ({"train.tsv": TSV, "test.tsv": TSV}, r"corpus has no valid split, only: test, train; add valid\.en"),
        ({}, "corpus has no train split, only: nothing"),
        ({"train.en": "a\n"}, r"train\.zh is missing, the other side of .*train\.en"),
        ({"train.zh": "a\n"}, r"train\.en is missing, the other side of .*train\.zh"),
        ({"train.en": "a\nb\n", "train.zh": "a\n"}, r"train\.en has 2 lines but train\.zh has 1"),
        ({"train.en": "", "train.zh": ""}, "corpus holds no sentences for train"),
        ({"train.en": "\n", "train.zh": "a\n", "valid.tsv": TSV}, "every training pair has an empty side"),
        ({"train.en": b"a\n\xff\n", "train.zh": "a\nb\n"}, r"train\.en, line 2: byte 1 is not valid UTF-8"),
        ({"train.en": "a\n", "train.zh": "a\n", "train.tsv": TSV}, r"train\.tsv: train is there in another format"),
        ({"train.tsv": "en\tzh\n"}, "corpus holds no sentences for train"),
        ({"train.tsv": ""}, r"train\.tsv: no column en, only: nothing"),
        ({"train.tsv": "en\tde\na\tb\n"}, r"train\.tsv: no column zh, only: en, de; set data\.source and data\.target"),
        ({"train.tsv": TSV + "two\n"}, r"train\.tsv, line 3: 1 fields, but the header has 2"),
        ({"train.tsv": TSV + "a\tb\tc\n"}, r"train\.tsv, line 3: 3 fields, but the header has 2"),
        ({"train.tsv": TSV.encode() + b"\xff\tb\n"}, r"train\.tsv, line 3: byte 1 is not valid UTF-8"),
        ({"train.csv": "en,zh\na\n"}, r"train\.csv, line 2: 1 fields, but the header has 2"),
        ({"train.csv": 'en,zh\na,"b\n'}, r"train\.csv, line 2: unexpected end of data; check the quotation marks"),
        ({"train.jsonl": JSONL + "{\n"}, r"train\.jsonl, line 2: not JSON"),
        ({"train.jsonl": "3\n"}, r"train\.jsonl, line 1: no column en, only: nothing"),
        ({"train.jsonl": JSONL + '{"en": "a"}\n'}, r"train\.jsonl, line 2: no column zh, only: en"),
        ({"train.jsonl": '{"en": "a", "zh": null}\n'}, r"train\.jsonl, line 1: en and zh must both be strings"),
        ({"train.jsonl": '{"en": 3, "zh": "a"}\n'}, r"train\.jsonl, line 1: en and zh must both be strings"),
        ({"train.jsonl": '{"en": "\\ud800", "zh": "a"}\n'}, r"train\.jsonl: .*half a surrogate pair"),
        ({"train.parquet": b"PAR1"}, r"train\.parquet: not a readable Parquet file"),
    ],
)
def test_faults_in_a_folder(tmp_path: Path, files: dict[str, str | bytes], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_corpus(config(write(tmp_path / "corpus", files)))
    assert len(str(caught.value).splitlines()) == 1


def test_faults_in_a_parquet_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"en": [1], "zh": ["a"]}), tmp_path / "train.parquet")
    with pytest.raises(UserError, match=r"train\.parquet: column en holds int64, not text"):
        load_corpus(config(tmp_path))
    invalid = pa.array([b"\xff"]).view(pa.string())
    pq.write_table(pa.table({"en": invalid, "zh": ["a"]}), tmp_path / "train.parquet")
    with pytest.raises(UserError, match=r"train\.parquet: not a readable Parquet file .*UTF8"):
        load_corpus(config(tmp_path))


@pytest.mark.parametrize("path", ["corpus", "./corpus", "../corpus", "/nowhere/corpus", "here/corpus", "a/b/corpus"])
def test_a_missing_folder_is_not_looked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"cannot read data\.path .*No such file or directory; give a folder with"):
        load_corpus(config(path))


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    write(tmp_path, {"train.tsv": TSV})
    with pytest.raises(UserError, match=r"cannot read data\.path .*train\.tsv: Not a directory"):
        load_corpus(config(tmp_path / "train.tsv"))


def test_the_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"data\.path owner/name is no folder here, and the hub did not give it") as got:
        load_corpus(config("owner/name"))
    assert "train.en and train.zh" in str(got.value)
    assert len(str(got.value).splitlines()) == 1


def test_a_hub_data_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As Helsinki-NLP/opus-100 comes, in a stand-in for the hub."""
    rows = [{"translation": {"en": en, "zh": zh}} for en, zh in [*PAIRS, ("", "空")]]
    hub = DatasetDict({split: datasets.Dataset.from_list(rows) for split in ("test", "train", "validation")})
    asked = []

    def load_dataset(path: str, name: str | None, cache_dir: str | None) -> DatasetDict:
        asked.append((path, name, cache_dir))
        return hub

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.chdir(tmp_path)
    corpus = load_corpus(config("owner/name", name="en-zh", cache_dir="cache"))
    assert asked == [("owner/name", "en-zh", "cache")]
    assert list(corpus) == ["train", "valid", "test"]
    assert pairs_of(corpus, "train") == PAIRS
    assert pairs_of(corpus, "valid") == [*PAIRS, ("", "空")]
    with pytest.raises(UserError, match=r"owner/name, test: no column de, only: en, zh"):
        load_corpus(config("owner/name", target="de"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"path": ""}, r"data\.path is empty"),
        ({"source": ""}, r"data\.source is empty"),
        ({"target": ""}, r"data\.target is empty"),
        ({"source": "zh"}, r"data\.source and data\.target are both zh"),
        ({"batch_tokens": 0}, r"data\.batch_tokens is 0; it must be at least 1"),
    ],
)
def test_config_is_checked(values: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        config(**({"folder": values.pop("path", "corpus")} | values))


def test_run_corpus(tmp_path: Path) -> None:
    one = write_pairs(tmp_path / "one", "tsv", {"train": PAIRS, "valid": PAIRS[:1]})
    other = write_pairs(tmp_path / "other", "lines", {"train": PAIRS, "valid": PAIRS[1:]})
    write(tmp_path, {"config.yaml": f"data:\n  path: {one}\n  source: en\n  target: zh\n"})
    assert pairs_of(run_corpus(tmp_path), "valid") == PAIRS[:1]
    assert pairs_of(run_corpus(tmp_path, str(other)), "valid") == PAIRS[1:]


@pytest.mark.parametrize("text", ["", "data: [", "data: {path: x}", "data: {path: x, source: a, target: b, sauce: c}"])
def test_run_corpus_without_a_usable_config(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"config.yaml": text})
    with pytest.raises(UserError, match=r"config\.yaml: no usable data section"):
        run_corpus(tmp_path)


TRAIN = [("a b c", "c d"), ("b", "a b a b a b"), ("c d", "d"), ("a", "a")]
VALID = [*TRAIN, ("b c a d", "b")]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([line for pair in TRAIN for line in pair], TokenizerConfig(vocab_size=267))


@pytest.fixture
def corpus(tmp_path: Path) -> DatasetDict:
    folder = write_pairs(tmp_path / "corpus", "tsv", {"train": TRAIN, "valid": VALID, "test": [("", "a"), *TRAIN]})
    return load_corpus(config(folder))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of lines of each batch that is tokenized."""
    calls: list[int] = []
    encode_batch = Tokenizer.encode_batch

    def counted(self: Tokenizer, lines: list[str]) -> list[list[int]]:
        calls.append(len(lines))
        return encode_batch(self, lines)

    monkeypatch.setattr(Tokenizer, "encode_batch", counted)
    return calls


def test_tokenized_columns(corpus: DatasetDict, tokenizer: Tokenizer) -> None:
    tokenized = tokenize_corpus(corpus, tokenizer, max_len=100)
    assert list(tokenized) == list(corpus)
    for split, pairs in tokenized.items():
        assert pairs.features["src_ids"] == pairs.features["tgt_ids"] == datasets.Sequence(datasets.Value("int32"))
        assert pairs["source"][:] == corpus[split]["source"][:]
        assert pairs["src_ids"][:] == tokenizer.encode_batch(corpus[split]["source"][:])
        assert pairs["tgt_ids"][:] == tokenizer.encode_batch(corpus[split]["target"][:])


def test_tokenized_once(corpus: DatasetDict, tokenizer: Tokenizer, calls: list[int], tmp_path: Path) -> None:
    first = tokenize_corpus(corpus, tokenizer, max_len=100)
    assert sum(calls) == 2 * sum(map(len, corpus.values()))
    calls.clear()
    tokenizer.save(tmp_path / "tokenizer.model")
    same = Tokenizer.load(tmp_path / "tokenizer.model")
    again = tokenize_corpus(load_corpus(config(tmp_path / "corpus")), same, max_len=5)
    assert calls == []
    assert again["valid"][:] == first["valid"][:]


def test_another_process_finds_what_was_tokenized(corpus: DatasetDict, tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenize_corpus(corpus, tokenizer, max_len=100, cache_dir=str(tmp_path / "cache"))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.arrow")}
    tokenizer.save(tmp_path / "tokenizer.model")
    program = (
        "from minitrans.data.corpus import *\n"
        "corpus = load_corpus(DataConfig('corpus', 'en', 'zh'))\n"
        "tokenize_corpus(corpus, Tokenizer.load('tokenizer.model'), max_len=100, cache_dir='cache')"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.arrow")} == before


def test_tokenized_again_for_other_text(
    corpus: DatasetDict, tokenizer: Tokenizer, calls: list[int], tmp_path: Path
) -> None:
    tokenize_corpus(corpus, tokenizer, max_len=100)
    calls.clear()
    path = tmp_path / "corpus" / "valid.tsv"
    before = path.stat()
    path.write_text(path.read_text(encoding="utf-8").replace("b c a d", "b d a c"), encoding="utf-8")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # the same size and time
    tokenized = tokenize_corpus(load_corpus(config(tmp_path / "corpus")), tokenizer, max_len=100)
    assert sum(calls) == 2 * len(VALID)
    assert tokenized["valid"][-1]["src_ids"] == tokenizer.encode("b d a c")


def test_tokenized_again_with_another_tokenizer(corpus: DatasetDict, tokenizer: Tokenizer, calls: list[int]) -> None:
    tokenize_corpus(corpus, tokenizer, max_len=100)
    calls.clear()
    other = Tokenizer.train(["c a b", "b a d"], TokenizerConfig(vocab_size=265))
    tokenized = tokenize_corpus(corpus, other, max_len=100)
    assert sum(calls) == 2 * sum(map(len, corpus.values()))
    assert tokenized["train"][0]["src_ids"] == other.encode("a b c")


def test_the_cache_is_where_it_should_be(corpus: DatasetDict, tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenize_corpus(corpus, tokenizer, max_len=100, cache_dir=str(tmp_path / "mine"))
    assert len(list((tmp_path / "mine" / "minitrans").glob("*.arrow"))) == 3
    assert not (tmp_path / "hf_cache").exists()
    tokenize_corpus(corpus, tokenizer, max_len=100)
    assert len(list((tmp_path / "hf_cache" / "minitrans").glob("*.arrow"))) == 3


def test_a_cache_that_cannot_be_written(corpus: DatasetDict, tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*Not a directory; set data\.cache_dir to another folder"):
        tokenize_corpus(corpus, tokenizer, max_len=100, cache_dir=str(tmp_path / "file"))


def test_long_pairs_stay_out_of_train_only(
    corpus: DatasetDict, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    longest = [1 + max(map(len, tokenizer.encode_batch(pair))) for pair in TRAIN]
    assert longest[1] == max(longest) > longest[0] > longest[3]
    tokenized = tokenize_corpus(corpus, tokenizer, max_len=max(longest))
    assert len(tokenized["train"]) == len(TRAIN)
    assert not caplog.messages
    with caplog.at_level(logging.WARNING, logger="minitrans"):
        tokenized = tokenize_corpus(corpus, tokenizer, max_len=max(longest) - 1)
    assert pairs_of(tokenized, "train") == [TRAIN[0], *TRAIN[2:]]
    assert tokenized["train"]["src_ids"][:] == tokenizer.encode_batch(["a b c", "c d", "a"])
    assert len(tokenized["valid"]) == len(corpus["valid"])
    assert len(tokenized["test"]) == len(corpus["test"])
    assert caplog.messages == [f"left out 1 of 4 training pairs: longer than max_len, {max(longest) - 1} tokens"]


def test_all_pairs_too_long(corpus: DatasetDict, tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="all 4 training pairs are longer than max_len, 1 tokens; raise it"):
        tokenize_corpus(corpus, tokenizer, max_len=1)


def test_column_arrays_follow_a_selection(corpus: DatasetDict, tokenizer: Tokenizer) -> None:
    valid = tokenize_corpus(corpus, tokenizer, max_len=100)["valid"]
    for pairs in (valid, valid.select([3, 0]), valid.select(range(1, 3)), drop_long_pairs(valid, "x", 5)):
        ids, lengths = column_arrays(pairs, "tgt_ids")
        assert lengths.tolist() == [len(row) for row in pairs["tgt_ids"]]
        assert ids.tolist() == [i for row in pairs["tgt_ids"] for i in row]
        assert (str(ids.dtype), str(lengths.dtype)) == ("int32", "int64")


def test_no_progress_bar_off_the_terminal(
    corpus: DatasetDict, tokenizer: Tokenizer, capfd: pytest.CaptureFixture[str]
) -> None:
    tokenize_corpus(corpus, tokenizer, max_len=100)
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(not CORPORA.is_dir(), reason=f"the shared corpora are not at {CORPORA}")
@pytest.mark.parametrize(
    ("name", "target", "sizes", "test"),
    [
        ("multi30k-en-de", "de", [29_000, 1_014, 1_000], "test_2016"),
        ("tatoeba-en-zh", "zh", [26_349, 1_000, 1_000], "test"),
    ],
)
def test_real_corpora(name: str, target: str, sizes: list[int], test: str) -> None:
    corpus = load_corpus(config(CORPORA / name, target=target))
    assert list(corpus) == ["train", "valid", test]
    assert [len(pairs) for pairs in corpus.values()] == sizes
