import time
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minitrans.text import reading
from minitrans.text.reading import N_KIND_SLOTS, PLACEHOLDERS, KeptParts, Reader, clean, split_lowercase_words

# Of names, codes, signs, times; numbers of up to two, of three and of four digits, and longer ones.
PLACEHOLDER_LETTERS = "NCST2345"
SIGNS = ",.!?'\"-:;%()，。"
WORDS = (
    "the i in he see there three their don't new york was at of is my cat book house because yes he's from form tom's"
    " you are know i'm been minutes monday"
)
KNOWN = WORDS.split()
PLAIN_READER, COPIER, READER = Reader(True), Reader(True, SIGNS), Reader(True, SIGNS, KNOWN)
non_word = st.sampled_from(" _.…!?-–\"“”'😀•>:)（。☂\u200d\ue000") | st.characters(exclude_categories=("L", "N"))
SAMPLE_TOKENS = "Tom|Tom's|Maria Garcia|Maria|cat|5|15|1,250|1250|250|7:30|3.5|B316|€|x@y.com|看见|，|A1|www.x.org/a"
TOKEN = st.sampled_from(SAMPLE_TOKENS.split("|")) | st.text("ABab 0125,.:猫", max_size=5)
TEXTS = st.builds(str.join, st.sampled_from(["", " "]), st.lists(TOKEN, max_size=12))

NORMALIZE_CASES = {  # a source, and how it is read
    "‘’ ‚ ‛ ʼ ′ ´": "'' ' ' ' ' '", "“”„ ‟ « » ″": '""" " " " "', "‐‑‒–−": "-----", "a—b ― c…": "a - b - c...",
    "5".join(map(chr, range(0xFF01, 0xFF5F))): "5".join(map(chr, range(0x21, 0x7F))).lower(), "e\u0301\t中 ": "é 中",
    "He LIVES in İzmir": "he lives in izmir", "What?! No!!! So??": "what? no! so?", "Well,yes;no": "well, yes; no",
    "See www.x.org/a,b;c,d": "see www.x.org/a,b;c,d", "看www.x.org，好，a": "看www.x.org, 好, a",
    "I don`t `know` it": "i don't `know` it", "at ftp://x/?a=1;b=2,yes": "at ftp://x/?a=1;b=2,yes",
    "He left ! Who ? Me ,you .": "he left! who? me, you.", "It is 1,250.5 and .5": "it is 1,250.5 and .5",
}  # fmt: skip
LINE_CASES = {
    "1,250 of 12,250.75": "[21],[31] of [22],[32]", "7:30, 12/5, 1-2": "[T1], [51], [52]", "5 is 5": "[21] is [21]",
    "5 25 123 1234 12345 123456": "[21] [22] [31] [41] [51] [52]", "3.14 is 1234.5": "[21] is [41]",
    "1 2 3 4 5 6 7 123 1": "[21] [22] [23] [24] [25] [26] 7 [31] [21]", "in B316 is x_y": "in [C1] is [C2]",
    "I _see_ (a.b@c.com)": "i [S1]see[S1] ([C1])",
    "see a.b@c.com at www.x.org/a. https://x.y/z?q foo.com": "see [C1] at [C2]. [C3] [C4]",
    "he is € 5%€€": "he is [S1] [21]%[S2]",
    "He is in New Delhi.": "he is in [N1].", "New Delhi is": "new [N1] is", "Zoltan. Zoltan's cat": "[N1]. [N1]'s cat",
    "the Zoltan's, Maria Garcia's": "the [N1]'s, [N2]'s", "Maria Garcia is": "[N1] is", "maria garcia is": "[N1] is",
    "He is in New York. Tom's x": "he is in new york. tom's x", "he is Thier": "he is [N1]",
    "YOU SEE MARIA": "you see [N1]", "A MARIA'S CAT'S": "a [N1]'s cat's", "at WWW.X.ORG/A;b": "at [C1]",
    "X.Com": "[C1]", "我有3只猫。在B316号": "我有[21]只猫。在[C1]号", "我叫Zoltan吗": "我叫[N1]吗",
    "看x@y.com吗": "看[C1]吗", "看www.x.org/a和y.com吗": "看[C1]和[C2]吗",
}  # fmt: skip
TYPO_CASES = {  # letters swapped, lost, doubled, from a neighbouring key only; apostrophes; the commonest of several
    "R u thier cuz?": "are you their because?", "he is R, Im": "he is r, i'm", "ppl": "[N1]", "IDK": "i don't know",
    "He is thier cat": "he is their cat", "he is Becasue": "he is because", "Teh cat": "the cat", "becase": "because",
    "my boook": "my book", "my hpuse": "my house", "hquse": "[N1]", "Hes yex": "he's yes", "thre frm": "there from",
    "my mt. Bok": "my [N1]. [N2]", "Mr thier": "[N1] their", "Ms. Thier is": "[N1]. [N2] is", "Ben": "[N1]",
    "I'm Bok": "i'm [N1]", "see Dont": "see don't", "he see Mon": "he see monday", "is Monday Bok": "is monday [N1]",
    "Ben's bok": "[N1]'s book", "MY BOK": "my book",
}  # fmt: skip
SENTENCE_CASES = [
    ["He left.", "Did I?", "No!", "J. S. Bach stays."], ["Mr. Smith, Mrs. Smith and Dr. Lee saw St. Paul's."],
    ["A vs. B etc. are here."], ["I met Prof. Smith."], ["10. Go now."], ["100. Go now."], ["I go on Dec. 25!"],
    ["Er kam am 15. Mai 2020.", "Am 5. Mai?!", "Gut!!", "Ja 😀.", "Ja."],
    ["Are you?", "No.", "See no. A4.", "And no. (5)."], ["At 5 a.m. he left.", "It costs 3.50 today."],
    ["Hola.", "¿Cómo?", "¡Tú!", "🌞 ❤️ Go!", "$5.", "#️⃣ [Go].", "(‘Go’)?", "ℹ️ Go.", "㊗️ Go. 😀 ©️ ℹ️"],
    ['He said "Go now. Do it." and left. So'], ["“Go now. Do it.” He left."],
    ["No. 5 is here... and there.He"], ["他走了. ，"], ["Go！", "Go？", "Go"],
    ["I saw Mt. Fuji on Dec. 25, 2020."], ["Who ?", "Me .", "I"],
]  # fmt: skip
JOIN_CASES = [  # a line, the translations of its sentences, and its own
    ("He left…", ["他走了。"], "他走了…"), ("Go ... 😀", ["जा।"], "जा ... 😀"), ("Go. Go", ["", "Va"], "Va"),
    ("He left. 😀", ["他走了。"], "他走了。 😀"), ("Go. Go", ["Va.", "Va !"], "Va. Va !"),
    ("Go. Go", ["Va…", "Ça va."], "Va… Ça va."), ("Go. Go", ["Va", ""], "Va"),
    ("Go. Go", ["“Va.”", "Va."], "“Va.” Va."),
    ("Go!😀❤️ Go.👍Go", ["走！", "走。", "走"], "走！😀❤️ 走。👍走"),
    ("Go. Go", ["走…", "OK。"], "走…OK。"), ("Go. Go", ["OK…", "走。"], "OK…走。"),
    *[("Go. Go", [f"走{mark}", "是"], f"走{mark}是") for mark in "。？！…，；：”’」』）"],
]  # fmt: skip
PAIRS_AND_THEIR_READING = [  # a pair, and what is left of it
    ("It costs 1,250.", "它要1250。", "it costs [21],[31].", "它要[21][31]。"), ("5, 6", "5六", "[21], 6", "[21]六"),
    ("It costs 1,250.", "它要1,250。", "it costs [21],[31].", "它要[21],[31]。"), ("tom A", "tom A", "tom a", "tom A"),
    ("Tom saw Maria Garcia.", "Tom看见Maria Garcia，Tom", "[N1] saw [N2].", "[N1]看见[N2]，[N1]"),
    ("Maria Garcia left", "Maria走了", "[N1] garcia left", "[N1]走了"), ("15 cats", "5", "15 cats", "5"),
    ("Tom's “cat” of Tom", "Tom的“猫”", "[N1]'s \"cat\" of [N1]", "[N1]的“猫”"), ("5 cats", "15,52", "5 cats", "15,52"),
    ("他叫Tom吗", "Is he Tom", "他叫[N1]吗", "Is he [N1]"), ("有3只", "3 cats", "有[21]只", "[21] cats"),
    ("B316 at 7:30", "7:30在B316", "[C1] at [T1]", "[T1]在[C1]"), ("Tom is", "Tommy, deTom", "tom is", "Tommy, deTom"),
    ("x@y.com ☂ 5", "5☂x@y.com", "[C1] [S1] [21]", "[21][S1][C1]"), ("Tom", "tom", "tom", "tom"),
    ("عندي ٣ كتب", "3 cats", "عندي [21] كتب", "[21] cats"), ("३ कप", "٣ كتب", "[21] कप", "[21] كتب"),
    ("是Hu", "là Huế", "是hu", "là Huế"),
    ("1 2 3 4 5 6 7 1", "7 6 5 4 3 2 1", "[21] [22] [23] [24] [25] [26] 7 [21]", "7 [26] [25] [24] [23] [22] [21]"),
]  # fmt: skip

UNMARKED_QUESTIONS = (
    "where are you", "What’s your name", "whats that", "excuse me, how much is it", "how many old books do you have",
    "is Tom at home", "can the children swim", "isnt it late", "do you know him", "it's cold, isn't it", "R U OK",
    "are good seats left",
    "may i come in", "what about you", "which one", "who knows", "Tom, can you help", "WHY DON'T WE GO", "wyd",
)  # fmt: skip
STATEMENTS = (
    "what a day it was", "how nice you are", "do your homework", "have a seat", "where you are, i am", "so do i",
    "may it rain", "where are you.", "i know where you are", "no, do it again", "what i do is dull", "whatever is left",
    "what matters is love", "what happened was bad", "doesn't matter", "is not good",
    "was nice meeting you", "is so cold", "here, print it and want it",
)  # fmt: skip


def put_labels(*texts: str) -> list[str]:
    """The texts with [N1] for the first placeholder of a name, and so on."""
    names: dict[int, str] = {}
    for place in dict.fromkeys(char for text in texts for char in text if char in PLACEHOLDERS):
        kind = PLACEHOLDER_LETTERS[PLACEHOLDERS.index(place) // N_KIND_SLOTS]
        names[ord(place)] = f"[{kind}{sum(name[1] == kind for name in names.values()) + 1}]"
    return [text.translate(names) for text in texts]


@given(st.text())
def test_a_reader_with_nothing_enabled_only_cleans_lines(line: str) -> None:
    kept = (clean(line), KeptParts({})) if any(map(str.isalnum, line)) else ("", KeptParts({}, clean(line)))
    assert Reader(False).preprocess_line(line) == [kept]
    assert Reader(False).preprocess_pairs([line], [line]) == ([clean(line)], [clean(line)])
    assert Reader(False).postprocess(f"{PLACEHOLDERS[0]}a", KeptParts({})) == f"{PLACEHOLDERS[0]}a"


@pytest.mark.parametrize(("line", "want"), NORMALIZE_CASES.items())
def test_sources_are_normalized_and_targets_only_cleaned(line: str, want: str) -> None:
    assert PLAIN_READER.preprocess_pairs([line], [line]) == ([want], [clean(line)])
    assert PLAIN_READER.preprocess(f"x {line} x") == (f"x {want} x", KeptParts({}))


@given(
    before=st.lists(st.sampled_from(["- ", "– ", "1) ", "12) ", "•∙ ", ">> ", "😀 ", "☂️ℹ️", "👩‍👧 ", "1️⃣ "]), max_size=3),
    sentence=st.sampled_from(["he lives here", "it is 3 to 5, isn't it?", "√2 < ∞", "so!", "a: b (c)", "他走了"]),
    quotes=st.sampled_from(["", "“”", "„“", '""', "«»"]),
    after=st.lists(st.sampled_from(["…", " ...", "....", "😀", " ❤️", " :)", " ;-)", " 👩‍👧", "‼️", "#️⃣©️"]), max_size=3),
)
@example(before=["ℹ️ "], sentence="he lives here", quotes="", after=[])
def test_what_surrounds_a_sentence_is_restored(before: list[str], sentence: str, quotes: str, after: list[str]) -> None:
    line = clean("".join([*before, quotes[:1], sentence, quotes[1:], *after]))
    read = PLAIN_READER.preprocess_line(line)
    assert [text for text, _ in read] == [sentence]
    assert PLAIN_READER.postprocess_line(iter([sentence]), read) == line


@pytest.mark.parametrize(
    ("line", "asks"), [*((line, True) for line in UNMARKED_QUESTIONS), *((line, False) for line in STATEMENTS)]
)
def test_an_unmarked_question_gets_a_mark_that_its_translation_loses(line: str, asks: bool) -> None:
    english, german = (Reader(True, known=[word]) for word in ("what", "was"))
    for after in ("", " 😀", "…"):
        text, kept = english.preprocess(line + after)
        assert text == german.preprocess(line)[0] + "?" * asks
        assert english.postprocess("好吗？", kept) == ("好吗" if asks else "好吗？") + after
        for translation, bare in (("Où ?", "Où"), ("¿Qué? ¿Tú?", "¿Qué? Tú"), ("Πού;", "Πού")):
            assert english.postprocess(translation, kept) == (bare if asks else translation) + after
    assert german.postprocess("?", german.preprocess(line)[1]) == "?"
    assert Reader(True, known=[*map(str, range(500)), "what"]).preprocess(line)[0][-1] != "?"  # English in another text


@pytest.mark.parametrize(
    ("line", "before", "text", "after"),
    [
        ("Go 😀?", "", "go?", " 😀"),
        ("- Go1️⃣❤️!!", "- ", "go!", "1️⃣❤️"),
        ("Go 😀...", "", "go", " 😀..."),
        ("- 3. Mai ist gut", "- ", "3. mai ist gut", ""),
        ("‹Go›", "‹", "go", "›"),
    ],
)
def test_a_sentence_is_found_within_a_line(line: str, before: str, text: str, after: str) -> None:
    read, kept = PLAIN_READER.preprocess(line)
    assert (read, kept.before, kept.after) == (text, before, after)
    assert Reader(True, known=["what"]).preprocess("- 3. May is fine")[1].before == "- 3. "  # no date in English


@given(st.text(non_word), st.sampled_from([PLAIN_READER, READER]))
def test_a_line_without_letters_or_digits_is_returned_unchanged(line: str, reader: Reader) -> None:
    read = reader.preprocess_line(line)
    assert {text for text, _ in read} == {""}
    assert reader.postprocess_line(iter([""] * len(read)), read) == clean(line)


@pytest.mark.parametrize(("line", "texts", "want"), JOIN_CASES)
def test_translations_of_sentences_are_joined(line: str, texts: list[str], want: str) -> None:
    assert PLAIN_READER.postprocess_line(iter(texts), PLAIN_READER.preprocess_line(line)) == want


@pytest.mark.parametrize("parts", SENTENCE_CASES)
def test_a_line_is_split_into_sentences(parts: list[str]) -> None:
    line = " ".join(parts)
    assert PLAIN_READER.to_sentences(line) == parts
    assert Reader(False).to_sentences(line) == [line]


@pytest.mark.parametrize(("line", "want"), [*LINE_CASES.items(), *TYPO_CASES.items()])
def test_copied_parts_become_placeholders_and_typing_errors_are_corrected(line: str, want: str) -> None:
    text, kept = READER.preprocess(line)
    assert put_labels(text) == [want]
    assert line in TYPO_CASES or READER.postprocess(text, kept).lower() == line.lower()
    assert READER.preprocess(line.translate({ord("1") + i: 0x661 + i for i in range(9)})) == (text, kept)  # ١ to ٩
    assert put_labels(COPIER.preprocess(line)[0]) == [want if line in LINE_CASES and "[N" not in want else line.lower()]
    assert PLAIN_READER.preprocess(line) == (line.lower(), KeptParts({}))


def test_what_follows_a_number_is_a_short_form_or_a_name() -> None:
    assert put_labels(*(READER.preprocess(line)[0] for line in ("5mins in", "5bok"))) == ["[21] minutes in", "[21][N1]"]


def test_reading_depends_on_the_known_words() -> None:
    assert [Reader(True, known=[word]).preprocess("Go。")[0] for word in ("what", "was")] == ["go.", "go。"]
    english = Reader(True, known=["what"])
    for line in ("Er kam am 15. Mai 2020. Gut.", "I am 7. I see. 2. Go"):  # not a date in English
        assert len(english.to_sentences(line)) == 3
    assert len(english.to_sentences("I love u. Bye!What's up？Go")) == 4
    assert len(english.to_sentences("See P!nk, J. U. Smith at a.com/me?you, a.php?id=3.")) == 1
    assert Reader(True, known=["was"]).to_sentences("Peter u. Paul. Ja!Ja") == ["Peter u. Paul.", "Ja!Ja"]
    assert Reader(True, SIGNS, ["cat"]).preprocess("cat u") == ("cat u", KeptParts({}))  # where `you` is not known
    for mark in (",", ":", " -"):
        assert english.preprocess(f"How are you{mark}")[0] == "how are you?"
    assert (READER.expansions("hes"), Reader(True, None, KNOWN).expansions("hes")) == (["he's"], [])
    assert Reader(True, SIGNS, [f"{'x' * 15}'{'y' * 15}"]).expansions("x" * 15 + "y" * 15) == []  # answered quickly


@pytest.mark.parametrize(
    "line",
    ["नमस्ते உன்னை ꯑꯁꯤ ꦏꦺꦴꦭꦶꦤ꧀ 𞤆𞤵𞤤𞤢𞥄𞤪 𑄌𑄋𑄴𑄟𑄳𑄦", "می‌خواهم بروم", "שָׁלוֹם עולם", "สวัสดี", "I lo\u00ad\u061cve yo\u200eu", "\ufeffI"],
)
def test_words_with_combining_marks_or_invisible_characters_are_words(line: str) -> None:
    text, kept = Reader(True, SIGNS, split_lowercase_words(line)).preprocess(line)
    assert (split_lowercase_words(text), kept) == (split_lowercase_words(line), KeptParts({}))
    assert not {*text} & {*"\u00ad\u061c\u200b\u200e\ufeff"}
    assert PLAIN_READER.preprocess(f"\u200e- “{line}”\u2060 😀\u200b")[1] == KeptParts({}, "- “", "” 😀")
    assert PLAIN_READER.to_sentences(f"{line} go.\u200b \u200eGo") == [f"{line} go.", "\u200eGo"]


@pytest.mark.parametrize(("n", "kept"), [(2000, True), (2001, False)])
def test_nothing_is_kept_of_a_sentence_of_more_than_2000_characters(n: int, kept: bool) -> None:
    line, copier = "- 5 ".ljust(n, "x"), Reader(False, SIGNS)
    assert PLAIN_READER.preprocess(line)[1].before == "- " * kept
    assert [*copier.preprocess(line)[1].placeholder_values.values()] == ["5"] * kept
    assert (copier.replace_copies(line, "5")[1] != "5") is kept


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "line",
    [
        f"Name: {'.' * 99} (you)",
        "- " * 333 + "😀" * 1332 + "x",
        f"a {'@-' * 950}",
        f"क{'ा' * 1900}@",
        f"ab. 1{'.' * 60_000}x",
    ],
)
def test_no_line_takes_long(line: str) -> None:
    began = time.process_time()
    READER.preprocess_line(line)
    assert time.process_time() - began < 4


def test_a_name_has_nine_words_at_most() -> None:
    name = " ".join(f"Mo{letter}" for letter in "abcdefghij")
    assert [len(COPIER.replace_copies(text, text)[1]) for text in (name[:-4], name)] == [1, 3]


@given(st.lists(st.sampled_from(KNOWN).flatmap(lambda word: st.sampled_from([word, word.capitalize(), word.upper()]))))
def test_known_words_are_left_unchanged(some: list[str]) -> None:
    assert READER.preprocess(" ".join(some)) == (" ".join(some).lower(), KeptParts({}))


@given(TEXTS | st.text("ABab 0125,.:/-@€_\\'猫"))
def test_postprocess_restores_what_preprocess_set_aside(line: str) -> None:
    reader = Reader(False, SIGNS, ["cat"])
    text, kept = reader.preprocess(line)
    assert reader.postprocess(text, kept) == clean(line)
    assert {*kept.placeholder_values} == {*text} & {*PLACEHOLDERS}


@pytest.mark.parametrize(("source", "target", "read", "want"), PAIRS_AND_THEIR_READING)
def test_parts_found_on_both_sides_become_placeholders(source: str, target: str, read: str, want: str) -> None:
    assert put_labels(*(text for side in COPIER.preprocess_pairs([source], [target]) for text in side)) == [read, want]
    plain = PLAIN_READER.normalize_punctuation(source).lower()
    assert PLAIN_READER.preprocess_pairs([source], [target]) == ([plain], [target])


@given(TEXTS, TEXTS)
def test_both_sides_of_a_pair_can_be_restored(source: str, target: str) -> None:
    made: dict[str, reading._PlaceholderMap] = {}
    make_map = reading._PlaceholderMap
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_PlaceholderMap", lambda *a, **b: made.setdefault("all", make_map(*a, **b)))
        (read,), (want,) = COPIER.preprocess_pairs([source], [target])
    kept = KeptParts({place: value for value, place in made["all"].items()})
    assert COPIER.postprocess(read, kept).lower() == COPIER.normalize_punctuation(clean(source)).lower()
    assert COPIER.postprocess(want, kept) == clean(target)
    assert {*read} & {*PLACEHOLDERS} == {*want} & {*PLACEHOLDERS} == {*kept.placeholder_values}


@pytest.mark.parametrize("free", range(N_KIND_SLOTS))
def test_a_placeholder_found_in_the_text_is_not_reused(free: int) -> None:
    taken = "".join(PLACEHOLDERS[:free] + PLACEHOLDERS[free + 1 : N_KIND_SLOTS])
    for text in COPIER.replace_copies(f"{taken} Tom", f"{taken} Tom") + READER.preprocess(f"{taken} is Milos")[:1]:
        assert text.endswith(f" {PLACEHOLDERS[free]}")
    assert COPIER.replace_copies(f"{taken}{PLACEHOLDERS[free]} Tom", "Tom")[1] == "Tom"
    assert PLACEHOLDERS[free] in {COPIER.replace_copies(f"{i} Tom", "Tom")[1] for i in range(60)}  # any slot


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("The cat saw THE cat.", "the cat saw the cat"),
        ("Don\u2019t say 'dogs', it's the dogs' rock'n'roll!", "don't say dogs it's the dogs rock'n'roll"),
        ("a well-known 3.14, 4711 and 3pm; 50%", "a well known 3 14 4711 and 3pm 50"),
        ("snake_case -- … '' $ 😀 ❤️ 👩‍👩‍👧 1️⃣", "snake case 1"),
        ("cafe\u0301 Straße हिन्दी में İyi", "café straße हिन्दी में iyi"),
        ("co\u00adoperate می\u200cخواهم", "cooperate میخواهم"),  # a soft hyphen and a joiner are invisible
        ("한국어 입니다", "한국어 입니다"),
        ("我爱DNA和3D。", "我 爱 dna 和 3d"),
        ("カタカナー々", "カ タ カ ナ ー 々"),
        ("หิว", "ห ว"),
        ("a\x1b[31mb\u202ec\ud800d\u2581e", "a 31mbc d e"),
        ("  ", ""),
    ],
)
def test_a_line_is_split_into_its_words(line: str, want: str) -> None:
    assert split_lowercase_words(line) == want.split()


@given(st.text())
def test_a_word_is_letters_digits_marks_and_apostrophes(line: str) -> None:
    for word in split_lowercase_words(line):
        assert {unicodedata.category(character)[0] for character in word.replace("'", "")} <= set("LMN")
        assert word == word.strip("'") != ""
