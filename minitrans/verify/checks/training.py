"""Training: the whole target at once, every batch once."""

from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from minitrans.cachecheck.measurement import deviation, new_check_group, worst
from minitrans.data.batching import id_rows
from minitrans.data.loader import EpochLoader
from minitrans.model.decoding import token_log_probs
from minitrans.model.loss import CHUNK_ROWS, batch_loss, label_smoothed_cross_entropy, linear_cross_entropy
from minitrans.verify.model_and_pairs import ModelAndPairs

claim, CHECKS = new_check_group("Training")


@claim(
    "C20",
    "loss of one teacher-forced pass, against the sum of the losses of single steps from the cache, in nats a token",
    lower=(),
)
def loss_matches_single_steps(subject: ModelAndPairs) -> float:
    """Training feeds the whole target at once, and its loss is that of feeding the target token by token."""
    # Over all real target tokens; `tgt_in` is BOS and all but the last, `tgt_out` all but BOS.
    model, pad_id = subject.model, subject.model.config.pad_id
    shifted = subject.tgt_out[:, :-1].masked_fill(subject.tgt_in[:, 1:] == pad_id, pad_id)
    if not torch.equal(shifted, subject.tgt_in[:, 1:]):
        return float("inf")
    loss = batch_loss(model, subject.src_ids, subject.tgt_in, subject.tgt_out, smoothing=0.0)
    cache, real = model.init_cache(*model.encode(subject.src_ids)), subject.tgt_out != pad_id
    steps = torch.cat([model.step(token, cache) for token in subject.tgt_in.split(1, 1)], 1)
    return abs(float(token_log_probs(steps, subject.tgt_out)[real].sum() + loss)) / int(real.sum())


@claim(
    "loss.chunks",
    "loss in nats a token, and its gradients for hidden states and output matrix, against all logits at once",
    lower=(),
)
def chunked_loss_matches_full(subject: ModelAndPairs) -> float:
    """The training loss, which never holds all logits at once, and both its gradients equal the plain formula's."""
    return loss_deviation(subject, lambda h, *rest: linear_cross_entropy(h, subject.model.logits, *rest))


@torch.enable_grad()
def loss_deviation(subject: ModelAndPairs, loss_of: Callable[[Tensor, Tensor, int, float], Tensor]) -> float:
    """A loss of (hidden, tgt_out, pad_id, smoothing) and both its gradients, against the plain formula.

    On the batch, and on noise in more positions than two chunks hold; with and without smoothing.
    """
    config, weight = subject.model.config, subject.model.output.weight
    length = CHUNK_ROWS + 1
    targets = torch.arange(3 * length).view(3, length) * 7 % config.vocab_size
    targets[1:, -5:] = config.pad_id
    noise = subject.randn(3, length, config.d_model, seed=40)
    deviations = []
    for h, tgt_out in (subject.model.hidden_states(subject.src_ids, subject.tgt_in), subject.tgt_out), (noise, targets):
        h = h.detach().requires_grad_()
        n_tokens = int((tgt_out != config.pad_id).sum())
        for smoothing in (0.0, 0.1):
            own = loss_of(h, tgt_out, config.pad_id, smoothing) / n_tokens
            plain = label_smoothed_cross_entropy(subject.model.logits(h), tgt_out, config.pad_id, smoothing) / n_tokens
            gradients = (torch.autograd.grad(loss, (h, weight)) for loss in (own, plain))
            deviations += [deviation(a, b) for a, b in zip(*gradients, strict=True)]
            deviations.append(deviation(own.detach()[None], plain.detach()[None]))
    return worst(deviations)


@claim(
    "batches.resumed",
    "batches of two epochs that differ if the run is interrupted after each batch in turn and resumed from its state",
    tolerance=0.0,
    lower=(),
)
def resuming_keeps_batches(subject: ModelAndPairs) -> float:
    """A run that is interrupted and resumed sees the batches of an unbroken one: none is replayed, none skipped."""
    rng = np.random.default_rng(0)
    src, tgt = (id_rows([[i] * n for i, n in enumerate(lengths)]) for lengths in rng.integers(1, 20, (2, 50)).tolist())

    def loader() -> EpochLoader:
        return EpochLoader(src, tgt, special_ids=(100, 101, 102), batch_tokens=80, seed=0)

    def epochs(batches: EpochLoader) -> Iterator[list[int]]:
        return (batch.src_ids[:, 0].tolist() for _ in range(3) for batch in batches)

    unbroken = loader()
    want = list(islice(epochs(unbroken), 2 * len(unbroken)))
    if sorted(row for batch in want[: len(unbroken)] for row in batch) != list(range(50)):
        return float("inf")
    n_different = 0
    for stop in range(1, len(want)):
        first, second = loader(), loader()
        got = list(islice(epochs(first), stop))
        second.load_state_dict(first.state_dict())
        got += islice(epochs(second), len(want) - stop)
        n_different += sum(a != b for a, b in zip(got, want, strict=True))
    return float(n_different)
