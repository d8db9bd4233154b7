import io
import json
import os
import pickle
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import sentencepiece
import torch
from conftest import randomize
from safetensors.torch import load_file, save_file

from minitrans import cli
from minitrans.errors import UserError
from minitrans.model.transformer import Transformer, TransformerConfig
from minitrans.serving.bundle import SIZES, TOKENIZER, WEIGHTS, WORDS, Bundle, Threshold, load_bundle, save_bundle
from minitrans.text.tokenizer import Tokenizer


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    """A copy of a trained run that a test may break."""
    for name in (SIZES, WEIGHTS, TOKENIZER, WORDS):
        shutil.copy(tiny_run / name, tmp_path / name)
    return tmp_path


def change_sizes(run: Path, **changes: object) -> None:
    sizes = json.loads((run / SIZES).read_text())
    sizes["model"] |= changes
    (run / SIZES).write_text(json.dumps(sizes))


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


def test_a_run_from_before_words_and_thresholds_were_kept_is_loaded(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = json.loads((run / SIZES).read_text())
    del sizes["words"], sizes["threshold"]
    (run / SIZES).write_text(json.dumps(sizes))
    (run / WORDS).unlink()
    bundle = load_bundle(run)
    assert (bundle.words, bundle.threshold) == (None, None)
    assert cli.main(["translate", str(run), "--scores", "xyzzy", "I love you."]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [line.split("\t")[1] for line in out.splitlines()] == ["", ""]


def test_words_and_thresholds_of_any_kind_are_kept(run: Path, tmp_path: Path) -> None:
    for words in (frozenset({"é", "don't", "中"}), frozenset[str]()):
        for threshold in (Threshold(-1.5, None), Threshold(-0.25, 40.0)):
            save_bundle(tmp_path, replace(load_bundle(run), words=words, threshold=threshold))
            again = load_bundle(tmp_path)
            assert (again.words, again.threshold) == (words, threshold)


@pytest.mark.parametrize(
    "threshold", [1, {"score": "low", "chrf": None}, {"score": -1, "chrf": []}, {"score": None, "chrf": None}, {"x": 1}]
)
def test_a_threshold_that_makes_no_sense(run: Path, threshold: object) -> None:
    sizes = json.loads((run / SIZES).read_text())
    (run / SIZES).write_text(json.dumps(sizes | {"threshold": threshold}))
    with pytest.raises(UserError, match=r"model.json is damaged"):
        load_bundle(run)


def test_words_that_are_gone_or_of_another_number(run: Path) -> None:
    n = len((run / WORDS).read_text(encoding="utf-8").splitlines())
    (run / WORDS).write_text("a\nb\n")
    with pytest.raises(UserError, match=rf"words.txt is damaged \(2 words, not {n}\); train the run again"):
        load_bundle(run)
    (run / WORDS).write_bytes(b"\xff\n")
    with pytest.raises(UserError, match=r"words.txt is missing or damaged"):
        load_bundle(run)
    (run / WORDS).unlink()
    with pytest.raises(UserError, match=r"words.txt is missing or damaged"):
        load_bundle(run)


def test_a_tied_matrix_is_saved_once_and_stays_tied(run: Path) -> None:
    assert not {"tgt_embedding.weight", "output.weight"} & set(load_file(run / WEIGHTS))
    model = load_bundle(run).model
    assert model.output.weight is model.src_embedding.weight is model.tgt_embedding.weight


def test_matrices_that_are_not_tied_are_saved_each(run: Path, tmp_path: Path) -> None:
    bundle = load_bundle(run)
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
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (7, 5, 1)
    sizes = TransformerConfig(tokenizer.vocab_size, 7, 5, 1, d_model=4, n_heads=1, d_ff=3, n_layers=1, max_len=9)
    save_bundle(tmp_path, Bundle(Transformer(sizes), tokenizer, "en", "zh"))
    bundle = load_bundle(tmp_path)
    assert bundle.model.config == sizes
    assert (bundle.tokenizer.pad_id, bundle.tokenizer.bos_id, bundle.tokenizer.eos_id) == (7, 5, 1)
    for name in "pad_id", "bos_id", "eos_id":
        save_bundle(tmp_path, bundle)
        change_sizes(tmp_path, **{name: 9})
        with pytest.raises(UserError, match=rf"{name} is 9 in the model, {getattr(tokenizer, name)} in the tokenizer"):
            load_bundle(tmp_path)


def test_weights_of_any_dtype_become_float32(run: Path, tmp_path: Path) -> None:
    bundle = load_bundle(run)
    bundle.model.double().train()
    save_bundle(tmp_path, bundle)
    again = load_bundle(tmp_path).model
    assert {tensor.dtype for tensor in again.state_dict().values()} == {torch.float32}
    assert not again.training


def test_a_path_that_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere is not a folder"):
        load_bundle(tmp_path / "nowhere")


@pytest.mark.parametrize("missing", [SIZES, WEIGHTS, TOKENIZER])
def test_an_incomplete_run_names_what_is_missing(run: Path, missing: str) -> None:
    (run / missing).unlink()
    with pytest.raises(UserError, match=f"holds no finished run: {missing} is missing"):
        load_bundle(run)


@pytest.mark.parametrize("damaged", [SIZES, WEIGHTS, TOKENIZER, WORDS])
def test_a_damaged_file_is_named(run: Path, damaged: str) -> None:
    (run / damaged).write_bytes((run / damaged).read_bytes()[:50])
    with pytest.raises(UserError, match=damaged):
        load_bundle(run)


def test_sizes_with_an_unknown_field(run: Path) -> None:
    change_sizes(run, d_modl=3)
    with pytest.raises(UserError, match=r"model.json is damaged .*d_modl"):
        load_bundle(run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"n_layers": 1.0}, "n_layers is 1.0"), ({"max_len": 10**12}, "max_len is 10{12}"), ({"d_head": "16"}, "'<'")],
)
def test_sizes_that_make_no_sense(run: Path, changes: dict[str, object], message: str) -> None:
    change_sizes(run, **changes)
    with pytest.raises(UserError, match=rf"model.json is damaged .*{message}"):
        load_bundle(run)


def test_sizes_in_brackets_without_end(run: Path) -> None:
    (run / SIZES).write_text("[" * 100_000)
    with pytest.raises(UserError, match=r"model.json is damaged"):
        load_bundle(run)


def test_a_name_too_long_for_a_folder() -> None:
    with pytest.raises(UserError, match="is not a folder"):
        load_bundle(Path("a" * 10_000))


def test_tokenizer_and_model_of_different_sizes(run: Path) -> None:
    n_pieces = load_bundle(run).tokenizer.vocab_size
    change_sizes(run, vocab_size=n_pieces + 1)
    with pytest.raises(UserError, match=f"the model has {n_pieces + 1} pieces, the tokenizer {n_pieces}"):
        load_bundle(run)


def test_tokenizer_and_model_with_different_special_ids(run: Path) -> None:
    change_sizes(run, bos_id=2, eos_id=1)
    with pytest.raises(UserError, match="bos_id is 2 in the model, 1 in the tokenizer"):
        load_bundle(run)


@pytest.mark.parametrize("name", ["pad_id", "bos_id", "eos_id"])
def test_each_special_id_has_to_be_the_same(run: Path, name: str) -> None:
    own = getattr(load_bundle(run).tokenizer, name)
    change_sizes(run, **{name: 9})
    with pytest.raises(UserError, match=f"{name} is 9 in the model, {own} in the tokenizer"):
        load_bundle(run)


def test_weights_of_other_sizes_name_the_first_that_differs(run: Path) -> None:
    change_sizes(run, d_ff=99)
    with pytest.raises(UserError, match=r"does not fit model.json: decoder.layers.0.ff.w_1.bias differs"):
        load_bundle(run)


def test_sizes_are_checked_before_memory_is_taken(run: Path) -> None:
    change_sizes(run, d_ff=10**12)  # 10^14 parameters: taking them would end the process
    with pytest.raises(UserError, match=r"does not fit model.json"):
        load_bundle(run)


def test_a_missing_weight_is_named(run: Path) -> None:
    weights = load_file(run / WEIGHTS)
    del weights["encoder.norm.bias"]
    save_file(weights, run / WEIGHTS)
    with pytest.raises(UserError, match=r"encoder.norm.bias differs"):
        load_bundle(run)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_named(run: Path, value: float) -> None:
    weights = load_file(run / WEIGHTS)
    weights["encoder.norm.bias"][3] = value
    save_file(weights, run / WEIGHTS)
    with pytest.raises(UserError, match=r"damaged \(encoder.norm.bias is not finite\)"):
        load_bundle(run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": 10**9}, "does not fit model.json|damaged"),
        ({"vocab_size": 10**12}, "pieces"),
        ({"n_layers": 10**9}, "does not fit model.json"),
        ({"n_heads": 10**9, "d_head": 10**9}, "does not fit model.json"),  # more bytes than 64 bits can count
        ({"d_ff": 10**30}, "does not fit model.json"),
        ({"max_len": 1 << 21}, "damaged"),  # no weight tells of it, and its table would take gigabytes
    ],
)
def test_sizes_of_a_giant_take_no_memory(run: Path, changes: dict[str, object], message: str) -> None:
    change_sizes(run, **changes)
    with pytest.raises(UserError, match=message):
        load_bundle(run)


def test_one_layer_does_not_vouch_for_a_billion(run: Path) -> None:
    weights = {re.sub(r"layers\.0\.", "layers.999999999.", name): w for name, w in load_file(run / WEIGHTS).items()}
    save_file(weights, run / WEIGHTS)
    change_sizes(run, n_layers=10**9)
    with pytest.raises(UserError, match=r"does not fit model.json: n_layers differs"):
        load_bundle(run)


def test_wide_and_long_do_not_add_up_to_more_positions_than_memory(run: Path) -> None:
    change_sizes(run, d_model=2**16, n_heads=1, d_head=1, max_len=2**20)
    with pytest.raises(UserError, match=r"model.json is damaged \(max_len is 1048576, d_model 65536\)"):
        load_bundle(run)


@pytest.mark.parametrize("large", [SIZES, TOKENIZER, WORDS])
def test_a_file_too_large_to_be_one_is_not_read(run: Path, large: str) -> None:
    with open(run / large, "ab") as file:
        file.truncate(2**40)  # of nothing: it takes no room on the disk
    with pytest.raises(UserError, match=rf"{large} is damaged \(1099511627776 bytes, more than"):
        load_bundle(run)


def test_shapes_that_disagree_are_found_before_a_tensor_is_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = load_file(run / WEIGHTS)
    weights["encoder.norm.bias"] = weights["encoder.norm.bias"][:-1].clone()
    save_file(weights, run / WEIGHTS)
    monkeypatch.setattr(torch.Tensor, "isfinite", None)
    with pytest.raises(UserError, match=r"does not fit model.json: encoder.norm.bias differs"):
        load_bundle(run)


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


def test_files_that_were_changed_since_are_refused(run: Path) -> None:
    """Every weight is still finite, and every shape right."""
    weights = load_file(run / WEIGHTS)
    save_file({name: weight * 1.01 for name, weight in weights.items()}, run / WEIGHTS)
    with pytest.raises(UserError, match=rf"{WEIGHTS} is not the file that model.json tells of"):
        load_bundle(run)


def test_another_tokenizer_of_the_same_size_is_refused(run: Path) -> None:
    told = json.loads((run / SIZES).read_text())
    told["sha256"][TOKENIZER] = "0" * 64
    (run / SIZES).write_text(json.dumps(told))
    with pytest.raises(UserError, match=rf"{TOKENIZER} is not the file that model.json tells of"):
        load_bundle(run)


def test_a_run_of_a_version_that_wrote_no_digests_is_read(run: Path) -> None:
    told = json.loads((run / SIZES).read_text())
    del told["sha256"]
    (run / SIZES).write_text(json.dumps(told))
    load_bundle(run)


def test_languages_are_printable(run: Path) -> None:
    told = json.loads((run / SIZES).read_text())
    (run / SIZES).write_text(json.dumps(told | {"target": "zh\x1b[2J"}))
    with pytest.raises(UserError, match=r"model.json is damaged .*\\x1b"):
        load_bundle(run)
