"""What a failure looks like: known faults, each recognised by its effect on the numbers, without a look inside."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minitrans.cachecheck import cache_checks
from minitrans.cachecheck.measurement import compare, dtype_tolerance
from minitrans.cachecheck.protocol import ModelAndTokens

MIN_TOKEN_EFFECT = 1e-6  # a token that is attended to moves logits by at least this share of the largest


@dataclass(frozen=True)
class Pattern:
    """A known fault."""

    name: str  # what is wrong, in a few words
    explains: tuple[str, ...]  # ids of the checks whose failure it explains
    fits: Callable[[ModelAndTokens[Any]], bool]  # whether a case shows it
    max_deviation: float = torch.inf  # the largest that it explains


def explain_failures(case: ModelAndTokens[Any], failed: Mapping[str, float]) -> dict[str, str]:
    """For each failed check, by id, the first known pattern that explains its failure and fits, in words.

    For a check that runs a variant of the model, the patterns are tried on that variant.
    """
    names: dict[str, str] = {}
    for pattern in PATTERNS:
        fits: dict[str, bool] = {}
        for id_ in pattern.explains:
            if failed.get(id_, torch.nan) <= pattern.max_deviation and id_ not in names:
                way = VARIANT_BY_CHECK_ID.get(id_, "")
                if way not in fits:
                    fits[way] = False
                    with suppress(Exception):  # a pattern that cannot be tried does not fit
                        fits[way] = pattern.fits(case.with_variant(way) if way in case.model.variants else case)
                if fits[way]:
                    names[id_] = f"this looks like: {pattern.name}"
    return names


def _allclose(a: Tensor, b: Tensor) -> bool:
    """Whether the two differ by no more than rounding."""
    return bool(compare([a], [b]) <= _rounding_tolerance(a.dtype))


def _rounding_tolerance(dtype: torch.dtype) -> float:
    """The tolerance of a dtype; at least that of float32, in which parts of a model may compute."""
    return max(dtype_tolerance(dtype), dtype_tolerance(torch.float32))


def _step_logits(case: ModelAndTokens[Any]) -> Tensor:
    return cache_checks.feed_in_chunks(case)[0]


def _differ_at(one: Tensor, other: Tensor) -> Tensor:
    """Bool (T): at which positions two tensors of logits (B, T, V) differ."""
    return (one - other).double().abs().amax((0, 2)) > MIN_TOKEN_EFFECT


def lookahead_distance(case: ModelAndTokens[Any]) -> int:
    """How many tokens ahead the first position sees in the full pass."""
    whole, furthest = case.full_pass()[0], 0
    for t in range(1, case.tokens.size(1)):
        if _differ_at(case.with_other_tokens(slice(t, t + 1)).full_pass()[0], whole)[0]:
            furthest = t
    return furthest


def _two_paddings(case: ModelAndTokens[Any]) -> list[Tensor]:
    """The logits with two tokens of padding on the left, and with two different ones."""
    tokens = torch.cat([case.tokens[:, :2], case.tokens], 1)
    mask = (torch.arange(tokens.size(1)) >= 2).expand_as(tokens)
    other = torch.where(mask, tokens, case.other_tokens(tokens))
    return [case.with_tokens(x).full_pass(mask)[0][:, 2:] for x in (tokens, other)]


def counts_padding(case: ModelAndTokens[Any]) -> bool:
    """The tokens that fill a prompt's left padding do not matter, but their number does."""
    one, other = _two_paddings(case)
    return not _differ_at(one, other).any() and bool(_differ_at(one, case.full_pass()[0]).any())


def remembers_nothing(case: ModelAndTokens[Any]) -> bool:
    """The steps are full passes over one token each."""
    alone = [case.with_tokens(token).full_pass()[0] for token in case.tokens.split(1, 1)]
    return _allclose(_step_logits(case), torch.cat(alone, 1))


def positions_restart(case: ModelAndTokens[Any]) -> bool:
    """The same token, fed again and again, gives the same logits every time: its position makes no difference."""
    same = case.with_tokens(case.tokens[:, 1:2].expand_as(case.tokens))
    full, steps = same.full_pass()[0], _step_logits(same)
    return _allclose(steps, steps[:, :1].expand_as(steps)) and not _allclose(full, full[:, :1].expand_as(full))


def feeds_the_token_before(case: ModelAndTokens[Any]) -> bool:
    """The steps are the full pass over the tokens delayed by one."""
    delayed = torch.cat([case.tokens[:, :1], case.tokens[:, :-1]], 1)
    return _allclose(_step_logits(case), case.with_tokens(delayed).full_pass()[0])


def forgets_first_tokens(case: ModelAndTokens[Any]) -> bool:
    """Another first token changes the last logits of the full pass, but not those of the steps."""
    other = case.with_other_tokens(slice(1))
    noticed = [bool(_differ_at(run(other), run(case))[-1]) for run in (lambda c: c.full_pass()[0], _step_logits)]
    return noticed == [True, False]


def only_later_chunks_wrong(case: ModelAndTokens[Any]) -> bool:
    """Single steps are right, and so is one chunk of all tokens, but not a chunk of several after another chunk."""
    length, limit = case.tokens.size(1), _rounding_tolerance(case.model.dtype)
    right = cache_checks.step_deviation(case), cache_checks.chunk_deviation(case, [length])
    return max(right) <= limit < cache_checks.chunk_deviation(case, [1, length - 1])


def _continues_reordered(case: ModelAndTokens[Any], as_if_unmoved: bool = False) -> bool:
    """Whether rows that are rotated by one after half of the tokens go on correctly; or as if they had stayed."""
    half, order = case.tokens.size(1) // 2, torch.arange(len(case.tokens)).roll(1)
    together = cache_checks.takes_chunk_sizes(case, [2])
    cache = case.new_cache()
    cache_checks.feed_all(case, case.tokens[:, :half], cache, together)
    cache = case.select_rows(cache, order)
    turned = case.with_rows(order)
    new = turned.tokens[:, half : half + 1]
    before = case if as_if_unmoved else turned
    want = before.with_tokens(torch.cat([before.tokens[:, :half], new], 1)).full_pass()[0]
    return _allclose(case.feed(new, cache)[0][:, -1], want[:, -1])


def _with_equal_sources(case: ModelAndTokens[Any]) -> ModelAndTokens[Any]:
    """Every row has the first one's source."""
    first = torch.zeros(len(case.tokens), dtype=torch.int64)
    return case.with_rows(first).with_tokens(case.tokens)


def _logits_after_draft(case: ModelAndTokens[Any], draft: Tensor) -> Tensor:
    """The logits of the token that follows the first half, where a draft was fed in between and dropped again."""
    half, together = case.tokens.size(1) // 2, cache_checks.takes_chunk_sizes(case, [1, 2])
    cache = case.new_cache()
    for tokens in (case.tokens[:, :half], draft):
        cache_checks.feed_all(case, tokens, cache, together)
    return case.feed(case.tokens[:, half : half + 1], case.drop_last(cache, draft.size(1)))[0]


def rollback_drops_nothing(case: ModelAndTokens[Any]) -> bool:
    """What follows a dropped draft is computed as if the draft had been kept."""
    half, draft = case.tokens.size(1) // 2, case.other_tokens(case.tokens[:, :2])
    tokens = torch.cat([case.tokens[:, :half], draft, case.tokens[:, half : half + 1]], 1)
    return _allclose(_logits_after_draft(case, draft), case.with_tokens(tokens).full_pass()[0][:, -1:])


def sees_rolled_back_tokens(case: ModelAndTokens[Any]) -> bool:
    """What follows a dropped draft depends on the draft's tokens."""
    draft = case.tokens[:, :2]
    return bool(_differ_at(_logits_after_draft(case, draft), _logits_after_draft(case, case.other_tokens(draft))).any())


def one_cache_alone_is_right(case: ModelAndTokens[Any]) -> bool:
    """One decode at a time is right, in steps and after a prompt, if the model takes one."""
    prompts = [1, *[case.tokens.size(1) // 2] * cache_checks.takes_chunk_sizes(case, [2])]
    ways = ([prompt, *[1] * (case.tokens.size(1) - prompt)] for prompt in prompts)
    return max(cache_checks.chunk_deviation(case, chunks) for chunks in ways) <= _rounding_tolerance(case.model.dtype)


STEP_CHECK_IDS = ("steps", "chunks", "lengths", "greedy", "score", "static", "weights", "rows", "rollback", "fork",
            "caches.two", "caches.alternating", "batch", "source.padding")  # fmt: skip
CAUSAL_CHECK_IDS = ("causal.prefix", "causal.values", "causal.gradient")
SOURCE_CHECK_IDS = ("source.padding", "source.padding-token")
PADDING_CHECK_IDS = ("padding.right", "padding.left", "padding.left-mask-alone")
LOGITS_CHECK_IDS = (*STEP_CHECK_IDS, *CAUSAL_CHECK_IDS, *SOURCE_CHECK_IDS, *PADDING_CHECK_IDS)
# The variant of the model that a check runs, where the model offers it: see `CachedModel.variants`.
VARIANT_BY_CHECK_ID = {
    "static": "static",
    "weights": "weights",
    "padding.left-mask-alone": "mask alone",
    "rollback": "rollback",
}
# The first that fits is named, so patterns that explain more come before those that explain less.
PATTERNS = [
    Pattern("random numbers are drawn, as by dropout outside of eval mode", (*LOGITS_CHECK_IDS, "random"),
            lambda case: compare(case.full_pass()[:1], case.full_pass()[:1]) > _rounding_tolerance(case.model.dtype)),
    Pattern("something inside is computed in float32", LOGITS_CHECK_IDS, lambda case: case.model.dtype == torch.float64,
            dtype_tolerance(torch.float32)),
    Pattern("the causal mask is one position late: a token sees the next one", (*CAUSAL_CHECK_IDS, *STEP_CHECK_IDS),
            lambda case: 0 < lookahead_distance(case) < case.tokens.size(1) - 1),  # one more with each layer
    Pattern("there is no causal mask, or in a deep model a late one: a token sees all that follow",
            (*CAUSAL_CHECK_IDS, *STEP_CHECK_IDS), lambda case: lookahead_distance(case) == case.tokens.size(1) - 1),
    Pattern("padding is attended to", SOURCE_CHECK_IDS,
            lambda case: not cache_checks.source_padding_content_deviation(case) <= MIN_TOKEN_EFFECT),
    Pattern("padding is attended to", PADDING_CHECK_IDS, lambda case: bool(_differ_at(*_two_paddings(case)).any())),
    Pattern("padding is not attended to, but counted: positions begin where the padding does", PADDING_CHECK_IDS,
            counts_padding),
    Pattern("nothing is remembered: each step sees its own token alone", STEP_CHECK_IDS, remembers_nothing),
    Pattern("positions start at 0 again at every step", STEP_CHECK_IDS, positions_restart),
    Pattern("each step is fed the previous token", STEP_CHECK_IDS, feeds_the_token_before),
    Pattern("the cache forgets its first tokens", STEP_CHECK_IDS, forgets_first_tokens),
    Pattern("only a later chunk is wrong: its mask is aligned to the wrong corner, or a state is forgotten before it",
            (*STEP_CHECK_IDS, *PADDING_CHECK_IDS), only_later_chunks_wrong),
    Pattern("no rows are selected at all", ("rows",), lambda case: _continues_reordered(case, as_if_unmoved=True)),
    Pattern("keys and values of the target are not selected", ("rows",),
            lambda case: _continues_reordered(_with_equal_sources(case), as_if_unmoved=True)),
    Pattern("keys and values of the source are not selected", ("rows",), lambda case: one_cache_alone_is_right(case)
            and not _continues_reordered(case) and _continues_reordered(_with_equal_sources(case))),
    Pattern("no tokens are dropped at all", ("rollback",), rollback_drops_nothing),
    Pattern("dropped tokens are still seen", ("rollback",), sees_rolled_back_tokens),
    Pattern("two caches share memory, or the model holds the cache", ("fork", "caches.two", "caches.alternating"),
            one_cache_alone_is_right),
    Pattern("padding of the source is not attended to, but counted", SOURCE_CHECK_IDS,
            lambda case: cache_checks.source_padding_content_deviation(case) <= dtype_tolerance(case.model.dtype)
            and cache_checks.step_deviation(case) <= dtype_tolerance(case.model.dtype)),
]  # fmt: skip
