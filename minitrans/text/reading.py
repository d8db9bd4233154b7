"""How a line of text is read: cleaned, split into words; a source with plain marks, and with what is copied set aside.

Standard library only, and nothing of this package: an exported folder has a copy of this file.
"""

from __future__ import annotations  # for the copies, which Python 3.9 runs too

import json
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, groupby, takewhile
from pathlib import Path
from typing import NamedTuple

LONG_LINE_LENGTH = 2_000  # characters; in shorter lines nothing takes long, even what takes quadratic time
_MAX_TYPO_LENGTH = 29  # longest word to look for among the known ones: the search takes quadratic time
_MAX_COMBINING_MARKS = 30  # on one letter, as in Unicode's stream-safe text format: sorting them takes quadratic time
_CONTROL_OR_SPACE_MARK = re.compile(r"[\x00-\x1f\x7f-\x9f\u2581]")  # the last is SentencePiece's own mark for a space
_ENGLISH_WORDS = 500  # in an English text, "what" is among this many most frequent words
_SURROGATE = re.compile(r"[\ud800-\udfff]")

# Thai, Lao, Burmese, Khmer, Japanese and Chinese, which are written without blanks: each character is a word.
_UNSPACED_RUN = re.compile(
    r"([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3021-\u30ff\u31f0-\u31ff\u3400-\u9fff\ua9e0-\ua9ff"
    r"\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f\U0001aff0-\U0001b16f\U00020000-\U0003ffff]+)"
)
# English texting abbreviations, and what they are short for.
TEXTING_ABBREVIATIONS = {
    "u": "you", "ur": "your", "r": "are", "pls": "please", "plz": "please", "thx": "thanks", "cuz": "because",
    "ppl": "people", "tmr": "tomorrow", "rly": "really", "msg": "message", "tho": "though", "gonna": "going to",
    "wanna": "want to", "gotta": "have to", "gimme": "give me", "lemme": "let me", "idk": "i don't know",
    "np": "no problem", "btw": "by the way", "rn": "right now", "brb": "be right back", "omw": "on my way",
    "wyd": "what are you doing", "hbu": "how about you", "gn": "good night", "ily": "i love you", "ty": "thank you",
    "nvm": "never mind", "omg": "oh my god", "asap": "as soon as possible", "bday": "birthday", "tmrw": "tomorrow",
    "sry": "sorry", "min": "minute", "mins": "minutes", "hrs": "hours", "abt": "about", "dunno": "don't know",
    "congrats": "congratulations", "hr": "hour", "sec": "second", "secs": "seconds", "yr": "year", "yrs": "years",
    "mon": "monday", "tue": "tuesday", "tues": "tuesday", "wed": "wednesday", "thu": "thursday", "thurs": "thursday",
    "fri": "friday", "jan": "january", "feb": "february", "mar": "march", "apr": "april", "aug": "august",
    "sep": "september", "sept": "september", "oct": "october", "nov": "november", "dec": "december", "pic": "picture",
    "nope": "no", "yea": "yeah", "kinda": "kind of", "info": "information", "wats": "what's",
}  # fmt: skip
# Names that are one typing error away from a common word; Written Like This they stay, even where a sentence begins.
_GIVEN_NAME = re.compile(
    "Abby|Allen|Amy|Ana|Andy|Ann|Baker|Ben|Bobby|Brian|Cooper|Cox|Dan|Davis|Don|Emi|Frank|Fred|Gary|"
    "Grace|Greg|Greta|Hans|Hunter|Ines|Ivy|Jake|James|Jean|Jerry|Jill|Jin|Joe|Jose|Jude|Jun|Ken|Kim|"
    "Leah|Lee|Lena|Leo|Luc|Luke|Marc|Matt|Max|Meg|Mila|Moore|Ned|Nils|Noor|Olaf|Parker|Pat|Peg|Raj|"
    "Ray|Ron|Ross|Roy|Ruby|Ruth|Sam|Sara|Sean|Sita|Sue|Sven|Ted|Terry|Tim|Tony|Turner|Ute|Vlad|"
    "Walker|Wright|Yan|Ying|Zoe"
)
# Titles, days and months: they may stand before a name, but are no part of it.
_TITLE_OR_DATE = re.compile(
    r"(?i)mrs?|ms|dr|prof|\w+day|(?:jan|febr)uary|march|april|may|june|july|august|(?:sept|nov|dec)ember|october"
)
# English questions: a verb before its subject. More may stand between "what" or "how" and the verb, but not "a day it".
_SUBJECTS = "i|you|u|he|she|it|we|they|this|that|these|those|there"
_NOT_ASKED_ABOUT = rf"{_SUBJECTS}|an?|the|matters|happens|happened"  # as in: what happened is sad
_BE, _CAN = "is|are|r|was|were|does|did", "can|could|will|would|shall|should|has"
_AUXILIARY = rf"(?:{_BE}|{_CAN}|ca|wo|do|am|have|may|must)(?:n'?t)?"
_PREDICATE = "nice|good|great|fun|tired|lost|raining|snowing"  # was nice to see you
_QUESTION = re.compile(
    r"(?:(?:excuse me|sorry|hi|hello|hey|ok|okay|and|but|well|please),? )*"
    rf"(?:(?:who|whose|which|what if|(?:what|how) about) \w|(?:what|where|who|when|how|why)'?(?:s|re) \w"
    rf"|(?:when|where|why|(?:what|how)(?: (?!(?:{_NOT_ASKED_ABOUT})\b)[\w']+){{0,3}}?) {_AUXILIARY} \w"
    rf"|(?:{_BE}) (?!(?:not|so|very)\b|(?:{_PREDICATE})(?: (?:to|and|but|here|there|today|again|\w+ing)\b|[^\w ]|$))\w"
    rf"|(?:do|have)(?:n'?t)? (?:i|you|u|we|they)\b|may (?:i|we)\b|(?:wyd|hbu)\b"
    rf"|(?:{_BE}|{_CAN}|ca|wo)(?:n'?t)? (?:{_SUBJECTS}|the|my|your|his|her|our|their|any\w*|every\w*)\b"
    rf"|.+, (?:{_AUXILIARY} (?:i|you|u|he|she|we|they)|(?:{_BE}|{_CAN}|ca|wo|do|have)n'?t it)\b)[^.?!]*",
    re.IGNORECASE,
)
_POSSESSIVE = re.compile("'[sS]$")
KEYBOARD_ROWS = "qwertyuiop", "asdfghjkl", "zxcvbnm"
READER_SETTINGS_FILE = "reading.json"  # the settings of an exported folder's reader

_HIDDEN = "\u00ad\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
_DELETE_HIDDEN = str.maketrans("", "", _HIDDEN)
# Typographic marks, and a keyboard's marks for them.
PLAIN_MARKS_TABLE = str.maketrans(
    {
        **dict.fromkeys("‘’‚‛ʼ′´", "'"),
        **dict.fromkeys("“”„‟«»″", '"'),
        **dict.fromkeys("‐‑‒–−", "-"),
        **dict.fromkeys("—―", " - "),
        "…": "...",
        **dict.fromkeys(_HIDDEN, ""),
        **{chr(code + 0xFEE0): chr(code) for code in range(0x21, 0x7F)},  # full-width ASCII
    }
)
# What stands before and after a sentence without being part of it: list marks, emoji, dots, quotation marks.
_EMOJI = (  # without mathematical operators
    "[\u200d\u203c\u2049\u20e3\u2190-\u21ff\u2300-\u27bf\u27f0-\u297f\u2b00-\u2bff\u3030\u303d\ufe0e\ufe0f"
    "\U0001f000-\U0001fbff\U000e0020-\U000e007f]"
)
_KEY = "[0-9#*©®™ℹ㊗㊙]"  # keys and signs: emoji if U+20E3 or U+FE0F follows
_LEADING_BULLET_OR_EMOJI = re.compile(rf"(?:(?:\d{{1,3}}[.)]|[-–—•∙*·>]+) +|(?:{_KEY}[\u20e3\ufe0f]|{_EMOJI})+ *)?")
_TRAILING_EMOJI_OR_DOTS = re.compile(  # of a line read backwards
    rf"(?:(?:[\u20e3\ufe0f]{_KEY}|{_EMOJI})+ *|[()]-?[:;] +|(?:\.{{2,}}|…)+ *)?"
)
_EMOJI_BEFORE_MARK = re.compile(rf"^(?!\.\.)([.?!。？！]+)((?:[\u20e3\ufe0f]{_KEY}|{_EMOJI})+ ?)(?=\w)")  # the same
_NO_SPACE_BEFORE_EMOJI = re.compile(rf"(?<=[^\s.][.?!])(?=(?:{_EMOJI})+ ?[^\W\d_])")  # Hello!😀 How
# Where a sentence ends: not after Mr., a.m. or J., in no. 5 or Dec. 25 (at the end); `Reader` says after which numbers.
_ABBREVIATIONS = "mr", "ms", "mrs", "dr", "prof", "st", "nr", "ca", "vs", "etc", "mt", "jr", "sr", "sra", "approx"
_NOT_AFTER_ABBREVIATION = "".join(rf"(?<!\b{word}\.)" for word in _ABBREVIATIONS)
_SENTENCE_BEGINS = re.compile(rf"(?i)(?:^|['.!?:\"(-]{_NOT_AFTER_ABBREVIATION}) ?$")
_SENTENCE_BREAK = (
    rf"(?:(?<=(?:[^\s.?!][^.?!]| {_EMOJI}| (?-i:[ur]))\.)|(?<=[a-z] \d\.)|(?<=[^.][?!？！])){_NOT_AFTER_ABBREVIATION}"
    rf"(?!(?<=\bno\.) [#(]?\w*\d|(?<=\.) \d[\d,.:/!?]*(?: \d{{4}}[.!?]*)?$)[{_HIDDEN}]* "
    rf"(?=(?:{_EMOJI} ?|[{_HIDDEN}¿¡(\[#$£¥\u20a0-\u20cf'‘’‚©®™ℹ㊗㊙])*[^\Wℹ])"
)
STOPS, QUESTION_MARKS = ".。।۔։።။", "?？؟;"  # of many scripts; Greek's question mark is a semicolon
_UNSPACED_END_MARKS = "。？！…，；：”’」』）"  # after these no blank is written
_SURPLUS_MARKS = re.compile(r"(?<=[?!])[?!]+| +(?=[?!.,;]+(?: |$))")
_MISSING_SPACE = re.compile(r"((?:://|(?i:www)\.)[!-~]+)|(?<=[,;])(?=[^\W\d_])")  # but not in an address
_QUOTED = re.compile(r"[\"“”„«»‹「『]([^\"“”„«»‹›「」『』]+)[\"“”„«»›」』]|['‘‚]([^'‘’‚]+)['’‘]")

# Characters from Unicode's private use area that stand for what is copied, N_KIND_SLOTS for each kind.
N_KIND_SLOTS = 6
# Numbers are of several kinds by length: kinds 5 and 6 are numbers of three and of four digits.
_NAME_KIND, _CODE_KIND, _SIGN_KIND, _TIME_KIND, _SHORT_NUMBER, _LONG_NUMBER = 0, 1, 2, 3, 4, 7
PLACEHOLDERS = tuple(map(chr, range(0xE000, 0xE000 + 8 * N_KIND_SLOTS)))
_PLACEHOLDER = re.compile(f"[{PLACEHOLDERS[0]}-{PLACEHOLDERS[-1]}]")
_ORDINARY_RUN = re.compile(f"[^{PLACEHOLDERS[0]}-{PLACEHOLDERS[-1]}]+")
# What may not stand beside what is copied in a target: for names and codes, for signs, for numbers.
_LATIN_OR_DIGIT = r"[A-Za-z\u00c0-\u024f\u1e00-\u1eff\d]"
_LATIN_BOUNDARIES = f"(?<!{_LATIN_OR_DIGIT})", f"(?!{_LATIN_OR_DIGIT})"
_BOUNDARIES_BY_KIND = _LATIN_BOUNDARIES, _LATIN_BOUNDARIES, ("", ""), (r"(?<!\d)(?<!\d[.,:/-])", r"(?!\d|[.,:/-]\d)")
ADDRESS = (
    r"(?i:[\w.+%-]+@\S*\w|(?:\w+://|www\.)\S*\w"
    r"|(?:[\w-]+\.)+(?:com|org|net|edu|gov|info|io|cn|de|fr|jp|uk)\b(?:/\S*\w)?)"
)
_MISSING_SPACE_AFTER_END = re.compile(
    rf"({ADDRESS})|(?<=[^\W\d_]{{2}}[?!？！])(?=[^\W\d_](?!\w*=))"
)  # Hello!How, but not page?id=5
_NUMBER = r"\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:[.:/-]\d+)*"
# Vowel signs and other marks on letters, and the joiners in Persian words: none of them is a letter for `re`.
# Beyond U+FFFF, those of Chakma and Adlam.
_MARKED_SCRIPTS = range(0x300, 0x3100), range(0xA600, 0xAC00), range(0x11100, 0x11150), range(0x1E940, 0x1E950)
_MARKS = "\u200c\u200d" + "".join(c for c in map(chr, chain(*_MARKED_SCRIPTS)) if unicodedata.category(c)[0] == "M")
_LETTERS = rf"[^\W\d_]+(?:[{_MARKS}]+[^\W\d_]+)*[{_MARKS}]*"
_WORD = rf"{_LETTERS}(?:['-]{_LETTERS})*(?!_*[^\W_]|[@{_MARKS}]|://|\.\w)"


def clean(line: str) -> str:
    """Normalise a sentence, the same way in training, in translation and in what comes out.

    Unicode NFC; control characters, U+2581 and every kind of white space and line break become a space, runs of them
    one space, and none is left at the ends; lone surrogates (undecodable bytes of a command line) become U+FFFD. Format
    characters stay: the zero-width joiner holds an emoji together. In a long line, a letter keeps 30 combining marks.
    """
    if not (line.isascii() and line.isprintable()):  # most are
        if len(line) > LONG_LINE_LENGTH:
            line = _limit_combining_marks(line)
        line = _CONTROL_OR_SPACE_MARK.sub(" ", unicodedata.normalize("NFC", line))
        line = _SURROGATE.sub("\ufffd", line)
    return " ".join(line.split())


def _limit_combining_marks(line: str) -> str:
    """Decompose a line, and leave out combining marks beyond the first `_MAX_COMBINING_MARKS` in a row."""
    kept, marks = [], 0
    for char in chain.from_iterable(unicodedata.normalize("NFD", char) for char in line):
        marks = marks + 1 if unicodedata.combining(char) else 0
        if marks <= _MAX_COMBINING_MARKS:
            kept.append(char)
    return "".join(kept)


def lower(text: str) -> str:
    """A text in lower case; of Turkish İ, for which `str.lower` gives an i and a dot above, an i."""
    return text.replace("İ", "i").lower()


def split_lowercase_words(line: str) -> list[str]:
    """Return the words of a line, in lower case and in order, with repetitions.

    A word is a run of letters, digits and the marks on them, with apostrophes inside, of whatever kind; in Chinese,
    Japanese, Thai, Lao, Khmer and Burmese, each character. It has no characters that control a terminal.
    """
    parts = lower(clean(line)).translate(_WORD_SPLIT_TABLE).split()
    stripped = (part.strip("'") for part in parts)
    return [word for word in stripped if word.isalnum() or any(map(str.isalnum, word))]


class _WordSplitTable(dict[int, str]):
    """What `split_lowercase_words` makes of each character, found out when it is first met."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        name, category = unicodedata.name(character, ""), unicodedata.category(character)
        if character in "'\u2019\u02bc":
            part = "'"
        elif category in ("Cf", "Me") or name.startswith("VARIATION SELECTOR"):  # soft hyphens, keycaps
            part = ""
        elif category[0] not in "LMN":
            part = " "
        else:
            part = f" {character} " if _UNSPACED_RUN.match(character) else character
        self[code] = part
        return part


_WORD_SPLIT_TABLE = _WordSplitTable()


def with_keyboard_marks(line: str) -> str:
    """Clean a source line, and replace typographic marks with a keyboard's."""
    line = clean(line)
    return line if line.isascii() else clean(line.translate(PLAIN_MARKS_TABLE))


class KeptParts(NamedTuple):
    """What a translation gets back from its source.

    Attributes:
        placeholder_values: The placeholders in the source as it was read, and what they stand for.
        before, after: What goes before and after the translation.
        ends_to_strip: End marks that it loses, because the source has none, or has dots instead.
    """

    placeholder_values: dict[str, str]
    before: str = ""
    after: str = ""
    ends_to_strip: str = ""


class Reader:
    """Reads source lines as the model is to see them, in training and in translation (which alone corrects them).

    What is copied (names, numbers, addresses, signs) is set aside: a placeholder stands for it, a piece of its own that
    the model moves to the right place. In training, that is whatever both sides have in the same form; in translation,
    whatever has a digit, signs without a piece, and words never seen in training. A word that is one typing error away
    from a known one is read as the known one instead.

    Args:
        plain: Whether sources are read in lower case and with a keyboard's marks, see `normalize_punctuation`; and
            whether what is around a sentence, such as quotation marks and emoji, is hidden from the model.
        signs: The punctuation and other signs that have pieces; None: nothing is set aside.
        known: The words seen in training, frequent ones first; without them, no word is set aside.
    """

    def __init__(self, plain: bool, signs: str | None = None, known: Iterable[str] | None = None) -> None:
        self.plain, self.uses_placeholders = plain, signs is not None
        self._ranks = {word: i for i, word in enumerate(known or ())}
        self._english = self._ranks.get("what", _ENGLISH_WORDS) < _ENGLISH_WORDS
        not_after = r"(?<!^\d\d\.)" if self._english else r"(?<!\b\d\d\.)(?<! \w\.)"  # 5. Mai; Peter u. Paul
        self._sentence_break = re.compile(rf"(?<!^\d{{3}}\.){not_after}{_SENTENCE_BREAK}", re.IGNORECASE)
        code, sign = r"\w*(?:[^\W\d_]\d|[^\W_]_+[^\W_])\w*", rf"_+|[^\w\s{re.escape(signs or '')}]+"  # B316, ☂
        self._copied_parts = re.compile(
            rf"(?P<code>{ADDRESS}|{code})|(?P<number>{_NUMBER})|(?P<words>{_WORD}(?: {_WORD})*)|(?P<sign>{sign})"
        )

    def to_sentences(self, line: str) -> list[str]:
        """The sentences of a line; each is translated by itself."""
        if not self.plain or re.search('["“”„«»]', line):
            return [line]
        line = _NO_SPACE_BEFORE_EMOJI.sub(" ", clean(line))
        if self._english and len(line) <= LONG_LINE_LENGTH:  # looking for addresses takes quadratic time
            line = _MISSING_SPACE_AFTER_END.sub(lambda found: found[1] or " ", line)
        return self._sentence_break.split(line)

    def preprocess_line(self, line: str) -> list[tuple[str, KeptParts]]:
        """What `preprocess` makes of each sentence of a line to translate."""
        return [self.preprocess(sentence) for sentence in self.to_sentences(line)]

    def postprocess_line(self, texts: Iterator[str], read: Sequence[tuple[object, KeptParts]]) -> str:
        """The translation of a line read by `preprocess_line`; the next of `texts` are those of its sentences."""
        line = ""
        for _, kept in read:
            text = self.postprocess(next(texts), kept)
            blank = line[-1:] not in _UNSPACED_END_MARKS or (
                line[-1:] in "”’…" and not _UNSPACED_RUN.search(line + text)
            )
            line += f" {text}" if line and text and blank else text
        return line

    def preprocess(self, sentence: str) -> tuple[str, KeptParts]:
        """A sentence as the model is to see it, and what its translation gets back.

        A sentence without a letter or a digit is not for the model: its text is empty. For one of more than 2,000
        characters, nothing is kept. If sources are English, a question that lacks its mark is read with one.
        """
        text, before, after = clean(sentence), "", ""
        is_plain = self.plain and len(text) <= LONG_LINE_LENGTH
        if is_plain:
            before, text, after = _split_surroundings(text, self._english)
        elif not any(map(str.isalnum, text)):
            before, text = text, ""
        text, ends_to_strip = self.normalize_punctuation(text), STOPS if after.strip()[:1] in (*".…",) else ""
        if is_plain and self._english and _QUESTION.fullmatch(text):
            text, ends_to_strip = f"{text.rstrip(',;: -')}?", QUESTION_MARKS
        places = _PlaceholderMap(text)

        def put_placeholders(unit: re.Match[str]) -> str:
            if unit.lastgroup == "words":
                return self._mark_names_fix_typos(unit, places)
            return ",".join(places.assign(part, kind) for part, kind in _parts_by_kind(unit))

        if self.uses_placeholders and len(text) <= LONG_LINE_LENGTH:
            text = self._replace_copied_parts(put_placeholders, text)
        values = {place: value for value, place in places.items()}
        return self.lower_if_plain(text), KeptParts(values, before, after, ends_to_strip)

    def postprocess(self, text: str, kept: KeptParts) -> str:
        """Put back what `preprocess` kept."""
        text = _PLACEHOLDER.sub(
            lambda place: kept.placeholder_values.get(place[0], "" if self.uses_placeholders else place[0]), text
        )
        return kept.before + strip_end_marks(text, kept.ends_to_strip) + kept.after

    def preprocess_pairs(self, sources: Iterable[str], targets: Iterable[str]) -> tuple[list[str], list[str]]:
        """Pairs to train on: sources as a translation reads them; what stands on both sides is set aside in both."""
        read = [
            self.replace_copies(self.normalize_punctuation(clean(s)), self._with_ascii_digits(clean(t)))
            for s, t in zip(sources, targets, strict=True)
        ]
        return [source for source, _ in read], [target for _, target in read]

    def replace_copies(self, source: str, target: str) -> tuple[str, str]:
        """What `preprocess_pairs` does with a tidy pair; placeholders already in it stay."""
        places = _PlaceholderMap(source + target, first=zlib.crc32(source.encode()) % N_KIND_SLOTS)

        def put_placeholders(unit: re.Match[str]) -> str:
            if unit.lastgroup == "sign":
                return _ORDINARY_RUN.sub(lambda sign: place(sign[0], [(sign[0], _SIGN_KIND)]), unit[0])
            return _replace_names(unit[0], place) if unit.lastgroup == "words" else place(unit[0], _parts_by_kind(unit))

        def place(value: str, parts: list[tuple[str, int]]) -> str:
            nonlocal target
            before, after = _BOUNDARIES_BY_KIND[min(parts[0][1], _TIME_KIND)]
            for separator in (",", "") if len(parts) > 1 else ("",):  # in Chinese 1,250 is 1250
                form = separator.join(part for part, _ in parts)
                if form in target and re.search(whole := before + re.escape(form) + after, target):
                    placed = [places.assign(part, kind) for part, kind in parts]
                    target = separator.join(placed).join(re.split(whole, target))
                elif not all(part in places for part, _ in parts):
                    continue
                return ",".join(places.get(part, part) for part, _ in parts)
            return value

        if self.uses_placeholders and len(source) <= LONG_LINE_LENGTH:
            source = self._replace_copied_parts(put_placeholders, source)
        return self.lower_if_plain(source), target

    def _replace_copied_parts(self, replace: Callable[[re.Match[str]], str], text: str) -> str:
        """Replace what may be copied; no letter of a script without blanks belongs to it."""
        pieces = _UNSPACED_RUN.split(text)
        return "".join(run if i % 2 else self._copied_parts.sub(replace, run) for i, run in enumerate(pieces))

    def normalize_punctuation(self, text: str) -> str:
        """A clean source with a keyboard's marks, no repeated !?, no blanks before marks, one after ,; before letters.

        With placeholders its digits are 0 to 9.
        """
        text = self._with_ascii_digits(text)
        if not self.plain:
            return text
        text = with_keyboard_marks(text.replace("。", ". ") if self._english else text)
        text = re.sub(r"`(?<=[^\W\d]`)(?=[^\W\d])", "'", text)
        return _SURPLUS_MARKS.sub("", _MISSING_SPACE.sub(lambda found: found[1] or " ", text))

    def _with_ascii_digits(self, text: str) -> str:
        """A text in which a number has the digits 0 to 9 in any script, so that it can be the same on both sides."""
        return re.sub(r"[^\D0-9]", lambda digit: str(int(digit[0])), text) if self.uses_placeholders else text

    def lower_if_plain(self, source: str) -> str:
        """A source in lower case, because people often type no capitals, and capitals say little."""
        return lower(source) if self.plain else source

    def _mark_names_fix_typos(self, run: re.Match[str], places: _PlaceholderMap) -> str:
        """Set aside whole names in a run of words with blanks between them, and correct typing errors."""
        if not self._ranks or self._ranks.keys() >= {*lower(run[0]).split(" ")}:
            return run[0]
        mixed = re.search(r"(?<!\w)[a-z]\w", run.string)  # else a capital makes no known word part of a name
        shouted = run.string.isupper()  # then a capital says nothing
        begins = _SENTENCE_BEGINS.search(run.string[: run.start()])
        read = []  # each word, and whether it is part of a name: True, perhaps (None), or False
        for i, word in enumerate(run[0].split(" ")):
            glued = i == 0 and run.string[run.start() - 1 : run.start()].isdigit()  # as in 10min
            capital = word[0].isupper() and not (shouted or (begins and i == 0))
            capital = capital and (len(word) < 2 or not self.expansions(lower(word)))  # Im and Mon are no names
            in_name = bool(mixed) and capital and not _TITLE_OR_DATE.fullmatch(word)
            forms = (split_lowercase_words(form) for form in (word, _POSSESSIVE.sub("", word)))
            lone_letter = len(word) < 2 and (in_name or not self.expansions(lower(word)))  # and not u or r
            if lone_letter or any(all(each in self._ranks for each in form) for form in forms):
                read.append((word, None if in_name and len(word) > 1 and "'" not in word else False))
            elif glued and (meant := self.expansions(lower(word))):
                read.append((f" {meant[0]}", False))
            elif not glued and (not capital or len(word) > 5) and (typo_of := self._correct_typo(word)):
                read.append((typo_of, False))
            else:
                read.append((word, True))
        out = []
        for may_be, group in groupby(read, key=lambda each: each[1] is not False):
            group_words = list(group)
            text = " ".join(word for word, _ in group_words)
            if may_be and any(sure for _, sure in group_words):
                stem = _POSSESSIVE.sub("", text)
                text = places.assign(stem, _NAME_KIND) + text[len(stem) :]
            out.append(text)
        return " ".join(out)

    def _correct_typo(self, word: str) -> str | None:
        """The commonest known word that is one typing error away, if any, `expansions` first; none for a given name."""
        given_name = _GIVEN_NAME.fullmatch(_POSSESSIVE.sub("", word))
        if given_name or (word := lower(word)) in _ABBREVIATIONS:  # not mars for mrs
            return None
        cuts = [(word[:i], word[i:]) for i in range(len(word) + 1)] if len(word) <= _MAX_TYPO_LENGTH else []
        edits = [a + b[1] + b[0] + b[2:] for a, b in cuts if len(b) > 1]  # letters swapped
        edits += [a + b[1:] for a, b in cuts if a and a[-1] == b[:1]]  # doubled
        if len(word) > 2:
            edits += [a + letter + b for a, b in cuts for letter in "abcdefghijklmnopqrstuvwxyz"]  # left out
            edits += [a + letter + b[1:] for a, b in cuts if b for letter in neighbouring_keys(b[0])]
        meant = self.expansions(word) or (each for each in edits if each in self._ranks)
        return min(meant, key=lambda each: self._ranks.get(each, 0), default=None)

    def expansions(self, word: str) -> list[str]:
        """The known words that a lower-case word may stand for: `don't` for `dont`, `you` for `u`."""
        if not self.uses_placeholders or len(word) > _MAX_TYPO_LENGTH:
            return []
        forms = TEXTING_ABBREVIATIONS.get(word, ""), *(f"{word[:i]}'{word[i:]}" for i in range(1, len(word)))
        return [form for form in forms if all(each in self._ranks for each in form.split(" "))]


def load_reader(folder: str | Path) -> Reader:
    """The reader of an exported folder."""
    return Reader(**json.loads((Path(folder) / READER_SETTINGS_FILE).read_text(encoding="utf-8")))


class _PlaceholderMap(dict[str, str]):
    """What has been set aside in a text, and the placeholder for each; the first slot that is used is `first`."""

    def __init__(self, text: str, first: int = 0) -> None:
        super().__init__()
        self._text, self._first = text, first

    def assign(self, value: str, kind: int) -> str:
        """The placeholder for a value, or the value itself if none is free."""
        if value not in self:
            slots = (PLACEHOLDERS[N_KIND_SLOTS * kind + (self._first + i) % N_KIND_SLOTS] for i in range(N_KIND_SLOTS))
            free = [slot for slot in slots if slot not in self._text and slot not in self.values()]
            if not free:
                return value
            self[value] = free[0]
        return self[value]


def _parts_by_kind(unit: re.Match[str]) -> list[tuple[str, int]]:
    """The parts of a unit that is not a word, each with its kind: for 1,250, two numbers."""
    if unit.lastgroup != "number":
        return [(unit[0], _CODE_KIND if unit.lastgroup == "code" else _SIGN_KIND)]
    kinds = {":": _TIME_KIND, "/": _LONG_NUMBER, "-": _LONG_NUMBER}
    sizes = ((part, len(part.split(".")[0])) for part in unit[0].split(","))
    return [(p, next((kinds[c] for c in p if c in kinds), _SHORT_NUMBER + min(max(n - 2, 0), 3))) for p, n in sizes]


def _replace_names(run: str, set_aside: Callable[[str, list[tuple[str, int]]], str]) -> str:
    """Set aside capitalised words that the target has too, as many at once as possible."""
    left, out = run.split(" "), []
    while left:
        capitals = len(list(takewhile(lambda word: word[0].isupper() and len(word) > 1, left)))
        for n in range(min(capitals, 9), 0, -1):  # no name has more words; a long line in capitals is no name
            name = " ".join(left[:n])
            stem = _POSSESSIVE.sub("", name)
            if (placed := set_aside(stem, [(stem, _NAME_KIND)])) != stem:
                placed += name[len(stem) :]
                break
        else:
            n, placed = 1, left[0]
        out.append(placed)
        left = left[n:]
    return " ".join(out)


def _split_surroundings(line: str, english: bool) -> tuple[str, str, str]:
    """A clean line in three parts: what comes before the sentence, the sentence, and what comes after it.

    Outside English, `3. ` may begin a date, and stays in the sentence.
    """
    before = after = ""
    if not line.isascii() and any(map(str.isalnum, line)):
        line = line.translate(_DELETE_HIDDEN).strip()
        line = _EMOJI_BEFORE_MARK.sub(r"\2\1", line[::-1])[::-1]
    while any(map(str.isalnum, line)):
        if line[:2].isalpha() and (line[-1].isalnum() or (line[-1] in ".?!" and line[-2].isalnum())):
            return before, line, after  # as in most lines
        lead = _LEADING_BULLET_OR_EMOJI.match(line)[0]  # type: ignore[index]  # it may be empty, and always matches
        lead = "" if lead.endswith(". ") and not english else lead
        tail = _TRAILING_EMOJI_OR_DOTS.match(line[len(lead) :][::-1])[0][::-1]  # type: ignore[index]
        if not (lead or tail) and _QUOTED.fullmatch(line):
            lead, tail = line[0], line[-1]
        if not (lead or tail):
            return before, line, after
        before, line, after = before + lead, line[len(lead) : len(line) - len(tail)], tail + after
    return before + line + after, "", ""


def collect_symbols(texts: Iterable[str]) -> str:
    """The characters of some texts that are not letters, digits, blanks or placeholders."""
    return "".join(sorted(sign for sign in {*chain.from_iterable(texts)} if re.match(r"[^\w\s\ue000-\uf8ff]", sign)))


def strip_end_marks(text: str, marks: str) -> str:
    """A text without some marks and blanks at its end, and without a Spanish ¿ or ¡ whose counterpart this removes."""
    stripped = text.rstrip(f"{marks} ")
    return re.sub("[¿¡](?=[^?!]*$)", "", stripped) if re.search("[?!]", text[len(stripped) :]) else stripped


@lru_cache
def neighbouring_keys(letter: str) -> str:
    """The keys around that of a lower-case letter."""
    places = {key: (i, row) for i, keys in enumerate(KEYBOARD_ROWS) for row, key in enumerate(keys)}
    row, at = places.get(letter, (9, 9))
    near = {row - 1: (at, at + 1), row: (at - 1, at + 1), row + 1: (at - 1, at)}
    return "".join(key for key, (i, j) in places.items() if j in near.get(i, ()))
