"""The probe finds every fault, each alone, of either side, and none where there is none."""

import math
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from conftest import BOS, EOS, PAD, needs_compiled
from torch import Tensor
from torch.nn import functional as F

from minitrans.compiled import kernels, probe, training
from minitrans.compiled.library import NotAdmittedError
from minitrans.compiled.plan import read_plan
from minitrans.compiled.stepper import CompiledRows, CompiledStepper
from minitrans.model import attention, dropout, loss, transformer
from minitrans.model.attention import MultiHeadAttention
from minitrans.model.cache import DecoderCache, KeyValues
from minitrans.model.dropout import Dropout
from minitrans.model.layers import DecoderLayer, EncoderLayer, FeedForward, LayerTrace
from minitrans.model.transformer import Decoder, Transformer, TransformerConfig

pytestmark = needs_compiled

Patch = pytest.MonkeyPatch
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def model_of(dtype: torch.dtype = torch.float64, eps: tuple[float, ...] = (), **sizes: Any) -> Transformer:
    """In training mode; the parameters that training with products in a dtype has."""
    sizes = {"d_model": 24, "n_heads": 3, "d_ff": 40, "n_layers": 2, "max_len": 30} | sizes
    model = Transformer(TransformerConfig(50, PAD, BOS, EOS, **sizes)).to(torch.promote_types(dtype, torch.float32))
    norms = [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]
    for i, norm in enumerate(norms if eps else []):
        norm.eps = eps[i % len(eps)]
    return model


def found(dtype: torch.dtype = torch.float64, model: Transformer | None = None) -> tuple[str, str]:
    """What differs in training and in decoding; nothing where nothing does."""
    reasons = []
    for look in (probe.check_training, probe.check_steps):
        try:
            look(read_plan(model or model_of(dtype)), dtype)
            reasons.append("")
        except NotAdmittedError as reason:
            reasons.append(str(reason))
    return reasons[0], reasons[1]


@pytest.mark.parametrize(("n_heads", "small"), [(1, 1), (2, 2), (3, 3), (8, 3)])
def test_the_small_model_has_as_few_heads_and_layers(n_heads: int, small: int) -> None:
    """Compiled code goes other ways for one head than for more, and for one layer."""
    config = probe._small_model(read_plan(model_of(n_heads=n_heads, d_model=24, n_layers=n_heads))).config
    assert (config.n_heads, config.head_size, config.n_layers) == (small, 24 // n_heads, min(n_heads, 2))


@pytest.mark.parametrize("n_layers", [1, 2])
def test_every_eps_of_the_model_occurs_in_the_small_one(n_layers: int) -> None:
    eps = tuple(0.01 * i for i in range(1, 2 + 5 * n_layers + 1))  # each norm has another
    small = probe._small_model(read_plan(model_of(eps=eps, n_layers=n_layers)))
    assert sorted(m.eps for m in small.modules() if isinstance(m, torch.nn.LayerNorm)) == list(eps)


# -- No fault -------------------------------------------------------------------------------------------------------

SIZES: list[dict[str, Any]] = [
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
    {"n_layers": 6},
    {"n_layers": 1, "n_heads": 1, "tie_embeddings": False, "d_head": 32},
    {"dropout": 0.0},
    {"dropout": 0.0, "attention_dropout": 0.5},
    {"d_model": 3, "n_heads": 3, "d_ff": 1},
    {"max_len": 1},
    {"max_len": 1000},
]
EPS: list[tuple[float, ...]] = [(1e-6,), (1e-3,), (1e-5, 1e-2), (1e-6, 1e-5, 1e-4, 1.0), (0.0,)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [*SIZES, *({"eps": eps} for eps in EPS)], ids=str)
def test_without_a_fault_there_is_no_difference(dtype: torch.dtype, sizes: dict[str, Any]) -> None:
    model = model_of(dtype, **sizes)
    assert found(dtype, model) == ("", "")
    assert found(dtype, model.eval()) == ("", "")


# -- Faults of the code, the model's or compiled: of both paths, or of one --------------------------------------------


def gelu(self: FeedForward, x: Tensor) -> Tensor:
    return self.w_2(self.dropout(F.gelu(self.w_1(x))))


def post_norm(self: EncoderLayer, x: Tensor, src_mask: Tensor, need_weights: bool) -> LayerTrace:
    attended, weights = self.self_attn(x, x, x, src_mask, need_weights)
    x = self.self_norm(x + self.dropout(attended))
    return LayerTrace(self.ff_norm(x + self.dropout(self.ff(x))), weights, None)


def cross_before_self(
    self: DecoderLayer, x: Tensor, causal: Tensor, memory: Any, src_mask: Tensor, cache: Any, offset: int, need: bool
) -> LayerTrace:
    target, source = cache or (None, None)
    x = x + self.dropout(self.cross_attn(self.cross_norm(x), memory, memory, src_mask, need, source)[0])
    h = self.self_norm(x)
    x = x + self.dropout(self.self_attn(h, h, h, causal, need, target, offset)[0])
    return LayerTrace(x + self.dropout(self.ff(self.ff_norm(x))), None, None)


def unscaled_embedding(self: Transformer, embedding: Any, ids: Tensor, offset: int) -> Tensor:
    return self.dropout(embedding(ids) + self.positions[offset : offset + ids.size(1)])


def unmasked(q_len: int, kv_len: int, offset: int, device: Any = None) -> Tensor:
    return torch.ones(1, 1, q_len, kv_len, dtype=torch.bool, device=device)


def all_real(ids: Tensor, pad_id: int) -> Tensor:
    return torch.ones_like(ids, dtype=torch.bool)[:, None, None]


def interleaved(self: MultiHeadAttention, x: Tensor, first: int, last: int) -> tuple[Tensor, ...]:
    """Head h takes every h-th column."""
    columns = (t.transpose(1, 2).flatten(2) for t in project(self, x, first, last))
    return tuple(t.unflatten(2, (self.d_head, self.n_heads)).permute(0, 3, 1, 2) for t in columns)


def restarting(self: Transformer, embedding: Any, ids: Tensor, offset: int) -> Tensor:
    return embed(self, embedding, ids, 0)


def forgetting(self: KeyValues, k: Tensor, v: Tensor, offset: int) -> tuple[Tensor, Tensor]:
    self.k[:, :, :offset] = 0.0
    return write(self, k, v, offset)


def sorting(self: DecoderCache, rows: Tensor) -> None:
    select(self, rows.sort().values)


def late_dropout(self: FeedForward, x: Tensor) -> Tensor:
    return self.dropout(self.w_2(F.relu(self.w_1(x))))


def dropout_before_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout_p: float = 0.0, need_weights: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The scores are dropped, not the weights."""
    scores = dropout.dropout(attention.attention_scores(q, k), dropout_p, training=True)
    return attention.masked_softmax(scores, mask) @ v, None


def other_order(self: EncoderLayer, x: Tensor, src_mask: Tensor, need_weights: bool) -> LayerTrace:
    """The dropouts of a layer draw their seeds in another order: the feed-forward network's after that of its end."""
    h = self.self_norm(x)
    x = x + self.dropout(self.self_attn(h, h, h, src_mask, need_weights)[0])
    h = self.ff_norm(x)
    state = torch.get_rng_state()
    dropout.draw_seed()
    hidden = self.ff(h)
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    x = x + self.dropout(hidden)
    torch.set_rng_state(after)
    return LayerTrace(x, None, None)


def detached(self: Decoder, x: Tensor, memory: Tensor | None, *rest: Any) -> Any:
    return decode(self, x, None if memory is None else memory.detach(), *rest)


def sharp(hidden: Tensor, weight: Tensor, tgt_out: Tensor, pad_id: int, smoothing: float) -> Tensor:
    return linear_cross_entropy(hidden, weight, tgt_out, pad_id, 0.0)


def with_padding(hidden: Tensor, weight: Tensor, tgt_out: Tensor, pad_id: int, smoothing: float) -> Tensor:
    return linear_cross_entropy(hidden, weight, tgt_out, -1, smoothing)


def kept(self: CompiledRows, rows: Tensor) -> None:
    self.sources, self.slots = self.sources[rows], self.slots[rows.sort().values]


def cut(self: CompiledStepper, src_ids: Tensor, capacity: int) -> CompiledRows:
    return begin(self, src_ids[:, :-1], capacity)


project, softmax, norm = MultiHeadAttention.project, attention.masked_softmax, F.layer_norm
embed, write, select, decode = Transformer.embed, KeyValues.write, DecoderCache.select_rows, Decoder.forward
linear_cross_entropy, begin = loss.linear_cross_entropy, CompiledStepper.begin
BOTH, TRAINING, DECODING = (True, True), (True, False), (False, True)
FAULTS: dict[str, tuple[tuple[bool, bool], object, str, Callable[..., Any]]] = {
    "GELU": (BOTH, FeedForward, "forward", gelu),
    "linear": (BOTH, FeedForward, "forward", lambda self, x: self.w_2(self.dropout(self.w_1(x)))),
    "post-norm": (BOTH, EncoderLayer, "forward", post_norm),
    "cross first": (BOTH, DecoderLayer, "forward", cross_before_self),
    "no scale": (BOTH, attention, "attention_scores", lambda q, k: q @ k.mT),
    "hardly another scale": (BOTH, attention, "attention_scores", lambda q, k: q @ k.mT / q.size(-1) ** 0.500001),
    "base 2": (BOTH, attention, "masked_softmax", lambda s, mask=None: softmax(s * math.log(2), mask)),
    "no sqrt(d_model)": (BOTH, Transformer, "embed", unscaled_embedding),
    "padding is seen": (BOTH, transformer, "padding_mask", all_real),
    "heads interleaved": (BOTH, MultiHeadAttention, "project", interleaved),
    "another epsilon": (BOTH, F, "layer_norm", lambda x, shape, w, b, eps: norm(x, shape, w, b, eps * 1.001)),
    "no causal mask": (TRAINING, transformer, "causal_mask", unmasked),  # a step has nothing to hide
    "dropout after the network": (TRAINING, FeedForward, "forward", late_dropout),
    "dropout of the scores": (TRAINING, attention, "scaled_dot_product_attention", dropout_before_attention),
    "dropout in another order": (TRAINING, EncoderLayer, "forward", other_order),
    "more is dropped": (TRAINING, dropout, "dropped_of_256", lambda p: round(256 * p) + bool(p)),
    "no dropout": (TRAINING, Dropout, "forward", lambda self, x: x),
    "no gradient to the source": (TRAINING, Decoder, "forward", detached),
    "no smoothing": (TRAINING, loss, "linear_cross_entropy", sharp),
    "the loss counts padding": (TRAINING, loss, "linear_cross_entropy", with_padding),
    "kernels draw one seed": (TRAINING, training, "draw_seed", lambda: 7),
    "kernels drop nothing": (TRAINING, training, "_draw", lambda p: kernels.Dropout(0, 0)),
    "positions restart": (DECODING, Transformer, "embed", restarting),
    "cache forgets": (DECODING, KeyValues, "write", forgetting),
    "rows sorted": (DECODING, DecoderCache, "select_rows", sorting),
    "rows stay": (DECODING, DecoderCache, "select_rows", lambda self, rows: select(self, torch.tensor([0, 1, 1]))),
    "compiled rows stay": (DECODING, CompiledRows, "select_rows", kept),
    "the compiled source is cut": (DECODING, CompiledStepper, "begin", cut),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed_where_it_is(fault: str, dtype: torch.dtype, monkeypatch: Patch) -> None:
    where, owner, name, function = FAULTS[fault]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, function)
        reasons = found(dtype, model_of(dtype, (1e-3,)))
    assert tuple(map(bool, reasons)) == where
    assert all("compiled code is off by " in reason and "float64" in reason for reason in reasons if reason)
    assert found(dtype) == ("", "")


# -- Faults of compiled code, in each dtype ---------------------------------------------------------------------------

SLIGHTLY = {torch.float64: 1 + 1e-6, torch.float32: 1.01, torch.bfloat16: 2.0}  # by which factor a number is wrong


def slightly(results: Any, which: int, factor: float) -> Any:
    """What a kernel returns, one of it off by a factor."""
    if isinstance(results, Tensor):
        return results * factor
    return tuple(x * factor if i == which and x is not None else x for i, x in enumerate(results))


KERNELS = [
    *((name, 0) for name in ("embed", "norm", "attention", "feed_forward")),
    *(("norm_backward", i) for i in range(3)),
    *(("feed_forward_backward", i) for i in range(7)),
    *(("attention_backward", i) for i in range(8)),
    *(("linear_cross_entropy", i) for i in range(2)),
    *(("linear_cross_entropy_backward", i) for i in range(2)),
    ("add_embed_backward", 0),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("name", "which"), KERNELS)
def test_a_kernel_that_is_slightly_wrong_is_noticed(
    name: str, which: int, dtype: torch.dtype, monkeypatch: Patch
) -> None:
    """In the dtype of its input alone: the others are right."""
    exact = getattr(kernels, name)

    def wrong(first: Tensor, *rest: Any) -> Any:
        results = exact(first, *rest)
        of = results if isinstance(results, Tensor) else next(x for x in results if isinstance(x, Tensor))
        return slightly(results, which, SLIGHTLY[dtype]) if of.dtype == dtype else results

    monkeypatch.setattr(kernels, name, wrong)
    in_training, in_decoding = found(dtype)
    assert f"({str(dtype).removeprefix('torch.')}, relative to their size; at most " in in_training
    assert not in_decoding


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("what", "name", "wrong"),
    [
        ("off by 1.0e+00 in the hidden states", "hidden_states", lambda found: (found[0] * 2, found[1])),
        ("not finite in the hidden states", "hidden_states", lambda found: (found[0] * math.inf, found[1])),
        ("off by 1.0e+00 in the loss", "batch_loss", lambda loss: loss + loss.detach()),
        ("in the gradient", "batch_loss", lambda loss: loss * 2 - loss.detach()),
    ],
)
def test_what_is_wrong_by_its_own_size_is_noticed(
    what: str, name: str, wrong: Callable[[Any], Any], dtype: torch.dtype, monkeypatch: Patch
) -> None:
    """In that dtype alone, which a processor may compute in another."""
    exact = getattr(training, name)

    def computed(*arguments: Any) -> Any:
        return wrong(exact(*arguments)) if arguments[-1] == dtype else exact(*arguments)

    monkeypatch.setattr(training, name, computed)
    in_training, in_decoding = found(dtype)
    assert f"{what} " in in_training
    assert f"({str(dtype).removeprefix('torch.')}, " in in_training
    assert not in_decoding


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("fault", "what"),
    [
        *((fault, "in the log-probabilities of step ") for fault in ("log_p", "order")),
        ("third", "in the log-probabilities of step 3 ("),
        *((fault, "in the tokens of step 1 (") for fault in ("double", "least")),
        ("nan", "compiled code is not finite in the log-probabilities of step 1 ("),
    ],
)
def test_a_stepper_that_is_slightly_wrong_is_noticed(
    fault: str, what: str, dtype: torch.dtype, monkeypatch: Patch
) -> None:
    next_tokens = CompiledStepper.next_tokens

    def wrong(self: CompiledStepper, tokens: Tensor, rows: CompiledRows, n: int) -> tuple[Tensor, Tensor]:
        log_p, ids = next_tokens(self, tokens, rows, n)
        if self.dtype != dtype:
            return log_p, ids
        match fault, len(rows.blocks):
            case ("log_p", _) | ("third", 3):
                log_p = log_p * SLIGHTLY[dtype]
            case "order", _:
                ids = ids.roll(1, 1) if dtype != torch.bfloat16 else ids.flip(1)  # in which neighbours are alike
            case "double", _:
                ids[:, 0] = ids[:, 1]
            case "least", _:  # each time the next one in its place, with all that belongs to it
                log_p[ids == 2] = log_p[ids == 3]
                ids[ids == 2] = 3
            case "nan", _:
                log_p[0, 7] = torch.nan
        return log_p, ids

    monkeypatch.setattr(CompiledStepper, "next_tokens", wrong)
    in_training, in_decoding = found(dtype)
    assert not in_training
    assert what in in_decoding


# -- When it looks --------------------------------------------------------------------------------------------------


def test_it_looks_each_time_in_float64_and_in_the_dtype(monkeypatch: Patch) -> None:
    compared = Mock(wraps=probe._refuse_differences)
    monkeypatch.setattr(probe, "_refuse_differences", compared)
    for n in (1, 2):
        assert found(torch.float32) == ("", "")
        assert [call.args[1] for call in compared.mock_calls] == [torch.float64, torch.float32] * 2 * n
