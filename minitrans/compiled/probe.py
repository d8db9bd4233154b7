"""Check that compiled code gives the model's own numbers, on a small model of the same architecture.

A plan cannot see that somebody has changed what the model's code or the C++ computes; this can.
"""

import math
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minitrans.cachecheck.measurement import default_modes
from minitrans.compiled import training as compiled
from minitrans.compiled.library import NotAdmittedError
from minitrans.compiled.plan import Plan, read_plan
from minitrans.compiled.stepper import CompiledStepper
from minitrans.model import loss as plain
from minitrans.model.decoding import CachedStepper, Stepper
from minitrans.model.layers import FeedForward
from minitrans.model.transformer import Transformer

# What the two ways may differ by, as the norm of the difference relative to that of the model's own numbers. In
# float64 rounding leaves next to nothing. The others catch what compiled code does in that dtype alone.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 0.2}
LENGTH = 40  # tokens of a long row: more than most attention windows that somebody may add
OUTLIER_SCALE = 25.0  # of three features in float64: scores, hidden units and logits get as large as in trained models

NamedTensorPair = tuple[str, Tensor, Tensor]  # what is compared, by the plain code and by compiled code


def check_training(plan: Plan, dtype: torch.dtype) -> None:
    """Compare hidden states, the loss, and every gradient, with dropout; in float64 in eval mode too.

    Raises:
        NotAdmittedError: They differ.
    """
    with _neutral_modes(), torch.enable_grad():
        _, ids = _make_ids()
        src_ids, tgt_out = ids.roll(1, 1), ids.flip(0)  # the short source has padding on both sides
        tgt_in = F.pad(tgt_out[:, :-1], (1, 0), value=1)
        model = _small_model(plan)
        likeliest = model.eval()(src_ids, tgt_in).argmax(-1).clamp(min=1) * (tgt_out != 0)  # losses near 0
        for tried, training in dict.fromkeys(((torch.float64, True), (torch.float64, False), (dtype, True))):
            if tried != torch.float64:
                _scale_outliers(model, 1 / OUTLIER_SCALE)
                _shift_relu_inputs(model)
            model.to(torch.promote_types(tried, torch.float32)).train(training)
            target, smoothing = (tgt_out, 0.3) if training else (likeliest, 0.0)
            _refuse_differences(paired_training_results(model, src_ids, tgt_in, target, smoothing, tried), tried)


def check_steps(plan: Plan, dtype: torch.dtype) -> None:
    """Compare the log-probabilities of seven steps: rows swap, repeat a token after a long gap, and shrink to one.

    Raises:
        NotAdmittedError: They differ.
    """
    with _neutral_modes(), torch.no_grad():
        model = _small_model(plan).eval()
        for tried in dict.fromkeys((torch.float64, dtype)):
            if tried != torch.float64:
                _scale_outliers(model, 1 / OUTLIER_SCALE)
            _refuse_differences(_paired_steps(model.to(tried)), tried)


@contextmanager
def _neutral_modes() -> Iterator[None]:
    """Inside: PyTorch seeded and the only source of random numbers, no autocast, tensors on the CPU."""
    numpy = sys.modules.get("numpy.random")  # what a model that draws from it has imported
    before = random.getstate(), str(numpy and numpy.get_state(legacy=False))  # of whichever generator it has
    with default_modes():
        torch.default_generator.manual_seed(1)  # the CPU's alone
        try:
            yield
        except NotAdmittedError:
            raise
        except Exception as error:
            raise NotAdmittedError(f"the small test model fails: {error!r}") from error
        if before != (random.getstate(), str(numpy and numpy.get_state(legacy=False))):
            raise NotAdmittedError("the small test model draws random numbers that are not PyTorch's")


def _make_ids() -> tuple[Tensor, Tensor]:
    """Two rows of LENGTH ids, low and high, and the same with the second row cut to three: int64 (2, LENGTH)."""
    ids = torch.arange(LENGTH) + torch.tensor([[2], [260]])
    return ids, torch.where(torch.arange(LENGTH) < torch.tensor([[LENGTH], [3]]), ids, 0)


def _small_model(plan: Plan) -> Transformer:
    """A float64 model with random parameters, even biases and norms; the norms use the plan's values of eps in turn.

    Sizes that compiled code treats specially stay or become small, as do new settings; the others are fixed.
    """
    c = plan.config
    config = replace(
        c,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        vocab_size=300,  # more than the loss takes at a time
        d_model=44,
        n_heads=min(c.n_heads, 3),
        d_head=c.head_size,
        d_ff=52,
        n_layers=min(c.n_layers, 2),
        max_len=LENGTH + 7,
        dropout=0.25,
        attention_dropout=0.25,
        tie_embeddings=plan.tied,
    )
    model = Transformer(config).double()
    eps = sorted({part.eps for part in (*plan.encoder, *plan.decoder)})
    for i, norm in enumerate(module for module in model.modules() if isinstance(module, nn.LayerNorm)):
        norm.eps = eps[i % len(eps)]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    _scale_outliers(model, OUTLIER_SCALE)
    return model


def _scale_outliers(model: Transformer, factor: float) -> None:
    """Scale three features of what each norm gives; where they are small, so is what is computed from them."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight[:3] *= factor


def _shift_relu_inputs(model: Transformer) -> None:
    """Move what the ReLUs read away from 0, where rounding would decide whether a gradient passes."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, FeedForward):
                module.w_1.bias.add_(torch.tensor([4.0, -4.0]).repeat(len(module.w_1.bias) // 2))


def paired_training_results(
    model: Transformer, src_ids: Tensor, tgt_in: Tensor, tgt_out: Tensor, smoothing: float, dtype: torch.dtype
) -> Iterator[NamedTensorPair]:
    """Yield the real hidden states, the loss a token, and the gradient at each parameter, in bfloat16 at all together.

    The arguments are those of `batch_loss`; products are in the dtype, and dropout has the same seed both ways.
    """
    plan, ids, batch = read_plan(model), (src_ids, tgt_in), (src_ids, tgt_in, tgt_out, smoothing)
    real = tgt_out != model.config.pad_id
    ways = []
    for own in (True, False):
        with torch.autocast("cpu", dtype, enabled=own and dtype == torch.bfloat16):
            torch.default_generator.manual_seed(2)
            hidden = model.hidden_states(*ids)[real] if own else compiled.hidden_states(plan, *ids, real, dtype)[0]
            torch.default_generator.manual_seed(2)
            loss = (plain.batch_loss(model, *batch) if own else compiled.batch_loss(plan, *batch, dtype)) / real.sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
        ways.append((hidden.detach(), loss.detach()[None], gradients))
    (hidden, loss, gradients), (other_hidden, other_loss, other_gradients) = ways
    yield "the hidden states", hidden, other_hidden
    yield "the loss", loss, other_loss
    if dtype == torch.bfloat16:  # in which a small gradient, of large numbers that cancel out, has hardly a digit right
        whole, other_whole = (torch.cat([g.flatten() for g in each]) for each in (gradients, other_gradients))
        yield "the gradient", whole, other_whole
    else:
        names = [f"the gradient at {name}" for name, _ in model.named_parameters()]
        yield from zip(names, gradients, other_gradients, strict=True)


def _paired_steps(model: Transformer) -> Iterator[NamedTensorPair]:
    steppers: tuple[Stepper[Any], ...] = CachedStepper(model), CompiledStepper(read_plan(model))
    n = model.config.vocab_size - 2  # all tokens but PAD and BOS
    long_ids, src_ids = _make_ids()
    states = [stepper.begin(src_ids, LENGTH + 7) for stepper in steppers]
    for t, tokens in enumerate(([1, 1], [8, 290, 11], *[[5, 9, 30]] * 4, [30])):
        if rows := {1: [1, 0, 0], 6: [2]}.get(t):
            for state in states:
                state.select_rows(torch.tensor(rows))
        if t == 2:  # far from the first ones
            model.step(long_ids[[0, 1, 0]], states[0])
            for each in long_ids[[0, 1, 0]].T:
                steppers[1].next_tokens(each, states[1], 1)
        found = (s.next_tokens(torch.tensor(tokens), state, n) for s, state in zip(steppers, states, strict=True))
        (own, ids), (other, other_ids) = found
        by_id = torch.full((len(ids), n + 2), torch.nan, dtype=other.dtype).scatter(1, other_ids, other)
        yield f"the log-probabilities of step {t + 1}", own, by_id.gather(1, ids)
        yield f"the order of the tokens of step {t + 1}", own, other


def _refuse_differences(compared: Iterable[NamedTensorPair], dtype: torch.dtype) -> None:
    """Raise a NotAdmittedError for the first difference above the tolerance."""
    for what, own, other in compared:
        distance = float((own.double() - other.double()).norm() / own.double().norm().clamp(min=1e-30))
        if not distance <= TOLERANCES[dtype]:
            off = f"off by {distance:.1e}" if math.isfinite(distance) else "not finite"
            sizes = f"{str(dtype).removeprefix('torch.')}, relative to their size; at most {TOLERANCES[dtype]:g}"
            raise NotAdmittedError(f"compiled code is {off} in {what} ({sizes})")
