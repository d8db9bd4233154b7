"""Draw translations at random, instead of taking the likeliest."""

import random
from itertools import takewhile

import torch
from torch import Tensor

from minitrans.model.decoding import AnyState, Stepper, length_limits


@torch.inference_mode()
def sample(stepper: Stepper[AnyState], src_ids: Tensor, top: int, seed: int) -> list[list[int]]:
    """Draw each token from the likeliest ones, by their probabilities, until EOS or the row's length limit.

    Args:
        stepper: What computes the steps.
        src_ids: int64 (B, S), padded on the right.
        top: How many of the likeliest tokens each is drawn from; 1 is greedy decoding.
        seed: This and a row's source tokens decide what is drawn for the row, whatever else is in the batch.

    Returns:
        For each row its target tokens, without BOS and EOS.

    Raises:
        ValueError: The source is longer than `max_len`, or padded on the left; or `top` is below 1.

    Source: Fan et al. 2018, section 3.1 (top-k random sampling).
    """
    config = stepper.config
    if not len(src_ids):
        return []
    limits = length_limits(src_ids, config)
    draws = [random.Random(f"{seed} {row[row != config.pad_id].tolist()}") for row in src_ids]
    cache = stepper.begin(src_ids, max(limits))
    tokens = src_ids.new_full((len(limits),), config.bos_id)
    going = torch.tensor(limits, device=src_ids.device)  # tokens that each row may still get
    drawn: list[Tensor] = []
    while going.any():
        log_p, ids = stepper.next_tokens(tokens, cache, top)
        choices = zip(draws, ids.tolist(), log_p.exp().tolist(), strict=True)
        tokens = tokens.new_tensor([draw.choices(row, weights)[0] for draw, row, weights in choices])
        drawn.append(tokens)
        going = (going - 1).masked_fill(tokens == config.eos_id, 0).clamp(min=0)
    rows = zip(torch.stack(drawn, 1).tolist(), limits, strict=True)
    return [[*takewhile(lambda id_: id_ != config.eos_id, row[:limit])] for row, limit in rows]
