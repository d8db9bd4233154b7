"""Turn a source into a target, token by token: ids in, ids out."""

from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from minitrans.model.cache import DecoderCache
from minitrans.model.transformer import Transformer, TransformerConfig


class DecoderState(Protocol):
    """What a decode in progress remembers of its rows."""

    def select_rows(self, rows: Tensor) -> None:
        """Keep the given rows, int64 (R',), in the given order: reorders, drops and repeats."""


AnyState = TypeVar("AnyState", bound=DecoderState)


class Stepper(Protocol[AnyState]):
    """Anything that computes the next tokens; greedy and beam search need nothing else."""

    @property
    def config(self) -> TransformerConfig:
        """The model's sizes and special ids."""

    @property
    def max_concurrent_batches(self) -> int:
        """How many threads can usefully decode at the same time, each its own batch."""

    def begin(self, src_ids: Tensor, capacity: int) -> AnyState:
        """Read the sources, int64 (B, S), padded on the right, to decode at most `capacity` tokens of each.

        Raises:
            ValueError: The source is longer than `max_len`.
        """

    def next_tokens(self, tokens: Tensor, state: AnyState, n: int) -> tuple[Tensor, Tensor]:
        """Feed each row its newest token, int64 (R,), at first BOS; see `likeliest_tokens` for the result."""


class CachedStepper:
    """The usual stepper: `Transformer.step` with its cache."""

    max_concurrent_batches = 1  # PyTorch's own threads share the work of a step

    def __init__(self, model: Transformer) -> None:
        """Take a model in eval mode."""
        self.model, self.config = model, model.config

    def begin(self, src_ids: Tensor, capacity: int) -> DecoderCache:
        """See `Stepper`."""
        return self.model.init_cache(*self.model.encode(src_ids), capacity)

    def next_tokens(self, tokens: Tensor, state: DecoderCache, n: int) -> tuple[Tensor, Tensor]:
        """See `Stepper`."""
        return likeliest_tokens(self.model.step(tokens[:, None], state)[:, -1], n, self.config)


class UncachedStepper:
    """The same without a cache: the full masked pass over the whole prefix at every step. Slow; for comparison."""

    max_concurrent_batches = 1

    def __init__(self, model: Transformer) -> None:
        """Take a model in eval mode."""
        self.model, self.config = model, model.config

    def begin(self, src_ids: Tensor, capacity: int) -> "UncachedState":
        """See `Stepper`."""
        return UncachedState(src_ids[:, :0], *self.model.encode(src_ids))

    def next_tokens(self, tokens: Tensor, state: "UncachedState", n: int) -> tuple[Tensor, Tensor]:
        """See `Stepper`."""
        state.fed = torch.cat([state.fed, tokens[:, None]], dim=1)
        return likeliest_tokens(self.model.decode(state.fed, state.memory, state.src_mask)[:, -1], n, self.config)


class UncachedState:
    """All tokens fed to each row so far, int64 (R, t), and its source as `Transformer.encode` gives it."""

    def __init__(self, fed: Tensor, memory: Tensor, src_mask: Tensor) -> None:
        self.fed, self.memory, self.src_mask = fed, memory, src_mask

    def select_rows(self, rows: Tensor) -> None:
        """See `DecoderState`."""
        self.fed, self.memory, self.src_mask = self.fed[rows], self.memory[rows], self.src_mask[rows]


def length_limits(src_ids: Tensor, config: TransformerConfig) -> list[int]:
    """`length_limit` of each row of int64 (B, S)."""
    return [length_limit(n, config.max_len) for n in source_lengths(src_ids, config.pad_id)]


def source_lengths(src_ids: Tensor, pad_id: int) -> list[int]:
    """The number of real tokens in each row of int64 (B, S).

    Raises:
        ValueError: There is padding before one of them.
    """
    real = src_ids != pad_id
    if (real[:, 1:] > real[:, :-1]).any():
        raise ValueError("there is padding before a token: sources are padded on the right")
    return real.sum(-1).tolist()


def length_limit(src_len: int, max_len: int) -> int:
    """The most target tokens, EOS included, that a source of `src_len` tokens may get.

    It depends only on the row, never on the rest of the batch, and so does the result.
    """
    return min(max_len, 2 * src_len + 10)


def suppress_pad_bos(logits: Tensor, config: TransformerConfig) -> Tensor:
    """Logits (..., V) with -inf for PAD and BOS, which are never output."""
    logits = logits.clone()
    logits[..., [config.pad_id, config.bos_id]] = -torch.inf
    return logits


def greedy_token_ids(logits: Tensor, config: TransformerConfig) -> Tensor:
    """The greedy choice: logits (B, V) -> int64 (B,)."""
    return suppress_pad_bos(logits, config).argmax(-1)


def token_log_probs(logits: Tensor, ids: Tensor) -> Tensor:
    """The log-probability of each token of int64 ids (...) under logits (..., V): (...), at least float32."""
    log_p = F.log_softmax(logits, dim=-1, dtype=torch.promote_types(torch.float32, logits.dtype))
    return log_p.gather(-1, ids[..., None])[..., 0]


def likeliest_tokens(logits: Tensor, n: int, config: TransformerConfig) -> tuple[Tensor, Tensor]:
    """The n likeliest tokens, or all V, best first: logits (B, V) -> log-probabilities and int64 ids (B, n).

    The first is the greedy choice. PAD and BOS have the log-probability -inf. Raises ValueError if n is below 1.
    """
    if n < 1:
        raise ValueError(f"n is {n}; it must be at least 1")
    log_p = suppress_pad_bos(F.log_softmax(logits, -1, dtype=torch.promote_types(torch.float32, logits.dtype)), config)
    first = greedy_token_ids(logits, config)[:, None]  # topk may put any of several equal ones first
    others = log_p.scatter(1, first, -torch.inf).topk(min(n, log_p.size(1)) - 1)
    return torch.cat([log_p.gather(1, first), others.values], 1), torch.cat([first, others.indices], 1)


class Hypothesis(NamedTuple):
    """A target found for a source.

    Attributes:
        ids: Target tokens, without BOS and EOS.
        log_prob: Log-probability of the tokens, and of EOS if it ended them, in nats.
        score: What beam search ranks by: log_prob / n_tokens ** length_penalty.
        n_tokens: How many tokens were decoded: EOS too, unless the length limit came first.
    """

    ids: list[int]
    log_prob: float
    score: float
    n_tokens: int


@torch.inference_mode()
def greedy_decode(stepper: Stepper[AnyState], src_ids: Tensor, length_penalty: float = 1.0) -> list[Hypothesis]:
    """Take the likeliest token at every step, until EOS or the row's length limit; return one hypothesis per row.

    Args:
        stepper: What computes the steps, such as `CachedStepper(model)`.
        src_ids: int64 (B, S), padded on the right.
        length_penalty: Affects only the score, see `Hypothesis`.

    Raises:
        ValueError: The source is longer than `max_len`, or padded on the left.
    """
    config = stepper.config
    if not len(src_ids):
        return []
    limits = length_limits(src_ids, config)
    cache = stepper.begin(src_ids, max(limits))
    outputs: list[list[int]] = [[] for _ in limits]
    log_probs = [0.0] * len(limits)
    rows = list(range(len(limits)))  # those still in the batch
    tokens = src_ids.new_full((len(rows),), config.bos_id)
    for t in range(max(limits)):
        log_p, ids = stepper.next_tokens(tokens, cache, 1)
        tokens = ids[:, 0]
        going = []
        for i, (row, id_, p) in enumerate(zip(rows, tokens.tolist(), log_p[:, 0].tolist(), strict=True)):
            log_probs[row] += p
            if id_ != config.eos_id:
                outputs[row].append(id_)
                if t + 1 < limits[row]:
                    going.append(i)
        if not going:
            break
        if len(going) < len(rows):
            rows, keep = [rows[i] for i in going], torch.tensor(going, device=tokens.device)
            tokens = tokens[keep]
            cache.select_rows(keep)
    n_tokens = [min(len(ids_) + 1, limit) for ids_, limit in zip(outputs, limits, strict=True)]
    results = zip(outputs, log_probs, n_tokens, strict=True)
    return [Hypothesis(ids_, p, p / n**length_penalty, n) for ids_, p, n in results]


@torch.inference_mode()
def beam_search(
    stepper: Stepper[AnyState], src_ids: Tensor, beam: int, length_penalty: float = 1.0
) -> list[list[Hypothesis]]:
    """Follow the `beam` likeliest prefixes of each row, until that many have ended.

    A prefix ends with EOS, if that is one of the row's `beam` best continuations, or at the row's length limit.
    With one beam this is greedy decoding.

    Args:
        stepper: What computes the steps, such as `CachedStepper(model)`.
        src_ids: int64 (B, S), padded on the right.
        beam: How many prefixes of a row are followed, K, at least 1.
        length_penalty: 0 ranks by log-probability, which prefers short outputs; 1 by its mean over the tokens.

    Returns:
        For each row its hypotheses, the best first: K, or fewer where the vocabulary has no more.

    Raises:
        ValueError: The source is longer than `max_len`, or padded on the left; or `beam` is below 1.

    Source: Wu et al. 2016, section 7, with a plain power of the length.
    """
    config = stepper.config
    if not len(src_ids):
        return []
    limits = length_limits(src_ids, config)
    longest = max(limits)
    cache = stepper.begin(src_ids, longest)
    finished: list[list[Hypothesis]] = [[] for _ in limits]

    def add_hypothesis(row: int, tokens: Tensor, n: int, log_prob: float) -> None:
        if len(finished[row]) < beam and log_prob != -torch.inf:
            ids = [id_ for id_ in tokens[1 : n + 1].tolist() if id_ != config.eos_id]
            finished[row].append(Hypothesis(ids, log_prob, log_prob / n**length_penalty, n))

    rows = list(range(len(limits)))  # those still in the batch, R of them; each has W prefixes, at first one
    tokens = src_ids.new_full((len(rows), 1, 1 + longest), config.pad_id)  # (R, W, .)
    tokens[..., 0] = config.bos_id
    log_probs = torch.zeros(len(rows), 1, device=src_ids.device)  # (R, W)
    for t in range(longest):
        continuations, ids = stepper.next_tokens(tokens[..., t].flatten(), cache, 2 * beam)  # 2K: at most K of them end
        totals = (log_probs.view(-1, 1) + continuations).view(len(rows), -1)
        log_probs, order = (x[:, : 2 * beam] for x in totals.sort(descending=True, stable=True))
        chosen = ids.view(len(rows), -1).gather(1, order)
        parents = order // ids.size(1) + tokens.size(1) * torch.arange(len(rows), device=order.device)[:, None]
        tokens = tokens.flatten(0, 1)[parents]  # (R, 2K, .)
        tokens[..., t + 1] = chosen

        ended = chosen == config.eos_id
        for r, w in ended[:, :beam].nonzero().tolist():
            add_hypothesis(rows[r], tokens[r, w], t + 1, log_probs[r, w].item())
        going_on = log_probs.masked_fill(ended, -torch.inf).sort(descending=True, stable=True)
        log_probs, kept = (x[:, :beam] for x in going_on)
        tokens, parents = tokens.gather(1, kept[..., None].expand(-1, -1, tokens.size(2))), parents.gather(1, kept)
        for r in (r for r, row in enumerate(rows) if limits[row] == t + 1):
            for w, log_prob in enumerate(log_probs[r].tolist()):
                add_hypothesis(rows[r], tokens[r, w], t + 1, log_prob)

        going = [r for r, row in enumerate(rows) if len(finished[row]) < beam and t + 1 < limits[row]]
        if not going:
            break
        rows = [rows[r] for r in going]
        keep = torch.tensor(going, device=order.device)
        tokens, log_probs = tokens[keep], log_probs[keep]
        cache.select_rows(parents[keep].flatten())
    return [sorted(hypotheses, key=lambda h: h.score, reverse=True) for hypotheses in finished]
