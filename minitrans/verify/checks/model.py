"""The whole model against others with the same weights; every parameter is registered, and gets a gradient."""

import math
from collections.abc import Iterable
from typing import cast

import torch
from torch import nn

from minitrans.cachecheck.measurement import deviation, new_check_group, worst
from minitrans.model import reference
from minitrans.model.layers import DecoderLayer, EncoderLayer
from minitrans.model.loss import batch_loss
from minitrans.model.masks import causal_mask, padding_mask
from minitrans.translate.bundle import count_parameters
from minitrans.verify.checks.heads import model_or_random_stand_in
from minitrans.verify.model_and_pairs import ModelAndPairs
from minitrans.verify.oracles import numpy_weights, torch_layer, torch_memory_and_logits

claim, CHECKS = new_check_group("The whole model")


@claim(
    "C8",
    "parameters counted, less those that the sizes call for; plus tensors without a gradient",
    tolerance=0.0,
    lower=(),
)
@torch.enable_grad()
def parameters_are_trainable(subject: ModelAndPairs) -> float:
    """Every parameter is registered, so that it is trained and saved, and a gradient reaches it."""
    control = nn.Module()
    control.linears = [nn.Linear(4, 4)]  # type: ignore[assignment]  # in a plain list, which PyTorch does not see
    if list(control.parameters()):
        return math.inf
    model = subject.model
    parameters = list(model.parameters())
    loss = batch_loss(model, subject.src_ids, subject.tgt_in, subject.tgt_out, smoothing=0.0)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    n_unreached = sum(g is None or not bool(g.isfinite().all()) or not bool(g.any()) for g in gradients)
    return float(abs(sum(p.numel() for p in parameters) - count_parameters(model.config)) + n_unreached)


@claim("model.layers", "output of every layer, against nn.TransformerEncoderLayer and nn.TransformerDecoderLayer")
def layers_match_torch(subject: ModelAndPairs) -> float:
    """Each layer equals PyTorch's pre-norm layer with the same weights, padded and causally masked."""
    model = model_or_random_stand_in(subject.model)
    src_mask = padding_mask(subject.src_ids, model.config.pad_id)
    (batch, src_len), tgt_len, d_model = subject.src_ids.shape, subject.tgt_in.size(1), model.config.d_model
    x, memory = subject.randn(batch, tgt_len, d_model, seed=30), subject.randn(batch, src_len, d_model, seed=31)
    causal, blocked = causal_mask(tgt_len, tgt_len, 0), ~src_mask[:, 0, 0]  # theirs: True = may NOT attend
    future = torch.ones(tgt_len, tgt_len).triu(1).bool()
    deviations = []
    for reader in cast(Iterable[EncoderLayer], model.encoder.layers):
        expected = torch_layer(reader)(memory, src_key_padding_mask=blocked)
        deviations.append(deviation(reader(memory, src_mask, False).output, expected))
    for writer in cast(Iterable[DecoderLayer], model.decoder.layers):
        expected = torch_layer(writer)(x, memory, tgt_mask=future, memory_key_padding_mask=blocked)
        deviations.append(deviation(writer(x, causal, memory, src_mask, None, 0, False).output, expected))
    return worst(deviations)


@claim(
    "model.torch",
    "memory and logits of the batch, against nn.Transformer between the same embedding and output matrices",
    tolerance=1e-11,
)
def model_matches_torch(subject: ModelAndPairs) -> float:
    """The whole model equals PyTorch's Transformer with the same weights."""
    model = model_or_random_stand_in(subject.model)
    memory, _ = model.encode(subject.src_ids)
    hidden, logits = torch_memory_and_logits(model, subject.src_ids, subject.tgt_in)
    return worst([deviation(memory, hidden), deviation(model(subject.src_ids, subject.tgt_in), logits)])


@claim(
    "model.numpy",
    "logits at every real position, against loops that have no batch, no padding and no cache",
    tolerance=1e-11,
)
def model_matches_numpy(subject: ModelAndPairs) -> float:
    """The whole model, batched and padded, equals the formulas written out in NumPy, sentence by sentence."""
    model = subject.model
    logits, weights = model(subject.src_ids, subject.tgt_in), numpy_weights(model)
    deviations = []
    for b, (src, tgt) in enumerate(subject.pairs()):
        expected = reference.transformer(weights, model.config.n_heads, src, tgt)
        deviations.append(deviation(logits[b, : len(tgt)], torch.from_numpy(expected)))
    return worst(deviations)
