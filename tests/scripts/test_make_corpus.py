"""The corpus that ships is what its generator makes, and no test sentence is in the training data."""

from __future__ import annotations

import collections
import re
from pathlib import Path
from types import SimpleNamespace

import make_corpus
import pytest

CORPUS_DIR = Path(__file__).parents[2] / "data" / "en-zh"
FreshRun = tuple[Path, list[make_corpus.Pair]]
SPLITS = ("train", "valid", "test", "test_compositional")
FOOD_TSV = "en\tzh\n" + "".join(f"{en}\t{zh}\n" for en, zh in zip("abcdefghij", "甲乙丙丁戊己庚辛壬癸", strict=True))


def lines(name: str) -> list[str]:
    return (CORPUS_DIR / name).read_text(encoding="utf-8").removesuffix("\n").split("\n")


ZH_BY_EN = dict(zip(lines("train.en"), lines("train.zh"), strict=True))
PAIRS = {  # of all splits, with each of their translations
    f"{en.lower()}\t{zh}"
    for split in SPLITS
    for path in CORPUS_DIR.glob(f"{split}.zh*")
    for en, zh in zip(lines(f"{split}.en"), lines(path.name), strict=True)
    if zh
}


@pytest.fixture
def small_phrasebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small phrasebook in place of the one that ships."""
    for folder in ("phrasebook", "words"):
        (tmp_path / folder).mkdir()
    (tmp_path / "words" / "food.tsv").write_text(FOOD_TSV, encoding="utf-8")
    (tmp_path / "phrasebook" / "talk.tsv").write_text(
        "Hello!\t你好！\nI like {food}.\t我喜欢{food}。\n", encoding="utf-8"
    )
    monkeypatch.setattr(make_corpus, "CORPUS_DIR", tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def fresh_run(tmp_path_factory: pytest.TempPathFactory) -> FreshRun:
    """The folder of a fresh run, which held a file of an older run, and the words that it holds out of lines."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "test.zh.9").write_text("旧的\n", encoding="utf-8")
    hold_out, chosen = make_corpus.hold_out_words, list[make_corpus.Pair]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make_corpus, "hold_out_words", lambda *arguments: chosen.__iadd__(hold_out(*arguments)))
        assert make_corpus.main(["--out", str(folder)]) == 0
    return folder, chosen


def test_a_fresh_run_gives_the_same_bytes_and_removes_translations_of_an_older_run(fresh_run: FreshRun) -> None:
    folder, _ = fresh_run
    made = sorted(path.name for path in folder.iterdir())
    assert made == sorted(path.name for split in SPLITS for path in CORPUS_DIR.glob(f"{split}.[ez]*"))
    for name in made:
        assert (folder / name).read_bytes() == (CORPUS_DIR / name).read_bytes(), name


def test_another_seed_leaves_out_other_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Skip the later stages, which take long.
    monkeypatch.setattr(make_corpus, "SlotFiller", lambda *_: SimpleNamespace(fill_often=lambda _: []))
    monkeypatch.setattr(make_corpus, "hold_out_words", lambda *_: [])
    assert make_corpus.main(["--out", str(tmp_path), "--seed", "2"]) == 0
    left_out = (tmp_path / "test.en").read_text(encoding="utf-8").splitlines()
    assert len(set(left_out) & set(lines("test.en"))) < len(left_out) / 10  # a few by chance


def test_the_running_examples_are_in_train() -> None:
    assert [ZH_BY_EN[en] for en in ("Machine learning is fun.", "I love you.", "deep learning", "I saw a saw.")] == [
        "机器学习真好玩。", "我爱你。", "深度学习", "我看见了一把锯子。"
    ]  # fmt: skip


def test_no_test_sentence_is_in_train_in_any_variant() -> None:
    trained = {key for en in ZH_BY_EN for key in make_corpus.sentence_run_keys(en)}
    for name in ("valid", "test", "test_compositional", "everyday", "everyday_dev", "values", "names"):
        assert [en for en in lines(f"{name}.en") if make_corpus.variant_key(en) in trained] == [], name


def test_formulas_are_in_train() -> None:
    known = set(map(make_corpus.variant_key, ZH_BY_EN))
    assert [en for en in lines("phrasebook/formulas.en") if make_corpus.variant_key(en) not in known] == []
    copies, trained = make_corpus.COPIES_BY_LINE_KIND, lines("train.en")
    assert trained.count("Hello!") == trained.count("Goodbye!") == copies["formula"]
    assert trained.count("bread") == copies["word"]


def test_values_are_not_in_train() -> None:
    assert len(lines("values.en")) == 100
    trained = set().union(*map(make_corpus.digit_words, ZH_BY_EN))
    assert not [en for en in lines("values.en") if not trained.isdisjoint(make_corpus.digit_words(en))]
    assert make_corpus.digit_words("At 7:45 on May 12, 1998, for $18.95 or 5%.") == {"7:45", "1998", "$18.95", "5%"}


def test_names_are_not_in_train() -> None:
    assert len(lines("names.en")) == 100
    texts = lines("names.zh"), ZH_BY_EN
    names, trained = (set(re.findall(r"\w+", " ".join(text).lower(), re.ASCII)) for text in texts)
    assert {"zoltan", "porto", "alegre"} <= names
    assert names.isdisjoint(trained)


def test_variants_of_a_sentence_have_the_same_key() -> None:
    for variants in (
        ("It's late. I can't stay.", "it is late! i cannot stay", "IT’S LATE, I CAN NOT STAY!!"),
        ("We'll see, won't we?", "we will see, will not we"),
        ("I'd like tea.", "i would like tea"),
    ):
        assert len(set(map(make_corpus.variant_key, variants))) == 1


def test_left_out_lines_are_whole_sentences_whose_words_are_trained() -> None:
    trained = {word for en in ZH_BY_EN for word in make_corpus.word_set(en)}
    formulas = {line.split("\t")[0] for line in lines(f"phrasebook/{make_corpus.SET_PHRASES_FILE}")}
    phrases = {line.split("\t")[0] for path in (CORPUS_DIR / "phrasebook").iterdir() for line in lines(str(path))}
    for split in ("valid", "test"):
        assert len(lines(f"{split}.en")) == make_corpus.N_HELD_OUT
        for en in lines(f"{split}.en"):
            assert en in phrases - formulas
            assert make_corpus.word_set(en) <= trained, en


def line_regex(line: make_corpus.Line, kinds: make_corpus.WordsByKind) -> re.Pattern[str]:
    """A pattern of all sentences, each filling a line of text, that a line makes with these words."""
    slots = make_corpus.slots(line.english, False)
    words = (f"(?:{'|'.join({re.escape(row[slot.column]) for row in kinds[slot.kind]})})" for slot in slots)
    words = (word.replace(r"\#", r"\d").replace(r"\&", "[A-Z]").replace(r"\~", "[a-z]{6,}") for word in words)
    parts = make_corpus.SLOT_PATTERN.sub("\0", line.english.rstrip(".?!")).split("\0")
    filled = "".join(re.escape(part) + next(words, "") for part in parts)
    return re.compile(rf"^{filled}[.?!]*$", re.MULTILINE | re.IGNORECASE)


def test_a_word_left_out_of_a_line_is_not_in_train_but_others_are(fresh_run: FreshRun) -> None:
    folder, chosen = fresh_run
    kinds = make_corpus.read_words(CORPUS_DIR / "words")
    tested = set(lines(f"{folder}/test_compositional.en"))
    assert len(tested) == make_corpus.N_HELD_OUT
    trained = "\n".join(lines(f"{folder}/train.en"))
    for pair in [pair for pair in chosen if pair.english in tested][:40]:
        ((kind, word),) = pair.slot_words
        for left_out in (True, False):
            rows = [row for row in kinds[kind] if (row["en"] == word) == left_out]
            assert bool(line_regex(pair.line, kinds | {kind: rows}).search(trained)) != left_out, (pair, left_out)


def test_english_occurs_contracted_and_written_out() -> None:
    variants = collections.Counter(map(make_corpus.variant_key, ZH_BY_EN))
    assert sum(count > 1 for count in variants.values()) > 2_000
    words = collections.Counter(word for en in ZH_BY_EN for word in en.split())
    assert min(words[word] for word in ("I", "don't", "do", "It's", "It", "is")) > 200
    for en, zh in ZH_BY_EN.items():  # end alike, but for a request or a greeting that is a question, and "7:05 a.m."
        if en == "How do you do?":
            continue
        assert zh.endswith({".": ("。",), "?": ("？", "。"), "!": ("！",)}.get(en[-1], ("",))) or en.endswith(".m."), en
        assert en[-1] in ".?!" or zh[-1] not in "。？！", en


def test_show_prints_what_a_line_makes(small_phrasebook: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_corpus.main(["--show", "talk.tsv:2"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) > 4
    assert all(re.fullmatch(r"I like [a-j]\.\t我喜欢[一-鿿]。", line) for line in printed)


def test_a_mark_in_a_word_is_the_same_on_both_sides(small_phrasebook: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It becomes a random digit, letter or made-up name."""
    (small_phrasebook / "words" / "food.tsv").write_text("en\tzh\n1,## &2# ~\t1##号&2#~\n", encoding="utf-8")
    assert make_corpus.main(["--show", "talk.tsv:2"]) == 0
    pattern = r"^I like 1,(\d\d) ([A-Z]2\d) ([A-Z][a-z]{5,})\.\t我喜欢1\1号\2\3。$"
    assert len({*re.findall(pattern, capsys.readouterr().out, re.MULTILINE)}) == make_corpus.SENTENCES_PER_LINE


BAD_TABLES = {
    "phrasebook/talk.tsv": [
        ("I eat {fish}.\t我吃{fish}。", "no English words for {fish.en}"),
        ("I eat {food.a}.\t我吃{food}。", "no English words for {food.a}"),
        ("I eat {food}.\t我吃{food.en}。", "no Chinese words for {food.en}"),
        ("I eat.\t我吃{food}。", "the slot {food} is on one side alone"),
        ("I eat {food}.\t我吃。", "the slot {food} is on one side alone"),
        ("I eat {food}, {food2}.\t我吃{food}。", "the slot {food2} is on one side alone"),
        ("I eat {food.\t我吃{food。", "a brace that belongs to no slot"),
        ("Hello!\t您好！", "the same English is in talk.tsv:1"),
        ("I eat.\t我吃.", "the Chinese has '.'"),
        ("I eat, too.\t我, 也吃。", "the Chinese has ', '"),
        ("I have Wi-Fi.\t我有WLAN。", "the Chinese has 'WLAN'"),
        ("I have Wi-Fi.\t我有Wi-Fi.", "the Chinese has 'Wi-Fi.'"),
        ("I eat.\t我 吃。", "the Chinese has ' '"),
        ("I eat.", "1 fields"),
        ("I eat.\t1\t2\t3\t4\t5", "6 fields"),
        ("I eat.\t", "a field is empty"),
        ("I eat.\t\udcff", "it is not UTF-8"),
    ],
    "words/food.tsv": [
        ("en\tzh\nrice\t米饭\tx\n", "2: 3 fields, but the header has 2"),
        ("en\tzh\nrice\trice!\n", "2: the Chinese has 'rice!'"),
        ("en\tzh\n7#\t7\n", "2: '7' has other marks, #, & or ~, than the English"),
        ("en\tzh\n&7#\t7#\n", "2: '7#' has other marks"),
        ("en\tzh\n#7\t7\n", "2: '7' has other marks"),
        ("en\tfood\nrice\t米饭\n", "1: a word table needs"),
        ("en\tzh\n", "1: a word table needs"),
        ("", "1: a word table needs"),
    ],
}


@pytest.mark.parametrize(("file", "text", "message"), [(file, *row) for file in BAD_TABLES for row in BAD_TABLES[file]])
def test_a_mistake_in_a_table_is_reported_in_one_line_and_nothing_is_written(
    file: str, text: str, message: str, small_phrasebook: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if file == "phrasebook/talk.tsv":
        text, message = f"Hello!\t你好！\n# a comment\n{text}\n", f"3: {message}"
    (small_phrasebook / file).write_text(text, encoding="utf-8", errors="surrogateescape")
    assert make_corpus.main(["--out", str(small_phrasebook / "new")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"make_corpus: {small_phrasebook / file}:{message}")
    assert error.count("\n") == 1
    assert not (small_phrasebook / "new").exists()


def test_a_missing_file_is_reported_in_one_line(small_phrasebook: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_corpus.main(["--out", str(small_phrasebook / "new")]) == 2
    assert re.fullmatch(r"make_corpus: .*everyday\.en'\n", capsys.readouterr().err)


def test_copied_text_may_be_latin_and_a_table_may_begin_with_a_byte_order_mark(small_phrasebook: Path) -> None:
    text = "# a\nA203 at 7:30, call 140 1234 5678.\t7:30，A203，打140 1234 5678。\n5%, $1,250.\t5%，1250美元。\n"
    (small_phrasebook / "phrasebook" / "talk.tsv").write_text(text, encoding="utf-8-sig")
    assert make_corpus.main(["--show", "talk.tsv:2"]) == 0


def test_the_card_gives_the_right_numbers() -> None:
    card = (CORPUS_DIR / "README.md").read_text(encoding="utf-8")
    lengths = [len(en.split()) for en in ZH_BY_EN]
    words = {word for en in ZH_BY_EN for word in make_corpus.word_set(en) if not re.search(r"\d", word)}
    texts = [text for path in CORPUS_DIR.rglob("*.zh*") for text in lines(str(path))]
    for row in (
        *(f"| `{split}` | {len(lines(f'{split}.en')):,} |" for split in (*SPLITS, *make_corpus.HAND_WRITTEN_SETS)),
        f"to train on; {len(ZH_BY_EN):,} without copies |",
        f"| English word forms in `train` without digits, in lower case and written out | {len(words):,} |",
        f"| Characters in the Chinese of all files | {len(set(''.join(texts))):,} |",
        f"| Mean length of a distinct English text in `train`, in words | {sum(lengths) / len(lengths):.1f} |",
        f"| Longest English text in `train`, in words | {max(lengths)} |",
    ):
        assert row in card


DAY, WEEKDAY, DAYTIME = "前天|昨天|今天|(?<!昆)明天|后天", "星期[一二三四五六天]", "早上|上午|中午|下午|晚上|[昨今明]晚"
ADULT = "爷爷|奶奶|爸爸|妈妈|丈夫|妻子|叔叔|阿姨|老板|医生|司机"
YOUNG_AGE = r"(?<![大小\d百二三四五六七八九十])(?:[一两三四五六七八九]|十[一二三四五]?|1[0-5]|\d)岁"
OLD_AGE = r"(?:[七八九]十.?|[7-9]\d|一百)岁"
ADVERBS = "(?:今年|明年|下个月|[才已经就快真的有只]*)"
WOMEN_WORDS = r"\b(?:girls|women|ladies|sisters|daughters|mothers|wives|aunts|grandmothers)\b"
MEN_OR_MIXED_WORDS = r"\b(?:he|him|his|men|boys|brothers|sons|fathers|husbands|parents|children|people|friends)\b"
NOUN_SUBJECT = "(?![我你您他她它这那有不要]|今天|明天|昨天|星期)[^，。？！]{2,4}"
ONE_SENTENCE = r"^(?!.*[.?!] )"  # one sentence

# What must never be said: a pattern of lower-case English, a tab and Chinese; and an example that matches.
FORBIDDEN_PATTERNS = {
    "two days": (f"({DAY})[^，。？！比说和到或]*(?!\\1)(?:{DAY})", "\t我昨天要明天去。"),
    "two weekdays": (f"({WEEKDAY})(?!过后)[^，。？！比说和到或还之]*(?!\\1){WEEKDAY}", "\t我们星期一在星期二开会。"),
    "two hours": (f"({DAYTIME})[^，。？！、和到]*(?!\\1)(?:{DAYTIME})", "\t我早上下午三点去。"),
    "will, yesterday": (r"\b(?:will|going to|won't) [^.?!,\t]*\b(?:yesterday|ago|last [nw])", "i will go two days ago"),
    "dinner in the morning": ("(?:早上|上午)[^，。？！]*[吃做]了?[午晚]饭", "\t我们早上七点吃晚饭。"),
    "breakfast in the evening": ("(?:下午|晚上|[昨今明]晚)[^，。？！]*[吃做]了?[早午]饭", "\t我今晚吃早饭。"),
    "up in the evening": ("(?:下午|晚上)[^，。？！]*点[^，。？！]*起床", "\t我每天晚上八点起床。"),
    "to bed by day": ("(?:早上|上午|中午|下午)[^，。？！]*点[^，。？！]*睡觉", "\t我下午三点睡觉。"),
    "hot frost": (r"热[^。？！]*零下|冷[^。？！]*[3-9]\d度|晚[^，。？！]*晴", "\t今天很热，零下三度。"),
    "elder, younger": ("[哥姐]{2}[^，。？！]?比我小|[弟妹]{2}[^，。？！]?比我大", "\t我姐姐比我小两岁。"),
    "little is not elder": (r"\b(?:little|younger) (?:sis.*\t(?!.*妹)|bro.*\t(?!.*弟))", "my little sister\t我姐姐"),
    "big is not younger": (r"\b(?:big|older) (?:sister.*\t(?!.*姐)|bro(?!wn).*\t(?!.*哥))", "my big brother\t我弟弟"),
    "one person twice": (r"\bthe (doctor|nurse|guide|teacher|manager)\b[^.?!\t]* the \1\b", "the nurse saw the nurse"),
    "meet your own": (r"\b(?:this is|to meet) your (?:wife|husband|son|daughter|[a-z]+ther)\b", "this is your wife"),
    "a parent of twelve": (f"(?:{ADULT}){ADVERBS}{YOUNG_AGE}", "\t我爷爷今年十二岁。"),
    "a child of 95": (f"(?:儿子|女儿|双胞胎|宝宝){ADVERBS}{OLD_AGE}|{OLD_AGE}的(?:儿子|女儿|孩子)", "\t我儿子95岁了。"),
    "too young": (f"我[一两三]岁[。了]|{YOUNG_AGE}[^，。？！]*(?:开车|结婚|上班|毕业|退休|当上)", "\t他十岁就结婚了。"),
    "too old": (f"{OLD_AGE}[^，。？！]*开始学|(?:{ADULT}|[男女]人)不能去上学", "\t他91岁的时候开始学吉他。"),
    "a baby that drives": ("(?:宝宝|婴儿|男孩|女孩)[^，。？！]*(?:开车|上班|工作|戒烟|啤酒)", "\t宝宝会开车。"),
    "他们 for women": (
        f"{ONE_SENTENCE}(?!.*{MEN_OR_MIXED_WORDS}).*{WOMEN_WORDS}.* the(?:y|m|ir)\\b.*\\t.*他们",
        "the girls say they do\t他们",
    ),
    "她 for a man": (rf"{ONE_SENTENCE}(?=.*\b(?:he|him|his)\b)(?!.*\b(?:she|hers?)\b).*\t.*她", "he comes\t她来。"),
    "他 for a woman": (
        rf"{ONE_SENTENCE}(?=.*\b(?:she|hers?)\b)(?!.*{MEN_OR_MIXED_WORDS}).*\t(?:.*[^其吉])?他(?![们人])",
        "she comes\t他来。",
    ),
    "subject again": (
        rf"[\t。？！](?:如果|虽然)?({NOUN_SUBJECT})[^，。？！]*，(?:但是)?\1(?![a-z])",
        "\t如果老师来，老师会说。",
    ),
    "的 upon 的": ("的的|(?:的(?![，。？！])[^，。？！、比是]*){3}", "\t我的朋友的妈妈的车"),
}


@pytest.mark.parametrize("mistake", FORBIDDEN_PATTERNS)
def test_forbidden_patterns_do_not_occur(mistake: str) -> None:
    pattern, said = FORBIDDEN_PATTERNS[mistake]
    assert re.search(pattern, said)
    assert not [pair for pair in PAIRS if re.search(pattern, pair)]
