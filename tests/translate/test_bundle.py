"""A run folder: what is saved is what is loaded, and no code in it is run."""

import io
import json
import pickle
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import pytest
import sentencepiece
import torch
from command_helpers import EvilPickle, copy_run, refusal_message, run_cli
from conftest import randomize
from safetensors.torch import load_file
from torch import nn

from minitrans.errors import UserError
from minitrans.model.transformer import Transformer, TransformerConfig
from minitrans.text.reading import load_reader
from minitrans.text.tokenizer import Tokenizer, TokenizerConfig
from minitrans.translate import bundle as bundle_module
from minitrans.translate.bundle import METADATA, TOKENIZER, WEIGHTS, WORDS, Bundle, Threshold, load_bundle, save_bundle


@pytest.fixture
def run_dir(tiny_run: Path, tmp_path: Path) -> Path:
    """A copy of a trained run that a test may break."""
    return copy_run(tiny_run, tmp_path / "run")


def test_a_saved_bundle_loads_unchanged(run_dir: Path, tmp_path: Path) -> None:
    bundle = load_bundle(run_dir)
    bundle.model.double().train()  # whatever its dtype and mode, it is loaded in float32 and in eval mode
    assert (bundle.source, bundle.target) == ("en", "zh")
    folder = tmp_path / "again"
    folder.mkdir()
    save_bundle(folder, bundle)
    again = load_bundle(folder)
    assert again.model.config == bundle.model.config
    assert (again.source, again.target, again.tokenizer.digest) == ("en", "zh", bundle.tokenizer.digest)
    assert not again.model.training
    for name, tensor in bundle.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor.float()), name
    assert sorted(path.name for path in folder.iterdir()) == [METADATA, WEIGHTS, TOKENIZER, WORDS]
    assert "love" in (bundle.source_words or ())
    assert bundle.threshold is not None
    assert (again.source_words, again.threshold) == (bundle.source_words, bundle.threshold)
    for words in ({"é": 0, "don't": 1, "中": 2}, dict[str, int]()):
        save_bundle(folder, replace(bundle, source_words=words, threshold=Threshold(-1.5, None)))
        again = load_bundle(folder)
        assert (again.source_words, again.threshold) == (words, Threshold(-1.5, None))


class EditedTransformer(Transformer):
    """A model with a buffer that is part of its state, and a matrix that is stored by columns."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.register_buffer("seen", torch.zeros(3))
        self.output.weight = nn.Parameter(self.output.weight.detach().T.contiguous().T)


def test_a_buffer_and_a_matrix_of_any_memory_layout_are_saved(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = load_bundle(run_dir)
    model = EditedTransformer(bundle.model.config)
    model.get_buffer("seen").fill_(-torch.inf)  # as in a mask
    save_bundle(tmp_path, replace(bundle, model=model))
    monkeypatch.setattr(bundle_module, "Transformer", EditedTransformer)
    loaded = load_bundle(tmp_path).model
    assert loaded.get_buffer("seen").tolist() == [-torch.inf] * 3
    assert torch.equal(loaded.output.weight, model.output.weight)


def test_special_ids_are_those_of_the_tokenizer_file(tmp_path: Path) -> None:
    """Any ids that SentencePiece gives: neither in order, nor the first four."""
    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d"] * 9), model_writer=proto, vocab_size=270, hard_vocab_limit=False,
        byte_fallback=True, pad_id=7, bos_id=5, eos_id=1, unk_id=3, minloglevel=2,
    )  # fmt: skip
    tokenizer = Tokenizer(proto.getvalue())
    sizes = TransformerConfig(tokenizer.vocab_size, 7, 5, 1, d_model=4, n_heads=1, d_ff=3, n_layers=1, max_len=9)
    save_bundle(tmp_path, Bundle(Transformer(sizes), tokenizer, "en", "zh"))
    bundle = load_bundle(tmp_path)
    assert (bundle.model.config, bundle.tokenizer.pad_bos_eos_ids) == (sizes, (7, 5, 1))


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("placeholders", [False, True])
def test_an_exported_reader_reads_as_the_run_does(plain: bool, placeholders: bool, run_dir: Path) -> None:
    settings = TokenizerConfig(400, plain_sources=plain, placeholders=placeholders)
    tokenizer = Tokenizer.train(["What is it, Tom?", "有只猫。"], settings)
    bundle = replace(load_bundle(run_dir), tokenizer=tokenizer, source_words={"what": 0, "is": 1})
    bundle_module.save_reader_code_and_settings(run_dir, bundle)
    own, exported = tokenizer.make_reader(bundle.source_words), load_reader(run_dir)
    for text in ("where is it", "“Zoltan” is 5 ，"):
        assert exported.preprocess(text) == own.preprocess(text)


def test_a_run_without_a_word_list_and_a_threshold_marks_nothing(run_dir: Path) -> None:
    save_bundle(run_dir, replace(load_bundle(run_dir), source_words=None, threshold=None))
    bundle = load_bundle(run_dir)
    assert (bundle.source_words, bundle.threshold) == (None, None)
    code, out, err = run_cli("translate", run_dir, "--scores", "xyzzy", "I love you.")
    assert (code, err) == (0, "")
    assert [line.split("\t")[1] for line in out.splitlines()] == ["", ""]


def test_a_tied_matrix_is_saved_once_and_stays_tied_and_untied_ones_are_saved(run_dir: Path, tmp_path: Path) -> None:
    assert not {"tgt_embedding.weight", "output.weight"} & set(load_file(run_dir / WEIGHTS))
    bundle = load_bundle(run_dir)
    assert bundle.model.output.weight is bundle.model.src_embedding.weight is bundle.model.tgt_embedding.weight
    model = randomize(Transformer(replace(bundle.model.config, tie_embeddings=False)), 3).float()
    save_bundle(tmp_path, replace(bundle, model=model))
    names = ["src_embedding.weight", "tgt_embedding.weight", "output.weight"]
    loaded, saved = load_bundle(tmp_path).model.state_dict(), load_file(tmp_path / WEIGHTS)
    for name in names:
        assert torch.equal(loaded[name], model.state_dict()[name]), name
        assert torch.equal(saved[name], loaded[name]), name
    assert len({loaded[name].sum().item() for name in names}) == 3


@dataclass(frozen=True)
class ConfigWithNorm(TransformerConfig):
    """The settings of an edited model: `norm` is a new one, with two possible values."""

    norm: Literal["before", "after"] = "before"


def test_a_new_setting_may_have_a_choice_of_values(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_module, "TransformerConfig", ConfigWithNorm)
    bundle = load_bundle(run_dir)
    assert bundle.model.config == ConfigWithNorm(**asdict(bundle.model.config))  # an old run gets the default
    for norm in ("after", "between"):
        sizes = json.loads((run_dir / METADATA).read_text())
        sizes["model"]["norm"] = norm
        (run_dir / METADATA).write_text(json.dumps(sizes))
        if norm == "after":
            assert asdict(load_bundle(run_dir).model.config)["norm"] == norm
        else:
            with pytest.raises(UserError, match="norm is 'between'"):
                load_bundle(run_dir)


# -- Damaged files (most of them: tests/test_refusals.py) -------------------------------------------------------------


@pytest.mark.parametrize("name", [METADATA, WEIGHTS, TOKENIZER, WORDS])
def test_a_pickle_in_place_of_a_file_is_not_run(name: str, run_dir: Path) -> None:
    for dump in (pickle.dump, torch.save):
        with open(run_dir / name, "wb") as file:
            dump(EvilPickle(run_dir / "evil"), file)
        assert name in refusal_message("translate", run_dir, "I love you.", unchanged=run_dir)
