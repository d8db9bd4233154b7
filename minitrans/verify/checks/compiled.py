"""Compiled code gives what the plain model gives: here a difference is a failure, not a reason for the plain path."""

import math
from copy import deepcopy
from unittest import mock

import torch
from torch.nn import functional as F

from minitrans.cachecheck.measurement import deviation, new_check_group, worst
from minitrans.cachecheck.protocol import N_BEAMS
from minitrans.compiled import probe
from minitrans.compiled import training as compiled
from minitrans.compiled.library import NotAdmittedError
from minitrans.compiled.plan import read_plan
from minitrans.compiled.stepper import CompiledStepper
from minitrans.model.attention import MultiHeadAttention
from minitrans.model.decoding import CachedStepper, beam_search, greedy_decode
from minitrans.model.dropout import Dropout
from minitrans.model.layers import FeedForward
from minitrans.model.transformer import Transformer
from minitrans.verify.checks.training import loss_deviation
from minitrans.verify.model_and_pairs import ModelAndPairs

claim, CHECKS = new_check_group("Compiled code")


@claim(
    "compiled.admitted",
    "refusals, in training and in decoding; GELU in place of ReLU and a forward hook, the controls, must be refused",
    tolerance=0.0,
)
def compiled_code_accepts_model(subject: ModelAndPairs) -> float:
    """Compiled code may compute this model: it knows the architecture, and on a small model of it no number differs."""
    hooked = deepcopy(subject.model)
    hooked.decoder.register_forward_hook(lambda module, inputs, output: None)
    with mock.patch.object(FeedForward, "forward", lambda self, x: self.w_2(self.dropout(F.gelu(self.w_1(x))))):
        controls = n_refused_kinds(subject.model), n_refused_kinds(hooked)
    return float(n_refused_kinds(subject.model)) if controls == (2, 2) and n_refused_kinds(hooked) == 2 else math.inf


def n_refused_kinds(model: Transformer) -> int:
    """For how many of the two, training and decoding, compiled code refuses the model."""
    n_refused = 0
    for probe_check in (probe.check_training, probe.check_steps):
        try:
            probe_check(read_plan(model), model.output.weight.dtype)
        except NotAdmittedError:
            n_refused += 1
    return n_refused


@claim(
    "compiled.pass",
    "hidden states, loss a token, and the gradient at every parameter, relative to the largest of each where that "
    "is above 1; dropout 0.3 with one seed, and none in eval mode",
    lower=(),
)
@torch.enable_grad()
def compiled_training_matches_plain(subject: ModelAndPairs) -> float:
    """The compiled training pass gives the numbers and gradients of the plain one."""
    model = deepcopy(subject.model).train()
    for module in model.modules():
        if isinstance(module, Dropout):
            module.p = 0.3
        elif isinstance(module, MultiHeadAttention):
            module.dropout = 0.3
    batch = subject.src_ids, subject.tgt_in, subject.tgt_out, 0.1
    deviations = []
    for mode in (True, False):
        for _, plain, fast in probe.paired_training_results(model.train(mode), *batch, subject.dtype):
            scale = plain.abs().max().clamp(min=1.0)
            deviations.append(deviation(fast / scale, plain / scale))
    return worst(deviations)


@claim(
    "compiled.loss",
    "loss in nats a token, and its gradients for hidden states and output matrix, against all logits at once",
    lower=(),
)
def compiled_loss_matches_plain(subject: ModelAndPairs) -> float:
    """The compiled loss, computed a few hundred words at a time, and both its gradients equal the plain formula's."""
    weight = subject.model.output.weight
    return loss_deviation(subject, lambda h, *rest: compiled.linear_cross_entropy(h, weight, *rest))


@claim(
    "compiled.steps",
    "log-probabilities of the eight likeliest tokens, one token at a time, with the rows reversed halfway through",
)
def compiled_steps_are_full_pass(subject: ModelAndPairs) -> float:
    """The compiled decoder gives, step by step, the log-probabilities of the full masked pass."""
    # Eight, because all of them would not show that it chose the likeliest.
    stepper, tgt_in = CompiledStepper(read_plan(subject.model)), subject.tgt_in
    log_p = F.log_softmax(subject.model(subject.src_ids, tgt_in), dim=-1)
    state = stepper.begin(subject.src_ids, tgt_in.size(1))
    deviations = []
    for t in range(tgt_in.size(1)):
        if t == tgt_in.size(1) // 2:
            state.select_rows(torch.arange(len(tgt_in)).flip(0))
            log_p, tgt_in = log_p.flip(0), tgt_in.flip(0)
        top_log_p, ids = stepper.next_tokens(tgt_in[:, t], state, 8)
        deviations.append(deviation(log_p[:, t].scatter(1, ids, top_log_p.to(log_p.dtype)), log_p[:, t]))
    return worst(deviations)


@claim(
    "compiled.outputs", f"sentences with a different token: greedy, and any of {N_BEAMS} beams", tolerance=0.0, lower=()
)
def compiled_decoding_matches_plain(subject: ModelAndPairs) -> float:
    """The compiled decoder's translations are those of the plain one, greedy and by beam search."""
    plain, fast = CachedStepper(subject.model), CompiledStepper(read_plan(subject.model))
    n_different = 0
    for src_ids in subject.decode_batches:
        pairs = zip(greedy_decode(plain, src_ids), greedy_decode(fast, src_ids), strict=True)
        n_different += sum(a.ids != b.ids for a, b in pairs)
        searched = zip(beam_search(plain, src_ids, N_BEAMS), beam_search(fast, src_ids, N_BEAMS), strict=True)
        n_different += sum([h.ids for h in a] != [h.ids for h in b] for a, b in searched)
    return float(n_different) if subject.decode_batches else math.inf
