"""How a line of text is read: cleaned, split into words; a source with plain marks, and with what is copied set aside.

Standard library only, and nothing of this package: an exported folder has a copy of this file.
"""

import re
import unicodedata
import zlib
from collections.abc import Callable, Collection, Iterable
from itertools import chain, groupby, takewhile

LONG = 2_000  # characters; of shorter lines no number of marks on a letter takes long to put in order
_MARKS = 30  # on one letter, the most of Unicode's stream-safe text format: to order more takes the square of the time
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")

# Beginnings of the names of characters that are written without blanks: each is a word.
_WITHOUT_BLANKS = "CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR"
KEYS = "qwertyuiop asdfghjkl zxcvbnm"  # the rows of a keyboard

# Typographic marks, and what a keyboard has for them.
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("‘’‚‛ʼ′`´", "'"),
        **dict.fromkeys("“”„‟«»″", '"'),
        **dict.fromkeys("‐‑‒–−", "-"),
        **dict.fromkeys("—―", " - "),
        "…": "...",
        **{chr(code + 0xFEE0): chr(code) for code in range(0x21, 0x7F)},  # full-width ASCII
    }
)

# Characters of Unicode's private use that stand for what is copied: SLOTS of each kind, numbers by how long they are.
SLOTS = 6
_NAME, _SIGN, _NUMBER = range(3)  # a number of one or two digits; of three, of four, and of more it is 3, 4 and 5
PLACEHOLDERS = tuple(map(chr, range(0xE000, 0xE000 + 6 * SLOTS)))
_PLACEHOLDER = re.compile(f"[{PLACEHOLDERS[0]}-{PLACEHOLDERS[-1]}]")
_ADDRESS = r"\S+@\S*\w|(?:\w+://|www\.)\S*\w|(?:[\w-]+\.)+(?:com|org|net|edu|gov|info|io|cn|de|fr|jp|uk)\b(?:/\S*\w)?"
_CODE = r"\w*(?:[^\W\d_]\d|_)\w*"  # such as B316
_DIGITS = r"\d{1,3}(?:,\d{3})+(?!\d)|\d+"
_WORD = r"[^\W\d_]+(?:['-][^\W\d_]+)*(?![\w@]|://|\.\w)"


def clean(line: str) -> str:
    """Normalise a sentence, the same way in training, in translation and in what comes out.

    Unicode NFC; control characters and every kind of white space and line break become a space, runs of them one
    space, and none is left at the ends; lone surrogates (undecodable bytes of a command line) become U+FFFD. Format
    characters stay: the zero-width joiner holds an emoji together. Of a long line, a letter keeps 30 combining marks.
    Cleaning twice changes nothing more.
    """
    if len(line) > LONG:
        line = _without_heaps(line)
    line = _CONTROL.sub(" ", unicodedata.normalize("NFC", line))
    return " ".join(_SURROGATE.sub("\ufffd", line).split())


def _without_heaps(line: str) -> str:
    """Decompose a line, and leave out combining marks beyond the first `_MARKS` in a row."""
    kept, marks = [], 0
    for char in chain.from_iterable(unicodedata.normalize("NFD", char) for char in line):
        marks = marks + 1 if unicodedata.combining(char) else 0
        if marks <= _MARKS:
            kept.append(char)
    return "".join(kept)


def words(line: str) -> list[str]:
    """Return the words of a line, in lower case and in their order, repeated ones too.

    A word is a run of letters, digits and the marks on them, with apostrophes inside, of whatever kind; in Chinese,
    Japanese, Thai, Lao, Khmer and Burmese, each character. Nothing in it controls a terminal.
    """
    parts = clean(line).lower().translate(_PARTS).split()
    stripped = (part.strip("'") for part in parts)
    return [word for word in stripped if word.isalnum() or any(map(str.isalnum, word))]


class _Parts(dict[int, str]):
    """What `words` makes of each character, found out when it is first met."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        name, category = unicodedata.name(character, ""), unicodedata.category(character)
        if character in "'\u2019\u02bc":
            part = "'"
        elif category == "Cf" or name.startswith("VARIATION SELECTOR"):  # joiners, soft hyphens: they are not seen
            part = ""
        elif category[0] not in "LMN":
            part = " "
        else:
            part = f" {character} " if name.startswith(_WITHOUT_BLANKS) else character
        self[code] = part
        return part


_PARTS = _Parts()


class Reader:
    """Reads source lines as the model is to see them, in training and in translation alike.

    What is copied (names, numbers, addresses, signs such as emoji) is set aside: a placeholder stands for it, a piece
    of its own that the model moves to the right place. In training that is what stands on both sides as it is; in
    translation what has a digit, signs without a piece, and words that training never showed. A word that is one typing
    error away from a known one is read as that one instead.

    Args:
        plain: Whether typographic marks are read as a keyboard's, and a line all in capitals in lower case.
        signs: The punctuation and other signs that have pieces; None: nothing is set aside.
        known: The words that training showed; None: they are not known, and all words are left as they are.
    """

    def __init__(self, plain: bool, signs: str | None = None, known: Collection[str] | None = None) -> None:
        self.plain, self.sets_aside, self.known = plain, signs is not None, known
        sign = rf"[^\w\s{re.escape(signs or '')}]+"
        self._units = re.compile(
            rf"(?P<name>{_ADDRESS}|{_CODE})|(?P<number>{_DIGITS})|(?P<words>{_WORD}(?: {_WORD})*)|(?P<sign>{sign})"
        )

    def read(self, line: str) -> tuple[str, dict[str, str]]:
        """A line to translate as the model is to see it, and for each placeholder in it what it stands for.

        A line without a letter or a digit is not for the model: the text is empty, and stands for the line.
        """
        text, places = self._cleaned(line), _Places()
        if self.plain and not any(map(str.isalnum, text)):
            return "", {"": clean(line)}
        mixed = re.search(r"(?<!\w)[a-z]\w", text) is not None

        def put(unit: re.Match[str]) -> str:
            if unit.lastgroup == "words":
                begins = text[: unit.start()].rstrip()[-1:] in ("", *'.!?:"(-')
                return self._read_words(unit[0], mixed, begins, places)
            return ",".join(places.put(part, kind) for part, kind in _parts(unit))

        if self.sets_aside:
            text = self._units.sub(put, text)
        return self._lowered(text), {place: value for value, place in places.items()}

    def write(self, text: str, copied: dict[str, str]) -> str:
        """Put what was copied in the place of its placeholders; `copied` is what `read` returned."""
        return _PLACEHOLDER.sub(lambda place: copied.get(place[0], ""), text) if text else copied.get("", "")

    def read_pairs(self, sources: Iterable[str], targets: Iterable[str]) -> tuple[list[str], list[str]]:
        """Pairs to train on: sources as `read` has them, but what stands on both sides is set aside, on both."""
        pairs = zip(sources, targets, strict=True)
        read = [self.set_aside(self._cleaned(each), self._cleaned(other, source=False)) for each, other in pairs]
        return [source for source, _ in read], [target for _, target in read]

    def set_aside(self, source: str, target: str) -> tuple[str, str]:
        """What `read_pairs` does with a clean pair, which may have placeholders already."""
        places = _Places(dict.fromkeys(source), first=zlib.crc32(source.encode()) % SLOTS)

        def put(unit: re.Match[str]) -> str:
            if unit.lastgroup == "words":
                return self._share_words(unit[0], share)
            return share(unit[0], _parts(unit))

        def share(value: str, parts: list[tuple[str, int]]) -> str:
            nonlocal target
            for sep in (",", ""):  # in Chinese 1,250 is 1250
                form = re.escape(sep.join(part for part, _ in parts))
                edge = r"\d" if parts[0][1] >= _NUMBER else "[A-Za-z\u00c0-\u024f]"
                shared = re.compile(rf"(?<!{edge}){form}(?!{edge})")
                if shared.search(target) or all(part in places for part, _ in parts):
                    put = [places.put(part, kind) for part, kind in parts]
                    target = shared.sub(sep.join(put), target)
                    return ",".join(put)
            return value

        if self.sets_aside:
            source = self._units.sub(put, source)
        return self._lowered(source), target

    def _cleaned(self, line: str, source: bool = True) -> str:
        line = clean(line)
        if self.plain and source:
            line = clean(line.translate(_PLAIN))
        return _PLACEHOLDER.sub("\ufffd", line) if self.sets_aside else line

    def _lowered(self, text: str) -> str:
        """A source all in capitals in lower case, but for words with a digit."""
        if not (self.plain and text.isupper()):
            return text
        return re.sub(r"\w+", lambda word: word[0] if re.search(r"\d", word[0]) else word[0].lower(), text)

    def _read_words(self, run: str, mixed: bool, begins: bool, places: "_Places") -> str:
        """Some words with blanks between them: names are set aside as a whole, typing errors mended.

        Args:
            run: The words.
            mixed: Whether the line has words that begin with a small letter, so that a capital says something.
            begins: Whether the first of them begins a sentence.
            places: The placeholders of the line.
        """
        if self.known is None:
            return run
        read = []  # each word, and whether it is (part of) a name: True, perhaps (None), or False
        for i, word in enumerate(run.split(" ")):
            capital = word[0].isupper() and mixed and not (begins and i == 0)
            stem = word.removesuffix("'s")
            if len(word) < 2 or any(all(each in self.known for each in words(form)) for form in (word, stem)):
                read.append((word, None if capital and len(word) > 1 and "'" not in word else False))
            elif capital or not (meant := self._meant(word)):
                read.append((word, True))
            else:
                read.append((meant, False))
        out = []
        for may_be, group in groupby(read, key=lambda each: each[1] is not False):
            found = list(group)
            text = " ".join(word for word, _ in found)
            if may_be and any(sure for _, sure in found):
                stem = text.removesuffix("'s")
                text = places.put(stem, _NAME) + text[len(stem) :]
            out.append(text)
        return " ".join(out)

    def _meant(self, word: str) -> str | None:
        """The known word that is one typing error away: letters swapped, one doubled, left out, or that beside it."""
        w, edits = word.lower(), list[str]()
        cut = [(w[:i], w[i:]) for i in range(len(w) + 1)]
        edits += [a + b[1] + b[0] + b[2:] for a, b in cut if len(b) > 1]
        if len(w) > 3:
            edits += [a + b[1:] for a, b in cut if len(b) > 1 and b[0] == b[1]]
            edits += [a + c + b for a, b in cut for c in "'abcdefghijklmnopqrstuvwxyz"]
            if not word[0].isupper() or word.isupper():  # a name may be a letter away from a word
                edits += [a + c + b[1:] for a, b in cut if b for c in neighbours(b[0])]
        meant = next((each for each in edits if each in (self.known or ())), None)
        if meant is None or word[0].islower():
            return meant
        return meant.upper() if word.isupper() else meant.capitalize()

    def _share_words(self, run: str, share: Callable[[str, list[tuple[str, int]]], str]) -> str:
        """Set aside what begins with capitals and stands in the target too, as many words at once as can be."""
        found, out = run.split(" "), []
        while found:
            capitals = len(list(takewhile(lambda word: word[0].isupper() and len(word) > 1, found)))
            for n in range(capitals, 0, -1):
                name = " ".join(found[:n])
                if (put := share(name, [(name.removesuffix("'s"), _NAME)])) != name:
                    break
            else:
                n, put = 1, found[0]
            out.append(put + "'s" * (put != found[0] and found[n - 1].endswith("'s")))
            found = found[n:]
        return " ".join(out)


class _Places(dict[str, str]):
    """What has been set aside in a line, and the placeholder for each; the first slot that is used is `first`."""

    def __init__(self, used: Collection[str] = (), first: int = 0) -> None:
        super().__init__()
        self._used, self._first = used, first

    def put(self, value: str, kind: int) -> str:
        """The placeholder for a value, or the value itself if none is free."""
        slots = (PLACEHOLDERS[SLOTS * kind + (self._first + i) % SLOTS] for i in range(SLOTS))
        if value not in self and (free := next((p for p in slots if p not in {*self._used, *self.values()}), "")):
            self[value] = free
        return self.get(value, value)


def _parts(unit: re.Match[str]) -> list[tuple[str, int]]:
    """What is set aside for a unit that is no word, and of which kind each is: of 1,250 both numbers."""
    if unit.lastgroup == "number":
        return [(part, _NUMBER + min(max(len(part) - 2, 0), 3)) for part in unit[0].split(",")]
    return [(unit[0], _NAME if unit.lastgroup == "name" else _SIGN)]


def signs(texts: Iterable[str]) -> str:
    """The characters of some texts that are no letters, digits, blanks or placeholders."""
    return "".join(sorted(sign for sign in {*chain.from_iterable(texts)} if re.match(r"[^\w\s\ue000-\uf8ff]", sign)))


def neighbours(letter: str) -> str:
    """The letters beside a small letter on a keyboard."""
    at = KEYS.find(letter)
    return "".join(KEYS[max(at - 1, 0) : at + 2].split()).replace(letter, "") if at >= 0 else ""
