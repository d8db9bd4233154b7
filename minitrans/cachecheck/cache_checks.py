"""What has to be true of any model that decodes from a cache, whatever is inside.

Decoding from a cache is compared with the full masked pass, number by number. Each check takes a case, a model with
sentences for it, and returns the worst deviation that it finds; its docstring is its claim. `chunks` are the sizes of
the pieces in which the tokens are fed.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from minitrans.cachecheck.measurement import (
    Deviation,
    NotOfferedError,
    compare,
    deviation,
    dtype_tolerance,
    new_check_group,
    pad_weights_to_widest,
    to_str,
    worst,
)
from minitrans.cachecheck.protocol import N_BEAMS, ModelAndTokens, call_model, own_copy

ALL_SPLITS_LENGTH = 5  # tokens that are fed in every possible split
LONG_LENGTH = 24  # tokens of a long sentence, unless a window calls for more
MAX_LENGTH = 1024  # tokens of the longest sentence, even if a model takes more: their logits have to fit into memory
MAX_LENGTH_WITH_PROMPT = 16  # tokens of a prompt and what is generated after it
MAX_DRAFT = 8  # tokens of the longest draft, where there is no window
MIN_LOGIT_CHANGE = 1e-7  # another token has to move logits by at least this share of the largest


claim, STEP_CHECKS = new_check_group("Steps and the full pass")


def concat_outputs(steps: Sequence[list[Tensor]]) -> list[Tensor]:
    """Concatenate the numbers of successive chunks along the positions."""
    return [torch.cat(pad_weights_to_widest(*parts), dim=-2) for parts in zip(*steps, strict=True)]


def feed_in_chunks(
    case: ModelAndTokens[Any], chunks: int | list[int] = 1, refusal: type[Exception] = Exception
) -> list[Tensor]:
    """The numbers for the tokens, fed through a cache in chunks of these sizes, or all of one size."""
    cache = case.new_cache()
    return concat_outputs([case.feed(piece, cache, refusal=refusal) for piece in case.tokens.split(chunks, 1)])


def chunk_deviation(case: ModelAndTokens[Any], chunks: int | list[int], want: list[Tensor] | None = None) -> Deviation:
    """Feed the tokens in chunks, and compare with the full pass, or with `want` if it is given."""
    sizes = [piece.size(1) for piece in case.tokens.split(chunks, 1)]
    words = " + ".join(map(str, sizes)) if len(sizes) < 9 else f"{sizes[0]} + {sizes[1]} + ... + {sizes[-1]}"
    return compare(feed_in_chunks(case, chunks), want or case.full_pass()).named(f"fed in chunks of {words}")


@claim("steps", "logits, one token at a time, against the full pass")
def step_deviation(case: ModelAndTokens[Any], want: list[Tensor] | None = None) -> Deviation:
    """Decoding step by step from the cache gives what the full masked pass gives, at every position."""
    return chunk_deviation(case, 1, want).named("fed one by one")


@claim(
    "chunks",
    f"logits: every split of the first {ALL_SPLITS_LENGTH} tokens, and every chunk of every size at every position",
    lower=(),
)
def all_chunkings_deviation(case: ModelAndTokens[Any]) -> Deviation:
    """Every split into chunks gives what the full pass gives, such as a long prompt and then a few tokens at a time."""
    # A split is a sequence of chunks, each at a position: if all chunks at all positions are right, so are all splits.
    start = case.with_tokens(case.tokens[:, :ALL_SPLITS_LENGTH])
    sizes = range(1, start.tokens.size(1) + 1)
    splits = (chunks for n in reversed(sizes) for chunks in product(sizes, repeat=n) if sum(chunks) == len(sizes))
    want = start.full_pass()
    deviations = [chunk_deviation(start, list(chunks), want) for chunks in splits]
    length, want, cache = case.tokens.size(1), case.full_pass(), case.new_cache()
    for begin in range(length):
        for size in range(1, length - begin + 1):
            got = case.feed(case.tokens[:, begin : begin + size], case.copy_cache(cache))
            difference = compare(got, [x.narrow(-2, begin, size) for x in want])
            deviations.append(difference.named(f"as a chunk of {size} after {begin} single tokens", begin))
        case.feed(case.tokens[:, begin : begin + 1], cache)
    return worst(deviations)


@claim("lengths", "logits of long sentences, of which a part is a prompt")
def long_sentence_deviation(case: ModelAndTokens[Any]) -> Deviation:
    """Steps, chunks and one prefill equal the full pass far beyond windows and blocks, to the last or 1024th token."""
    model = case.model
    longest = min(model.max_len or max([LONG_LENGTH, *(3 * span + 2 for span in model.window_sizes)]), MAX_LENGTH)
    ends = {end for span in model.window_sizes for end in (span, 2 * span, 3 * span) if end + 2 <= longest}
    ends |= {longest, min(longest, LONG_LENGTH)}
    together, deviations = takes_chunk_sizes(case, [2]), []
    spans = model.window_sizes if takes_chunk_sizes(case, [1, 2]) else ()
    for end in sorted(ends):
        length = min(end + 2, longest)
        long = extended_case(case, length)
        prompt = max(0, end - 3) if together else 0
        chunks = [*[prompt][: prompt > 0], *[1] * (length - prompt)]
        deviations.append(chunk_deviation(long, chunks).named(f"{prompt} tokens, and then one by one to {length}"))
        if length <= 3 * LONG_LENGTH and together:
            deviations.append(step_deviation(long))
            sizes = {length, *(span + by for span in spans for by in (-1, 1) if 1 < span + by < length)}
            deviations += [chunk_deviation(long, size) for size in sorted(sizes)]
    return worst(deviations)


def takes_chunk_sizes(case: ModelAndTokens[Any], sizes: list[int]) -> bool:
    """Whether the model takes chunks of these sizes; some take only single tokens, always or after the first chunk."""
    try:
        feed_in_chunks(case.with_tokens(extend_tokens(case, sum(sizes))), sizes)
    except NotOfferedError:
        return False
    return True


def feed_all(
    case: ModelAndTokens[Any], tokens: Tensor, cache: Any, together: bool, refusal: type[Exception] = Exception
) -> list[Tensor]:
    """The numbers for the next tokens, fed as one chunk if `together`, else one by one."""
    pieces = tokens.split(tokens.size(1) if together else 1, 1)
    return concat_outputs([case.feed(piece, cache, refusal=refusal) for piece in pieces])


def extended_case(case: ModelAndTokens[Any], length: int) -> ModelAndTokens[Any]:
    """The case with `length` tokens a row; if that is long, with its first row alone."""
    rows = case if length <= 3 * LONG_LENGTH else case.with_rows(slice(1))
    return replace(rows, tokens=extend_tokens(rows, length), refusal=Exception)


def extend_tokens(case: ModelAndTokens[Any], length: int) -> Tensor:
    """`length` tokens a row: those of the case, then as many others that differ from them in every place, and so on."""
    pieces = [case.tokens]
    while sum(piece.size(1) for piece in pieces) < length:
        pieces.append(case.other_tokens(pieces[-1]))
    return torch.cat(pieces, 1)[:, :length]


@claim("greedy", "ordinary tokens that differ by more than rounding", tolerance=0.0, lower=())
def n_greedy_differences(case: ModelAndTokens[Any]) -> Deviation:
    """Greedy decoding from the cache chooses the tokens that it chooses without one."""
    tokens, cache = case.tokens[:, :1], case.new_cache()
    new, n_different, ordinary = tokens, 0, torch.tensor(list(case.model.ordinary))
    for _ in range(case.tokens.size(1) - 1):
        cached, full = case.feed(new, cache)[0][:, -1], case.with_tokens(tokens).full_pass()[0][:, -1]
        new = ordinary[cached[:, ordinary].argmax(-1, keepdim=True)]
        below_best = full[:, ordinary].amax(-1, keepdim=True) - full.gather(-1, new)
        n_different += int((~(below_best <= dtype_tolerance(case.model.dtype))).sum())
        tokens = torch.cat([tokens, new], 1)
    return Deviation(n_different)


@claim("score", "log-probability per token of every sentence, summed over steps from the cache, against the full pass")
def sentence_score_deviation(case: ModelAndTokens[Any]) -> Deviation:
    """The log-probabilities of the steps add up to the teacher-forced score of each sentence."""
    return score_deviation(case.with_tokens(case.tokens[:, :-1]), case.tokens[:, 1:])


def score_deviation(case: ModelAndTokens[Any], targets: Tensor) -> Deviation:
    """The log-probability of the targets, summed over steps from the cache, against the full pass, per token.

    In nats, or in units of the largest logit if that is above 1, because rounding grows with the logits.

    `targets`, int64 (B, T), are the tokens that should come next; -1 where one does not count.
    """
    counts, cache = targets >= 0, case.new_cache()

    def log_p_of(logits: Tensor, targets: Tensor) -> Tensor:
        return F.log_softmax(logits.double() * case.logit_unit, -1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]

    pieces = zip(case.tokens.split(1, 1), targets.split(1, 1), strict=True)
    steps = torch.cat([log_p_of(case.feed(token, cache)[0], target) for token, target in pieces], 1)
    full_pass = log_p_of(case.full_pass()[0], targets)
    stepped, forced = (
        (log_p * counts).sum(1) / counts.sum(1) / max(1.0, case.logit_unit) for log_p in (steps, full_pass)
    )
    return deviation(stepped.to(case.model.dtype), forced)


@claim("static", "logits, one token at a time and after a prompt, against one full pass")
def static_cache_deviation(case: ModelAndTokens[Any]) -> Deviation:
    """A cache of a fixed size gives what the full pass gives."""
    static = case.with_variant("static")
    deviations = [step_deviation(static)]
    with suppress(NotOfferedError):
        deviations.append(chunk_deviation(static, [case.tokens.size(1) - 3, 1, 1, 1]))
    return worst(deviations)


@claim("weights", "logits and all attention weights, one token at a time")
def attention_weights_deviation(case: ModelAndTokens[Any]) -> Deviation:
    """The attention weights of the steps are those of the full pass: 0 for what comes later."""
    # Many models take the softmax in float32 whatever their dtype, so their weights agree only to float32's rounding.
    # Float64 weights that float32 holds exactly show this, unless bfloat16 holds them too, as it holds 0 and 1.
    case = case.with_variant("weights")
    weights = case.full_pass()[1:]
    if not weights:
        raise NotOfferedError("it returns no attention weights")
    difference = step_deviation(case)
    if case.model.dtype == torch.float64 and any(
        torch.equal(w, w.float().double()) and not torch.equal(w, w.bfloat16().double()) for w in weights
    ):
        difference.rounding_dtype = torch.float32
    return difference


claim, VISIBILITY_CHECKS = new_check_group("What may be seen")


@claim("causal.prefix", "logits of every prefix, against those of the whole")
def causal_prefix_deviation(case: ModelAndTokens[Any]) -> Deviation:
    """What is computed for the first tokens does not change when tokens are appended."""
    whole, deviations = case.full_pass(), []
    for n in range(1, case.tokens.size(1)):
        prefix = case.with_tokens(case.tokens[:, :n]).full_pass()
        deviations.append(compare(prefix, [x.narrow(-2, 0, n) for x in whole]).named(f"without what follows token {n}"))
    return worst(deviations)


@claim("causal.values", "logits of the first tokens, with others after them", lower=())
def future_deviation(case: ModelAndTokens[Any]) -> Deviation:
    """What is computed for the first tokens does not change when all later tokens are replaced."""
    whole, deviations = case.full_pass(), []
    for n in range(1, case.tokens.size(1)):
        other = case.with_other_tokens(slice(n, None)).full_pass()
        difference = compare([x.narrow(-2, 0, n) for x in other], [x.narrow(-2, 0, n) for x in whole])
        deviations.append(difference.named(f"with other tokens from {n} on"))
    return worst(deviations)


@claim("causal.gradient", "largest such gradient, relative to the largest for any token", tolerance=0.0, lower=())
@torch.enable_grad()
def future_gradient(case: ModelAndTokens[Any]) -> Deviation:
    """The gradient of the logits at a position with respect to every later token's vector is exactly 0."""
    embedded: list[Tensor] = []

    def keep(module: object, inputs: object, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1].clone()  # which the model may change in place

    memory = case.memory()
    hook = call_model(case.model.embedding, refusal=case.refusal).register_forward_hook(keep)
    try:
        logits = call_model(torch.enable_grad()(case.model.full_pass), memory, own_copy(case.tokens))[0]
    finally:
        hook.remove()
    if len(embedded) != 1 or embedded[0].shape[:2] != case.tokens.shape:
        raise NotOfferedError("the module that is said to embed the tokens is not called exactly once with them")
    if not logits.requires_grad:
        raise NotOfferedError("its full pass is computed without gradients")
    (x,) = embedded
    weights = torch.linspace(-1, 1, logits.size(-1), dtype=logits.dtype)  # the sum of some norms is constant
    errors = []
    for t in range(logits.size(1)):
        (gradient,) = torch.autograd.grad([(logits[:, t] * weights).sum()], x, retain_graph=True)
        size = gradient.abs().amax((0, 2))
        if not size[t] > 0:
            return Deviation(torch.inf).named(f"token {t} has no gradient from its own position")
        errors.append(size[t + 1 :].amax() / size.amax() if t + 1 < len(size) else size.new_zeros(()))
    return Deviation(torch.stack(errors).max())


@claim(
    "reach",
    f"positions and sources where a replacement moves the logits by less than {to_str(MIN_LOGIT_CHANGE)}",
    tolerance=0.0,
    lower=(),
)
def count_ineffective_tokens(case: ModelAndTokens[Any]) -> Deviation:
    """Every token changes the logits at its own position and at the next, and every source changes some."""
    whole, n_ineffective = case.full_pass()[0], 0
    for t in range(case.tokens.size(1) - 1):
        other = case.with_other_tokens(slice(t, t + 1)).full_pass()[0]
        moved = (other[:, t : t + 2] - whole[:, t : t + 2]).double().abs().amax((0, 2))
        n_ineffective += int((~(moved >= MIN_LOGIT_CHANGE)).sum())
    if case.model.has_source:
        src_ids = torch.where(case.src_mask, case.other_tokens(case.src_ids), case.src_ids)
        moved = (replace(case, src_ids=src_ids).full_pass()[0] - whole).double().abs().amax((1, 2))
        n_ineffective += int((~(moved >= MIN_LOGIT_CHANGE)).sum())
    return Deviation(n_ineffective)


claim, PADDING_CHECKS = new_check_group("Padding and other rows")


@claim("source.padding", "logits of each row alone without padding, in steps too, and of the batch with more padding")
def source_padding_deviation(case: ModelAndTokens[Any]) -> Deviation:
    """A source's padding changes nothing."""
    if not case.model.has_source:
        raise NotOfferedError("there is no encoder")
    whole, deviations = case.full_pass()[:1], []
    more = min(3, (case.model.max_len or sys.maxsize) - case.src_ids.size(1))
    padding = case.src_ids[~case.src_mask].tolist() or case.model.ordinary
    src_ids, src_mask = F.pad(case.src_ids, (0, more), value=padding[0]), F.pad(case.src_mask, (0, more))
    padded = replace(case, src_ids=src_ids, src_mask=src_mask, refusal=Exception)  # which may be too long
    deviations.append(compare(padded.full_pass()[:1], whole).named(f"with {more} more columns of padding"))
    for b in range(len(case.tokens)):
        row = case.unpadded_row(b)
        for name, got in (("", row.full_pass()), (", one by one", feed_in_chunks(row))):
            alone = compare(got[:1], [x[b : b + 1] for x in whole])
            deviations.append(alone.named(f"source {b} of {row.src_ids.size(1)} tokens alone and in the batch{name}"))
    return worst(deviations)


@claim("source.padding-token", "logits with another token in the padding")
def source_padding_content_deviation(case: ModelAndTokens[Any]) -> Deviation:
    """The tokens that fill a source's padding do not matter."""
    if not case.model.has_source:
        raise NotOfferedError("there is no encoder")
    other = replace(case, src_ids=torch.where(case.src_mask, case.src_ids, case.other_tokens(case.src_ids)))
    return compare(other.full_pass()[:1], case.full_pass()[:1]).named("with another token for padding")


def ragged_prompts(case: ModelAndTokens[Any], side: str) -> tuple[Tensor, Tensor]:
    """The first tokens of each row, fewer with every row, padded on a side; and the mask of the real ones."""
    if not case.model.takes_mask:
        raise NotOfferedError("it takes no mask for the target's padding")
    batch, length = case.tokens.shape
    lengths = torch.tensor([max(1, length - 2 - 2 * b) for b in range(batch)])[:, None]
    real = torch.arange(int(lengths.max())) < lengths
    mask = real.flip(1) if side == "left" else real
    prompts = torch.full(mask.shape, int(case.tokens[0, 0]))
    prompts[mask] = case.tokens[:, : mask.size(1)][real]
    return prompts, mask


def target_padding_deviation(case: ModelAndTokens[Any], side: str) -> Deviation:
    """Rows of different lengths, padded on a side, in one batch, against each row alone.

    Padded on the left, they are also fed through a cache, at once and in pieces if possible, followed by two steps.
    """
    prompts, mask = ragged_prompts(case, side)
    lengths = mask.sum(1).tolist()
    runs = [("alone and", mask, case.with_tokens(prompts).full_pass(mask)[0])]
    rest = torch.stack([case.tokens[b, n : n + 2] for b, n in enumerate(lengths)])
    real = F.pad(mask, (0, 2), value=True)
    for size in (lengths[0], *[3] * takes_chunk_sizes(case, [1, 2])) if side == "left" else ():
        pieces = [*prompts.split(size, 1), *rest.split(1, 1)]
        cache, masks = case.new_cache(), real.split([piece.size(1) for piece in pieces], 1)
        steps = [case.feed(piece, cache, mask)[0] for piece, mask in zip(pieces, masks, strict=True)]
        runs.append((f"in pieces of {size} and two steps,", real, torch.cat(steps, 1)))
    deviations = []
    for fed_how, seen, got in runs:
        for b, n in enumerate(lengths):
            own = case.with_rows(slice(b, b + 1))
            want = own.with_tokens(own.tokens[:, : int(seen[b].sum())]).full_pass()[0]
            difference = deviation(got[b : b + 1, seen[b]], want)
            deviations.append(difference.named(f"prompt {b} of {n} tokens {fed_how} padded on the {side}"))
    return worst(deviations)


@claim("padding.right", "logits of each row alone, and in one batch with longer ones")
def right_padding_deviation(case: ModelAndTokens[Any]) -> Deviation:
    """Padding to the right of a target changes nothing if a mask marks it as padding."""
    return target_padding_deviation(case, "right")


@claim("padding.left", "logits of each row alone, and in one batch with longer ones")
def left_padding_deviation(case: ModelAndTokens[Any]) -> Deviation:
    """Given mask and positions, padding to the left of a prompt changes nothing, not even in the steps after it."""
    return target_padding_deviation(case, "left")


@claim("padding.left-mask-alone", "logits of each row alone, and in one batch with longer ones")
def left_padding_without_positions_deviation(case: ModelAndTokens[Any]) -> Deviation:
    """Padding to the left changes nothing where only the mask is given: the model finds the positions by itself."""
    return target_padding_deviation(case.with_variant("mask alone"), "left")


@claim("batch", "logits of each row alone, in a batch with rows of other tokens, and with the rows in reverse")
def other_rows_deviation(case: ModelAndTokens[Any]) -> Deviation:
    """A row's numbers do not depend on the other rows."""
    rows, whole = torch.arange(len(case.tokens)), case.full_pass()
    turned = [x.flip(0) for x in case.with_rows(rows.flip(0)).full_pass()]
    deviations = [compare(turned, whole).named("with the rows in reverse")]
    others = case.other_tokens(case.tokens)
    halves = [case.with_tokens(torch.where((rows % 2 == n)[:, None], case.tokens, others)) for n in (0, 1)]
    for name, run in (("full pass", ModelAndTokens.full_pass), ("steps", feed_in_chunks)):
        got = [torch.stack([each[b % 2][b] for b in range(len(rows))]) for each in zip(*map(run, halves), strict=True)]
        deviations.append(compare(got, whole).named(f"beside rows of other tokens, {name}"))
    prompt = 1 + takes_chunk_sizes(case, [2])
    sizes = [prompt, *[1] * (case.tokens.size(1) - prompt)]
    prompted = feed_in_chunks(case, sizes)
    for b in range(len(rows)):
        row = case.with_rows(rows[b : b + 1])
        for name, got, want in (
            ("full pass", row.full_pass(), whole),
            ("after a prompt", feed_in_chunks(row, sizes, case.model.refusal), prompted),
        ):
            deviations.append(compare(got, [x[b : b + 1] for x in want]).named(f"row {b} alone, {name}"))
    return worst(deviations)


claim, ROW_CHECKS = new_check_group("Rows and caches")


def deviation_after_padding(case: ModelAndTokens[Any], change: Callable[[Any], Any], rows: Tensor) -> Deviation:
    """How far two steps after left-padded prompts move if `change` is applied to the cache, so that it has `rows`."""
    prompts, mask = ragged_prompts(case, "left")
    real = torch.ones_like(mask[:, :1])

    def steps(tokens: Tensor, change: Callable[[Any], Any], refusal: type[Exception]) -> Tensor:
        cache = case.new_cache()
        case.feed(prompts, cache, mask)
        cache = change(cache)
        return torch.cat([case.feed(x, cache, real, refusal)[0] for x in tokens[:, -2:].split(1, 1)], 1)

    want = steps(case.tokens, lambda cache: cache, Exception)
    if want.isnan().any():
        raise NotOfferedError("padding on the left makes NaN")
    return deviation(steps(case.tokens[rows], change, case.model.refusal)[rows.argsort()], want)


@claim("rows", "logits after each of four selections, against full passes on the selected rows")
def row_selection_deviation(case: ModelAndTokens[Any]) -> Deviation:
    """Rows of the cache can be reordered, dropped and repeated in mid-decode, and then go on with different tokens."""
    rows, length = case.tokens.shape
    selections = [[*range(rows)], [*range(1, rows), 0], [1, 0, *range(rows), 1], [rows] * rows, [2]][:length]
    size, others = length // len(selections), len(selections) - 1
    sizes = [length - others * size, *[size] * others]
    together = takes_chunk_sizes(case, [2])
    refusal = NotOfferedError if takes_chunk_sizes(case, sizes if together else [1] * length) else Exception
    cache, deviations = case.new_cache(), []
    kept = case.with_tokens(case.tokens[:, :0])
    # A row that is selected twice goes on with different tokens in its two places.
    for piece, selected in zip(case.tokens.split(sizes, 1), selections, strict=True):
        if start := kept.tokens.size(1):  # in an empty cache there is nothing to select
            cache, kept = case.select_rows(cache, torch.tensor(selected)), kept.with_rows(torch.tensor(selected))
        new = piece[torch.arange(len(kept.tokens)) % len(piece)]
        kept = kept.with_tokens(torch.cat([kept.tokens, new], 1))
        got = feed_all(case, new, cache, together, refusal)
        want = [x.narrow(-2, start, new.size(1)) for x in kept.full_pass()]
        deviations.append(compare(got, want).named(f"after selections of rows up to {selected}" * bool(start), start))
    reverse = torch.arange(rows).flip(0)
    with suppress(NotOfferedError):
        difference = deviation_after_padding(case, lambda cache: case.select_rows(cache, reverse), reverse)
        deviations.append(difference.named("with the rows in reverse after prompts padded on the left"))
    return worst(deviations)


@claim("rollback", "logits after drafts of several lengths, each dropped again, against the full pass")
def rollback_deviation(case: ModelAndTokens[Any]) -> Deviation:
    """A cache whose last tokens are dropped goes on as if it had never held them, as speculative decoding requires."""
    if "rollback" in case.model.variants:
        case = case.with_variant("rollback")
    longest, deviations = min(case.model.max_len or MAX_LENGTH, MAX_LENGTH), []
    together, ways = takes_chunk_sizes(case, [2]), [*["in one chunk"] * takes_chunk_sizes(case, [1, 2]), "one by one"]
    for span in [span for span in case.model.window_sizes if 0 < span <= longest - 2] or [MAX_DRAFT]:
        most = span if span <= LONG_LENGTH else ALL_SPLITS_LENGTH
        prompt, length = max(1, span - most), min(span + 2 * most, longest)
        right = extended_case(case, length)
        drafts, want = case.other_tokens(right.tokens), right.full_pass()
        for way in ways:
            cache, refusal = right.new_cache(), Exception
            feed_all(right, right.tokens[:, :prompt], cache, together)
            for t in range(prompt, length - 1):
                n = min(1 + t % most, length - 1 - t)
                tokens = torch.cat([right.tokens[:, t : t + 1], drafts[:, t + 1 : t + 1 + n]], 1)
                pieces = tokens.split(1 if way == "one by one" else n + 1, 1)
                got, *_ = [right.feed(piece, cache, refusal=refusal) for piece in pieces]
                cache, refusal = right.drop_last(cache, n), NotOfferedError
                error = compare([x.narrow(-2, 0, 1) for x in got], [x.narrow(-2, t, 1) for x in want])
                deviations.append(error.named(f"after drafts of up to {most} tokens, fed {way} and dropped again", t))
                if not error <= dtype_tolerance(case.model.dtype):
                    break  # else a cache that drops nothing may overflow

    def draft(cache: Any) -> Any:
        case.feed(case.tokens[:, :1], cache, torch.ones_like(case.tokens[:, :1], dtype=torch.bool))
        return case.drop_last(cache, 1)

    with suppress(NotOfferedError):
        difference = deviation_after_padding(case, draft, torch.arange(len(case.tokens)))
        deviations.append(difference.named("after prompts padded on the left and a token that was dropped again"))
    return worst(deviations)


@claim("fork", "logits of a cache, a copy and a copy of the copy that go on in turns, against full passes")
def fork_deviation(case: ModelAndTokens[Any]) -> Deviation:
    """Copies of a cache that go on with different tokens disturb neither one another nor the cache that was copied."""
    half, together = case.tokens.size(1) // 2, takes_chunk_sizes(case, [2])
    start, rest, cache = case.tokens[:, :half], case.tokens[:, half:], case.new_cache()
    feed_all(case, start, cache, together)
    copied = case.copy_cache(cache)
    caches = {"the cache that was copied": cache, "a copy": copied, "a copy of a copy": case.copy_cache(copied)}
    ends = [rest, case.other_tokens(rest), case.other_tokens(case.other_tokens(rest))]
    turns = zip(*(end.split(1, 1) for end in ends), strict=True)
    steps = [[case.feed(*each) for each in zip(pieces, caches.values(), strict=True)] for pieces in turns]
    deviations = []
    for name, end, mine in zip(caches, ends, zip(*steps, strict=True), strict=True):
        want = case.with_tokens(torch.cat([start, end], 1)).full_pass()
        difference = compare(concat_outputs(mine), [x.narrow(-2, half, end.size(1)) for x in want])
        deviations.append(difference.named(f"{name} after {half} tokens", half))
    with suppress(NotOfferedError):
        difference = deviation_after_padding(case, case.copy_cache, torch.arange(len(case.tokens)))
        deviations.append(difference.named("a copy after prompts padded on the left"))
    return worst(deviations)


@claim("caches.two", "logits of two decodes that take turns, against full passes")
def interleaved_deviation(case: ModelAndTokens[Any]) -> Deviation:
    """Two caches in use at once on one model do not mix."""
    reverse = case.with_rows(torch.arange(len(case.tokens)).flip(0))
    both = [case, reverse.with_tokens(torch.cat([case.tokens[:, :1], case.tokens[:, 1:].flip(1)], 1).flip(0))]
    caches = [each.new_cache() for each in both]
    steps: list[list[list[Tensor]]] = [[], []]
    for pieces in zip(*(each.tokens.split(1, 1) for each in both), strict=True):
        for each, piece, cache, mine in zip(both, pieces, caches, steps, strict=True):
            mine.append(each.feed(piece, cache))
    return worst([compare(concat_outputs(mine), each.full_pass()) for mine, each in zip(steps, both, strict=True)])


@claim("caches.alternating", "logits, with a full pass after every one or two tokens, against a full pass before")
def full_pass_between_deviation(case: ModelAndTokens[Any]) -> Deviation:
    """Cached, then uncached, then cached again on one model: neither affects the other."""
    want, steps, deviations = case.full_pass(), [], []
    pieces = case.tokens.split(2 if takes_chunk_sizes(case, [2, 2]) else 1, 1)
    cache = case.new_cache()
    for piece in pieces:
        steps.append(case.feed(piece, cache))
        deviations.append(compare(case.full_pass(), want).named("full pass between steps"))
    return worst([*deviations, compare(concat_outputs(steps), want)])


@claim(
    "random",
    "how many of the two, a full pass and steps, change the state of PyTorch's random number generator",
    tolerance=0.0,
    lower=(),
)
def rng_state_changes(case: ModelAndTokens[Any]) -> Deviation:
    """A model in eval mode draws no random numbers."""
    moved = 0
    runs: list[Callable[[], object]] = [case.full_pass, lambda: feed_in_chunks(case)]
    for run in runs:
        before = torch.get_rng_state()
        run()
        moved += not torch.equal(before, torch.get_rng_state())
    return Deviation(moved)


claim, GENERATION_CHECKS = new_check_group("Generating")
ARGMAX_GAP_TEXT = "how far a token's logit lies below the largest, by a full pass over the tokens before it"
TIE_GAP = dtype_tolerance(torch.float32)  # logits that are closer are a tie: many models round them to float32


def continue_prompts(case: ModelAndTokens[Any], prompts: Tensor, way: str, mask: Tensor | None = None) -> Tensor:
    """The prompts (B, T) and what is generated after them, at most MAX_LENGTH_WITH_PROMPT tokens in all."""
    n = min(case.model.max_len or MAX_LENGTH_WITH_PROMPT, MAX_LENGTH_WITH_PROMPT) - prompts.size(1)
    outputs: Tensor = call_model(case.model.generate, case.memory(), own_copy(prompts), n, way, mask)
    shape = N_BEAMS if "beams" in way else len(prompts), prompts.size(1) + n
    if outputs.shape != shape or not (outputs[:, : prompts.size(1)] == prompts).all():
        raise ValueError(f"generated {tuple(outputs.shape)} tokens instead of {shape}, or changed the prompts")
    return outputs


def argmax_gap(case: ModelAndTokens[Any], n_given: int) -> Deviation:
    """How far the logit of each token after the first `n_given` lies below the largest; 0 for the likeliest token."""
    logits = case.with_tokens(case.tokens[:, :-1]).full_pass()[0][:, n_given - 1 :]
    chosen = logits.gather(-1, case.tokens[:, n_given:, None])
    best = logits[..., list(case.model.ordinary)].amax(-1, keepdim=True)
    return deviation(chosen, best).named(offset=n_given)


def repeating_prompt_case(case: ModelAndTokens[Any], b: int) -> ModelAndTokens[Any]:
    """A row's source, and a prompt whose last tokens occur in it before, so that a look-up finds a draft."""
    row = case.unpadded_row(b)
    length = min(case.model.max_len or MAX_LENGTH_WITH_PROMPT, MAX_LENGTH_WITH_PROMPT) // 2
    return row.with_tokens(torch.cat([row.tokens[:, :3], row.tokens[:, 1:3]], 1)[:, :length])


@claim("generate.greedy", ARGMAX_GAP_TEXT, tolerance=TIE_GAP, lower=())
def generated_argmax_gap(case: ModelAndTokens[Any], ways: Sequence[str] = ("cached", "uncached")) -> Deviation:
    """Greedy generation, with a cache and without one, takes the likeliest tokens by the full pass."""
    deviations = []
    for way in ways:
        for b in range(len(case.tokens)):
            row = repeating_prompt_case(case, b)
            output = row.with_tokens(continue_prompts(row, row.tokens, way))
            deviations.append(argmax_gap(output, row.tokens.size(1)).named(f"prompt {b} alone, {way}"))
    return worst(deviations)


@claim("generate.lookup", ARGMAX_GAP_TEXT, tolerance=TIE_GAP, lower=())
def lookup_argmax_gap(case: ModelAndTokens[Any]) -> Deviation:
    """Generation with drafts looked up in the prompt takes the likeliest tokens by the full pass."""
    return generated_argmax_gap(case, ("lookup",))


@claim("generate.assisted", ARGMAX_GAP_TEXT, tolerance=TIE_GAP, lower=())
def assisted_argmax_gap(case: ModelAndTokens[Any]) -> Deviation:
    """Generation with drafts by another model, or by the model itself, takes the likeliest tokens by the full pass."""
    return generated_argmax_gap(case, ("draft", "own draft"))


@claim("generate.ragged", ARGMAX_GAP_TEXT, tolerance=TIE_GAP, lower=())
def ragged_argmax_gap(case: ModelAndTokens[Any]) -> Deviation:
    """In a batch of left-padded prompts or padded sources, generation takes the likeliest tokens by the full pass."""
    prompts, mask = ragged_prompts(case, "left") if case.model.takes_mask else (case.tokens[:, :3], None)
    outputs, deviations = continue_prompts(case, prompts, "cached", mask), []
    for b in range(len(prompts)):
        n_padding = 0 if mask is None else int((~mask[b]).sum())
        row = case.unpadded_row(b).with_tokens(outputs[b : b + 1, n_padding:])
        deviations.append(argmax_gap(row, prompts.size(1) - n_padding).named(f"prompt {b} in a batch"))
    return worst(deviations)


@claim(
    "generate.beams", "log-probability per token, by the full pass, of the beams in order", tolerance=TIE_GAP, lower=()
)
def cached_beam_search_deviation(case: ModelAndTokens[Any]) -> Deviation:
    """Beam search finds with a cache what it finds without one."""
    deviations = []
    for b in range(len(case.tokens)):
        row, scores = repeating_prompt_case(case, b), []
        for way in ("beams", "uncached beams"):
            tokens = continue_prompts(row, row.tokens, way)
            beams = row.with_rows(torch.zeros(N_BEAMS, dtype=torch.int64)).with_tokens(tokens[:, :-1])
            log_p = F.log_softmax(beams.full_pass()[0] * case.logit_unit, -1).gather(-1, tokens[:, 1:, None])
            scores.append(log_p[:, row.tokens.size(1) - 1 :].mean(1) / max(1.0, case.logit_unit))
        deviations.append(deviation(*scores).named(f"prompt {b}"))
    return worst(deviations)


CHECKS = [*STEP_CHECKS, *VISIBILITY_CHECKS, *PADDING_CHECKS, *ROW_CHECKS, *GENERATION_CHECKS]
