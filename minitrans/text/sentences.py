"""Lines cut into sentences, of any language, by the library sentencex."""

import re

from sentencex import segment

from minitrans.text.lines import base_language
from minitrans.text.reading import ADDRESS, LONG_LINE_LENGTH, clean

# Where the library mistakes a word for an abbreviation, such as me for Maine; but quotations and no. A4 stay whole.
_AFTER_WORD = (
    r'(?im)["“„][^"“”„\n]*["“”]|(\b(?:no|art|fed|id|me|ok|te|ill|may|mai|bien{})\. )'
    r"(?=(?!(?-i:[IVXLC]{{2,}}|[VX])\b)[^\W\d]+\b)"  # but Art. IV
)
_ENGLISH_SHORT_FORMS = r"|(?-i:u|r|plz|btw|(?:min|sec|hr)(?=\. [A-Z]))"
_INITIAL = re.compile(r"(?<!\w)[A-ZÀ-ÞЀ-Я]\. ?$")  # M. Dupont, D. Juan; but English has: It is I.


def split_sentences(line: str, language: str) -> list[str]:
    """The sentences of a line, at least one, cleaned as all text is.

    A part without letters, such as an item's number, stays with the sentence after it. A sentence of more than 2,000
    characters is not separated from the rest of its line.

    Args:
        line: A text; a line break is a blank.
        language: Its code, such as `en`; for a language that the library does not know, it uses English rules.
    """
    line, start, sentences = clean(line), 0, [[""]]  # the parts of each
    is_english = base_language(language) == "en"
    after_word = _AFTER_WORD.format(_ENGLISH_SHORT_FORMS if is_english else "")
    while start < len(line):
        window = line[start : start + LONG_LINE_LENGTH]  # finding the ends of quotations takes quadratic time
        if re.search("[.:@][!-~]", window):  # perhaps an address, which stays whole
            window = re.sub("[!-~]+", lambda run: re.sub(ADDRESS, lambda found: "x" * len(found[0]), run[0]), window)
        segments = segment(base_language(language), window)
        if start + LONG_LINE_LENGTH < len(line):
            segments = segments[:-1] or [line[start:]]  # the last one may go on
        for sentence in re.sub(after_word, lambda end: end[0] + "\n" * bool(end[1]), "\n".join(segments)).split("\n"):
            if any(map(str.isalpha, sentences[-1][-1])) and (is_english or not _INITIAL.search(sentences[-1][-1])):
                sentences.append([])
            sentences[-1].append(line[start : start + len(sentence)])
            start += len(sentence)
    return ["".join(parts).strip() for parts in sentences]
