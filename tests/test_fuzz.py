"""Arbitrary bytes wherever bytes are read: lines out equal lines in, or one clear error; never a traceback."""

import json
import os
import re
import tempfile
from functools import cache
from pathlib import Path

import pytest
from command_helpers import copy_run, parquet_bytes, run_cli
from hypothesis import given
from hypothesis import strategies as st

from minitrans import cli
from minitrans.cachecheck.measurement import Report
from minitrans.data.corpus import load_corpus
from minitrans.data.settings import DataConfig
from minitrans.errors import UserError
from minitrans.text.reading import clean
from minitrans.text.tokenizer import ModelType, Tokenizer, TokenizerConfig
from minitrans.translate.bundle import METADATA, TOKENIZER, WEIGHTS, WORDS
from minitrans.translate.translator import Translator
from minitrans.verify import run_checks

AWKWARD_BYTES = [
    *(b"\n", b"\r\n", b"\r", b"\n\n", b"\0", b"\t", b" ", b",", b'"', b'""', b"\\", b"\x1b[2J", b"\x7f", b"\x1c"),
    *(c.encode() for c in "\ufeff\u2028\u2029\x85\xa0\u2581\ufffd\U0001f468\u200d\u0301\ue000\U0010ffff"),
    *(b"\xff", b"\x80", b"\xc3", b"\xe6\x88", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff\xfea\0\n\0"),
    *(b"{", b"}", b"[", b"]", b":", b"null", b"NaN", b"1e9", b"-1", b".0", b"9" * 9, b"\\ud800", b'"\\n', b"[" * 9999),
    *(b"en", b"zh", b"en\tzh\n", b"en,zh\n", b'{"en": "a", "zh": "b"}\n', b"{}\n", b"- ", b"!!int ", b"&a *a"),
    *(b"I love you.", "我爱你。".encode(), b"<unk>", b"</s>", b"<0x0A>", b"a" * 10_000, "我 ".encode() * 3_000),
]
odd_bytes = st.lists(
    st.one_of(st.sampled_from(AWKWARD_BYTES), st.text(max_size=8).map(str.encode), st.binary(max_size=4)), max_size=12
).map(b"".join)

PAIRS = [("one", "一"), ('two "big" ones', "两个，“大”的"), ("three, \u2028 three", "三\u3000三")]
ROWS = [{"id": i, "en": en, "zh": zh} for i, (en, zh) in enumerate(PAIRS)]
CORPUS_BYTES = {
    "tsv": "\n".join(["id\ten\tzh", *(f"{i}\t{en}\t{zh}" for i, (en, zh) in enumerate(PAIRS))]).encode(),
    "csv": 'id,en,zh\r\n0,one,一\r\n1,"two ""big"" ones",两个，“大”的\r\n2,"three, \n three",三\r\n'.encode(),
    "jsonl": "".join(json.dumps(row) + "\n" for row in ROWS).encode(),
    "parquet": parquet_bytes(**{name: [row[name] for row in ROWS] for name in ROWS[0]}),
}


def damaged_files(valid: bytes) -> st.SearchStrategy[bytes]:
    """A file with up to three faults: a piece is removed or repeated, something is inserted, or both."""
    near_the_start = st.integers(0, min(len(valid), 600))
    fault = st.tuples(
        near_the_start | st.integers(0, len(valid)),
        st.sampled_from([-100, -7, -1, 0, 0, 1, 1, 2, 7, 100, len(valid)]),  # how much is lost; below 0, repeated
        st.just(b"") | st.binary(min_size=1, max_size=1) | st.sampled_from(AWKWARD_BYTES),
    )

    def apply(faults: list[tuple[int, int, bytes]]) -> bytes:
        content = valid
        for start, lost, piece in faults:
            content = content[:start] + piece + content[max(0, start + lost) :]
        return content

    return st.lists(fault, min_size=1, max_size=3).map(apply)


def split_lines(content: bytes) -> list[str] | None:
    """The lines of a file; None if it is not UTF-8."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    *lines, rest = text.split("\n")
    return [line.removesuffix("\r") for line in (lines if rest == "" else [*lines, rest])]


def output_or_none(*argv: str | Path, stdin: bytes = b"", n_lines: int = 0) -> str | None:
    """What a command writes; None if it ends with code 2, one line of error and `n_lines` lines of output."""
    code, written, message = run_cli(*argv, stdin=stdin)
    if code == 0:
        assert re.fullmatch("computed: .*\n" if argv[0] == "verify" else "", message)
        return written
    assert (code, written.count("\n")) == (2, n_lines)
    assert message.startswith("minitrans: error: ")
    assert len(message.splitlines()) == 1
    return None


# -- translate ------------------------------------------------------------------------------------------------------


@given(content=odd_bytes, from_file=st.booleans())
def test_translate_writes_a_line_for_each_line_or_one_error(
    tiny_run: Path, offline_cwd: Path, translator: Translator, content: bytes, from_file: bool
) -> None:
    (offline_cwd / "in.txt").write_bytes(content)
    sources = split_lines(content)
    are_valid = [split_lines(line) is not None for line in content.split(b"\n")]
    n_lines = are_valid.index(False) if sources is None else 0  # those before the first that is not UTF-8
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli.translate, "load_translator", lambda *_: translator)  # once, not for each example
        if from_file:
            written = output_or_none("translate", tiny_run, "--input", offline_cwd / "in.txt", n_lines=n_lines)
        else:
            written = output_or_none("translate", tiny_run, stdin=content, n_lines=n_lines)
    if sources is None or written is None:
        assert (sources, written) == (None, None)
        return
    translations = split_lines(written.encode())
    assert translations is not None
    assert len(translations) == len(sources)
    for source, translation in zip(sources, translations, strict=True):
        assert translation == clean(translation)
        assert source or not translation


# -- the corpus reader ----------------------------------------------------------------------------------------------


def load_pairs_or_none(files: dict[str, bytes]) -> dict[str, list[tuple[str, str]]] | None:
    """The pairs of each split; None if the corpus is refused, with one line that is not too long."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            Path(folder, name).write_bytes(content)
        try:
            corpus = load_corpus(DataConfig(folder, "en", "zh", cache_dir=os.path.join(folder, "cache")))
        except UserError as error:
            message = str(error)
        else:
            return {
                split: list(zip(pairs["source"][:], pairs["target"][:], strict=True)) for split, pairs in corpus.items()
            }
    assert len(message.splitlines()) == 1
    assert len(message) < 1000
    return None


def check_corpus(files: dict[str, bytes], expected: list[tuple[str, str]] | None) -> None:
    """Compare what is read from `train` and `test` files of the same content with the pairs that they hold."""
    corpus = load_pairs_or_none({**files, "valid.tsv": CORPUS_BYTES["tsv"]})
    full = [pair for pair in expected or [] if all(map(clean, pair))]
    if not full:
        assert corpus is None
    else:
        assert corpus is not None
        assert (corpus["train"], corpus["test"]) == (full, expected)


line_bytes = odd_bytes.map(lambda content: content.replace(b"\n", b" "))
parallel_files = st.lists(st.tuples(line_bytes, line_bytes), max_size=6).map(
    lambda pairs: [b"\n".join(side) for side in zip(*pairs, strict=True)]
)


@given(st.one_of(parallel_files.filter(bool), st.lists(odd_bytes, min_size=2, max_size=2)))
def test_two_files_of_lines_are_read_or_refused(sides: list[bytes]) -> None:
    files = {
        f"{split}.{side}": text for split in ("train", "test") for side, text in zip(("en", "zh"), sides, strict=True)
    }
    sources, targets = map(split_lines, sides)
    expected = None
    if sources is not None and targets is not None and len(sources) == len(targets):
        expected = list(zip(sources, targets, strict=True))
    check_corpus(files, expected)


@given(st.one_of(damaged_files(CORPUS_BYTES["tsv"]), odd_bytes.map(b"en\tzh\n".__add__), odd_bytes))
def test_a_tsv_is_read_or_refused(content: bytes) -> None:
    header, *rows = [line.split("\t") for line in split_lines(content) or []] or [[]]
    told = {"en", "zh"} <= set(header) and all(len(row) == len(header) for row in rows)
    places = [header.index(side) for side in ("en", "zh")] if told else []
    expected = [(row[places[0]], row[places[1]]) for row in rows] if told else None
    check_corpus({"train.tsv": content, "test.tsv": content}, expected)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@given(data=st.data())
def test_a_csv_jsonl_or_parquet_file_is_read_or_refused(suffix: str, data: st.DataObject) -> None:
    header = b"en,zh\n" if suffix == "csv" else b""
    content = data.draw(st.one_of(damaged_files(CORPUS_BYTES[suffix]), odd_bytes.map(header.__add__), odd_bytes))
    files = {f"train.{suffix}": content, f"test.{suffix}": content, "valid.tsv": CORPUS_BYTES["tsv"]}
    corpus = load_pairs_or_none(files)
    if corpus is not None:
        assert 0 < len(corpus["train"]) <= len(corpus["test"])
        lines = split_lines(content) or []
        if suffix == "csv":
            assert len(corpus["test"]) < len(lines)
        if suffix == "jsonl":
            assert corpus["test"] == [(row["en"], row["zh"]) for row in map(json.loads, lines)]


@pytest.mark.parametrize("suffix", CORPUS_BYTES)
def test_control_an_undamaged_file_is_read(suffix: str) -> None:
    content = CORPUS_BYTES[suffix]
    corpus = load_pairs_or_none({f"train.{suffix}": content, "valid.tsv": CORPUS_BYTES["tsv"]})
    assert corpus is not None
    assert len(corpus["train"]) == len(PAIRS)


# -- run folders ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_to_damage(tiny_run: Path, offline_cwd: Path) -> Path:
    return copy_run(tiny_run, offline_cwd / "run")


@pytest.mark.parametrize("name", [METADATA, WEIGHTS, TOKENIZER, WORDS])
@given(data=st.data())
def test_a_damaged_run_translates_or_is_refused(run_to_damage: Path, name: str, data: st.DataObject) -> None:
    whole = (run_to_damage / name).read_bytes()
    try:
        (run_to_damage / name).write_bytes(data.draw(damaged_files(whole) | odd_bytes))
        written = output_or_none("translate", run_to_damage, "I love you.", "")
    finally:
        (run_to_damage / name).write_bytes(whole)
    assert written is None or written.count("\n") == 2


@given(data=st.data())
def test_a_damaged_config_finds_its_corpus_or_is_refused(
    run_to_damage: Path, fresh_model_report: Report, data: st.DataObject
) -> None:
    path = run_to_damage / "config.yaml"
    whole = path.read_bytes()
    section = whole.index(b"data:")
    try:
        path.write_bytes(data.draw(damaged_files(whole[section:]) | odd_bytes.map(b"data: ".__add__)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run_checks, "run", lambda **_: fresh_model_report)
            written = output_or_none("verify", run_to_damage)
    finally:
        path.write_bytes(whole)
    assert written is None or "0 failed" in written


@cache
def tokenizer_bytes(model_type: ModelType) -> bytes:
    return Tokenizer.train([side for pair in PAIRS for side in pair], TokenizerConfig(300, model_type)).proto


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
@given(data=st.data())
def test_a_damaged_tokenizer_works_or_is_refused(model_type: ModelType, data: st.DataObject) -> None:
    try:
        tokenizer = Tokenizer(data.draw(damaged_files(tokenizer_bytes(model_type))))
    except UserError:
        return
    for line in ("I love you. 我爱你。", "\U0010ffff"):
        assert all(0 <= i < tokenizer.vocab_size for i in tokenizer.encode(line))
    for i in range(tokenizer.vocab_size):
        assert clean(tokenizer.decode([i])) == tokenizer.decode([i])
        assert tokenizer.pieces[i]
