"""The corpus that ships is what its generator makes, and is as its card says."""

from __future__ import annotations

import collections
import re
from pathlib import Path

import grammar
import lexicon as lex
import make_corpus
import pytest

DATA = Path(__file__).parents[2] / "data" / "en-zh"
CARD = (DATA / "README.md").read_text(encoding="utf-8")
SIZES = {"train": 20_000, "valid": 1_000, "test": 1_000, "test_compositional": 1_000}
RAREST = 21  # how often each word of the held-out files occurs in train, at least
SEED = 1


def lines(name: str) -> list[str]:
    text = (DATA / name).read_text(encoding="utf-8")
    assert text.endswith("\n")
    return text[:-1].split("\n")


ENGLISH = {split: lines(f"{split}.en") for split in SIZES}
CHINESE = {split: lines(f"{split}.zh") for split in SIZES}


def word_counts(split: str) -> collections.Counter[str]:
    return collections.Counter(word for sentence in ENGLISH[split] for word in make_corpus.words(sentence))


@pytest.fixture(scope="module")
def remade() -> dict[str, list[grammar.Phrase]]:
    return make_corpus.make_corpus(make_corpus.Sizes(), SEED)


def test_a_fresh_run_gives_the_same_bytes(tmp_path: Path) -> None:
    assert make_corpus.main(["--out", str(tmp_path)]) == 0
    names = [f"{split}.{language}" for split in SIZES for language in ("en", "zh")]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    for name in names:
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes(), name


def test_held_out_files_do_not_depend_on_the_size_of_train(tmp_path: Path) -> None:
    assert make_corpus.main(["--out", str(tmp_path), "--train", "50"]) == 0
    for split in ("valid", "test", "test_compositional"):
        assert (tmp_path / f"{split}.en").read_bytes() == (DATA / f"{split}.en").read_bytes()
    assert len((tmp_path / "train.zh").read_text(encoding="utf-8").splitlines()) == 50


def test_another_seed_gives_other_sentences(tmp_path: Path) -> None:
    arguments = ["--train", "50", "--valid", "10", "--test", "10", "--test-compositional", "10", "--seed", "2"]
    assert make_corpus.main(["--out", str(tmp_path), *arguments]) == 0
    assert (tmp_path / "test.en").read_text(encoding="utf-8").splitlines() != ENGLISH["test"][:10]


@pytest.mark.parametrize("split", SIZES)
def test_sizes(split: str) -> None:
    assert len(ENGLISH[split]) == len(CHINESE[split]) == SIZES[split]


def test_no_sentence_occurs_twice() -> None:
    for texts in (ENGLISH, CHINESE):
        everything = [sentence for split in SIZES for sentence in texts[split]]
        assert len(set(everything)) == len(everything)
        bare = {split: {make_corpus.without_stop(sentence) for sentence in texts[split]} for split in SIZES}
        assert sum(len(sentences) for sentences in bare.values()) == len(set().union(*bare.values()))


def test_the_full_stop_is_on_both_sides_or_on_none() -> None:
    for split in SIZES:
        for en, zh in zip(ENGLISH[split], CHINESE[split], strict=True):
            assert (en[-1] == ".", en[-1] == "?") == (zh[-1] == "。", zh[-1] == "？"), (en, zh)
            assert en == " ".join(en.split()), en
            assert not re.search(r"[A-Za-z\s.?!,]", zh), zh


@pytest.mark.parametrize(
    ("en", "zh"),
    [
        ("Machine learning is fun.", "机器学习真好玩。"),
        ("Machine learning is fun", "机器学习真好玩"),
        ("Deep learning is fun.", "深度学习真好玩。"),
        ("machine learning", "机器学习"),
        ("deep learning", "深度学习"),
        ("I love you.", "我爱你。"),
        ("I love you", "我爱你"),
        ("I saw a saw.", "我看见了一把锯子。"),
    ],
)
def test_fixed_sentences_are_in_train(en: str, zh: str) -> None:
    assert CHINESE["train"][ENGLISH["train"].index(en)] == zh


def test_only_test_compositional_has_held_out_combinations(remade: dict[str, list[grammar.Phrase]]) -> None:
    for split, pairs in remade.items():
        assert [pair.en for pair in pairs] == ENGLISH[split]
        for pair in pairs:
            assert make_corpus.HELD_OUT.isdisjoint(pair.combos) == (split != "test_compositional"), pair


def test_held_out_combinations_are_many_and_each_word_is_trained(
    remade: dict[str, list[grammar.Phrase]],
) -> None:
    assert len(make_corpus.HELD_OUT) == len(lex.HELD_OUT_OBJECTS) + len(lex.HELD_OUT_MODIFIERS) >= 60
    tested = {combo for pair in remade["test_compositional"] for combo in pair.combos}
    trained = collections.Counter(combo for pair in remade["train"] for combo in pair.combos)
    heads: collections.Counter[tuple[grammar.Role, str]] = collections.Counter()
    nouns: collections.Counter[tuple[grammar.Role, str]] = collections.Counter()
    for combo, count in trained.items():
        heads[combo.role, combo.head] += count
        nouns[combo.role, combo.noun] += count
    for combo in make_corpus.HELD_OUT:
        assert combo in tested
        assert heads[combo.role, combo.head] >= 20, combo
        assert nouns[combo.role, combo.noun] >= 10, combo


def test_held_out_combinations_are_not_in_the_text_of_the_other_files() -> None:
    seen = "\n".join(sentence.lower() for split in ("train", "valid", "test") for sentence in ENGLISH[split])
    nouns = {noun.en: rf"(?:{noun.en}|{noun.plural})\b" for noun in lex.NOUNS.values()}
    verbs = {verb.base: "|".join(verb) for verb in vars(lex).values() if isinstance(verb, lex.Verb)}
    for adjective, noun in lex.HELD_OUT_MODIFIERS:
        assert not re.search(rf"(?<!light )(?<!dark )\b{adjective} {nouns[noun]}", seen), (adjective, noun)
    for head, noun in lex.HELD_OUT_OBJECTS:
        assert not re.search(rf"\b(?:{verbs[head]}) (?:an? |the |this |that |any )?{nouns[noun]}", seen), (head, noun)


def test_each_word_of_the_held_out_files_is_frequent_in_train() -> None:
    train = word_counts("train")
    counts = {word: train[word] for split in SIZES if split != "train" for word in word_counts(split)}
    assert min(counts.values()) == RAREST, min(counts, key=lambda word: counts[word])
    characters = collections.Counter("".join(CHINESE["train"]))
    assert all(characters[character] >= 20 for split in SIZES for sentence in CHINESE[split] for character in sentence)


def test_train_has_many_words_and_short_sentences() -> None:
    assert len(word_counts("train")) >= 400
    lengths = [len(sentence.split()) for sentence in ENGLISH["train"]]
    assert sum(3 <= length <= 16 for length in lengths) > 0.98 * len(lengths)


def test_each_noun_has_its_measure_word() -> None:
    measures: dict[str, set[str]] = collections.defaultdict(set)
    for noun in (*lex.NOUNS.values(), lex.ANIMAL_BAT, lex.ALPHABET_LETTER):
        measures[noun.zh].add(noun.measure)
    assert all(len(measure) == 1 for measure in measures.values())
    longest_first = "|".join(sorted(measures, key=len, reverse=True))
    counted = re.compile(rf"(?<!星期)[一两三四五六七八九十](?!些)(\w)({longest_first})")
    met = set()
    for split in SIZES:
        for sentence in CHINESE[split]:
            for measure, noun in counted.findall(sentence):
                assert {measure} == measures[noun], sentence
                met.add(noun)
    assert len(met) > 120


def test_an_english_sentence_has_one_translation() -> None:
    draw = grammar.Draw(7)
    translations: dict[str, str] = {}
    for _ in range(60_000):
        pair = draw.weighted(grammar.CONSTRUCTIONS)(draw)
        assert translations.setdefault(pair.en, pair.zh) == pair.zh, pair


@pytest.mark.parametrize(
    ("phrase", "expected"),
    [
        ("apple", "an apple"),
        ("useful book", "a useful book"),
        ("university", "a university"),
        ("old car", "an old car"),
    ],
)
def test_article(phrase: str, expected: str) -> None:
    assert lex.article(phrase) == expected


@pytest.mark.parametrize("option", ["--train", "--test-compositional"])
def test_too_many_pairs_end_with_one_line(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_corpus.main(["--out", str(tmp_path / "new"), option, "1000000000"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_a_grammar_that_runs_dry_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(make_corpus, "CONSTRUCTIONS", ((1.0, grammar.climate), (1.0, grammar.identity)))
    monkeypatch.setattr(make_corpus, "PATIENCE", 100)
    assert make_corpus.main(["--out", str(tmp_path / "new")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("arguments", [["--train", "7"], ["--valid", "-1"], ["--test", "many"]])
def test_a_wrong_size_is_refused(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        make_corpus.main(["--out", str(tmp_path), *arguments])
    assert arguments[0] in capsys.readouterr().err


def test_the_card_gives_the_right_numbers() -> None:
    everything = [sentence for split in SIZES for sentence in CHINESE[split]]
    lengths = [len(sentence.split()) for sentence in ENGLISH["train"]]
    for row in (
        *(f"| `{split}` | {size:,} |" for split, size in SIZES.items()),
        f"| English word forms (lower case) in `train` | {len(word_counts('train'))} |",
        f"| Chinese characters and punctuation marks in all files | {len(set(''.join(everything)))} |",
        f"| Mean length of an English sentence in `train`, in words | {sum(lengths) / len(lengths):.1f} |",
        f"| Shortest and longest English sentence in `train`, in words | {min(lengths)} and {max(lengths)} |",
        f"| Constructions | {len(grammar.CONSTRUCTIONS)} |",
        f"| Held-out verb + object pairs | {len(lex.HELD_OUT_OBJECTS)} |",
        f"| Held-out adjective + noun pairs | {len(lex.HELD_OUT_MODIFIERS)} |",
        f"| Least frequency in `train` of a word of the other files | {RAREST} |",
    ):
        assert row in CARD


def test_the_examples_of_the_card_are_in_train() -> None:
    train = dict(zip(ENGLISH["train"], CHINESE["train"], strict=True))
    examples = re.findall(r"^\|[^|]+\| ([A-Za-z][^|]*[.?]) \| ([^|]*[。？]) \|$", CARD, flags=re.MULTILINE)
    assert len(examples) > 60
    for en, zh in examples:
        assert train.get(en) == zh, en
