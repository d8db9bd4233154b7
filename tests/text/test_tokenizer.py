import copy
import hashlib
import io
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from minitrans.errors import UserError
from minitrans.text.reading import clean
from minitrans.text.tokenizer import ModelType, Tokenizer, TokenizerConfig

SENTENCES = [
    f"{who} {does} {what}{end}"
    for who, does, what, end in zip(
        ["the cat", "a dog", "der Hund", "eine Katze", "我", "她"] * 20,
        ["sees", "eats", "sieht", "isst", "看见", "吃"] * 20,
        ["two birds", "fish", "einen Vogel", "Fisch", "鸟", "鱼"] * 20,
        ["，", "？", "！", ".", ""] * 24,
        strict=True,
    )
]
CONFIG = TokenizerConfig(vocab_size=300)
AWKWARD_LINES = ["", " ", "\x00", "👨\u200d👩\u200d👧 ok", "Ελληνικά العربية ไทย", "，？！"]
AWKWARD_LINES += ["cat " * 10_000, "鱼" * 10_000, "𓀀" * 2_500]

texts = st.one_of(
    st.text(),
    st.text(st.characters(exclude_categories=())),  # lone surrogates included
    st.lists(st.sampled_from(["<s>", "</s>", "<pad>", "<unk>", "<0x41>", "⁇", " ", "a", "我", "\u0301"])).map("".join),
)


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.train(SENTENCES, TokenizerConfig(vocab_size=300, model_type=request.param))


def special_ids(tokenizer: Tokenizer) -> list[int]:
    return [tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id]


def test_special_ids_and_vocabulary_size(tokenizer: Tokenizer) -> None:
    assert special_ids(tokenizer) == [0, 1, 2, 3]
    assert special_ids(Tokenizer(foreign_model(3, 2, 1))) == [3, 2, 1, 0]  # they are read back from the file
    assert tokenizer.vocab_size == 300
    assert len({*tokenizer.pieces}) == 300


def test_decode_undoes_encode(tokenizer: Tokenizer) -> None:
    def check(text: str) -> None:
        text = text.replace("\u2581", "")
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == clean(text)
        assert bool(ids) == bool(clean(text))
        assert not set(ids) & set(special_ids(tokenizer))

    for text in AWKWARD_LINES:
        check(text)
    given(texts)(check)()
    assert tokenizer.decode(tokenizer.encode("a\u2581\u2581cat\u2581")) == "a cat"  # the mark for a space is a space


def test_decode_takes_any_ids(tokenizer: Tokenizer) -> None:
    @given(st.lists(st.integers(0, tokenizer.vocab_size - 1) | st.integers(0, 260)))
    def check(ids: list[int]) -> None:
        line = tokenizer.decode(ids)
        assert line == clean(line)
        assert "\u2581" not in line
        assert line == tokenizer.decode([i for i in ids if i not in special_ids(tokenizer)])

    check()
    assert tokenizer.decode([*special_ids(tokenizer), *tokenizer.encode("a cat")]) == "a cat"


def test_broken_bytes_become_a_replacement_character(tokenizer: Tokenizer) -> None:
    first, second = tokenizer.encode("\u0416")[-2:]  # an unseen letter: two bytes
    assert tokenizer.decode([first, second]) == "\u0416"
    assert set(tokenizer.decode([first])) == {"\ufffd"}
    assert tokenizer.decode([second, *tokenizer.encode("cat")]).startswith("\ufffd")


def test_batches_equal_single_lines(tokenizer: Tokenizer) -> None:
    lines = ["the cat", "", " 我\t看见 ", "\udc80"] * 50
    rows = tokenizer.encode_batch(lines)
    assert rows == [tokenizer.encode(line) for line in lines]
    assert [*map(tokenizer.decode, rows)] == [clean(line) for line in lines]
    assert tokenizer.encode_batch([]) == []


def test_training_is_deterministic() -> None:
    """Also in another process, where strings hash differently."""
    program = (
        "import sys; from minitrans.text.tokenizer import *; "
        "print(*(Tokenizer.train(sys.argv[1:], TokenizerConfig(300, kind)).digest for kind in ('unigram', 'bpe')))"
    )
    printed = subprocess.check_output([sys.executable, "-c", program, *SENTENCES], text=True).split()
    assert printed == [Tokenizer.train(SENTENCES, TokenizerConfig(300, kind)).digest for kind in get_args(ModelType)]
    assert len({*printed}) == 2


@pytest.mark.parametrize("model_type", get_args(ModelType))
def test_digits_are_single_pieces_and_a_vocabulary_too_large_is_lowered(
    model_type: ModelType, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = ["Room 508.", "508号房间。"] * 50
    tokenizer = Tokenizer.train(lines, TokenizerConfig(vocab_size=8000, model_type=model_type))
    assert 260 < tokenizer.vocab_size < 400
    ids = tokenizer.encode("508号 508")
    assert [piece for i in ids if re.search(r"\d", piece := tokenizer.pieces[i])] == [*"508508"]
    assert tokenizer.decode(ids) == "508号 508"
    assert capfd.readouterr() == ("", "")  # training prints nothing


def test_a_placeholder_character_in_the_text_turns_no_placeholders_on() -> None:
    tokenizer = Tokenizer.train([f"{line} \ue000" for line in SENTENCES], CONFIG)
    assert "\ue000" in tokenizer.pieces
    assert tokenizer.signs is None


def test_a_vocabulary_too_small_is_refused_with_the_smallest_possible() -> None:
    with pytest.raises(UserError, match=r"vocab_size is 262, too small .* at least (\d+)") as caught:
        Tokenizer.train(SENTENCES, TokenizerConfig(vocab_size=262))
    smallest = int(str(caught.value).split("at least ")[1].split(",")[0])
    assert Tokenizer.train(SENTENCES, TokenizerConfig(vocab_size=smallest)).vocab_size == smallest
    with pytest.raises(UserError, match="too small"):
        Tokenizer.train(SENTENCES, TokenizerConfig(vocab_size=smallest - 1))


@pytest.mark.parametrize("sentences", [[], ["", " \x00 "]])
def test_training_without_text_is_refused(sentences: list[str]) -> None:
    with pytest.raises(UserError, match="no text to train the tokenizer on"):
        Tokenizer.train(sentences, CONFIG)


def test_long_sentences_are_not_dropped() -> None:
    line = " ".join(chr(0x4E00 + i % 30) for i in range(20_000))
    tokenizer = Tokenizer.train([line], CONFIG)
    assert max(map(len, tokenizer.encode_batch([chr(0x4E00 + i) for i in range(30)]))) <= 2  # no bytes needed


def test_decode_gives_spaces_without_a_piece_for_them() -> None:
    # The only space, at the start, is too rare for a piece.
    tokenizer = Tokenizer.train(["字" * 30_000], TokenizerConfig(vocab_size=300, model_type="bpe"))
    assert tokenizer.decode(tokenizer.encode("字 a")) == "字 a"


def test_file_pickle_and_copy_keep_the_bytes(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(tokenizer.proto)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == tokenizer.digest
    loaded = Tokenizer.load(path)
    assert pickle.dumps(loaded) == pickle.dumps(tokenizer)
    for other in (loaded, pickle.loads(pickle.dumps(tokenizer)), copy.deepcopy(tokenizer)):
        assert other.digest == tokenizer.digest
        assert other.vocab_size == tokenizer.vocab_size
        assert other.encode("the cat 鱼") == tokenizer.encode("the cat 鱼")


def test_a_missing_or_damaged_file_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "tokenizer.model"
    with pytest.raises(UserError, match=r"cannot read the tokenizer .*No such file"):
        Tokenizer.load(path)
    whole = tokenizer.proto
    pieces = [b"<0x41>", "鱼".encode()]
    assert [whole.count(piece) for piece in pieces] == [1, 1]
    no_text = [whole.replace(piece, b"\xff" * len(piece)) for piece in pieces]
    for content in (b"", whole[:1], whole[: whole.index(pieces[0]) + 3], whole[:-1], *no_text):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"tokenizer\.model: not a SentencePiece model"):
            Tokenizer.load(path)


def foreign_model(pad_id: int, bos_id: int, eos_id: int) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, vocab_size=50, hard_vocab_limit=False, minloglevel=2,
        unk_id=0, pad_id=pad_id, bos_id=bos_id, eos_id=eos_id,
    )  # fmt: skip
    return model.getvalue()


@pytest.mark.parametrize(("ids", "missing"), [((-1, 1, 2), "pad_id"), ((2, -1, 1), "bos_id"), ((2, 1, -1), "eos_id")])
def test_a_file_without_a_special_id_is_refused(tmp_path: Path, ids: tuple[int, int, int], missing: str) -> None:
    (tmp_path / "tokenizer.model").write_bytes(foreign_model(*ids))
    with pytest.raises(UserError, match=rf"tokenizer\.model: the SentencePiece model has no {missing}"):
        Tokenizer.load(tmp_path / "tokenizer.model")
