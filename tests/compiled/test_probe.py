"""The probe finds every single fault, of the model's code or of compiled code, and none where there is none."""

import math
import pkgutil
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import BOS, EOS, PAD, needs_compiled
from torch import Tensor
from torch.nn import functional as F

from minitrans.compiled import probe, training
from minitrans.compiled.library import NotAdmittedError
from minitrans.compiled.plan import read_plan
from minitrans.compiled.stepper import CompiledState, CompiledStepper
from minitrans.model.attention import attention_scores
from minitrans.model.decoding import CachedStepper, likeliest_tokens
from minitrans.model.layers import FeedForward
from minitrans.model.masks import causal_mask
from minitrans.model.transformer import Transformer, TransformerConfig
from minitrans.verify.sabotage import SABOTAGES, Sabotage

pytestmark = needs_compiled

Patch = pytest.MonkeyPatch
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def make_model(dtype: torch.dtype = torch.float64, eps: tuple[float, ...] = (), **sizes: Any) -> Transformer:
    """A model in training mode, with its parameters in the dtype they have where products are in `dtype`."""
    sizes = {"d_model": 24, "n_heads": 3, "d_ff": 40, "n_layers": 2, "max_len": 30} | sizes
    model = Transformer(TransformerConfig(50, PAD, BOS, EOS, **sizes)).to(torch.promote_types(dtype, torch.float32))
    norms = [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]
    for i, norm in enumerate(norms if eps else []):
        norm.eps = eps[i % len(eps)]
    return model


def refusal_reasons(dtype: torch.dtype = torch.float64, model: Transformer | None = None) -> tuple[str, str]:
    """What differs in training and in decoding; "" where nothing does."""
    reasons = []
    for probe_check in (probe.check_training, probe.check_steps):
        try:
            probe_check(read_plan(model or make_model(dtype)), dtype)
            reasons.append("")
        except NotAdmittedError as reason:
            reasons.append(str(reason))
    return reasons[0], reasons[1]


@pytest.mark.parametrize(("n_heads", "small"), [(1, 1), (2, 2), (3, 3), (8, 3)])
def test_the_small_model_has_at_most_three_heads_and_two_layers(n_heads: int, small: int) -> None:
    """Fewer stay as they are: code may be right for several heads or layers, and wrong for one."""
    config = probe._small_model(read_plan(make_model(n_heads=n_heads, d_model=24, n_layers=n_heads))).config
    assert (config.n_heads, config.head_size, config.n_layers) == (small, 24 // n_heads, min(n_heads, 2))


@pytest.mark.parametrize("n_layers", [1, 2])
def test_every_eps_of_the_model_occurs_in_the_small_one(n_layers: int) -> None:
    eps = tuple(0.01 * i for i in range(1, 2 + 5 * n_layers + 1))  # each norm has another
    small = probe._small_model(read_plan(make_model(eps=eps, n_layers=n_layers)))
    assert sorted(m.eps for m in small.modules() if isinstance(m, torch.nn.LayerNorm)) == list(eps)


@dataclass(frozen=True)
class ConfigWithGain(TransformerConfig):
    """The settings of an edited model: `gain` is a new one."""

    gain: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gain > self.d_model:
            raise ValueError("too much gain")


@pytest.mark.parametrize(
    ("gain", "reason"),
    [(1.0, ""), (3.0, "compiled code is off by "), (45.0, "the small test model fails: ValueError('too much gain")],
)
def test_a_new_setting_is_tried_with_the_models_value(gain: float, reason: str, monkeypatch: Patch) -> None:
    embed = Transformer.embed
    monkeypatch.setattr(Transformer, "embed", lambda self, *ids: embed(self, *ids) * self.config.gain)
    model = Transformer(ConfigWithGain(**asdict(make_model(d_model=48).config), gain=gain)).double()
    for found in refusal_reasons(torch.float64, model):
        assert (found[: len(reason)], bool(found)) == (reason, bool(reason))


def test_a_wide_attention_window_is_noticed(monkeypatch: Patch) -> None:
    def windowed(q_len: int, kv_len: int, offset: int, device: torch.device | None = None) -> Tensor:
        return causal_mask(q_len, kv_len, offset, device).triu(offset - 31)  # 32 keys

    monkeypatch.setattr("minitrans.model.transformer.causal_mask", windowed)
    assert all("off by" in reason for reason in refusal_reasons())


def test_an_edit_that_fails_with_the_small_models_sizes_is_refused(monkeypatch: Patch) -> None:
    """Such as a constant for each head of the real model."""
    slopes = torch.ones(4, 1, 1)
    monkeypatch.setattr("minitrans.model.attention.attention_scores", lambda q, k: attention_scores(q, k) - slopes)
    assert all(reason.startswith("the small test model fails: RuntimeError('The size") for reason in refusal_reasons())


@pytest.mark.parametrize(
    ("name", "limit", "noticed"),
    [
        ("attention.masked_softmax", 50.0, (True, True)),
        ("layers.F.relu", 20.0, (True, True)),
        ("loss.label_smoothed_cross_entropy", 20.0, (True, False)),
        ("decoding.likeliest_tokens", 20.0, (False, True)),
    ],
)
def test_a_limit_is_noticed_though_only_large_numbers_reach_it(
    name: str, limit: float, noticed: tuple[bool, bool], monkeypatch: Patch
) -> None:
    """A limit on scores, hidden layers or logits."""
    exact = pkgutil.resolve_name(f"minitrans.model.{name}")
    monkeypatch.setattr(f"minitrans.model.{name}", lambda x, *rest: exact(x.clamp(-limit, limit), *rest))
    assert tuple("off by" in reason for reason in refusal_reasons()) == noticed


def test_no_relu_input_is_near_0(monkeypatch: Patch) -> None:
    """Near 0 rounding would decide whether a gradient passes, and right code would be refused."""
    relu = Mock(wraps=torch.relu)
    monkeypatch.setattr("minitrans.model.layers.F.relu", relu)
    probe.check_training(read_plan(make_model(torch.float32)), torch.float32)
    distances = [x.abs().min() for (x,), _ in relu.call_args_list if x.dtype == torch.float32]
    assert min(distances) > 4 * torch.finfo(torch.bfloat16).eps


def test_an_edit_of_eval_mode_alone_is_noticed_in_training(monkeypatch: Patch) -> None:
    """Training computes the loss of the validation set in eval mode."""
    forward = FeedForward.forward
    monkeypatch.setattr(FeedForward, "forward", lambda self, x: forward(self, x) * (1.0 if self.training else 0.5))
    assert all("off by" in reason for reason in refusal_reasons())


def block_repeated_4_grams(exact: Any) -> Any:
    def next_tokens(self: CachedStepper, tokens: Tensor, state: Any, n: int) -> tuple[Tensor, Tensor]:
        log_p, ids = exact(self, tokens, state, n)
        state.fed = [*getattr(state, "fed", []), tokens.tolist()]
        for row, fed in enumerate(zip(*state.fed[1:], strict=True) if len(tokens) > 1 else ()):
            for i in range(len(fed) - 3):
                if fed[i : i + 3] == fed[-3:]:
                    log_p[row, ids[row] == fed[i + 3]] = -1e9
        return log_p, ids

    return next_tokens


def flooded_loss(logits: Tensor, tgt_out: Tensor, pad_id: int, smoothing: float) -> Tensor:
    """No token's loss falls below 0.2."""
    each = F.cross_entropy(logits, tgt_out, ignore_index=pad_id, label_smoothing=smoothing, reduction="none")
    return ((each - 0.2).abs() + 0.2)[tgt_out != pad_id].sum()


@pytest.mark.parametrize(
    ("name", "edited", "noticed"),
    [
        (
            "transformer.Transformer.embed",
            lambda exact: (
                lambda self, table, ids, at: exact(self, table, ids.masked_fill(ids == self.config.bos_id, 7), at)
            ),
            (1, 1),
        ),
        (
            "transformer.Transformer.encode",
            lambda exact: lambda self, ids: exact(self, ids.masked_fill(ids == self.config.eos_id, 0)),
            (1, 1),
        ),
        ("transformer.Transformer.hidden_states", lambda exact: lambda self, _, ids: exact(self, ids, ids), (1, 0)),
        ("transformer.Transformer.logits", lambda exact: lambda self, h: 30 * (exact(self, h) / 30).tanh(), (1, 1)),
        ("transformer.Transformer.logits", lambda exact: lambda self, h: exact(self, h) - torch.eye(300)[7], (1, 1)),
        ("loss.label_smoothed_cross_entropy", lambda exact: lambda *args: exact(*args[:3], min(args[3], 0.1)), (1, 0)),
        (
            "loss.label_smoothed_cross_entropy",
            lambda exact: lambda x, ids, *args: exact(x, ids.masked_fill(ids == 4, 0), *args),
            (1, 0),
        ),
        ("loss.label_smoothed_cross_entropy", lambda _: flooded_loss, (1, 0)),
        (  # of sources that are padded on the left; compiled decoding refuses these
            "transformer.Transformer.embed",
            lambda exact: lambda self, table, ids, at: exact(self, table, ids, at) * (1 + (ids[:, :1, None] == 0)),
            (1, 0),
        ),
        ("decoding.CachedStepper.next_tokens", block_repeated_4_grams, (0, 1)),
        ("decoding.greedy_token_ids", lambda _: lambda logits, _: logits.topk(2).indices[..., 1], (0, 1)),
        ("decoding.suppress_pad_bos", lambda exact: lambda x, c: exact(x, replace(c, pad_id=3)), (0, 1)),
    ],
)
def test_an_edit_of_some_tokens_the_source_the_loss_or_the_choice_is_noticed(
    name: str, edited: Any, noticed: tuple[int, int], monkeypatch: Patch
) -> None:
    monkeypatch.setattr(f"minitrans.model.{name}", edited(pkgutil.resolve_name(f"minitrans.model.{name}")))
    assert tuple("compiled code is " in reason for reason in refusal_reasons()) == noticed


@pytest.mark.parametrize("draw", [random.random, np.random.uniform])
def test_random_numbers_that_are_not_pytorchs_are_refused(draw: Callable[[], float], monkeypatch: Patch) -> None:
    """Even where, as here, they change nothing."""
    forward = FeedForward.forward
    monkeypatch.setattr(FeedForward, "forward", lambda self, x: forward(self, x) * (draw() >= 0))
    assert refusal_reasons() == ("the small test model draws random numbers that are not PyTorch's",) * 2


def test_a_changed_choice_of_tokens_is_noticed(monkeypatch: Patch) -> None:
    def never_3(logits: Tensor, n: int, config: TransformerConfig) -> tuple[Tensor, Tensor]:
        return likeliest_tokens(logits.index_fill(1, torch.tensor(3), -torch.inf), n, config)

    monkeypatch.setattr("minitrans.model.decoding.likeliest_tokens", never_3)
    in_training, in_decoding = refusal_reasons()
    assert not in_training
    assert "not finite in the log-probabilities of step 1" in in_decoding


# -- No fault -------------------------------------------------------------------------------------------------------

SIZE_CASES: list[dict[str, Any]] = [
    {},
    {"n_heads": 1},
    {"n_heads": 1, "d_head": 1},
    {"d_head": 5},
    {"d_head": 32},
    {"d_head": 64, "n_heads": 2},
    {"d_head": 64, "n_heads": 8, "d_model": 512, "d_ff": 64},
    {"d_head": 128, "n_heads": 1},
    {"tie_embeddings": False},
    {"n_layers": 1},
    {"n_layers": 1, "n_heads": 1, "tie_embeddings": False, "d_head": 32},
    {"d_model": 3, "n_heads": 3, "d_ff": 1},
]
EPS_CASES: list[tuple[float, ...]] = [(1e-6,), (1e-3,), (1e-5, 1e-2), (1e-6, 1e-5, 1e-4, 1.0), (0.0,)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [*SIZE_CASES, *({"eps": eps} for eps in EPS_CASES)], ids=str)
def test_without_a_fault_there_is_no_difference(dtype: torch.dtype, sizes: dict[str, Any]) -> None:
    assert refusal_reasons(dtype, make_model(dtype, **sizes)) == ("", "")


# -- Faults of the model's code or of compiled code, on both paths or on one ------------------------------------------


@pytest.mark.parametrize("sabotage", [each for each in SABOTAGES if each.refused_by_probe], ids=lambda each: each.id)
def test_a_fault_is_noticed_where_it_is(sabotage: Sabotage) -> None:
    with sabotage.apply_fault():
        reasons = refusal_reasons(model=make_model(eps=(1e-3,)))
    assert [
        where for where, reason in zip(("training", "decoding"), reasons, strict=True) if reason
    ] == sabotage.refused_by_probe
    assert all("compiled code is off by " in reason and "float64" in reason for reason in reasons if reason)


# -- Faults of compiled code, in each dtype ---------------------------------------------------------------------------

ERROR_FACTORS = {torch.float64: 1 + 1e-6, torch.float32: 1.01, torch.bfloat16: 2.0}  # by which factor a number is wrong
N_PARAM_GRADIENTS = 1 + (6 + 6 + 2) + (6 + 6 + 6 + 2)  # of a table, and of an encoder and a decoder of one layer
AUTOGRAD_OUTPUTS = [
    *(("_HiddenStates", "forward", 0), ("_LinearCrossEntropy", "forward", 0)),
    *(("_HiddenStates", "backward", 3 + i) for i in range(N_PARAM_GRADIENTS)),
    *(("_LinearCrossEntropy", "backward", i) for i in range(2)),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("function", "direction", "which"), AUTOGRAD_OUTPUTS)
def test_a_result_that_is_slightly_wrong_is_noticed(
    function: str, direction: str, which: int, dtype: torch.dtype, monkeypatch: Patch
) -> None:
    """Wrong in `dtype` alone: results in other dtypes are right."""
    exact = getattr(getattr(training, function), direction)

    def wrong(*arguments: Any) -> Any:
        results = exact(*arguments)
        one = results if isinstance(results, Tensor) else results[which]
        if one.dtype == dtype:
            one.mul_(ERROR_FACTORS[dtype])
        return results

    monkeypatch.setattr(getattr(training, function), direction, staticmethod(wrong))
    in_training, in_decoding = refusal_reasons(dtype, make_model(dtype, n_layers=1))
    assert f"({str(dtype).removeprefix('torch.')}, relative to their size; at most " in in_training
    assert not in_decoding


@pytest.mark.parametrize(
    ("what", "name", "wrong"),
    [
        ("off by 1.0e+00 in the hidden states", "hidden_states", lambda output: (output[0] * 2, output[1])),
        ("not finite in the hidden states", "hidden_states", lambda output: (output[0] * math.inf, output[1])),
        ("off by 1.0e+00 in the loss", "batch_loss", lambda loss: loss + loss.detach()),
        ("in the gradient", "batch_loss", lambda loss: loss * 2 - loss.detach()),
    ],
)
def test_a_result_that_is_very_wrong_is_noticed(
    what: str, name: str, wrong: Callable[[Any], Any], monkeypatch: Patch
) -> None:
    """Wrong in bfloat16 alone, which a processor may compute in another way."""
    exact = getattr(training, name)

    def computed(*arguments: Any) -> Any:
        return wrong(exact(*arguments)) if arguments[-1] == torch.bfloat16 else exact(*arguments)

    monkeypatch.setattr(training, name, computed)
    in_training, in_decoding = refusal_reasons(torch.bfloat16)
    assert f"{what} (bfloat16, " in in_training
    assert not in_decoding


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("fault", "what"),
    [
        *((fault, "in the log-probabilities of step ") for fault in ("log_p", "order")),
        *((name, f"in the log-probabilities of step {n} (") for name, n in (("third", 3), ("last", 7))),
        *((fault, "is not finite in the log-probabilities of step 1 (") for fault in ("double", "least", "nan")),
    ],
)
def test_a_slightly_wrong_stepper_is_noticed(fault: str, what: str, dtype: torch.dtype, monkeypatch: Patch) -> None:
    next_tokens = CompiledStepper.next_tokens

    def wrong(self: CompiledStepper, tokens: Tensor, state: CompiledState, n: int) -> tuple[Tensor, Tensor]:
        log_p, ids = next_tokens(self, tokens, state, n)
        if self.dtype != dtype:
            return log_p, ids
        match fault, len(state.blocks) - probe.LENGTH:
            case ("log_p", _) | ("third", 3) | ("last", 7):
                log_p = log_p * ERROR_FACTORS[dtype]
            case "order", _:
                ids = ids.roll(1, 1) if dtype != torch.bfloat16 else ids.flip(1)  # in which neighbours are alike
            case "double", _:
                ids[:, 0] = ids[:, 1]
            case "least", _:  # token 3 in the place of token 2, each time, with its log-probability
                log_p[ids == 2] = log_p[ids == 3]
                ids[ids == 2] = 3
            case "nan", _:
                log_p[0, 7] = torch.nan
        return log_p, ids

    monkeypatch.setattr(CompiledStepper, "next_tokens", wrong)
    in_training, in_decoding = refusal_reasons(dtype)
    assert not in_training
    assert what in in_decoding


# -- What it compares -----------------------------------------------------------------------------------------------


def test_each_probe_compares_in_float64_and_in_the_dtype(monkeypatch: Patch) -> None:
    compared = Mock(wraps=probe._refuse_differences)
    monkeypatch.setattr(probe, "_refuse_differences", compared)
    dtypes = [torch.float64, torch.float64, torch.float32, torch.float64, torch.float32]  # training; decoding
    for n in (1, 2):
        assert refusal_reasons(torch.float32) == ("", "")
        assert [call.args[1] for call in compared.mock_calls] == dtypes * n
