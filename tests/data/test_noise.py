"""Noise: what each kind does, and that it depends only on the seed, the epoch and the number of the pair."""

import json
import random
from collections.abc import Iterable, Iterator
from itertools import chain, groupby, islice, permutations, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpora import Pairs, batch_source_ids, data_config, write_pairs
from test_batching import patch_rank

from minitrans.data.batching import id_rows
from minitrans.data.datamodule import TranslationDataModule
from minitrans.data.noise import EMOJI, NOISES, Noise
from minitrans.text.reading import PLACEHOLDERS, neighbouring_keys
from minitrans.text.tokenizer import Tokenizer, TokenizerConfig

TRAIN = [(f"{a} Hat, {b} coat.", f"帽{a}{b * n}。") for n in (1, 2, 3) for a, b in permutations("ABCDEF", 2)]
VALID = [("A Hat.", "帽A。"), ("B coat.", "B。")]
TOKENIZER = Tokenizer.train(chain(*TRAIN), TokenizerConfig(300, plain_sources=False))
NOISE_SHARES = {"lower": 0.3, "typo": 0.2, "item": 0.1, "emoji": 0.1, "quotes": 0.1}
GO_WITH_EMOJI = [f"Go.{blank}{sign * n}" for blank in ("", " ") for sign in EMOJI for n in (1, 2)]
TYPOS_OF_ABLE = ["albe", "ale", "abble", *(f"a{key}le" for key in neighbouring_keys("b"))]
TYPOS_OF_ABLE += ["abel", "abe", "ablle", *(f"ab{key}e" for key in neighbouring_keys("l"))]
both_loaders = pytest.mark.parametrize("way", [{}, {"streaming": True, "shuffle_buffer": 25}], ids=["kept", "stream"])
IdPairs = list[tuple[list[int], list[int]]]


def make_data(folder: Path, noise: dict[str, float] | None, seed: int = 5, **way: Any) -> TranslationDataModule:
    write_pairs(folder, "lines", {"train": TRAIN, "valid": VALID})
    settings = data_config(folder, noise=noise, cache_dir=str(folder / "cache"), batch_tokens=200, **way)
    return TranslationDataModule(settings, TOKENIZER, max_len=60, seed=seed)


def epoch_and_batch(module: TranslationDataModule) -> Iterator[tuple[int, IdPairs]]:
    """The epoch of each batch, and its pairs without special ids, which are 0 to 2; never ends."""
    for loader in repeat(module.train_dataloader()):
        buffer = loader.state_dict()["buffer"]  # in memory, each buffer is an epoch
        for batch in loader:
            sides = ([[i for i in row if i > 2] for row in ids.tolist()] for ids in (batch.src_ids, batch.tgt_out))
            epoch = loader.state_dict().get("epoch", buffer)
            yield epoch, [pair for pair in zip(*sides, strict=True) if pair[0]]


def two_epochs(batches: Iterable[tuple[int, IdPairs]]) -> list[IdPairs]:
    """The pairs of the first two epochs, sorted."""
    groups = groupby(islice(batches, 100), lambda batch: batch[0])
    return [sorted(chain(*(pairs for _, pairs in group))) for _, group in islice(groups, 2)]


def add_noise(tokenizer: Tokenizer, pairs: Pairs, shares: dict[str, float], max_len: int = 500) -> Pairs:
    src, tgt = (id_rows(tokenizer.encode_batch(side)) for side in zip(*pairs, strict=True))
    noise = Noise(shares, tokenizer, "zh-CN", max_len, 5)
    changed = noise(src, tgt, 2, np.arange(len(pairs)), np.ones(len(pairs), bool))
    return [*zip(*(map(tokenizer.decode, side.to_pylist()) for side in changed), strict=True)]


@pytest.mark.parametrize(
    ("kind", "source", "target", "expected"),
    [
        ("capitals", "I saw it.", "x y", [("I SAW it.", "x y"), ("I saw IT.", "x y")]),
        ("title", "it's a cat.", "un chat", [("It's A Cat.", "un chat")]),
        ("lower", "I Saw It.", "X", [("i saw it.", "X")]),
        ("no_end", "Is it?!", "是吗？！", [("Is it", "是吗")]),
        ("no_end", "मैं।", "آنا هنا؟", [("मैं", "آنا هنا")]),
        ("no_end", "Εσύ;", "Hola. ¿Tú, aquí ?", [("Εσύ", "Hola. Tú, aquí")]),
        ("more_ends", "Go.", "जा।", [("Go...", "जा...")]),
        ("other_end", "جاؤ۔", "जा।", [("جاؤ!", "जा！"), ("جاؤ!!", "जा！")]),
        ("other_end", "هنا؟", "Ici ?", [("هنا.", "Ici ?")]),
        ("more_ends", "Go!", "走！", [("Go!!", "走！"), ("Go!!!", "走！")]),
        ("more_ends", "Go.", "走。", [("Go...", "走……")]),
        ("more_ends", "Go.", "Va.", [("Go...", "Va...")]),
        ("more_ends", "Go", "走", [("Go", "走")]),
        ("other_end", "Is it?", "是吗？", [("Is it.", "是吗？")]),
        ("other_end", "Go.", "走。", [("Go!", "走！"), ("Go!!", "走！")]),
        ("other_end", "go", "走", [("go!", "走！"), ("go!!", "走！")]),
        ("other_end", "Go.", "走？", [("Go.", "走？")]),
        ("other_end", "Go!", "走！", [("Go!", "走！")]),
        ("blank_before_end", "Is it?!", "是吗？", [("Is it ?!", "是吗？")]),
        ("no_apostrophes", "Don't say 'no'.", "x'y", [("Dont say 'no'.", "x'y")]),
        ("no_blanks", "Yes, no, a b.", "x, y", [("Yes,no,a b.", "x, y")]),
        ("typo", "a able", "long", [(f"a {word}", "long") for word in TYPOS_OF_ABLE]),
        ("typo", "a cat", "able", [("a cat", "able")]),
        ("item", "Go.", "走。", [(f"{m}Go.", f"{m}走。") for m in ("- ", *(f"{n}. " for n in range(1, 21)))]),
        ("emoji", "Go.", "走。", [(text, "走。" + text[3:].strip()) for text in GO_WITH_EMOJI]),
        ("emoji", "Go.", "Va là.", [(text, "Va là. " + text[3:].strip()) for text in GO_WITH_EMOJI]),
        ("quotes", "Go.", "走。", [('"Go."', "“走。”")]),
    ],
)
def test_each_kind_of_noise(kind: str, source: str, target: str, expected: Pairs) -> None:
    assert {NOISES[kind](source, target, random.Random(seed), "zh") for seed in range(3000)} == {*expected}


def test_punctuation_is_that_of_the_language() -> None:
    assert [NOISES["quotes"]("", "x", random.Random(0), to)[1] for to in ("de", "ja", "nl")] == ["„x“", "「x」", '"x"']
    assert [NOISES["other_end"]("x", "x", random.Random(0), to)[1] for to in ("de", "ja")] == ["x!", "x！"]


@both_loaders
def test_noise_is_reproducible(tmp_path: Path, way: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def epochs_of(noise: dict[str, float] | None = NOISE_SHARES, **values: Any) -> list[IdPairs]:
        return two_epochs(epoch_and_batch(make_data(tmp_path, noise, **values)))

    expected = epochs_of()
    assert all("“" in "".join(TOKENIZER.decode(target) for _, target in pairs) for pairs in expected)
    assert len({str(pairs) for pairs in (*expected, *epochs_of(seed=6), *epochs_of(None))}) == 5
    assert epochs_of(**way) == expected
    n_epoch = next(n for n, (epoch, _) in enumerate(epoch_and_batch(make_data(tmp_path, NOISE_SHARES, **way))) if epoch)
    for stop in (1, n_epoch // 2, n_epoch - 1, n_epoch, n_epoch + 3):
        stopped, resumed = make_data(tmp_path, NOISE_SHARES, **way), make_data(tmp_path, NOISE_SHARES, **way)
        first = [*islice(epoch_and_batch(stopped), stop)]
        resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        assert two_epochs(chain(first, epoch_and_batch(resumed))) == expected, f"resumed after {stop} batches"
    parts = []
    for rank in range(3):
        patch_rank(monkeypatch, rank, 3)
        parts.append(epochs_of(**way))
    assert [sorted(chain(*pairs)) for pairs in zip(*parts, strict=True)] == expected


@both_loaders
def test_noise_leaves_order_validation_and_words_unchanged(tmp_path: Path, way: dict[str, Any]) -> None:
    modules = without, _, noisy = [make_data(tmp_path, noise, **way) for noise in (None, {"typo": 0.0}, {"typo": 0.9})]
    clean, same, other = ([*islice(epoch_and_batch(module), 30)] for module in modules)
    assert clean == same != other
    assert two_epochs(clean)[0] == sorted(tuple(map(TOKENIZER.encode, pair)) for pair in TRAIN)
    assert [*zip(*clean[0][1], strict=True)][1] == [*zip(*other[0][1], strict=True)][1], "of the same order"
    assert batch_source_ids(noisy.val_dataloader()) == batch_source_ids(without.val_dataloader())
    assert without.source_words() == noisy.source_words() != []


@both_loaders
def test_half_of_the_pairs_of_the_first_epochs_are_reversed(tmp_path: Path, way: dict[str, Any]) -> None:
    def first_batches(n_epochs: int, **more: Any) -> list[tuple[int, IdPairs]]:
        stopped, resumed = (make_data(tmp_path, None, reversed_epochs=n_epochs, **way, **more) for _ in range(2))
        first = [*islice(epoch_and_batch(stopped), 3)]
        resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        return [*first, *islice(epoch_and_batch(resumed), 60)]

    def reversed_pairs(**more: Any) -> list[set[str]]:
        """The reversed pairs of each epoch; all others are as without the setting."""
        found: dict[int, list[str]] = {}
        batches = zip(first_batches(0, **more), first_batches(2, **more), strict=True)
        for (epoch, pairs), (same_epoch, others) in batches:
            flags = [other != pair for pair, other in zip(pairs, others, strict=True)]
            assert epoch == same_epoch
            assert others == [pair[::-1] if flag else pair for pair, flag in zip(pairs, flags, strict=True)]
            found.setdefault(epoch, []).extend(str(pair) for pair, flag in zip(pairs, flags, strict=True) if flag)
        return [set(pairs) for pairs in found.values()]

    first, second, *others = reversed_pairs()
    assert all(0.3 < len(pairs) / len(TRAIN) < 0.7 for pairs in (first, second))
    assert len(others) > 1
    assert not any(others)
    assert len({frozenset(pairs) for pairs in (first, second, *reversed_pairs(seed=6)[:2])}) == 4


@both_loaders
def test_reversed_pairs_have_no_noise(tmp_path: Path, way: dict[str, Any]) -> None:
    modules = [make_data(tmp_path, noise, reversed_epochs=9, **way) for noise in (None, {"title": 0.9})]
    ((_, clean), (_, noisy)) = (next(epoch_and_batch(module)) for module in modules)
    sources = [TOKENIZER.encode(source) for source, _ in TRAIN]
    changed: dict[bool, list[bool]] = {False: [], True: []}
    for pair, other in zip(clean, noisy, strict=True):
        changed[pair[0] in sources].append(pair != other)
    assert np.mean(changed[True]) > 0.5
    assert np.mean(changed[False]) == 0


def test_each_kind_changes_its_share_of_the_pairs() -> None:
    """Changed pairs may change again: a kind comes before the end with probability share / (share + end's share)."""
    for shares, lowered, listed in (({"lower": 0.3}, 0.3, 0), ({"lower": 0.1, "item": 0.3}, 0.1 / 0.7, 0.3 / 0.9)):
        pairs = add_noise(TOKENIZER, TRAIN[:1] * 3000, shares)
        assert np.mean(["a hat" in source for source, _ in pairs]) == pytest.approx(lowered, abs=0.03)
        assert np.mean([target != TRAIN[0][1] for _, target in pairs]) == pytest.approx(listed, abs=0.03)
    assert "“" in str(add_noise(TOKENIZER, TRAIN[:9], {"quotes": 0.9})), "zh-CN is zh"


def test_pairs_that_would_be_too_long_or_empty_are_unchanged() -> None:
    pairs = [("A" * (1 + n % 9), "B" * (1 + n % 7)) for n in range(300)]
    free = add_noise(TOKENIZER, pairs, {"item": 0.5})
    lengths = [1 + max(len(TOKENIZER.encode(side)) for side in pair) for pair in free]
    kept = [one if length <= 9 else other for one, other, length in zip(free, pairs, lengths, strict=True)]
    assert add_noise(TOKENIZER, pairs, {"item": 0.5}, max_len=9) == kept != free
    assert {8, 9, 10} <= {*lengths}
    assert add_noise(TOKENIZER, (no_word := [("?", "AB？"), ("AB?", "？")] * 50), {"no_end": 0.9}) == no_word


def test_noise_keeps_placeholders() -> None:
    """What noise adds to both sides becomes a placeholder too."""
    tokenizer = Tokenizer.train(["Tom has 12 cats.", "有只猫。"], TokenizerConfig(400, placeholders=True))
    (source,), (target,) = tokenizer.reader.preprocess_pairs(["Tom has 12 cats."], ["Tom有12只猫。"])
    for kind in ("other_end", "quotes", "emoji", "item"):
        pairs = add_noise(tokenizer, [(source, target)] * 50, {kind: 0.1})
        assert {*pairs} > {(source, target)}
        for sides in pairs:
            one, other, places = ({*text} & {*PLACEHOLDERS} for text in (*sides, source))
            assert one == other >= places
            assert (one == places) == (kind in ("other_end", "quotes") or sides == (source, target))
