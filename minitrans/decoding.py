"""Turn a source into a target, token by token: ids in, ids out."""

import torch
from torch import Tensor

from minitrans.model import Transformer

COMPACT_AT = 0.25  # finished rows leave the batch once they are this share of it: copying the cache has a price


def length_limit(src_len: int, max_len: int) -> int:
    """The most target tokens, EOS included, that a source of `src_len` tokens may get.

    It depends on the row alone, never on the batch it happens to be in, so that neither does the result.
    """
    return min(max_len, 2 * src_len + 10)


def likeliest_token(logits: Tensor, model: Transformer) -> Tensor:
    """The greedy choice: logits (B, V) -> int64 (B,). PAD and BOS are never chosen, for they are not output."""
    logits = logits.clone()
    logits[:, [model.config.pad_id, model.config.bos_id]] = -torch.inf
    return logits.argmax(-1)


@torch.inference_mode()
def greedy_decode(model: Transformer, src_ids: Tensor, use_cache: bool = True) -> list[list[int]]:
    """Take the likeliest token at every step, until EOS or the row's length limit.

    Args:
        model: In eval mode.
        src_ids: int64 (B, S), padded on the right.
        use_cache: Whether to compute only the new token at each step, or the whole prefix again. Both give the same
            result; the second is slow, and there to compare with.

    Returns:
        For each row its target tokens, without BOS and EOS.

    Raises:
        ValueError: The source is longer than `max_len`.
    """
    config = model.config
    if not len(src_ids):
        return []
    memory, src_mask = model.encode(src_ids)
    limits = src_ids.new_tensor([length_limit(n, config.max_len) for n in src_mask.sum(-1).flatten().tolist()])
    longest = int(limits.max())
    cache = model.init_cache(memory, src_mask, longest) if use_cache else None
    tokens = src_ids.new_full((len(src_ids), 1 + longest), config.pad_id)
    tokens[:, 0] = config.bos_id

    rows = torch.arange(len(src_ids), device=src_ids.device)  # which rows of `tokens` are still in the batch
    alive = torch.ones_like(rows, dtype=torch.bool)
    for t in range(longest):
        if cache is not None:
            logits = model.step(tokens[rows, t : t + 1], cache)
        else:
            logits = model.decode(tokens[rows, : t + 1], memory, src_mask)
        chosen = likeliest_token(logits[:, -1], model)
        tokens[rows, t + 1] = torch.where(alive, chosen, config.pad_id)
        alive &= (chosen != config.eos_id) & (t + 1 < limits[rows])
        n_alive = int(alive.sum())
        if n_alive == 0:
            break
        if n_alive <= (1 - COMPACT_AT) * len(rows):
            keep = alive.nonzero().squeeze(1)
            rows, alive, memory, src_mask = rows[keep], alive[keep], memory[keep], src_mask[keep]
            if cache is not None:
                cache.select_rows(keep)
    ends = {config.eos_id, config.pad_id}
    return [row[1 : next((i for i, id_ in enumerate(row) if id_ in ends), None)] for row in tokens.tolist()]
