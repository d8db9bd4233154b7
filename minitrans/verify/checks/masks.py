"""Masks: padding, the future, and queries that may look at nothing."""

import copy
import math
from xml.etree import ElementTree

import torch
from torch import Tensor

from minitrans.cachecheck.cache_checks import causal_prefix_deviation, other_rows_deviation, source_padding_deviation
from minitrans.cachecheck.measurement import MIN_FAULT, deviation, new_check_group, worst
from minitrans.model.attention import attention_weights, scaled_dot_product_attention
from minitrans.model.masks import causal_mask
from minitrans.pages.grids import head_heat_maps
from minitrans.translate.translator import traced_full_pass
from minitrans.verify.checks.heads import attention_modules
from minitrans.verify.model_and_pairs import MAX_TOKENS_A_SIDE, ModelAndPairs

claim, CHECKS = new_check_group("Masks")


@claim(
    "C17.zero",
    "largest weight of a padded key: in every attention of the model, and next to real scores of -1e30",
    tolerance=0.0,
)
def padded_keys_weigh_nothing(subject: ModelAndPairs) -> float:
    """A padded key has weight exactly 0, even where the scores of all real keys are as low as -1e30."""
    # Where real keys score below a fill of -1e9, the fill would hand all the weight to padding.
    _, src_mask, _, (own, _, source) = traced_full_pass(subject.model, subject.src_ids, subject.tgt_in)
    if src_mask.all():
        return math.inf  # nothing is padded, so nothing is shown
    q = torch.full((len(src_mask), 1, 2, 1), -1e30, dtype=subject.dtype)
    weights = [*own, *source, attention_weights(q, torch.ones_like(src_mask).to(q.dtype).mT, src_mask)]
    # If no real key had a weight, the test would show nothing.
    if any(bool((w.masked_select(src_mask) == 0.0).all()) for w in weights):
        return math.inf
    return worst([float(w.masked_select(~src_mask).abs().max()) for w in weights])


@claim(
    "C17.ignored",
    "logits of the batch, against each sentence alone, more padding, another order; memory, for another padding vector",
)
def padding_changes_nothing(subject: ModelAndPairs) -> float:
    """Padding, its embedding vector, and the other sentences of a batch change nothing in a sentence's result."""
    model, config, case = subject.model, subject.model.config, subject.case()
    other = copy.deepcopy(model)
    other.src_embedding.weight[config.pad_id] += subject.randn(config.d_model, seed=29)  # a norm takes out a constant
    real = (subject.src_ids != config.pad_id)[..., None]
    memories = [each.encode(subject.src_ids)[0] * real for each in (other, model)]
    return worst([source_padding_deviation(case), other_rows_deviation(case), deviation(*memories)])


@claim("C18", "sum of every query's weights in the model, against 1; weights set to 0 after the softmax must not pass")
def masked_before_softmax(subject: ModelAndPairs) -> float:
    """The mask comes before the softmax: the weights of the keys that may be seen sum to 1."""
    mask = torch.arange(6)[None] < 3
    late = torch.softmax(torch.zeros(1, 6, dtype=subject.dtype), -1) * mask
    if deviation(late.sum(-1), torch.ones(1, dtype=subject.dtype)) < MIN_FAULT:
        return math.inf
    *_, kinds = traced_full_pass(subject.model, subject.src_ids, subject.tgt_in)
    sums = torch.cat([weights.sum(-1).flatten() for kind in kinds for weights in kind])
    return deviation(sums, torch.ones_like(sums))


@claim(
    "C25",
    "output and weights of the query that sees no key; infinite where a gradient or logit is not finite",
    tolerance=0.0,
)
@torch.enable_grad()
def empty_rows_are_zero(subject: ModelAndPairs) -> float:
    """A query that may attend to nothing gets 0, and gradients stay finite, even if a source is all padding."""
    q, k, v = (subject.randn(2, 3, 3, 5, seed=seed).requires_grad_() for seed in (25, 26, 27))
    mask = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    mask[:, :, 1] = False
    output, weights = scaled_dot_product_attention(q, k, v, mask, need_weights=True)
    if weights is None or not bool((output[:, :, 0] != 0).all()):
        return math.inf
    src_ids = subject.src_ids.clone()
    src_ids[0] = subject.model.config.pad_id
    logits = subject.model(src_ids, subject.tgt_in)
    gradients = [
        *torch.autograd.grad(output.square().sum(), (q, k, v)),
        *torch.autograd.grad(logits.square().mean(), list(subject.model.parameters())),
    ]
    if not all(bool(x.isfinite().all()) for x in (logits, *gradients)):
        return math.inf
    return worst([float(x.detach()[:, :, 1].abs().max()) for x in (output, weights)])


@claim("C19.prefix", "every layer's output, weights and logits for every prefix, against those for the whole target")
def prefix_outputs_are_unchanged(subject: ModelAndPairs) -> float:
    """What is computed for the first tokens does not change when later tokens are appended."""
    # The control: without the mask, the first two of five tokens must get different vectors.
    model = subject.model
    x = subject.randn(1, 5, model.config.d_model, seed=28)
    mask = causal_mask(5, 5, 0)
    changes = [deviation(a(x, x, x)[0][:, :2], a(x, x, x, mask)[0][:, :2]) for a in attention_modules(model)]
    return causal_prefix_deviation(subject.case()) if worst(changes) > MIN_FAULT else math.inf


@claim(
    "C19.gradient",
    "sum of the absolute gradients of each decoder output with respect to later input vectors",
    tolerance=0.0,
)
@torch.enable_grad()
def no_gradient_from_the_future(subject: ModelAndPairs) -> float:
    """The gradient of output t with respect to every later target token is exactly 0."""
    # The gradient with respect to token t and earlier ones must not vanish.
    model = subject.model
    memory, src_mask = model.encode(subject.src_ids)
    tgt_len = subject.tgt_in.size(1)
    x = subject.randn(len(memory), tgt_len, memory.size(-1), seed=20).requires_grad_()
    hidden, _ = model.decoder(x, memory.detach(), src_mask)
    deviations = []
    for t in range(tgt_len):
        # The sum of a normalised vector is constant, so weigh its elements before summing.
        (gradient,) = torch.autograd.grad((hidden[:, t] * x.detach()[:, t]).sum(), x, retain_graph=True)
        if bool((gradient[:, : t + 1].abs().sum((0, 2)) == 0.0).any()):
            return math.inf
        deviations.append(float(gradient[:, t + 1 :].abs().sum()))
    return worst(deviations)


@claim(
    "C22",
    "cells of the model's encoder self-, decoder self- and cross-attention maps, "
    f"of at most {MAX_TOKENS_A_SIDE} tokens a side, with a wrong marking or shade",
    tolerance=0.0,
    lower=(),
)
def heat_maps_mark_masks(subject: ModelAndPairs) -> float:
    """A heat map shows the weights, a panel for each head, and marks the cells that a mask forbids."""
    _, src_mask, _, (own, target, source) = traced_full_pass(subject.model, subject.src_ids, subject.tgt_in)
    b = int(src_mask.sum(-1).argmin())
    start = max(0, int(src_mask[b].sum()) + 1 - MAX_TOKENS_A_SIDE)  # so that padding is among them
    s, t = slice(start, start + MAX_TOKENS_A_SIDE), slice(MAX_TOKENS_A_SIDE)
    src, tgt = ([subject.piece(i) for i in ids[b].tolist()] for ids in (subject.src_ids[:, s], subject.tgt_in[:, t]))
    seen = src_mask[b, 0, :, s]
    maps = [
        (own[-1][b][:, s, s], seen.expand(len(src), -1), src, src),
        (target[-1][b][:, t, t], causal_mask(len(tgt), len(tgt), 0)[0, 0], tgt, tgt),
        (source[-1][b][:, t, s], seen.expand(len(tgt), -1), tgt, src),
    ]
    n_wrong = 0
    for weights, mask, queries, keys in maps:
        drawn, shown = read_heat_map(head_heat_maps(weights, mask, queries, keys), weights)
        is_right = (drawn == mask) & ((shown - weights).abs() <= 0.005)  # a cell that is not drawn shows NaN
        n_wrong += int(is_right.logical_not().sum())
    return float(n_wrong) if seen.logical_not().any() else math.inf


def read_heat_map(picture: str, weights_like: Tensor) -> tuple[Tensor, Tensor]:
    """What a heat map (H, Tq, Tk) shows: bool, whether a cell is not marked as masked; and its shade."""
    drawn, shown = torch.zeros_like(weights_like, dtype=torch.bool), torch.full_like(weights_like, math.nan)
    for panel in ElementTree.fromstring(f"<div>{picture}</div>").iterfind(".//*[@data-head]"):
        for cell in panel.iterfind(".//*[@data-q]"):
            place = tuple(int(x) for x in (panel.attrib["data-head"], cell.attrib["data-q"], cell.attrib["data-k"]))
            masked = cell.attrib["class"] == "masked"
            drawn[place] = not masked
            shown[place] = 0.0 if masked else float(cell.attrib["fill-opacity"])
    return drawn, shown
