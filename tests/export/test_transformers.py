"""The folder for transformers works without our code and gives our ids, logits and tokens, or is not written."""

import functools
import random
import unicodedata
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import yaml
from command_helpers import TEST_CORPUS_DIR, run_cli, run_readme_code
from conftest import force_constant_token_ranking, randomize

pytest.importorskip("transformers", reason="the extra `hf` is not installed")

from transformers import GenerationConfig

from minitrans.errors import UserError
from minitrans.export import transformers as export_transformers
from minitrans.export.transformers import export, fast_tokenizer, load_engine, translate_exported, write_card
from minitrans.model.transformer import Transformer, TransformerConfig
from minitrans.text.reading import clean, with_keyboard_marks
from minitrans.text.tokenizer import ModelType, Tokenizer, TokenizerConfig
from minitrans.translate.bundle import Bundle
from minitrans.translate.metrics import score
from minitrans.translate.translator import Translator

SENTENCES = [
    line for name in ("en", "zh") for line in (TEST_CORPUS_DIR / f"test.{name}").read_text("utf-8").splitlines()[:300]
]
GERMAN = ["Die Katze sitzt auf dem Baum.", "Wo ist der Bahnhof?", "Größe und Straße", "Ich esse zwei Äpfel."] * 9
ODD_LINES = ["", " \t ", "I  love\u2028you.\r", "Cafe\u0301 \u2581\u2581 a\u200db\x9fc\x00!", "<s> </s> <unk> <0x41>"]
TYPED_LINES = [
    "I don’t “know” – Zoltan’s here…",
    "1. HELLO!! How are you ? I’m fine 😀",
    "☂",
    "B316, 1,250 at 7:30 in New Delhi",
]
LINES = [*ODD_LINES, *TYPED_LINES, "cat " * 99, "机器🤖", *SENTENCES[:60], *SENTENCES[300:320]]


def tokenizer_of(
    model_type: ModelType, lines: list[str] = SENTENCES, size: int = 1500, placeholders: bool = False
) -> Tokenizer:
    return Tokenizer.train(lines, TokenizerConfig(size, model_type, 1.0, placeholders=placeholders))


def untrained_bundle(tokenizer: Tokenizer, source: str, target: str, **sizes: Any) -> Bundle:
    """A bundle of a model with random weights. It writes no bytes, since invalid UTF-8 is decoded differently."""
    ids = {name: getattr(tokenizer, name) for name in ("vocab_size", "pad_id", "bos_id", "eos_id")}
    sizes = {"d_model": 12, "n_heads": 3, "d_ff": 17, "n_layers": 2, "max_len": 30, **sizes}
    model = randomize(Transformer(TransformerConfig(**ids, **sizes)), 1).float()
    with torch.no_grad():
        model.output.weight[[i for i, piece in enumerate(tokenizer.pieces) if piece.startswith("<0x")]] = 0.0
    return Bundle(model, tokenizer, source, target, {"cat": 0, "hund": 1})


@pytest.fixture(scope="module", params=["en-zh, unigram, trained", "en-zh, bpe", "no-de, bpe, nothing tied"])
def bundle(request: pytest.FixtureRequest, translator: Translator) -> Bundle:
    if request.param.endswith("trained"):
        return translator.bundle
    if request.param.startswith("en"):
        return untrained_bundle(tokenizer_of("bpe", placeholders=True), "en", "zh")
    sizes = {"tie_embeddings": False, "n_layers": 1, "max_len": 11, "dropout": 0.1, "attention_dropout": 0.2}
    return untrained_bundle(tokenizer_of("bpe", GERMAN, 400), "no", "de", **sizes)


def front_matter(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "README.md").read_text(encoding="utf-8").split("---\n")[1])


def test_the_engine_translates_as_we_do(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_transformers, "BATCH_SIZE", 7)
    strict = functools.partialmethod(GenerationConfig.validate, strict=True)  # raises instead of warning
    monkeypatch.setattr(GenerationConfig, "validate", strict)
    export(bundle, tmp_path / "deep" / "engine")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["engine"]
    assert len({path.stat().st_mode for path in (tmp_path / "deep" / "engine").iterdir()}) == 1
    engine = load_engine(tmp_path / "deep" / "engine")
    assert engine.tokenizer.is_fast
    ids = {bundle.tokenizer.unk_id, *bundle.tokenizer.pad_bos_eos_ids}
    assert {*engine.tokenizer.all_special_ids} == ids
    assert engine.model.dtype == torch.float32
    ours, theirs = bundle.model.config, engine.model.config
    assert ours.dropout == theirs.dropout == theirs.activation_dropout
    assert ours.attention_dropout == theirs.attention_dropout
    expected = Translator(bundle).translate(LINES)
    assert translate_exported(engine, bundle, LINES) == expected
    assert len(set(expected)) > 5
    data = front_matter(tmp_path / "deep" / "engine")
    assert data["language"] == [bundle.source, bundle.target]  # YAML reads "no" without quotes as False
    assert (data["pipeline_tag"], data["library_name"]) == ("translation", "transformers")
    assert not {"license", "model-index"} & set(data)


def test_beam_search_with_five_beams_gives_our_translations(translator: Translator, tmp_path: Path) -> None:
    export(translator.bundle, tmp_path / "engine")
    engine, tokenizer = load_engine(tmp_path / "engine"), translator.bundle.tokenizer
    lines = [line for line in SENTENCES[:60] if len(translator.to_sentences(line)) == 1]
    texts = [text for line in lines for text, _ in tokenizer.reader.preprocess_line(line)]
    longest = translator.bundle.model.config.max_len - 1
    rows = [torch.tensor([[*tokenizer.encode(text)[:longest], tokenizer.eos_id]]) for text in texts]
    ids = [export_transformers.decode_exported(engine, translator.bundle, row, 5)[0] for row in rows]
    expected = [translation.text for translation in translator.translations(lines, 5)]
    assert [*map(tokenizer.decode, ids)] == expected
    assert expected != translator.translate(lines)
    assert len(lines) > 48


# -- the tokenizer --------------------------------------------------------------------------------------------------


@functools.cache
def hostile_lines(n: int) -> list[str]:
    """Sentences, random characters, marks, white space of every kind, long runs, what looks like special pieces.

    Left out are lone surrogates, which `tokenizers` does not take, and combining marks newer than Unicode 3.2.
    """
    chance = random.Random(0)
    known = [c for c in map(chr, range(0x110000)) if not "\ud800" <= c <= "\udfff"]
    known = [c for c in known if not unicodedata.combining(c) or unicodedata.ucd_3_2_0.category(c) != "Cn"]
    blank = [c for c in known if c.isspace() or unicodedata.category(c) in ("Cc", "Cf")] + ["\u2581"]
    marks = [c for c in known if unicodedata.combining(c)]
    common = [c for c in known if c < "\u3000"]
    makers = (
        lambda: chance.choice(SENTENCES),
        lambda: chance.choice(SENTENCES)[: chance.randrange(9)],
        lambda: "".join(chance.choices(known, k=chance.randrange(9)) + chance.choices(common, k=chance.randrange(9))),
        lambda: chance.choice(common) + "".join(chance.choices(marks, k=chance.randrange(5))),
        lambda: chance.choice(blank) * chance.randrange(1, 4),
        lambda: chance.choice(["<s>", "</s>", "<unk>", "<pad>", "<0x41>", "<0x", "\U0001f468\u200d\U0001f469"]),
        lambda: chance.choice(["a", ".", "。", "1", " a", "ha", "的", "\u0301", "🤖"]) * chance.randrange(200),
    )
    return ["".join(chance.choice(makers)() for _ in range(chance.randrange(1, 7))) for _ in range(n)]


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_10_000_hostile_lines_have_our_ids_and_our_text(model_type: ModelType) -> None:
    lines = [line for line in hostile_lines(10_000) if len(line) <= 2_000]
    tokenizer = tokenizer_of(model_type)
    fast = fast_tokenizer(tokenizer)
    expected = tokenizer.encode_batch(map(with_keyboard_marks, lines))
    encoded = [encoding.ids[:-1] for encoding in fast.encode_batch_fast(lines)]
    assert [line for line, own, fast_ids in zip(lines, expected, encoded, strict=True) if own != fast_ids] == []
    assert [clean(text) for text in fast.decode_batch(encoded)] == [*map(tokenizer.decode, expected)]


# -- the card -------------------------------------------------------------------------------------------------------


def test_the_code_in_the_card_translates_as_we_do_without_our_package(translator: Translator, tmp_path: Path) -> None:
    export(translator.bundle, tmp_path / "engine")
    translations = run_readme_code(tmp_path / "engine", LINES, "sentencepiece", "[translate(lines), translate([])]")
    assert translations == [translator.translate(LINES), []]


def test_names_that_a_user_gives_appear_unchanged_in_the_card(tmp_path: Path) -> None:
    bundle = untrained_bundle(tokenizer_of("bpe"), "en", "no-NO")
    named, scores = "测试: '🤖' \"<&>\\\u2028# " + "x" * 200, score(["a"], ["a"], "en")
    write_card(tmp_path, bundle, named, {named: scores, "null": scores})
    data = front_matter(tmp_path)
    assert (data["license"], data["model-index"][0]["name"], data["language"]) == (named, "en-no-NO", ["en", "no"])
    of_hub = f"-{'x' * 200}"  # which refuses others
    types = {result["dataset"]["name"]: result["dataset"]["type"] for result in data["model-index"][0]["results"]}
    assert types == {named: of_hub, "null": "null"}


# -- what is refused ------------------------------------------------------------------------------------------------


LATE = torch.eye(30, 12).flip(0)  # the last positions
BOS_ROW = torch.eye(1500, 1).roll(1, 0)
# What is broken before the export is verified: the weights, or a text in a file; and what the error message says.
EXPORT_FAULTS: dict[str, tuple[Any, str]] = {
    "a billionth": (
        lambda weights: weights | {(b := "final_logits_bias"): weights[b] + 1e-9},
        "logits differ by 1.0e-09",
    ),
    "a BOS by a millionth": (
        lambda weights: weights | {(e := "model.decoder.embed_tokens.weight"): weights[e] + 1e-6 * BOS_ROW},
        "logits differ by",
    ),
    "another scale": (("config.json", '"scale_embedding": true', '"scale_embedding": false'), "logits differ by"),
    "a missing byte": (("tokenizer.json", '"<0xF0>"', '"<0xf0>"'), "piece 245 is '<0xf0>' there and '<0xF0>' here"),
    "no bytes": (("tokenizer.json", '"byte_fallback": true', '"byte_fallback": false'), "its tokenizer gives other"),
    "special pieces": (("tokenizer_config.json", '_tokens": true', '_tokens": false'), "its tokenizer gives other ids"),
    "no NFC": (("tokenizer.json", '"NFC"', '"NFD"'), "its tokenizer gives other ids for"),
    "another decoder": (("tokenizer.json", '"ByteFallback"', '"Fuse"'), "its tokenizer gives another text for"),
    "another beginning": (("generation_config.json", 'start_token_id": 1', 'start_token_id": 2'), "greedy decoding"),
    "nan": (lambda weights: {name: w * torch.nan for name, w in weights.items()}, "logits differ by nan"),
    "eps": (None, "logits differ by"),
    "a late position": (
        lambda weights: weights | {(p := "model.decoder.embed_positions.weight"): weights[p] + LATE},
        "its positions are different",
    ),
}


@pytest.mark.parametrize("fault", EXPORT_FAULTS)
def test_an_export_that_deviates_is_refused(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = untrained_bundle(tokenizer_of("bpe"), "en", "zh", tie_embeddings=False)
    broken, message = EXPORT_FAULTS[fault]
    save, weights_of = export_transformers.save_tokenizer, export_transformers.blenderbot_state_dict

    def save_broken(folder: Path, bundle: Bundle) -> None:  # the last step that writes files
        save(folder, bundle)
        name, old, new = broken
        text = (folder / name).read_text(encoding="utf-8")
        assert old in text
        (folder / name).write_text(text.replace(old, new), encoding="utf-8")

    monkeypatch.setattr(export_transformers, "MAX_VERIFIED_LENGTH", 18)
    if broken is None:
        bundle.model.encoder.norm.eps = 0.25
    elif callable(broken):
        monkeypatch.setattr(export_transformers, "blenderbot_state_dict", lambda model: broken(weights_of(model)))
    else:
        monkeypatch.setattr(export_transformers, "save_tokenizer", save_broken)
    with pytest.raises(UserError) as refused:
        export(bundle, tmp_path / "engine")
    assert f"transformers computes something other than this model: {message}" in str(refused.value)
    assert str(refused.value).endswith("; translate with minitrans")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("writer", ["BlenderbotForConditionalGeneration", "PreTrainedTokenizerFast"])
def test_a_full_disk_is_reported(writer: str, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Mock(side_effect=Exception("No space left on device (os error 28)"))  # of two libraries written in Rust
    monkeypatch.setattr(f"transformers.{writer}.save_pretrained", full)
    with pytest.raises(UserError, match=r"\(os error 28\); make room, or name another folder$") as refused:
        export(bundle, tmp_path / "hf")
    assert str(refused.value).startswith(f"cannot write {tmp_path}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("d_head", [3, 5])
def test_sizes_that_the_class_has_no_setting_for_are_refused(d_head: int, tmp_path: Path) -> None:
    bundle = untrained_bundle(tokenizer_of("bpe"), "en", "zh", d_head=d_head)
    message = rf"^transformers cannot compute this model: its heads .* model.d_head is {d_head}; tra"
    with pytest.raises(UserError, match=message):
        export(bundle, tmp_path / "engine")
    assert list(tmp_path.iterdir()) == []


def test_pad_and_bos_are_never_written(tmp_path: Path) -> None:
    bundle = untrained_bundle(tokenizer_of("bpe"), "en", "zh", tie_embeddings=False)
    force_constant_token_ranking(bundle.model, bundle.tokenizer.pad_id, bundle.tokenizer.bos_id, 300)
    export(bundle, tmp_path / "engine")
    engine, row = load_engine(tmp_path / "engine"), torch.tensor([[7, bundle.tokenizer.eos_id]])
    assert export_transformers.decode_exported(engine, bundle, row) == [[300] * 14]


# -- the command ----------------------------------------------------------------------------------------------------


def test_the_command_scores_the_export_beside_ours(tiny_run: Path, corpus: Path, tmp_path: Path) -> None:
    exported = "export", tiny_run, "--format", "transformers", "--license", "cc-by-4.0", "-o"
    reference = "--reference", corpus / "test.zh"
    code, out, _ = run_cli(*exported, tmp_path / "out", "--source", corpus / "test.en", *reference, *reference)
    assert code == 0
    printed = out.splitlines()
    assert any(line.startswith("BLEU nrefs:2|") for line in printed)
    assert [line.split(": BLEU ")[0] for line in printed[:2]] == ["minitrans float32", "transformers float32"]
    assert printed[-1] == "transformers float32: 0 of 15 translations differ from those of minitrans"
    data = front_matter(tmp_path / "out")
    assert data["license"] == "cc-by-4.0"
    bleu = printed[1].split("BLEU ")[1].split(" (")[0]
    assert data["model-index"][0]["results"][0]["metrics"][0]["value"] == float(bleu)
    assert run_cli(*exported, tmp_path / "unscored")[0] == 0
    assert front_matter(tmp_path / "unscored")["license"] == "cc-by-4.0"
