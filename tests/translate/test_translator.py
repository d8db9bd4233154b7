import io
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from command_helpers import TEST_CORPUS_DIR
from conftest import ATOL, force_constant_token_ranking, randomize
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from minitrans.model import reference
from minitrans.model.decoding import Hypothesis, length_limit
from minitrans.model.transformer import Transformer
from minitrans.text.reading import PLACEHOLDERS, KeptParts, Reader
from minitrans.translate.bundle import Threshold
from minitrans.translate.translator import MIN_ROWS_PER_THREAD_BATCH, Translation, Translator, has_changed_numbers
from minitrans.verify.oracles import numpy_weights

SENTENCES = ["I love you.", "", "The cat is in the kitchen.", "   ", "Machine learning is fun", "I love you."]
STRANGE_LINES = ["a\r", "\ufeffa", "a\0b", "a\u2028b", "a\x85b\x0bc", "a\nb", "\ud800", "▁", "<s> </s> <pad>"]
STRANGE_LINES += ["👩‍👩‍👧 🦄", "зима ქართული 한국어"]


@pytest.fixture(scope="module")
def translator(tiny_run: Path) -> Translator:
    return Translator.load(tiny_run, compiled="auto")


@pytest.fixture(scope="module")
def random_translator(translator: Translator) -> Translator:
    """A translator with a float64 model of three layers, whose weights are all different."""
    sizes = replace(translator.bundle.model.config, d_model=12, n_heads=2, d_head=5, d_ff=9, n_layers=3)
    return Translator(replace(translator.bundle, model=randomize(Transformer(sizes), 8)), "auto")


@example(STRANGE_LINES)
@given(st.lists(st.text(max_size=20), max_size=4))
def test_any_text_gives_one_output_line_per_input_line(translator: Translator, lines: list[str]) -> None:
    outputs = translator.translate(lines)
    assert len(outputs) == len(lines)
    for line in outputs:
        assert line.splitlines() in ([line], [])
        line.encode()  # raises on a lone surrogate


def test_beam_search_gives_the_best_of_the_n_best(translator: Translator) -> None:
    n_best = translator.n_best(SENTENCES, 4, length_penalty=0.5)
    assert [len(row) for row in n_best] == [4, 1, 4, 1, 4, 4]
    assert n_best[1] == n_best[3] == [Translation("", 0.0)]
    assert len(translator.n_best(["☂☂. I love you."], 4)[0]) == 4  # though for the signs there is only one
    for row in n_best:
        assert [t.score for t in row] == sorted((t.score for t in row), reverse=True)
    alone = [translator.n_best([line], 4, length_penalty=0.5)[0] for line in SENTENCES]
    assert [[t.text for t in row] for row in alone] == [[t.text for t in row] for row in n_best]


def test_the_length_penalty_decides_the_rank(translator: Translator) -> None:
    lines = ["", *(TEST_CORPUS_DIR / "test.en").read_text(encoding="utf-8").splitlines()[:20]]
    firsts = {}
    for beam, penalty in ((1, 0.0), (1, 1.0), (4, 0.0), (4, 1.0), (4, 3.0)):
        n_best = translator.n_best(lines, beam, length_penalty=penalty)
        firsts[beam, penalty] = [row[0].text for row in n_best]
        assert firsts[beam, penalty] == translator.translate(lines, beam, length_penalty=penalty)
        scored = translator.translations(lines, beam, length_penalty=penalty)
        assert [translation[:2] for translation in scored] == [row[0][:2] for row in n_best]
    assert firsts[4, 0.0] != firsts[4, 3.0]
    assert firsts[4, 1.0] == translator.translate(lines, 4)  # 1 unless told otherwise
    assert firsts[1, 0.0] == firsts[1, 1.0]


def test_a_line_of_sentences_scores_as_one_long_sentence(translator: Translator) -> None:
    lines = ["I love you.", "He is a cat.", "I love you. He is a cat.", "!!! He is a cat."]
    by_penalty = [translator.translations(lines, length_penalty=p, attention=True) for p in (0.0, 1.0, 3.0)]
    sums, means, thirds = ([translation.score for translation in each] for each in by_penalty)
    lengths = [total / mean for total, mean in zip(sums, means, strict=True)]
    assert (sums[2], lengths[2]) == pytest.approx((sums[0] + sums[1], lengths[0] + lengths[1]))
    assert thirds[2] == pytest.approx(sums[2] / lengths[2] ** 3)
    assert means[3] == pytest.approx(means[1])  # a sentence without words counts nothing
    assert [translation.attention is None for translation in by_penalty[0]] == [False, False, True, True]


def test_words_unseen_in_training_are_named(translator: Translator) -> None:
    assert translator.bundle.source_words is not None
    lines = ["I love XYZZY, don\u2019t say xyzzy or 4711!", "ｉ LOVE ｙｏｕ", "", "   ", "\x1b[31m"]
    want = [("xyzzy", "don't", "say", "or", "4711"), (), (), (), ("31m",)]
    want[0] = tuple(word for word in want[0] if word not in translator.bundle.source_words)
    assert {"xyzzy", "4711"} <= set(want[0])
    translator = Translator(replace(translator.bundle, threshold=None))
    assert [translator.unknown_words(line) for line in lines] == want
    for beam in (1, 3):
        assert [t.unknown_words for t in translator.translations(lines, beam)] == want
        n_best = translator.n_best(lines, beam)
        assert [{t.unknown_words for t in row} for row in n_best] == [{unknown} for unknown in want]
        assert [{t.unsure for t in row} for row in n_best] == [{bool(unknown)} for unknown in want]
    without = Translator(replace(translator.bundle, source_words=None))
    assert [without.unknown_words(line) for line in lines] == [()] * 5


def test_numbers_that_are_not_copied_are_unsure(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    translator = Translator(replace(translator.bundle, threshold=None, source_words={"room": 0, "12": 1, "th": 2}))
    ids = translator.bundle.tokenizer.encode("XYZZY在X4711号。")
    monkeypatch.setattr(translator, "_search", lambda *_: [[[Hypothesis(ids, -1.0, -1.0, len(ids))]]] * 3)
    lines = ["XYZZY X4711 4712", "Room 4711?", "Room 12"]
    want = [(("xyzzy", "4712"), True), ((), False), ((), True)]
    assert [(t.unknown_words, t.unsure) for t in translator.translations(lines)] == want
    assert [(t.unknown_words, t.unsure) for (t,) in translator.n_best(lines, 2)] == want
    reader = Reader(True, "", ["o'clock", "he's", "she'd", "hen's"])
    monkeypatch.setattr(translator, "_reader", reader)  # and copied names are not unknown words
    assert translator.unknown_words("Room XYZZY", "XYZZY室") == translator.unknown_words("room oclock") == ()
    assert translator.unknown_words("Hes in the Room: shed, hens") == ("in", "the", "shed", "hens")
    assert translator.unknown_words("Room XYZZY's 4711th", "XYZZY的4711室") == ()
    assert translator.unknown_words("Room 4712th, 4711xy, xyzzy's", "xyzzy室4711") == ("4712th", "4711xy", "xyzzy's")
    assert translator.unknown_words("Room İxyzzy ٤٧١١", "İxyzzy室4711") == ()
    assert translator.unknown_words("Room: a.b@xyzzy.net", "室：a.b@xyzzy.net") == ()
    for source, target in (("ROOM XYZZY", "XYZZY室"), ("Room xyzzy", "xyzzy室")):
        assert translator.unknown_words(source, target) == ("xyzzy",)


def test_a_line_is_as_unsure_as_its_worst_sentence(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    translator = Translator(replace(translator.bundle, threshold=Threshold(-2.0, None), source_words=None))
    ids = translator.bundle.tokenizer.encode("a")
    for log_probs, copied, unsure in (((-1, -1), "aa", False), ((-1, -2.5), "aa", True), ((-1, -1), "ab", True)):
        hypotheses = [[Hypothesis(ids, log_prob, log_prob, 1)] for log_prob in log_probs]
        sources = [(ids, KeptParts({PLACEHOLDERS[0]: value})) for value in copied]
        for name, found in (("_search", hypotheses), ("_tokenize_lines", sources)):
            monkeypatch.setattr(translator, name, lambda *_, found=found: [found])
        assert translator.translations(["two sentences"])[0].unsure is unsure


@pytest.mark.parametrize("beam", [1, 3])
def test_scores_below_the_threshold_are_unsure_whatever_the_penalty(translator: Translator, beam: int) -> None:
    lines = (TEST_CORPUS_DIR / "test.en").read_text(encoding="utf-8").splitlines()[:60]
    lines = [line for line in lines if not translator.unknown_words(line)]
    translator = Translator(replace(translator.bundle, threshold=None))
    plain = translator.n_best(lines, beam)
    scores = sorted({t.score for row in plain for t in row})
    middle = scores[len(scores) // 2]
    doubting = Translator(replace(translator.bundle, threshold=Threshold(middle, None)))
    want = [[t.score < middle for t in row] for row in plain]
    assert [[t.unsure for t in row] for row in doubting.n_best(lines, beam)] == want
    for penalty in (0.0, 3.0):  # they rank the same hypotheses, and give other scores
        again = doubting.n_best(lines, beam, length_penalty=penalty)
        for row, others in zip(plain, again, strict=True):
            assert sorted((t.text, t.score < middle) for t in row) == sorted((t.text, t.unsure) for t in others)
    assert not any(t.unsure for row in plain for t in row)
    doubting = Translator(replace(translator.bundle, threshold=Threshold(1.0, None)))
    assert all(t.unsure for t in doubting.translations(lines, beam))


def test_a_translation_without_eos_has_one_token_less(random_translator: Translator) -> None:
    """The model writes one word until the limit, each time with the same probability."""
    bundle = random_translator.bundle
    sizes = replace(bundle.model.config, tie_embeddings=False)
    model = force_constant_token_ranking(randomize(Transformer(sizes), 8), bundle.tokenizer.encode("I love you.")[0])
    mean = sizes.d_model - math.log(math.exp(sizes.d_model) + sizes.vocab_size - 1)
    n = length_limit(random_translator.longest_sentence_length("I love you.") + 1, sizes.max_len)
    for threshold, unsure in ((mean * (n + 0.1) / n, False), (mean * n / (n + 0.1), True)):
        doubting = Translator(replace(bundle, model=model, threshold=Threshold(threshold, None)))
        for penalty in (0.0, 1.0):
            (translation,) = doubting.translations(["I love you."], length_penalty=penalty)
            assert translation.score == pytest.approx(mean * n ** (1 - penalty))
            assert translation.unsure is unsure


def test_batch_tokens_counts_every_beam(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []

    def spy(model: Transformer, src_ids: Tensor, beam: int, length_penalty: float) -> list[list[Hypothesis]]:
        shapes.append(src_ids.shape)
        return [[Hypothesis([], 0.0, 0.0, 1)]] * len(src_ids)

    monkeypatch.setattr("minitrans.translate.translator.beam_search", spy)
    translator.n_best(SENTENCES * 20, beam=5, batch_tokens=200)
    assert len(shapes) > 1
    assert all(rows * width * 5 <= 200 for rows, width in shapes)
    first, shapes[:] = Counter(shapes), []
    translator.translations(SENTENCES * 20, beam=5, batch_tokens=200)
    assert Counter(shapes) == first


@pytest.mark.parametrize("beam", [1, 3])
def test_attention_is_that_of_each_layer_and_head(
    beam: int, random_translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the loops of the reference, which know each layer by its name."""
    model, tokenizer = random_translator.bundle.model, random_translator.bundle.tokenizer
    plain, expected = reference.multi_head_attention, {}

    def noted(weights: reference.Weights, prefix: str, *arguments: Any, **named: Any) -> tuple[Any, Any]:
        outputs, expected[prefix] = plain(weights, prefix, *arguments, **named)
        return outputs, expected[prefix]

    monkeypatch.setattr(reference, "multi_head_attention", noted)
    translations = random_translator.translations(SENTENCES, beam, attention=True, batch_tokens=60)
    scored = random_translator.translations(SENTENCES, beam, batch_tokens=60)
    assert [t._replace(attention=None) for t in translations] == scored
    assert [t.attention is None for t in translations] == [False, True, False, True, False, False]
    ids = {piece: i for i, piece in enumerate(tokenizer.pieces)}
    for line, (text, _, attention, *_) in zip(SENTENCES, translations, strict=True):
        if attention is None:
            continue
        source, target = ([ids[piece] for piece in pieces] for pieces in (attention.source, attention.target))
        ((read, kept),) = tokenizer.reader.preprocess_line(line)
        assert source == attention.source_ids == [*tokenizer.encode(read), tokenizer.eos_id]
        assert target == attention.target_ids
        attention.source_ids.clear()  # the caller's own
        assert tokenizer.reader.postprocess(tokenizer.decode(target), kept) == text
        assert target[0] == tokenizer.bos_id
        limit = length_limit(len(source), model.config.max_len)
        assert target[-1] == tokenizer.eos_id or len(target) == 1 + limit
        assert random_translator.translate([line], beam) == [text]
        reference.transformer(numpy_weights(model), model.config.n_heads, source, target[:-1])
        for weights, name in (
            (attention.encoder, "encoder.layers.{}.self_attn"),
            (attention.decoder, "decoder.layers.{}.self_attn"),
            (attention.cross, "decoder.layers.{}.cross_attn"),
        ):
            assert len(weights) == 3
            for layer, of_layer in enumerate(weights):
                assert np.abs(of_layer.numpy() - expected[name.format(layer)]).max() <= ATOL, name
            assert weights.untyped_storage().nbytes() == 8 * weights.numel()  # no more memory than it shows
            assert not weights.requires_grad


def test_concurrent_calls_give_what_successive_calls_give(translator: Translator) -> None:
    lines = (TEST_CORPUS_DIR / "test.en").read_text(encoding="utf-8").splitlines()[:80]
    shares = [lines[:50], ["", *lines[30:][::-1]]]

    def translate(lines: list[str]) -> list[object]:
        return [(translator.translate(lines, batch_tokens=100), translator.translations(lines, 2)) for _ in range(3)]

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(translate, shares)) == [*map(translate, shares)]


def test_the_number_of_threads_changes_no_translation(translator: Translator) -> None:
    lines = [*(TEST_CORPUS_DIR / "test.en").read_text(encoding="utf-8").splitlines()[:80], "", "I love you."]
    alone = translator.translate(lines), translator.n_best(lines, 2), translator.sample(lines, 3, seed=1)
    torch.set_num_threads(3)
    together = translator.translate(lines), translator.n_best(lines, 2), translator.sample(lines, 3, seed=1)
    assert together == alone


def test_several_threads_share_a_few_batches_and_one_takes_all_that_fits(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several batches, the longest comes first."""

    def batches_of(threads: int, lengths: list[int], batch_tokens: int = 4096) -> list[tuple[int, ...]]:
        shapes = []

        def decode(_: object, src_ids: Tensor) -> list[int]:
            shapes.append(tuple(src_ids.shape))
            assert threads > 1 or threading.current_thread() is threading.main_thread()  # where Ctrl-C stops it
            return [0] * len(src_ids)

        monkeypatch.setattr(translator, "_stepper", SimpleNamespace(max_concurrent_batches=threads))
        translator._decode_batches([[([5] * n, KeptParts({}))] for n in lengths], batch_tokens, True, decode, 0)
        return shapes

    assert batches_of(1, [10] * 240) == [(240, 10)]
    assert 2 * 3 <= len(batches_of(3, [10] * 240)) <= 6 * 3
    assert min(batches_of(3, [10] * 24))[0] >= MIN_ROWS_PER_THREAD_BATCH
    assert batches_of(1, [3, 1, 2], 3) == [(1, 3), (1, 2), (1, 1)]


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("batch_tokens", [1, 30, 100_000])
def test_the_order_of_lines_is_kept_across_batches(random_translator: Translator, beam: int, batch_tokens: int) -> None:
    """Random weights give each line a different translation."""
    lines = ["a b c d e f", "a", "", "a b", "f e", "a b c d"]
    want = [random_translator.translations([line], beam, attention=True)[0] for line in lines]
    assert len({score for _, score, *_ in want}) == len(lines)
    got = random_translator.translations(lines, beam, attention=True, batch_tokens=batch_tokens)
    for (text, score, attention, *_), one in zip(got, want, strict=True):
        assert text == one.text
        assert score == pytest.approx(one.score)
        assert (attention is None) == (one.attention is None)
        if attention is not None and one.attention is not None:
            assert attention[:2] == one.attention[:2]
    assert [text for text, *_ in got] == random_translator.translate(lines, beam, batch_tokens=batch_tokens)


def test_a_batch_is_filled_up_to_its_limit_and_a_longer_line_forms_its_own() -> None:
    sources = [[1] * n for n in (2, 5, 2, 0, 2)]
    assert Translator._batch_indices(sources, 4) == [[0, 2], [4], [1]]


@pytest.mark.parametrize(
    "of",
    [
        lambda t, lines, n: t.translate(lines, first_line=n),
        lambda t, lines, n: t.translations(lines, 2, attention=True, first_line=n),
        lambda t, lines, n: t.n_best(lines, 2, first_line=n),
        lambda t, lines, n: t.sample(lines, 2, 5, first_line=n),
    ],
)
def test_a_warning_names_the_line_by_its_number_in_the_file(
    of: Callable[..., object], translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    text, longest = "cat " * 50, translator.bundle.model.config.max_len - 1
    of_size = {translator.longest_sentence_length(text[:i]): text[:i] for i in range(len(text))}
    of(translator, ["", text, "cat", of_size[longest], of_size[longest + 1]], 7)
    sizes = {8: translator.longest_sentence_length(text), 11: longest + 1}
    message = "line %d is cut: it has %d tokens, the model takes %d"
    assert caplog.messages == [message % (line, size, longest) for line, size in sizes.items()]


def test_a_line_is_cut_after_as_many_tokens_as_the_model_takes(random_translator: Translator) -> None:
    tokenizer, longest = random_translator.bundle.tokenizer, random_translator.bundle.model.config.max_len
    line = "I love you, the cat is in the kitchen " * 9
    (translation,) = random_translator.translations([line], attention=True)
    assert translation.attention is not None
    splitting = Translator(random_translator.bundle)
    splitting.split_sentences = True
    assert splitting.longest_sentence_length(f"{line}end. I see.") > longest  # not the last sentence's
    splitting.bundle = replace(random_translator.bundle, source="de")
    assert splitting.to_sentences("Am 12. Mai kam er. Er ging.") == ["Am 12. Mai kam er.", "Er ging."]
    ids = tokenizer.encode(line.lower())[: longest - 1]
    assert translation.attention.source == [tokenizer.pieces[i] for i in (*ids, tokenizer.eos_id)]


def test_without_a_cache_each_prefix_is_computed_anew(translator: Translator, random_translator: Translator) -> None:
    widths: list[int] = []
    hook = random_translator.bundle.model.decoder.register_forward_pre_hook(lambda _, xs: widths.append(xs[0].size(1)))
    outputs = random_translator.translate(["I love you."], use_cache=False)
    hook.remove()
    assert widths == list(range(1, len(widths) + 1))
    assert len(widths) > 1
    assert outputs == random_translator.translate(["I love you."])
    assert translator.translate(SENTENCES, use_cache=False) == translator.translate(SENTENCES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_run_is_loaded_in_the_dtype_asked_for(tiny_run: Path, translator: Translator, dtype: torch.dtype) -> None:
    loaded = Translator.load(tiny_run, dtype=dtype, compiled="auto")
    own = translator.bundle.model.state_dict()
    for name, tensor in loaded.bundle.model.state_dict().items():
        assert tensor.dtype == dtype
        assert torch.equal(tensor, own[name].to(dtype)), name
    assert not loaded.bundle.model.training
    if dtype != torch.bfloat16:
        assert loaded.translate(SENTENCES) == translator.translate(SENTENCES)
    torch.set_default_dtype(torch.bfloat16)  # does not round the weights
    again = Translator.load(tiny_run, dtype=dtype).bundle.model.state_dict()
    torch.set_default_dtype(torch.float32)
    assert all(torch.equal(again[name], tensor) for name, tensor in loaded.bundle.model.state_dict().items())
    scores = [t.score for t in loaded.translations(SENTENCES)]
    plain = [t.score for t in translator.translations(SENTENCES)]
    assert scores == pytest.approx(plain, abs=0.5 if dtype == torch.bfloat16 else 1e-4)
    assert (scores == plain) == (dtype == torch.float32)


def test_a_run_is_loaded_on_the_device_that_is_asked_for(tiny_run: Path) -> None:
    model = Translator.load(tiny_run, "meta").bundle.model
    assert all(tensor.is_meta for tensor in (*model.parameters(), model.positions))


@pytest.mark.parametrize(
    "lines", ["I love you.", iter(["a"]), io.StringIO("a\n")], ids=lambda lines: type(lines).__name__
)
def test_a_single_text_and_an_iterator_are_refused(translator: Translator, lines: Any) -> None:
    for translate in (translator.translate, lambda lines: translator.n_best(lines, 2)):
        with pytest.raises(TypeError, match=f"^lines is a {type(lines).__name__}; give a list of texts"):
            translate(lines)


def test_n_best_keeps_the_best_score_of_each_text(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    piece = translator.bundle.tokenizer.encode("a")
    hypotheses = [[[Hypothesis(ids, score, score, 1) for ids, score in ((piece, -1.0), ([], -2.0), (piece, -3.0))]]]
    monkeypatch.setattr(Translator, "_search", lambda *_: hypotheses)
    (best,) = translator.n_best(["a"], 3)
    assert [(t.text, t.score) for t in best] == [("a", -1.0), ("", -2.0)]
    rows = [[Hypothesis(piece * n, score, score, n) for n, score in ((1, -1.0), (2, -9.0), (9, -9.0))]] * 2
    # Of two sentences, the longer third has a better mean.
    monkeypatch.setattr(Translator, "_search", lambda *_: [rows])
    (best,) = translator.n_best(["I see. I see."], 3)
    assert [t.score for t in best] == [-1.0, -1.0, -4.5]


def test_a_line_of_a_megabyte_is_cut_quickly(translator: Translator, caplog: pytest.LogCaptureFixture) -> None:
    for line in ("a" * 1_000_000, "我" * 333_333, "cat " * 250_000, "e" + "\u0301\u0316" * 250_000, "ab" * 500_000):
        began = time.process_time()
        assert len(translator.translate([line])) == 1
        assert time.process_time() - began < 10  # a second, on a machine that does nothing else
    assert caplog.text.count("line 1 is cut") == 5
    began = time.process_time()
    assert has_changed_numbers("12," * 300_000, "13")
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("line", "translation", "changed"),
    [
        ("Room 508", "508号房间", False),
        ("Room 508", "58号房间", True),
        ("June 8th, 1,374 m at 7:30", "6月8日7:30，1374米", False),
        ("at 11:50 p.m.", "1:150", True),
        ("on May 12, 1977", "1977年5月1日", True),
        ("508 of 512", "508", True),
        ("on June 13", "六月十三号", False),
        ("half past two", "2:30", False),
        ("5 square metres", "五m²", False),
        ("1,000,000 dollars", "1000美元", True),
        ("12 or 120", "12120", True),
        ("３ or 1,250", "3或1 250", False),
        ("1'250 of 10 000", "1,250 of 10,000", False),
        ("It's -5 degrees.", "5度。", True),
        ("100,000 or 1,374", "1,00,000 या ١٬٣٧٤", False),
        ("It's −5°C.", "零下5°C。", False),
        ("It is -5 degrees.", "Il fait moins 5 degrés.", False),
        ("－5 度", "5 degrees", True),
        ("a profit of -$5", "利润为-5美元", False),
        ("pages 5-10", "5到10页", False),
    ],
)
def test_has_changed_numbers(line: str, translation: str, changed: bool) -> None:
    assert has_changed_numbers(line, translation) is changed
