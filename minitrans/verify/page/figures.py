"""The illustrated chapters of the page: masks, attention weights of one sentence pair, cached against full decoding."""

from collections.abc import Sequence
from html import escape

import torch

from minitrans.model.masks import causal_mask, padding_mask
from minitrans.verify.check import LOWER, name_of, number
from minitrans.verify.incremental import errors_by_position
from minitrans.verify.page.chart import error_chart
from minitrans.verify.page.pictures import heat_map, legend, mask_picture
from minitrans.verify.subject import Subject

N_PADDED = 3  # columns of padding, as if a longer sentence stood in the same batch

# What keeps the page small whatever the model: a cell of a heat map takes about 130 bytes.
MOST_TOKENS = 12
MOST_HEADS = 16
MOST_CELLS = 10_000

KINDS = (
    ("Encoder self-attention", "Each source piece (row) looks at all of the source (columns), but not at padding."),
    ("Decoder self-attention", "Each target piece looks at itself and at those before it; the future is hidden."),
    ("Cross-attention", "Each target piece looks at the source to find the one that follows: BOS looks for the first."),
)


def masks() -> str:
    """The package's masks on six tokens."""
    six = [str(i) for i in range(6)]
    batch = torch.tensor([[7, 7, 7, 7, 7, 7], [7, 7, 7, 7, 0, 0], [7, 7, 0, 0, 0, 0]])
    causal, padding = causal_mask(6, 6, 0)[0, 0], padding_mask(batch, pad_id=0)[:, 0, 0]
    figures = [
        _figure(
            "Causal",
            "Token 3 sees tokens 0 to 3. Without this mask, a model in training would read the word it is to predict.",
            mask_picture(causal, "queries by keys", six, six),
        ),
        _figure(
            "Causal, with a cache",
            "Four tokens in the cache and two new ones, which stand at positions 4 and 5: the last two rows of the "
            "causal mask. Two rows counted from 0 would hide most of the cache.",
            mask_picture(causal_mask(2, 6, 4)[0, 0], "queries by keys", ["4", "5"], six),
        ),
        _figure(
            "Padding",
            "A batch of sentences with 6, 4 and 2 tokens. No query looks at what only fills up a row.",
            mask_picture(padding, "sentences by keys", ["1", "2", "3"], six),
        ),
        _figure(
            "Causal and padding",
            "Both at once, for sentence 2: masks combine with “and”. As padding is on the right, the causal mask alone "
            "hides it from every real token.",
            mask_picture(causal & padding[1], "queries by keys", six, six),
        ),
    ]
    return f'<div class="masks">{"".join(figures)}</div>'


@torch.no_grad()
def attention(subject: Subject) -> str:
    """Heat maps of one sentence pair, for as many of the last layers as the page has room for; the last is unfolded."""
    model, config = subject.model, subject.model.config
    source, target = choose_pair(subject.pairs())
    padding = [config.pad_id] * min(N_PADDED, config.max_len - len(source))
    src_ids, tgt_in = torch.tensor([source + padding]), torch.tensor([target])
    memory, src_mask, encoder = model.run_encoder(src_ids, need_weights=True)
    _, decoder = model.run_decoder(tgt_in, model.decoder.project_memory(memory), src_mask, need_weights=True)

    sources, targets = ([_label(subject, id_) for id_ in ids] for ids in (source, target))
    keys = sources + ["PAD"] * len(padding)
    unpadded, causal = src_mask[0, 0], causal_mask(len(target), len(target), 0)[0, 0]  # (1, S), (T, T)
    allowed = (unpadded.expand(len(source), -1), causal, unpadded.expand(len(target), -1))
    n_heads = min(config.n_heads, MOST_HEADS)
    n_layers = min(config.n_layers, max(1, MOST_CELLS // (n_heads * sum(mask.numel() for mask in allowed))))

    folds = []
    for i in range(config.n_layers - n_layers, config.n_layers):
        weights = (encoder[i].self_weights, decoder[i].self_weights, decoder[i].cross_weights)
        maps = [
            _figure(title, text, heat_map(w[0, :n_heads, : len(queries)], mask, queries, columns))
            for (title, text), w, mask, queries, columns in zip(
                KINDS, weights, allowed, (sources, targets, targets), (keys, targets, keys), strict=True
            )
            if w is not None
        ]
        last = i == config.n_layers - 1
        folds.append(
            f"<details{' open' if last else ''}><summary>Layer {i + 1}{', the last' if last else ''}</summary>"
            f"{''.join(maps)}</details>"
        )
    pair = "".join(
        f'<dt>{name}</dt><dd lang="" translate="no">{escape(" ".join(pieces))}</dd>'
        for name, pieces in (("Source", sources), ("Target", targets))
    )
    shown = f"the last {n_layers} of {config.n_layers} layers and the first {n_heads} of {config.n_heads} heads"
    note = f"<p>To keep the page small, it shows {shown}.</p>"
    complete = (n_layers, n_heads) == (config.n_layers, config.n_heads)
    return f"<dl>{pair}</dl>{'' if complete else note}{legend()}{''.join(reversed(folds))}"


def choose_pair(pairs: Sequence[tuple[list[int], list[int]]]) -> tuple[list[int], list[int]]:
    """The longest pair that has at most MOST_TOKENS on either side; if there is none, the shortest, cut to that."""
    fitting = [pair for pair in pairs if max(map(len, pair)) <= MOST_TOKENS]
    if fitting:
        return max(fitting, key=_size)
    source, target = min(pairs, key=_size)
    return source[:MOST_TOKENS], target[:MOST_TOKENS]


def decoding(subject: Subject) -> str:
    """The error of cached against full decoding by position and dtype: a chart, and its numbers as a table."""
    errors = {name_of(d): errors_by_position(subject.to(d)) for d in (torch.float64, *LOWER)}
    head = "".join(f'<th scope="col" class="measure">{name}</th>' for name in errors)
    rows = "".join(
        f'<tr><th scope="row">{t}</th>{"".join(map(_number_cell, values))}</tr>'
        for t, values in enumerate(zip(*errors.values(), strict=True))
    )
    return (
        f"<figure>{error_chart(errors)}</figure><details><summary>The numbers</summary>"
        f'<table class="numbers"><thead><tr><th scope="col">position</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></details>"
    )


def _number_cell(x: float) -> str:
    return f'<td class="measure">{number(x)}</td>'


def _figure(title: str, text: str, picture: str) -> str:
    return f"<figure><h3>{title}</h3><figcaption>{text}</figcaption>{picture}</figure>"


def _label(subject: Subject, id_: int) -> str:
    """The text of a piece, the special ones by their names."""
    config = subject.model.config
    special = {config.pad_id: "PAD", config.bos_id: "BOS", config.eos_id: "EOS"}
    return special.get(id_) or subject.piece(id_).replace("\u2581", "␣")  # many fonts draw U+2581 as a heavy bar


def _size(pair: tuple[list[int], list[int]]) -> int:
    return len(pair[0]) + len(pair[1])
