"""A run folder: what is saved is what is loaded, and each way in which it can be damaged is told in a line."""

import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sentencepiece
import torch
from conftest import randomize
from safetensors.torch import load_file, save_file
from torch import Tensor

from minitrans import cli
from minitrans.errors import UserError
from minitrans.model.transformer import Transformer, TransformerConfig
from minitrans.text.tokenizer import Tokenizer
from minitrans.translate.bundle import SIZES, TOKENIZER, WEIGHTS, WORDS, Bundle, Threshold, load_bundle, save_bundle

Damage = Callable[[Path], object]


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    """A copy of a trained run that a test may break."""
    for name in (SIZES, WEIGHTS, TOKENIZER, WORDS):
        shutil.copy(tiny_run / name, tmp_path / name)
    return tmp_path


def test_what_is_saved_is_what_is_loaded(run: Path, tmp_path: Path) -> None:
    bundle = load_bundle(run)
    assert (bundle.source, bundle.target) == ("en", "zh")
    folder = tmp_path / "again"
    folder.mkdir()
    save_bundle(folder, bundle)
    again = load_bundle(folder)
    assert again.model.config == bundle.model.config
    assert (again.source, again.target, again.tokenizer.digest) == ("en", "zh", bundle.tokenizer.digest)
    assert not again.model.training
    for name, tensor in bundle.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor), name
    assert sorted(path.name for path in folder.iterdir()) == [SIZES, WEIGHTS, TOKENIZER, WORDS]
    assert bundle.words is not None
    assert "love" in bundle.words
    assert bundle.threshold is not None
    assert (again.words, again.threshold) == (bundle.words, bundle.threshold)


def test_a_run_without_a_list_of_words_and_a_threshold_says_nothing_of_either(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_bundle(run, replace(load_bundle(run), words=None, threshold=None))
    bundle = load_bundle(run)
    assert (bundle.words, bundle.threshold) == (None, None)
    assert cli.main(["translate", str(run), "--scores", "xyzzy", "I love you."]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [line.split("\t")[1] for line in out.splitlines()] == ["", ""]


def test_words_and_thresholds_of_any_kind_are_kept(run: Path, tmp_path: Path) -> None:
    for words in ({"é": 0, "don't": 1, "中": 2}, dict[str, int]()):
        for threshold in (Threshold(-1.5, None), Threshold(-0.25, 40.0)):
            save_bundle(tmp_path, replace(load_bundle(run), words=words, threshold=threshold))
            again = load_bundle(tmp_path)
            assert (again.words, again.threshold) == (words, threshold)


def test_a_tied_matrix_is_saved_once_and_stays_tied_and_others_are_saved_each(run: Path, tmp_path: Path) -> None:
    assert not {"tgt_embedding.weight", "output.weight"} & set(load_file(run / WEIGHTS))
    bundle = load_bundle(run)
    assert bundle.model.output.weight is bundle.model.src_embedding.weight is bundle.model.tgt_embedding.weight
    model = randomize(Transformer(replace(bundle.model.config, tie_embeddings=False)), 3).float()
    save_bundle(tmp_path, replace(bundle, model=model))
    names = ["src_embedding.weight", "tgt_embedding.weight", "output.weight"]
    found, saved = load_bundle(tmp_path).model.state_dict(), load_file(tmp_path / WEIGHTS)
    for name in names:
        assert torch.equal(found[name], model.state_dict()[name]), name
        assert torch.equal(saved[name], found[name]), name
    assert len({found[name].sum().item() for name in names}) == 3


def test_special_ids_are_those_of_the_tokenizer_file(tmp_path: Path) -> None:
    """Any that SentencePiece gives: neither in order, nor the first four."""
    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d"] * 9), model_writer=proto, vocab_size=270, hard_vocab_limit=False,
        byte_fallback=True, pad_id=7, bos_id=5, eos_id=1, unk_id=3, minloglevel=2,
    )  # fmt: skip
    tokenizer = Tokenizer(proto.getvalue())
    sizes = TransformerConfig(tokenizer.vocab_size, 7, 5, 1, d_model=4, n_heads=1, d_ff=3, n_layers=1, max_len=9)
    save_bundle(tmp_path, Bundle(Transformer(sizes), tokenizer, "en", "zh"))
    bundle = load_bundle(tmp_path)
    assert bundle.model.config == sizes
    assert (bundle.tokenizer.pad_id, bundle.tokenizer.bos_id, bundle.tokenizer.eos_id) == (7, 5, 1)


def test_weights_of_any_dtype_become_float32(run: Path, tmp_path: Path) -> None:
    bundle = load_bundle(run)
    bundle.model.double().train()
    save_bundle(tmp_path, bundle)
    again = load_bundle(tmp_path).model
    assert {tensor.dtype for tensor in again.state_dict().values()} == {torch.float32}
    assert not again.training


# -- what is damaged ------------------------------------------------------------------------------------------------


def told(**changes: object) -> Damage:
    """Change what `model.json` tells; of a dictionary in it, the entries that are given."""

    def damage(run: Path) -> None:
        found = json.loads((run / SIZES).read_text())
        for name, value in changes.items():
            found[name] = found[name] | value if name in ("model", "sha256") else value
        (run / SIZES).write_text(json.dumps(found))

    return damage


def sizes(**changes: object) -> Damage:
    return told(model=changes)


def weights(change: Callable[[dict[str, Tensor]], object]) -> Damage:
    def damage(run: Path) -> None:
        found = load_file(run / WEIGHTS)
        change(found)
        save_file(found, run / WEIGHTS)

    return damage


def content(name: str, new: bytes) -> Damage:
    return lambda run: (run / name).write_bytes(new)


def length(name: str, n: int) -> Damage:
    """Cut a file, or make it longer by zeros, which take no room on the disk."""
    return lambda run: os.truncate(run / name, n)


def without(name: str) -> Damage:
    return lambda run: (run / name).unlink()


def one_layer_for_a_billion(run: Path) -> None:
    """The only layer has the number of the last one, and there are to be so many."""
    found = {
        name.replace("layers.0.", "layers.999999999."): tensor for name, tensor in load_file(run / WEIGHTS).items()
    }
    save_file(found, run / WEIGHTS)
    sizes(n_layers=10**9)(run)


BIAS = "encoder.norm.bias"
DAMAGED, NO_FIT, OTHER = (
    "model.json is damaged",
    "does not fit model.json",
    "does not have the sha256 that model.json gives",
)
NO_WORDS = "words.txt is missing or damaged"
THRESHOLDS = [1, {"score": "low", "chrf": None}, {"score": -1, "chrf": []}, {"score": None, "chrf": None}, {"x": 1}]
DAMAGES: list[tuple[Damage, str]] = [
    # Files
    *((without(name), f"holds no finished run: {name} is missing") for name in (SIZES, WEIGHTS, TOKENIZER)),
    *((length(name, 50), name) for name in (SIZES, WEIGHTS, TOKENIZER, WORDS)),
    *((length(name, 2**40), rf"{name} is damaged \(1099511627776 bytes, more") for name in (SIZES, TOKENIZER, WORDS)),
    (without(WORDS), NO_WORDS),
    (content(WORDS, b"\xff\n"), NO_WORDS),
    (content(WORDS, b"a\nb\n"), r"words.txt is damaged \(2 words, not \d{2,}\); train the run again"),
    # model.json
    (content(SIZES, b"[" * 100_000), DAMAGED),
    (content(SIZES, b"{}"), "model.json has no 'sha256': another version of minitrans wrote it; train the run again"),
    *((told(threshold=threshold), DAMAGED) for threshold in THRESHOLDS),
    (told(target="zh\x1b[2J"), rf"{DAMAGED} .*\\x1b"),
    (told(sha256={TOKENIZER: "0" * 64}), f"{TOKENIZER} {OTHER}"),
    (sizes(d_modl=3), f"{DAMAGED} .*d_modl"),
    (sizes(n_layers=1.0), f"{DAMAGED} .*n_layers is 1.0"),
    (sizes(d_head="16"), f"{DAMAGED} .*'<'"),
    (sizes(vocab_size=7), r"vocab_size is 7 in the model, \d{3,} in the tokenizer; the files come from different runs"),
    (sizes(pad_id=9), "pad_id is 9 in the model, 0 in the tokenizer"),
    (sizes(bos_id=9), "bos_id is 9 in the model, 1 in the tokenizer"),
    (sizes(eos_id=9), "eos_id is 9 in the model, 2 in the tokenizer"),
    (sizes(d_ff=99), f"{NO_FIT}: decoder.layers.0.ff.w_1.bias differs"),
    # Sizes of a giant: taking its memory would end the process
    (sizes(d_model=10**9), DAMAGED),
    (sizes(vocab_size=10**12), "vocab_size is 10{12} in the model"),
    (sizes(n_layers=10**9), NO_FIT),
    (one_layer_for_a_billion, f"{NO_FIT}: n_layers differs"),
    (sizes(n_heads=10**9, d_head=10**9), NO_FIT),  # more bytes than 64 bits can count
    (sizes(d_ff=10**12), NO_FIT),
    (sizes(d_ff=10**30), NO_FIT),
    (sizes(max_len=10**12), f"{DAMAGED} .*max_len is 10{{12}}"),
    (sizes(max_len=1 << 21), f"{DAMAGED} .*max_len is 2097152"),  # no weight tells of it
    (sizes(d_model=2**16, n_heads=1, d_head=1, max_len=2**20), rf"{DAMAGED} \(max_len is 1048576, d_model 65536\)"),
    # The weights
    (weights(lambda found: found.pop(BIAS)), f"{BIAS} differs"),
    (weights(lambda found: found[BIAS][3].fill_(torch.nan)), rf"damaged \({BIAS} is not finite\)"),
    (weights(lambda found: found[BIAS][3].fill_(torch.inf)), rf"damaged \({BIAS} is not finite\)"),
    (weights(lambda found: found[BIAS].mul_(1.01)), f"{WEIGHTS} {OTHER}"),  # finite, and of the right shape
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_a_damaged_run_is_refused(run: Path, damage: Damage, message: str) -> None:
    damage(run)
    with pytest.raises(UserError, match=message):
        load_bundle(run)


def test_shapes_that_disagree_are_found_before_a_tensor_is_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights(lambda found: found.update({BIAS: found[BIAS][:-1].clone()}))(run)
    monkeypatch.setattr(torch.Tensor, "isfinite", None)
    with pytest.raises(UserError, match=f"does not fit model.json: {BIAS} differs"):
        load_bundle(run)


@pytest.mark.parametrize("name", ["nowhere", "a" * 10_000])
def test_a_path_that_is_no_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=f"{name} is not a folder"):
        load_bundle(tmp_path / name)


class Evil:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", [SIZES, WEIGHTS, TOKENIZER, WORDS])
def test_a_pickle_in_the_place_of_a_file_is_not_run(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for dump in (pickle.dump, torch.save):
        with open(run / name, "wb") as file:
            dump(Evil(run / "evil"), file)
        assert cli.main(["translate", str(run), "I love you."]) == 2
        assert not (run / "evil").exists()
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith("minitrans: error: ")
        assert name in err
