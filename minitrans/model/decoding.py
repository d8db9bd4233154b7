"""Turn a source into a target, token by token: ids in, ids out."""

import random
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from minitrans.model.cache import DecoderCache
from minitrans.compiled.stepper import Engine, EngineCache
from minitrans.model.masks import padding_mask
from minitrans.model.transformer import Transformer, TransformerConfig


def length_limit(src_len: int, max_len: int) -> int:
    """The most target tokens, EOS included, that a source of `src_len` tokens may get.

    It depends on the row alone, never on the batch it happens to be in, so that neither does the result.
    """
    return min(max_len, 2 * src_len + 10)


def _limits(src_ids: Tensor, config: TransformerConfig) -> list[int]:
    lengths = padding_mask(src_ids, config.pad_id).sum(-1).flatten().tolist()
    return [length_limit(n, config.max_len) for n in lengths]


def likeliest_token(logits: Tensor, model: Transformer) -> Tensor:
    """The greedy choice: logits (B, V) -> int64 (B,). PAD and BOS are never chosen, for they are not output."""
    logits = logits.clone()
    logits[:, [model.config.pad_id, model.config.bos_id]] = -torch.inf
    return logits.argmax(-1)


def likeliest_tokens(logits: Tensor, n: int, model: Transformer) -> tuple[Tensor, Tensor]:
    """The n likeliest tokens, or all there are, best first: logits (B, V) -> log-probabilities and int64 ids (B, n).

    The first is the greedy choice. PAD and BOS have the log-probability -inf.
    """
    log_p = F.log_softmax(logits, dim=-1, dtype=torch.promote_types(torch.float32, logits.dtype))
    log_p[:, [model.config.pad_id, model.config.bos_id]] = -torch.inf
    first = likeliest_token(logits, model)[:, None]  # among equals topk may see any first
    others = log_p.scatter(1, first, -torch.inf).topk(min(n, log_p.size(1)) - 1)
    return torch.cat([log_p.gather(1, first), others.values], 1), torch.cat([first, others.indices], 1)


def begin(model: Transformer | Engine, src_ids: Tensor, capacity: int) -> DecoderCache | EngineCache:
    """Read the sources, int64 (B, S), to decode `capacity` tokens of each at most."""
    if isinstance(model, Engine):
        return model.encode(src_ids)
    return model.init_cache(*model.encode(src_ids), capacity)


def feed(
    model: Transformer | Engine, tokens: Tensor, cache: DecoderCache | EngineCache, n: int
) -> tuple[Tensor, Tensor]:
    """Feed each row its next token, int64 (R,): log-probabilities and ids of its n likeliest continuations, (R, n)."""
    if isinstance(model, Engine):
        assert isinstance(cache, EngineCache)
        return model.next_tokens(tokens, cache, n)
    assert isinstance(cache, DecoderCache)
    return likeliest_tokens(model.step(tokens[:, None], cache)[:, -1], n, model)


@torch.inference_mode()
def greedy_decode(model: Transformer | Engine, src_ids: Tensor, use_cache: bool = True) -> list[list[int]]:
    """Take the likeliest token at every step, until EOS or the row's length limit.

    Args:
        model: In eval mode; or an engine that was made of one.
        src_ids: int64 (B, S), padded on the right.
        use_cache: Whether to compute only the new token at each step, or the whole prefix again. Both give the same
            result; the second is slow, and there to compare with. An engine always uses its cache.

    Returns:
        For each row its target tokens, without BOS and EOS.

    Raises:
        ValueError: The source is longer than `max_len`.
    """
    config = model.config
    if not len(src_ids):
        return []
    limits = _limits(src_ids, config)
    if use_cache:
        cache = begin(model, src_ids, max(limits))
    else:
        assert isinstance(model, Transformer)
        full_pass, (memory, src_mask) = model, model.encode(src_ids)
        prefix = src_ids[:, :0]
    outputs: list[list[int]] = [[] for _ in limits]
    rows = list(range(len(limits)))  # those still in the batch
    tokens = src_ids.new_full((len(rows),), config.bos_id)
    for t in range(max(limits)):
        if use_cache:
            tokens = feed(model, tokens, cache, 1)[1][:, 0]
        else:
            prefix = torch.cat([prefix, tokens[:, None]], dim=1)
            tokens = likeliest_token(full_pass.decode(prefix, memory, src_mask)[:, -1], full_pass)
        going = []
        for i, (row, id_) in enumerate(zip(rows, tokens.tolist(), strict=True)):
            if id_ != config.eos_id:
                outputs[row].append(id_)
                if t + 1 < limits[row]:
                    going.append(i)
        if not going:
            break
        if len(going) < len(rows):
            rows, keep = [rows[i] for i in going], torch.tensor(going, device=tokens.device)
            tokens = tokens[keep]
            if use_cache:
                cache.select_rows(keep)
            else:
                prefix, memory, src_mask = prefix[keep], memory[keep], src_mask[keep]
    return outputs


@torch.inference_mode()
def sample(model: Transformer | Engine, src_ids: Tensor, top: int, seed: int) -> list[list[int]]:
    """Draw each token from the likeliest ones, by their probabilities, until EOS or the row's length limit.

    Args:
        model: In eval mode; or an engine that was made of one.
        src_ids: int64 (B, S), padded on the right.
        top: How many tokens one is drawn from; 1 is greedy decoding.
        seed: With the tokens of its source it decides what is drawn for a row, whatever rows are beside it.

    Returns:
        For each row its target tokens, without BOS and EOS.

    Raises:
        ValueError: The source is longer than `max_len`.

    Source: Fan et al. 2018, section 3.1 (top-k random sampling).
    """
    config = model.config
    if not len(src_ids):
        return []
    limits = _limits(src_ids, config)
    draws = [random.Random(f"{seed} {row[row != config.pad_id].tolist()}") for row in src_ids]
    cache = begin(model, src_ids, max(limits))
    tokens = src_ids.new_full((len(limits),), config.bos_id)
    going = torch.tensor(limits, device=src_ids.device)  # tokens that each row may get yet
    drawn: list[Tensor] = []
    while going.any():
        log_p, ids = feed(model, tokens, cache, top)
        choices = zip(draws, ids.tolist(), log_p.exp().tolist(), strict=True)
        tokens = tokens.new_tensor([draw.choices(row, weights)[0] for draw, row, weights in choices])
        drawn.append(tokens)
        going = (going - 1).masked_fill(tokens == config.eos_id, 0).clamp(min=0)
    rows = zip(torch.stack(drawn, 1).tolist(), limits, strict=True)
    return [[*takewhile(lambda id_: id_ != config.eos_id, row[:limit])] for row, limit in rows]


class Hypothesis(NamedTuple):
    """What beam search found for a source.

    Attributes:
        ids: Target tokens, without BOS and EOS.
        log_prob: Log-probability of the tokens, and of EOS where that ended them, in nats.
        score: What it was ranked by: log_prob / n ** length_penalty for n tokens, EOS counted.
    """

    ids: list[int]
    log_prob: float
    score: float


@torch.inference_mode()
def beam_search(
    model: Transformer | Engine, src_ids: Tensor, beam: int, length_penalty: float = 1.0
) -> list[list[Hypothesis]]:
    """Follow the likeliest beginnings of each row, `beam` of them, until as many have ended.

    A beginning ends with EOS, where that is one of the row's `beam` best continuations, or at the row's length limit.
    With one beam this is greedy decoding.

    Args:
        model: In eval mode; or an engine that was made of one.
        src_ids: int64 (B, S), padded on the right.
        beam: How many beginnings of a row are followed, K.
        length_penalty: 0 ranks by log-probability, which prefers short outputs; 1 by its mean over the tokens.

    Returns:
        For each row its hypotheses, the best first: K, or fewer where the vocabulary has no more.

    Raises:
        ValueError: The source is longer than `max_len`.

    Source: Wu et al. 2016, section 7, with a plain power of the length.
    """
    config = model.config
    if not len(src_ids):
        return []
    limits = _limits(src_ids, config)
    longest = max(limits)
    cache = begin(model, src_ids, longest)
    found: list[list[Hypothesis]] = [[] for _ in limits]

    def finish(row: int, tokens: Tensor, n: int, log_prob: float) -> None:
        if len(found[row]) < beam and log_prob > -torch.inf:
            ids = [id_ for id_ in tokens[1 : n + 1].tolist() if id_ != config.eos_id]
            found[row].append(Hypothesis(ids, log_prob, log_prob / n**length_penalty))

    rows = list(range(len(limits)))  # those still in the batch, R of them; each has W beginnings, at first one
    tokens = src_ids.new_full((len(rows), 1, 1 + longest), config.pad_id)  # (R, W, .)
    tokens[..., 0] = config.bos_id
    log_probs = torch.zeros(len(rows), 1, device=src_ids.device)  # (R, W)
    for t in range(longest):
        continuations, ids = feed(model, tokens[..., t].flatten(), cache, 2 * beam)  # 2K, so that K do not end
        totals = (log_probs.view(-1, 1) + continuations).view(len(rows), -1)
        log_probs, order = (x[:, : 2 * beam] for x in totals.sort(descending=True, stable=True))
        chosen = ids.view(len(rows), -1).gather(1, order)
        parents = order // ids.size(1) + tokens.size(1) * torch.arange(len(rows), device=order.device)[:, None]
        tokens = tokens.flatten(0, 1)[parents]  # (R, 2K, .)
        tokens[..., t + 1] = chosen

        ended = chosen == config.eos_id
        for r, w in ended[:, :beam].nonzero().tolist():
            finish(rows[r], tokens[r, w], t + 1, log_probs[r, w].item())
        log_probs, kept = (
            x[:, :beam] for x in log_probs.masked_fill(ended, -torch.inf).sort(descending=True, stable=True)
        )
        tokens, parents = tokens.gather(1, kept[..., None].expand(-1, -1, tokens.size(2))), parents.gather(1, kept)
        for r in (r for r, row in enumerate(rows) if limits[row] == t + 1):
            for w, log_prob in enumerate(log_probs[r].tolist()):
                finish(rows[r], tokens[r, w], t + 1, log_prob)

        going = [r for r, row in enumerate(rows) if len(found[row]) < beam and t + 1 < limits[row]]
        if not going:
            break
        rows = [rows[r] for r in going]
        keep = torch.tensor(going, device=order.device)
        tokens, log_probs = tokens[keep], log_probs[keep]
        cache.select_rows(parents[keep].flatten())
    return [sorted(hypotheses, key=lambda h: h.score, reverse=True) for hypotheses in found]
