"""What the illustrated chapters show: masks, attention weights of one sentence pair, cached against full decoding."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from matplotlib.figure import Figure

from minitrans.cachecheck.measurement import LOWER_DTYPES, compare, dtype_name, dtype_tolerance, to_str
from minitrans.cachecheck.protocol import ModelAndTokens
from minitrans.model.masks import causal_mask, padding_mask
from minitrans.pages.chart_svg import chart_as_svg
from minitrans.pages.grids import head_heat_maps, mask_picture
from minitrans.translate.translator import traced_full_pass
from minitrans.verify.model_and_pairs import ModelAndPairs

PLOTTED_MIN, PLOTTED_ZERO = 1e-17, 1e-19  # what smaller numbers are drawn at, and where an exact 0 stands
MARKERS = "os^D"  # lines can be told apart without colour
N_HEAT_MAP_PADDING_COLUMNS = 3  # columns of padding, as if a longer sentence stood in the same batch

# What keeps the page small whatever the model: a cell of a heat map takes about 130 bytes.
MAX_SHOWN_TOKENS = 12
MAX_SHOWN_HEADS = 16
MAX_TOTAL_CELLS = 10_000


def mask_pictures() -> dict[str, Markup]:
    """Pictures of the package's masks, on six tokens."""
    six = [str(i) for i in range(6)]
    batch = torch.tensor([[7, 7, 7, 7, 7, 7], [7, 7, 7, 7, 0, 0], [7, 7, 0, 0, 0, 0]])
    causal, padding = causal_mask(6, 6, 0)[0, 0], padding_mask(batch, pad_id=0)[:, 0, 0]
    return {
        "causal": mask_picture(causal, "queries by keys", six, six),
        "cached": mask_picture(causal_mask(2, 6, 4)[0, 0], "queries by keys", ["4", "5"], six),
        "padding": mask_picture(padding, "sentences by keys", ["1", "2", "3"], six),
        "both": mask_picture(causal & padding[1], "queries by keys", six, six),
    }


@torch.no_grad()
def attention_heat_maps(subject: ModelAndPairs) -> dict[str, object]:
    """Heat maps of one sentence pair, for as many of the last layers as the page has room for; the last comes first."""
    model, config = subject.model, subject.model.config
    source, target = choose_longest_fitting_pair(subject.pairs())
    padding = [config.pad_id] * min(N_HEAT_MAP_PADDING_COLUMNS, config.max_len - len(source))
    src_ids, tgt_in = torch.tensor([source + padding]), torch.tensor([target])
    _, src_mask, _, kinds = traced_full_pass(model, src_ids, tgt_in)

    sources, targets = ([_piece_label(subject, id_) for id_ in ids] for ids in (source, target))
    keys = sources + ["PAD"] * len(padding)
    unpadded, causal = src_mask[0, 0], causal_mask(len(target), len(target), 0)[0, 0]  # (1, S), (T, T)
    allowed = (unpadded.expand(len(source), -1), causal, unpadded.expand(len(target), -1))
    n_heads = min(config.n_heads, MAX_SHOWN_HEADS)
    n_layers = min(config.n_layers, max(1, MAX_TOTAL_CELLS // (n_heads * sum(mask.numel() for mask in allowed))))
    shown = [*zip(kinds, allowed, (sources, targets, targets), (keys, targets, keys), strict=True)]

    layers = []
    for i in reversed(range(config.n_layers - n_layers, config.n_layers)):
        maps = [
            head_heat_maps(weights[i][0, :n_heads, : len(rows)], mask, rows, columns)
            for weights, mask, rows, columns in shown
        ]
        layers.append((i + 1, maps))
    return {"sources": sources, "targets": targets, "layers": layers, "n_heads": n_heads}


def choose_longest_fitting_pair(pairs: Sequence[tuple[list[int], list[int]]]) -> tuple[list[int], list[int]]:
    """The longest pair that has at most MAX_SHOWN_TOKENS on either side; or else the shortest, cut to that."""
    by_size = sorted(pairs, key=lambda pair: len(pair[0]) + len(pair[1]))
    fitting = [pair for pair in by_size if max(map(len, pair)) <= MAX_SHOWN_TOKENS]
    source, target = fitting[-1] if fitting else by_size[0]
    return source[:MAX_SHOWN_TOKENS], target[:MAX_SHOWN_TOKENS]


def step_deviations(case: ModelAndTokens[Any]) -> list[float]:
    """The worst deviation of single steps from the full pass at each position, in the dtype of the model."""
    want, cache = case.full_pass(), case.new_cache()
    return [
        float(compare(case.feed(token, cache), [x.narrow(-2, t, 1) for x in want]))
        for t, token in enumerate(case.tokens.split(1, 1))
    ]


def plot_step_deviations(deviations_by_dtype: Mapping[str, Sequence[float]]) -> Figure:
    """The worst deviation at each target position, a line a dtype (by its name in torch), on a scale of powers of ten.

    Each dtype's tolerance is a dashed line. Values of 1 or more, infinity and NaN are drawn at the top.
    """
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    panel = figure.subplots()
    for (name, values), marker in zip(deviations_by_dtype.items(), MARKERS, strict=False):
        tolerance = dtype_tolerance(getattr(torch, name))
        label = f"{name}, at most {to_str(tolerance)} (dashed)"
        heights = np.nan_to_num(values, nan=1.0).clip(PLOTTED_MIN, 1.0)
        heights[np.equal(values, 0)] = PLOTTED_ZERO
        (line,) = panel.plot(heights, marker=marker, label=label)
        panel.axhline(tolerance, color=line.get_color(), linestyle="--")
    powers = [10.0**power for power in range(-16, 0, 2)]
    panel.set_yscale("log")
    panel.set_yticks([PLOTTED_ZERO, *powers, 1.0], ["0", *map(to_str, powers), "≥ 1"])
    panel.set_yticks([], minor=True)
    panel.set_title("worst deviation of a step from the full pass", loc="left")
    panel.set_xlabel("target position")
    panel.legend(loc="center right")
    return figure


def decoding_error_chart(subject: ModelAndPairs) -> dict[str, object]:
    """The error of cached against full decoding by dtype and position: a chart, and its numbers."""
    deviations = {dtype_name(d): step_deviations(subject.to(d).case()) for d in (torch.float64, *LOWER_DTYPES)}
    chart = chart_as_svg(partial(plot_step_deviations, deviations))
    return {"chart": chart, "positions": list(zip(*deviations.values(), strict=True))}


def _piece_label(subject: ModelAndPairs, id_: int) -> str:
    """The text of a piece, the special ones by their names."""
    config = subject.model.config
    special = {config.pad_id: "PAD", config.bos_id: "BOS", config.eos_id: "EOS"}
    return special.get(id_) or subject.piece(id_).replace("\u2581", "␣")  # many fonts draw U+2581 as a heavy bar
