"""The oracles agree only with correct code and unchanged weights, and do not depend on our code."""

import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from conftest import random_model, random_tensor
from torch import Tensor

from minitrans.cachecheck.measurement import FLOAT64_TOLERANCE, deviation, worst
from minitrans.model import reference
from minitrans.model.transformer import Transformer
from minitrans.verify import oracles
from minitrans.verify.model_and_pairs import ModelAndPairs, model_and_id_pairs
from minitrans.verify.oracles import numpy_weights, torch_memory_and_logits

MIN_WEIGHT_EFFECT = 1e-6  # a changed weight moves the numbers by far more than rounding does


def make_subject() -> ModelAndPairs:
    """H*Dh = D, as PyTorch requires; B = 3, S = 6, T = 5."""
    model = random_model(0, d_model=8, n_heads=2, d_head=None, tie_embeddings=False)
    return model_and_id_pairs(model, [[4, 6, 7, 0, 8], [9], [2, 2, 10]], [[7, 4], [6], [0, 9, 8, 2]], [])


def numpy_memory_and_logits(model: Transformer, src_ids: Tensor, tgt_in: Tensor) -> list[Tensor]:
    """Memory and logits of the first row alone, which has no padding."""
    weights, n_heads = numpy_weights(model), model.config.n_heads
    memory = reference.encode(weights, n_heads, src_ids[0].tolist())
    logits = reference.decode(weights, n_heads, memory, tgt_in[0].tolist())
    return [torch.from_numpy(memory)[None], torch.from_numpy(logits)[None]]


ORACLES = [torch_memory_and_logits, numpy_memory_and_logits]
Oracle = Callable[[Transformer, Tensor, Tensor], Sequence[Tensor]]


@torch.no_grad()
@pytest.mark.parametrize("oracle", ORACLES)
def test_an_oracle_agrees_on_the_right_model_and_disagrees_on_each_changed_weight(oracle: Oracle) -> None:
    s = make_subject()
    want = oracle(s.model, s.src_ids, s.tgt_in)

    def distance(model: Transformer) -> float:
        got = model.encode(s.src_ids)[0], model(s.src_ids, s.tgt_in)
        return worst([deviation(a[: len(b)], b) for a, b in zip(got, want, strict=True)])

    assert distance(s.model) <= FLOAT64_TOLERANCE
    for name, weight in s.model.named_parameters():
        model = copy.deepcopy(s.model)
        model.get_parameter(name).add_(random_tensor(1, *weight.shape), alpha=0.1)
        assert distance(model) > MIN_WEIGHT_EFFECT, name
    other = copy.deepcopy(s.model)
    other.positions = other.positions + 1.0
    assert all(torch.equal(a, b) for a, b in zip(oracle(other, s.src_ids, s.tgt_in), want, strict=True))


@torch.no_grad()
def test_no_code_of_ours_runs_in_an_oracle() -> None:
    s, ran, x = make_subject(), set[str](), random_tensor(1, 3, 5, 8)
    layers: list[Any] = [*s.model.encoder.layers, *s.model.decoder.layers]
    sys.setprofile(lambda frame, event, _: ran.add(str(frame.f_globals.get("__name__"))))
    try:
        for oracle in ORACLES:
            oracle(s.model, s.src_ids, s.tgt_in)
        oracles.torch_layer(layers[0])(x)
        oracles.torch_layer(layers[-1])(x, x)
        oracles.torch_multi_head(layers[0].self_attn)(x, x, x)
    finally:
        sys.setprofile(None)
    ours = {name for name in ran if name.startswith(("minitrans.model", "minitrans.verify"))}
    assert ours == {oracles.__name__, reference.__name__}
