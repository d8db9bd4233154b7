"""Cut HTML into markup, which stays as it is, and the texts to translate."""

import re
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise

from minitrans.errors import UserError

OPAQUE_TAGS = "script", "style", "pre", "code", "iframe", "noembed", "noframes", "xmp"  # whose texts are not translated
VOID_TAGS = "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"
BLOCK_TAGS = (  # which end a paragraph
    "address article aside blockquote center details dialog dir div dl fieldset figcaption figure footer form h1 h2 h3 "
    "h4 h5 h6 header hgroup hr listing main menu nav ol p plaintext pre search section summary table ul xmp"
)
# For each element, those that end where it begins, if they have no end tag.
ENDED_TAGS = dict.fromkeys(BLOCK_TAGS.split(), "p") | dict.fromkeys(("dt", "dd"), "p dt dd")
ENDED_TAGS |= dict.fromkeys(("thead", "tbody", "tfoot"), "p td th tr thead tbody tfoot caption colgroup")
ENDED_TAGS |= dict.fromkeys(("td", "th"), "p td th") | {"tr": "p td th tr caption colgroup", "colgroup": "caption"}
ENDED_TAGS |= {"li": "p li", "option": "option", "optgroup": "option optgroup"}


def split_html(html: str) -> list[str]:
    """Cut HTML into pieces: markup and plain texts to translate, by turns; the first and the last are markup."""
    if re.search(r"&#\d{4300}", html):
        raise UserError("q is not HTML: the number of a character has thousands of digits")
    parser, end = _PieceStartParser(convert_charrefs=False), html.rfind(">") + 1
    # Only where pieces begin matters here. A "&#" without a number or a "<![" would stop the parser. After `end` there
    # is no tag: looking for one there takes cubic time.
    parser.feed(html[:end].replace("&", ".").replace("<![", "<!."))
    parser.handle_comment("")  # where an unfinished tag or comment begins, if any
    lines = [0, *(newline.end() for newline in re.finditer("\n", html))]
    starts = [(lines[line - 1] + column, text) for line, column, text in parser.starts]
    pieces, is_text = [""], False
    ends_as_text = not (parser.rawdata or parser.open[-1][1])
    for (start, text), (stop, _) in pairwise([(0, False), *starts, (end, ends_as_text), (len(html), False)]):
        if start < stop:
            if text != is_text:
                pieces.append("")
            pieces[-1] += html[start:stop]
            is_text = text
    pieces += [""] * is_text
    for i in range(1, len(pieces), 2):  # the blanks around a text stay
        spans = [sign.span() for sign in re.finditer(r"&#?\w+;|\S", pieces[i]) if unescape(sign[0]).strip()]
        start, stop = (spans[0][0], spans[-1][1]) if spans else (0, 0)
        before, visible, after = pieces[i][:start], pieces[i][start:stop], pieces[i][stop:]
        pieces[i - 1 : i + 2] = pieces[i - 1] + before, unescape(visible), after + pieces[i + 1]
    return pieces


class _PieceStartParser(HTMLParser):
    """Notes the line and column where each piece begins, and whether it is a text to translate."""

    def reset(self) -> None:
        super().reset()
        self.starts: list[tuple[int, int, bool]] = []
        self.open = [("", False)]  # the elements that are open, and whether their texts stay

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._record_start()
        while self.open[-1][0] in ENDED_TAGS.get(tag, "").split():
            self.open.pop()
        if tag not in VOID_TAGS:
            asked = next(((value or "").lower() for name, value in attrs if name == "translate"), "inherit")
            stays = {"no": True, "yes": False, "": False}.get(asked, self.open[-1][1])
            self.open.append((tag, stays or tag in OPAQUE_TAGS))

    def handle_endtag(self, tag: str) -> None:
        self._record_start()
        innermost = range(-1, -min(len(self.open), 512), -1)  # browsers nest no deeper
        if begin := next((k for k in innermost if self.open[k][0] == tag), 0):
            del self.open[begin:]

    def handle_data(self, _: str, /) -> None:
        self._record_start(not self.open[-1][1])

    def handle_comment(self, _: str, /) -> None:
        self._record_start()

    handle_decl = handle_pi = handle_comment  # type: ignore[assignment]

    def _record_start(self, is_text: bool = False) -> None:
        self.starts.append((*self.getpos(), is_text))
