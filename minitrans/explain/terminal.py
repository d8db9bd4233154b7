"""A translation and its cross-attention as lines of text."""

from collections.abc import Iterator
from typing import cast

from rich.cells import cell_len

from minitrans.text.reading import PLACEHOLDERS, clean
from minitrans.translate.translator import AttentionWeights, Translation

SHADES = " ░▒▓██"  # a weight below 0.2, below 0.4, ..., and one of 1; an edited model may give others, NaN among them


def draw_cross_attention(text: str, translation: Translation, width: int) -> Iterator[str]:
    """A text, its translation, and the last layer's cross-attention, mean of its heads.

    A row is a piece that was written, a column a piece of the source; columns that do not fit into a line of `width`
    characters stand below the others.
    """
    attention = cast(AttentionWeights, translation.attention)
    eos = attention.source[-1]
    sources, rows = (
        ["EOS" if piece == eos else _piece_label(piece) for piece in pieces]
        for pieces in (attention.source, attention.target[1:])
    )
    weights = attention.cross[-1].float().mean(0).tolist()
    left = max(map(cell_len, rows)) + 1
    yield f"{clean(text)} → {translation.text}"
    for columns in _wrap_columns([cell_len(source) for source in sources], width - left):
        yield " " * left + " ".join(sources[k] for k in columns)
        for row, of_row in zip(rows, weights, strict=True):
            shades = [SHADES[int(5 * w)] if 0 <= w < 1.2 else "?" for w in of_row]
            cells = (shades[k] * cell_len(sources[k]) for k in columns)
            yield f"{row}{' ' * (left - cell_len(row))}{' '.join(cells)}".rstrip()


def _wrap_columns(widths: list[int], room: int) -> Iterator[range]:
    """The columns in groups that fit side by side, a space between them; at least one in each."""
    first, used = 0, 0
    for k, width in enumerate(widths):
        if k > first and used + width > room:
            yield range(first, k)
            first, used = k, 0
        used += width + 1
    yield range(first, len(widths))


def _piece_label(piece: str) -> str:
    """A piece without control characters, with a mark for its space, and a circle where nothing else has a width."""
    label = "(empty copy)" if piece in PLACEHOLDERS else clean(piece.replace("\u2581", "␣"))
    return label if cell_len(label) else f"◌{label}"
