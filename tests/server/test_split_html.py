"""Which parts of HTML are translated, and that the rest stays unchanged."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrans.errors import UserError
from minitrans.server.split_html import split_html

SCRAPS = ["<p>", "</p >", "<B a='x>'\n>", "</", "<!--", "-->", "<![CDATA[", "]]>", "<?", "&amp;", "&#6", "&nbsp;"]
SCRAPS += ["<", ">", "<script>", "</script>", "<br/>", "<pre>", "</pre>", "<!", "<p translate=no>"]
SCRAPS += ["a", "\n", " ", "'", '"', "="]

VOID = "area base br col embed hr img input link meta source track wbr"
TEXTS_BY_HTML = {
    "": [],
    "a &lt; b &amp;&#65; < c": ["a < b &A < c"],
    "<!doctype html>\n<title>a</title><p class='b > c'> d\n e <B>f</B > <hr/>h</p><!-- i -->": ["a", "d\n e", "f", "h"],
    "<script>if (a < b) c</script>d<style>e</style><pre>f<code>g</code>h</pre></pre>i<code>j": ["d", "i"],
    "a<iframe>b<a href=c>d</a></iframe>e<xmp>f < g</xmp>h": ["a", "e", "h"],
    "<b translate=no>a<b>b</b>c<br></b>d<br translate=NO>e</b>f": ["d", "e", "f"],
    "<p translate=NO>a<p>b<ul><li translate=no>c<ul><li>d<p>e</ul>f<li>g<li translate=no>h</ul>i": ["b", "g", "i"],
    "<table><tr><td translate=no>a<th>b<tr translate=no><td>c<tr><td>d<p translate=no>e</table>f": ["b", "d", "f"],
    "<p>&nbsp;</p>": [], "<p>&#<b>a</b>": ["&#", "a"], "<p>a?b&#c <b>d</b></p>": ["a?b&#c", "d"],
    "<b>a</b>&nbsp;b c&#160;<i>&lt;</i>": ["a", "b c", "<"],
    "".join(f"<{tag} translate=no>" for tag in VOID.split()) + "a": ["a"],
    "<div translate=no>a<p translate=yes>b<b>c</b><p>d<p translate>e": ["b", "c", "e"], "<pre>a<i translate>b": ["b"],
    "a<b": ["a<b"], "<p>a <!-- b > </p> <b>c</b> d": ["a"], "<p>a <i title='b>c</i> d": ["a"],
    "<p translate=no>a<center>b": ["b"],
    "<p translate=no>a<menu><li>b</menu>": ["b"], "<select><option translate=no>a<optgroup><option>b": ["b"],
    "<table><caption translate=no>a<tr><td>b": ["b"],
    "<p>a <![said]> b<![endif]--><p>c<![CDATA[ d ]]>e<![<>f": ["a", "b", "c", "e", "f"],
}  # fmt: skip


@pytest.mark.parametrize("html", TEXTS_BY_HTML)
def test_the_texts_between_tags_are_translated(html: str) -> None:
    assert [text for text in split_html(html)[1::2] if text] == TEXTS_BY_HTML[html]


@given(st.lists(st.sampled_from(SCRAPS)).map("".join))
def test_everything_else_is_kept(html: str) -> None:
    pieces = split_html(html)
    assert len(pieces) % 2 == 1
    if "&" not in html:
        assert "".join(pieces) == html


@pytest.mark.parametrize("part", ["<a ", "<a/"])
def test_unclosed_tags_are_parsed_quickly(part: str) -> None:
    start = time.process_time()
    split_html(part * 10_000)  # the parser itself takes minutes
    assert time.process_time() - start < 10


def test_a_character_reference_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(UserError, match=r"^q is not HTML: the number of a character has thousands of digits$"):
        split_html(f"a &#{'1' * 5000};")
