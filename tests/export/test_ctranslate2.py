"""The exported engine gives our tokens, whatever the model, and its folder is complete and works without our code."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from command_helpers import TEST_CORPUS_DIR, run_cli, run_readme_code
from conftest import BOS, EOS, PAD, force_constant_token_ranking, random_ids, random_model
from memory_helpers import needs_proc_status, peak_private_kb_during

pytest.importorskip("ctranslate2", reason="the extra `export` is not installed")

from minitrans.errors import UserError
from minitrans.export import ctranslate2 as export_ctranslate2
from minitrans.export.ctranslate2 import export, greedy_exported, load_engine, save_engine, translate_exported
from minitrans.model.decoding import CachedStepper, greedy_decode
from minitrans.model.transformer import Transformer
from minitrans.translate.translator import Translator

DUMMY_VOCABULARY = [f"p{i}" for i in range(11)]
MAX_LEN = 17

# What a user may type: text to be cleaned or cut, blank lines, and what looks like special pieces; and sentences.
ODD_LINES = ["", " \t ", "I  love\u2028you.\r", "Cafe\u0301 \u2581\u2581 a\u200db\x9fc\x00\ud800!"]
ODD_LINES += ["<s> </s> <unk> <0x41>", "cat " * 99, "机器🤖"]
SENTENCES = (TEST_CORPUS_DIR / "test.en").read_text(encoding="utf-8").splitlines()[:300]
TYPED_LINES = ["I don’t “know” – it’s…", "1. HELLO!! How are you ? I’m fine 😀"]  # as people do
TYPED_LINES += ["“Good night”", "— ☂", "Ｈｉ,Tom", "ΜΑΪ́ΟΥ"]  # the last is not NFC in lower case
LINES = [*ODD_LINES, *TYPED_LINES, *SENTENCES, *(" ".join(SENTENCES[i : i + 9]) for i in range(0, 90, 9))]


def export_and_load(model: Transformer, folder: Path) -> Any:
    save_engine(folder, model, DUMMY_VOCABULARY, unk_id=PAD)
    return load_engine(folder)


def constant_output_model(*best: int, **sizes: Any) -> Transformer:
    return force_constant_token_ranking(random_model(1, tie_embeddings=False, **sizes).float(), *best)


def test_loading_leaves_our_threads_alone(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    export_and_load(constant_output_model(7), tmp_path)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("model", "lengths", "expected"),
    [
        (random_model(0, n_heads=3, d_head=None, tie_embeddings=False).float(), [3, 1, 7, MAX_LEN - 1, 2, 5, 5], None),
        (constant_output_model(EOS, 7), [3, 4], [[], []]),
        (constant_output_model(PAD, BOS, 7), [1], [[7] * 14]),  # PAD and BOS are never written
        (constant_output_model(7), [1, 2, 8], [[7] * 14, [7] * 16, [7] * 17]),  # each has a length limit of its own
        (random_model(2, max_len=1200).float(), [1199], None),  # longer than the engine takes by default
        (random_model(2, max_len=2).float(), [1, 1], None),
        (random_model(3).float().apply(lambda module: setattr(module, "eps", 0.25)), [6, 4, 8, 3, 7], None),
    ],
)
def test_the_engine_gives_our_tokens_for_unusual_models(
    model: Transformer, lengths: list[int], expected: list[list[int]] | None, tmp_path: Path
) -> None:
    ids = random_ids(1, lengths, max(lengths)).tolist()  # without EOS, which the engine appends itself:
    sources = [[BOS if i == EOS else i for i in row[:n]] for row, n in zip(ids, lengths, strict=True)]
    own = [greedy_decode(CachedStepper(model), torch.tensor([[*source, EOS]]))[0].ids for source in sources]
    engine = export_and_load(model, tmp_path)
    assert greedy_exported(engine, DUMMY_VOCABULARY, model.config.max_len, sources) == own
    assert export_ctranslate2._log_prob_difference(engine, model, DUMMY_VOCABULARY) < 1e-4
    assert expected is None or own == expected


def test_tied_matrices_are_written_once(tmp_path: Path) -> None:
    sizes = []
    for tie_embeddings in (True, False):
        (folder := tmp_path / str(tie_embeddings)).mkdir()
        save_engine(folder, random_model(1, tie_embeddings=tie_embeddings).float(), DUMMY_VOCABULARY, unk_id=PAD)
        sizes.append((folder / "model.bin").stat().st_size)
    assert sizes[1] - sizes[0] == pytest.approx(2 * 11 * 6 * 4, abs=150)  # and some names


@needs_proc_status
def test_memory_does_not_grow_with_the_number_of_lines(tmp_path: Path) -> None:
    engine = export_and_load(constant_output_model(EOS, max_len=400), tmp_path)
    few, many = (
        peak_private_kb_during(greedy_exported, engine, DUMMY_VOCABULARY, 400, [[7] * 399] * n) for n in (40, 160)
    )
    assert many < few + 40_000  # all of them at once take 160 MB more


# -- the folder -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(translator: Translator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny run, exported; tests only read it."""
    folder = tmp_path_factory.mktemp("exported") / "deep" / "engine"
    export(translator.bundle, folder)
    return folder


def test_the_folder_holds_all_that_the_engine_needs_and_nothing_is_left_beside_it(folder: Path, tiny_run: Path) -> None:
    names = {"model.bin", "config.json", "shared_vocabulary.json", "tokenizer.model", "README.md"}
    names |= {"reading.py", "reading.json"}
    assert {path.name for path in folder.iterdir()} == names
    assert [path.name for path in folder.parent.iterdir()] == ["engine"]
    assert (folder / "tokenizer.model").read_bytes() == (tiny_run / "tokenizer.model").read_bytes()
    assert json.loads((folder / "config.json").read_text())["unk_token"] == "<unk>"


def test_the_engine_translates_as_we_do(folder: Path, translator: Translator) -> None:
    expected = translator.translate(LINES)
    assert translate_exported(load_engine(folder, threads=2), translator.bundle, LINES) == expected
    assert len(set(expected)) > 5
    eight_bits = translate_exported(load_engine(folder, "int8"), translator.bundle, ["I love you.", ""])
    assert [bool(line) for line in eight_bits] == [True, False]
    assert translate_exported(load_engine(folder), translator.bundle, []) == []


def test_the_code_in_the_readme_translates_as_we_do(folder: Path, translator: Translator) -> None:
    shown = "[[tokenizer.encode(clean(s)) for x in lines for s, _ in reader.preprocess_line(x)], translate(lines)]"
    reader = translator.bundle.tokenizer.make_reader(translator.bundle.source_words)
    ids = translator.bundle.tokenizer.encode_batch(text for line in LINES for text, _ in reader.preprocess_line(line))
    assert run_readme_code(folder, LINES, "torch", shown) == [ids, translator.translate(LINES)]


@pytest.mark.parametrize(("piece", "lengths"), [("</s>", {0, 1}), ("a", {0, 19, 26, 40}), ("<0x0A>", {0, 1})])
def test_the_code_in_the_readme_ends_where_we_do(piece: str, lengths: set[int], tiny_run: Path, tmp_path: Path) -> None:
    bundle = Translator.load(tiny_run).bundle
    force_constant_token_ranking(bundle.model, bundle.tokenizer.pieces.index(piece))
    export(bundle, tmp_path / "engine")
    expected = Translator(bundle).translate(ODD_LINES)
    assert run_readme_code(tmp_path / "engine", ODD_LINES, "torch") == expected
    assert {len(line) for line in expected} == lengths  # an emoji at the end is put back


@pytest.mark.parametrize("fault", ["no part", "another size", "eps", "nan"])
def test_a_model_that_ctranslate2_computes_differently_is_refused(fault: str, tiny_run: Path, tmp_path: Path) -> None:
    bundle = Translator.load(tiny_run).bundle
    message = r"gives other numbers than this model: log-prob.* \(at most 0.001\)"
    if fault == "no part":
        del bundle.model.encoder.norm
        message = "cannot compute this model: .*'norm'; translate with minitrans"
    elif fault == "another size":
        bundle.model.get_submodule("encoder.layers.0.self_attn").w_qkv = torch.nn.Linear(1, 2)
        message = "cannot compute this model: .*split.*; translate with minitrans"
    elif fault == "nan":
        bundle.model.positions[6] = math.nan  # reached only by the last of the rows that are compared
        message = "gives other numbers than this model: log-probabilities differ by nan"
    else:
        bundle.model.encoder.norm.eps = 0.25  # of one norm: CTranslate2 has one value for all
    with pytest.raises(UserError, match=f"^CTranslate2 {message}"):
        export(bundle, tmp_path / "engine")
    assert list(tmp_path.iterdir()) == []


def test_probabilities_that_are_all_too_high_count_as_different() -> None:
    certain = lambda src, tgt, **_: [SimpleNamespace(log_probs=[0.0] * (len(tgt[0]) + 1))]  # noqa: E731
    pieces = [str(i) for i in range(20)]
    assert export_ctranslate2._log_prob_difference(SimpleNamespace(score_batch=certain), random_model(1), pieces) > 0.5


# -- the command ----------------------------------------------------------------------------------------------------


def test_the_command_scores_float32_and_int8_beside_ours_and_prints_the_folder(
    tiny_run: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It also counts the translations that differ: all of those by int8, which the test replaces."""

    def spoilt(engine: Any, bundle: Any, lines: list[str]) -> list[str]:
        return ["x" if engine.compute_type.startswith("int8") else t for t in translate_exported(engine, bundle, lines)]

    monkeypatch.setattr("minitrans.export.ctranslate2.translate_exported", spoilt)
    scored = "--source", corpus / "test.en", "--reference", corpus / "test.zh"
    code, out, err = run_cli("export", tiny_run, "-o", tmp_path / "out", *scored)
    assert (code, err.splitlines()[0]) == (0, f"engine: {tmp_path / 'out'}")
    printed = out.splitlines()
    names = ["minitrans float32", "ctranslate2 float32", "ctranslate2 int8"]
    assert [line.split(": BLEU ")[0] for line in printed[:3]] == names
    assert printed[0].split("BLEU ")[1].split(" (")[0] == printed[1].split("BLEU ")[1].split(" (")[0]
    assert "p = 1.000" in printed[1]
    assert printed[3].startswith("BLEU nrefs:1|")
    differing = "of 15 translations differ from those of minitrans"
    assert printed[5:] == [f"ctranslate2 float32: 0 {differing}", f"ctranslate2 int8: 15 {differing}"]
