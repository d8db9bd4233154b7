"""A model computed both ways: by compiled code, and by the plain model or its full masked pass."""

from collections.abc import Sequence

import torch
from conftest import BOS, PAD, assert_close, random_ids, worst_deviation
from torch import Tensor, nn
from torch.nn import functional as F

from minitrans.compiled import training
from minitrans.compiled.plan import read_plan
from minitrans.compiled.stepper import CompiledStepper
from minitrans.model.loss import batch_loss
from minitrans.model.transformer import Transformer

Batch = tuple[Tensor, Tensor, Tensor]


def batch(src_lengths: Sequence[int], tgt_lengths: Sequence[int], vocab_size: int = 11) -> Batch:
    """Sentences of these lengths: src_ids, tgt_in, tgt_out."""
    src_ids = random_ids(1, src_lengths, max(src_lengths), vocab_size)
    tgt_out = random_ids(2, tgt_lengths, max(tgt_lengths), vocab_size)
    return src_ids, F.pad(tgt_out[:, :-1], (1, 0), value=BOS), tgt_out


def plain_forward_backward(model: Transformer, ids: Batch) -> list[Tensor]:
    """Real hidden states, the loss, and the gradient at every parameter; the same dropout every time."""
    torch.manual_seed(7)
    hidden = model.hidden_states(*ids[:2])[ids[2] != PAD]
    torch.manual_seed(7)
    loss = batch_loss(model, *ids, 0.1)
    return [hidden.detach(), loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def compiled_forward_backward(model: Transformer, ids: Batch, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """The same, computed by compiled code with products in `dtype`."""
    plan = read_plan(model)
    torch.manual_seed(7)
    hidden, _ = training.hidden_states(plan, *ids[:2], ids[2] != PAD, dtype)
    torch.manual_seed(7)
    loss = training.batch_loss(plan, *ids, 0.1, dtype)
    return [hidden.detach(), loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def assert_same_pass(model: Transformer, ids: Batch, relative: float = 1e-11) -> None:
    """Each result is off by at most `relative` times its largest element."""
    assert_close(compiled_forward_backward(model, ids), plain_forward_backward(model, ids), relative)


@torch.no_grad()
def worst_step_deviation(
    model: Transformer, fast: CompiledStepper, seed: int, steps: int, lengths: Sequence[int], n: int | None = None
) -> float:
    """The largest deviation of a log-probability from the full masked pass, of the n likeliest tokens or of all.

    Rows are reordered, dropped and repeated on the way. The stepper's ids must be in the order of its numbers.
    """
    random, vocab_size = torch.Generator().manual_seed(seed), model.config.vocab_size
    src_ids, n = random_ids(seed, lengths, max(lengths), vocab_size), n or vocab_size - 2
    memory, src_mask = model.encode(src_ids)
    cache = fast.begin(src_ids, steps)
    targets = torch.full((len(src_ids), 1), BOS)
    deviations = []
    for t in range(steps):
        log_p, ids = fast.next_tokens(targets[:, -1], cache, n)
        want = F.log_softmax(model.decode(targets, memory, src_mask)[:, -1].double(), dim=-1)
        want[:, [PAD, BOS]] = -torch.inf  # which may not be output
        assert torch.equal(log_p, log_p.sort(descending=True).values)
        assert all(len(row) == n and not {PAD, BOS} & row for row in map(set, ids.tolist()))
        deviations.append(worst_deviation([log_p.double()] * 2, [want.gather(1, ids), want.topk(n).values]))
        n_rows = len(lengths) if t % 2 == 0 else int(torch.randint(1, len(lengths) + 2, (), generator=random))
        rows = torch.randint(len(targets), (n_rows,), generator=random)
        tokens = torch.randint(vocab_size, (n_rows,), generator=random)
        targets, memory, src_mask = torch.cat([targets[rows], tokens[:, None]], 1), memory[rows], src_mask[rows]
        cache.select_rows(rows)
    return max(deviations)


def set_distinct_eps(model: Transformer) -> None:
    """Give every norm of a model an eps of its own."""
    for i, module in enumerate(m for m in model.modules() if isinstance(m, nn.LayerNorm)):
        module.eps = 0.01 * (i + 1)
