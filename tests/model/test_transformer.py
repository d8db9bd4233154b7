"""The whole model: its settings, dtypes, devices, parameters, limits and hooks. Its output: test_verify_checks.py."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from conftest import ATOL, BOS, EOS, PAD, random_ids, random_model, random_tgt_in, record_calls, worst_deviation
from torch import Tensor, nn

from minitrans.model.attention import MultiHeadAttention
from minitrans.model.dropout import Dropout
from minitrans.model.layers import sinusoidal_positions
from minitrans.model.transformer import Transformer, TransformerConfig
from minitrans.translate.bundle import count_parameters

B, S, T, H, DH, D, V, MAX_LEN = 3, 7, 5, 2, 4, 6, 11, 17
LENGTHS = [4, 7, 1]

DEFAULT_CONFIG = TransformerConfig(vocab_size=V, pad_id=PAD, bos_id=BOS, eos_id=EOS)
SRC_IDS, TGT_IN = random_ids(1, LENGTHS, S), random_tgt_in(2, B, T)


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(({name: 0}, rf"model\.{name} must be at least 1, got 0") for name in ("vocab_size", "d_model", "n_heads")),
        *(({name: 0}, rf"model\.{name} must be at least 1, got 0") for name in ("n_layers", "max_len", "d_head")),
        ({"d_ff": -2}, r"model\.d_ff must be at least 1, got -2"),
        ({"dropout": 1.0}, r"model\.dropout must be in \[0, 1\), got 1\.0"),
        ({"dropout": -0.1}, r"model\.dropout must be in \[0, 1\), got -0\.1"),
        ({"dropout": math.nan}, r"model\.dropout must be in \[0, 1\), got nan"),
        ({"attention_dropout": 1.5}, r"model\.attention_dropout must be in \[0, 1\), got 1\.5"),
        ({"pad_id": V}, r"model\.pad_id is 11, not one of the 11 ids"),
        ({"bos_id": V + 1}, r"model\.bos_id is 12, not one of the 11 ids"),
        ({"eos_id": -1}, r"model\.eos_id is -1, not one of the 11 ids"),
        ({"pad_id": 0, "bos_id": 1, "eos_id": 0}, "pad_id, bos_id and eos_id must differ, got 0, 1, 0"),
        ({"n_heads": 3}, r"model\.d_model \(128\) is not divisible by model\.n_heads \(3\)"),
        ({"n_heads": 48}, r"model\.d_model \(128\) is not divisible by model\.n_heads \(48\)"),  # but by 128 // 48
    ],
)
def test_invalid_settings_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        dataclasses.replace(DEFAULT_CONFIG, **settings)


def test_omitted_settings_have_their_defaults_and_settings_are_frozen() -> None:
    """The defaults are part of the interface, because a settings file need not name them."""
    assert dataclasses.asdict(DEFAULT_CONFIG) == {
        "vocab_size": V,
        "pad_id": PAD,
        "bos_id": BOS,
        "eos_id": EOS,
        "d_model": 128,
        "n_heads": 4,
        "d_head": None,
        "d_ff": 512,
        "n_layers": 3,
        "max_len": 256,
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "tie_embeddings": True,
    }
    assert DEFAULT_CONFIG.head_size == 32
    with pytest.raises(dataclasses.FrozenInstanceError):
        DEFAULT_CONFIG.d_model = 12  # type: ignore[misc]


def test_the_smallest_settings_are_accepted() -> None:
    config = dataclasses.replace(
        TransformerConfig(3, 2, 1, 0), d_model=1, n_heads=1, d_head=1, d_ff=1, n_layers=1, max_len=1, dropout=0.0
    )
    one = torch.zeros(1, 1, dtype=torch.int64)
    assert Transformer(config)(one, one).shape == (1, 1, 3)


def test_settings_reach_every_layer() -> None:
    model = Transformer(dataclasses.replace(DEFAULT_CONFIG, n_layers=4, d_head=DH, dropout=0.25, attention_dropout=0.5))
    assert len(model.encoder.layers) == len(model.decoder.layers) == 4
    assert len(attention_modules(model)) == 12
    assert {(each.n_heads, each.d_head, each.dropout) for each in attention_modules(model).values()} == {(4, DH, 0.5)}
    dropouts = [module.p for module in model.modules() if isinstance(module, Dropout)]
    assert dropouts == [0.25] * 17  # the embeddings; in each layer, sub-layer outputs and hidden elements


# Positions, dtypes and devices


def test_a_cast_model_has_positions_as_exact_as_its_dtype() -> None:
    exact = sinusoidal_positions(DEFAULT_CONFIG.max_len, DEFAULT_CONFIG.d_model)
    assert torch.equal(Transformer(DEFAULT_CONFIG).positions, exact.float())
    assert torch.equal(Transformer(DEFAULT_CONFIG).double().positions, exact)
    assert torch.equal(Transformer(DEFAULT_CONFIG).bfloat16().double().positions, exact)


def test_positions_move_only_with_the_weights() -> None:
    with torch.device("meta"):
        assert Transformer(DEFAULT_CONFIG).positions.is_meta
    assert Transformer(DEFAULT_CONFIG).to("meta").positions.is_meta
    unmoved = Transformer(DEFAULT_CONFIG).to_empty(device="meta", recurse=False)  # the weights are in submodules
    assert not unmoved.output.weight.is_meta
    assert not unmoved.positions.is_meta


def test_positions_are_not_saved() -> None:
    model = random_model(0)
    assert [name for name, _ in model.named_buffers()] == ["positions"]
    assert "positions" not in model.state_dict()


@torch.no_grad()
def test_all_tensors_are_created_on_the_device_of_the_ids() -> None:
    """Here only sizes are computed; test_decoding.py and test_backend.py find tensors created without a device."""
    assert random_model(0).to("meta")(SRC_IDS.to("meta"), TGT_IN.to("meta")).shape == (B, T, V)


def intermediate_dtypes(model: Transformer) -> set[torch.dtype]:
    """The dtypes of each layer's output, of the encoder's output and of the hidden states."""
    memory, src_mask, read = model.run_encoder(SRC_IDS)
    _, written = model.run_decoder(TGT_IN, memory, src_mask)
    return {x.dtype for x in (*(t.output for t in read + written), memory, model.hidden_states(SRC_IDS, TGT_IN))}


@pytest.mark.parametrize("training", [False, True])
def test_under_autocast_all_layer_outputs_have_its_dtype(training: bool) -> None:
    model = random_model(5).float().train(training)
    with torch.autocast("cpu", torch.bfloat16):
        assert intermediate_dtypes(model) == {torch.bfloat16}
    with torch.autocast("cpu", torch.bfloat16, enabled=False):
        assert intermediate_dtypes(model) == {torch.float32}
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


# Parameters


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("n_heads", "d_head"), [(H, DH), (1, 8), (4, 2), (8, 1), (3, 5)])
def test_the_number_of_parameters_follows_from_the_sizes(n_heads: int, d_head: int, tied: bool) -> None:
    model = random_model(0, n_heads=n_heads, d_head=d_head, tie_embeddings=tied)
    assert sum(p.numel() for p in model.parameters()) == count_parameters(model.config)


@pytest.mark.parametrize("tied", [True, False])
def test_initial_embeddings_are_normal_with_the_right_spread_and_norms_one_and_zero(tied: bool) -> None:
    torch.manual_seed(0)
    config = dataclasses.replace(DEFAULT_CONFIG, vocab_size=500, d_model=64, n_heads=2, n_layers=1, tie_embeddings=tied)
    model = Transformer(config)
    for table in (model.src_embedding, model.tgt_embedding, model.output):
        spread = table.weight * math.sqrt(64)  # of 32000 elements
        assert abs(spread.mean().item()) < 0.02
        assert abs(spread.std().item() - 1.0) < 0.02
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 2 + 3 + 2
    assert all(norm.weight.eq(1.0).all() and norm.bias.eq(0.0).all() for norm in norms)


# Passes

LOGIT_METHODS = ["forward", "hidden_states", "decode", "step"]


def logits_by_method(model: Transformer, way: str) -> Tensor:
    """The logits of one batch, the target fed in two chunks where it is fed step by step."""
    match way:
        case "forward":
            return model(SRC_IDS, TGT_IN)
        case "hidden_states":
            return model.logits(model.hidden_states(SRC_IDS, TGT_IN))
        case "decode":
            return model.decode(TGT_IN, *model.encode(SRC_IDS))
    cache = model.init_cache(*model.encode(SRC_IDS))
    return torch.cat([model.step(chunk, cache) for chunk in TGT_IN.split([2, 3], 1)], 1)


def attention_modules(model: Transformer) -> dict[str, MultiHeadAttention]:
    return {name: module for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)}


@pytest.mark.parametrize("flags", [{}, {"need_weights": False}, {"need_weights": True}])
def test_traces_hold_each_layers_output_and_weights_only_when_asked_for(flags: dict[str, Any]) -> None:
    model = random_model(5)
    memory, src_mask, read = model.run_encoder(SRC_IDS, **flags)
    hidden, written = model.run_decoder(TGT_IN, memory, src_mask, **flags)
    assert torch.equal(model.encoder.norm(read[-1].output), memory)
    assert torch.equal(model.decoder.norm(written[-1].output), hidden)
    weights = [trace.self_weights for trace in read + written] + [trace.cross_weights for trace in written]
    sizes = [(B, H, S, S)] * 2 + [(B, H, T, T)] * 2 + [(B, H, T, S)] * 2
    assert [w if w is None else w.shape for w in weights] == (sizes if flags.get("need_weights") else [None] * 6)
    assert [trace.cross_weights for trace in read] == [None, None]


def test_the_stacks_keep_no_weights_unless_asked_for() -> None:
    model, x = random_model(5), torch.zeros(B, S, D, dtype=torch.float64)
    memory, src_mask = model.encode(SRC_IDS)
    traces = [*model.encoder(x, src_mask)[1], *model.decoder(x, memory, src_mask)[1]]
    assert [(trace.self_weights, trace.cross_weights) for trace in traces] == [(None, None)] * 4


# Limits


def test_sequences_beyond_max_len_are_refused_and_a_cache_holds_max_len_by_default() -> None:
    model = random_model(6)
    assert [model.init_cache(*model.encode(SRC_IDS), n).capacity for n in (None, 0)] == [MAX_LEN, 0]
    longest, longer, longer_still = (random_ids(1, [n] * B, n) for n in (MAX_LEN, MAX_LEN + 1, MAX_LEN + 2))
    assert model(longest, longest).shape == (B, MAX_LEN, V)
    with pytest.raises(ValueError, match=r"18 tokens are more than model\.max_len \(17\)"):
        model.encode(longer)
    with pytest.raises(ValueError, match=r"19 tokens are more than model\.max_len \(17\)"):
        model(SRC_IDS, longer_still)


@torch.no_grad()
@pytest.mark.parametrize(
    ("capacity", "rows", "tokens", "error", "message"),
    [
        (8, 3, 3, ValueError, r"the cache holds 6 of 8 tokens: no room for 3 more"),
        (30, 3, 12, ValueError, r"18 tokens are more than model\.max_len \(17\)"),  # however large the cache
        (8, 2, 2, RuntimeError, "expanded size"),  # fails midway: not as many rows as the cache has
    ],
)
def test_a_step_that_is_refused_changes_nothing_and_can_be_tried_again(
    capacity: int, rows: int, tokens: int, error: type[Exception], message: str
) -> None:
    model, tgt_in = random_model(6), random_tgt_in(2, B, 8)
    cache = model.init_cache(*model.encode(SRC_IDS), capacity=capacity)
    model.step(tgt_in[:, :6], cache)
    with pytest.raises(error, match=message):
        model.step(random_tgt_in(3, rows, tokens), cache)
    assert cache.length == 6
    assert worst_deviation([model.step(tgt_in[:, 6:], cache)], [model(SRC_IDS, tgt_in)[:, 6:]]) <= ATOL
    assert cache.length == 8


@torch.no_grad()
@pytest.mark.parametrize(("n_layers", "message"), [(1, "shorter"), (3, "longer")])
def test_a_cache_with_the_wrong_number_of_layers_is_refused(n_layers: int, message: str) -> None:
    memory, src_mask = random_model(5).encode(SRC_IDS)
    cache = random_model(5, n_layers=n_layers).init_cache(memory, src_mask)
    with pytest.raises(ValueError, match=message):
        random_model(5).run_decoder(TGT_IN, None, src_mask, cache)
    assert cache.length == 0


def test_select_rows_copies_only_the_filled_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where autograd records, as it does here."""
    model = random_model(6)
    cache = model.init_cache(*model.encode(SRC_IDS))
    model.step(TGT_IN, cache)
    copied = record_calls(monkeypatch, torch, "index_select")
    cache.select_rows(torch.tensor([2, 1]))
    assert [x.size(2) for x, *_ in copied] == [T, T, S, S] * 2  # layers


# Hooks: every attention is called as a module, whichever way the model is used


@torch.no_grad()
@pytest.mark.parametrize("way", LOGIT_METHODS)
@pytest.mark.parametrize("name", list(attention_modules(random_model(5))))
def test_an_output_replaced_by_a_hook_reaches_the_logits(name: str, way: str) -> None:
    model = random_model(5)
    before = logits_by_method(model, way)
    hook = attention_modules(model)[name].register_forward_hook(
        lambda module, arguments, out: (torch.zeros_like(out[0]), None)
    )
    got = logits_by_method(model, way)
    hook.remove()
    assert torch.equal(logits_by_method(model, way), before)
    nn.init.zeros_(attention_modules(model)[name].w_o.weight)
    nn.init.zeros_(attention_modules(model)[name].w_o.bias)
    assert worst_deviation([got], [logits_by_method(model, way)]) <= ATOL
    assert worst_deviation([got], [before]) > 1e-3


def test_steps_call_hooks_on_all_modules_but_the_model_lists_and_w_qkv() -> None:
    model, never = random_model(5), {name for name, _ in random_model(5).named_modules()}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: never.discard(name))
    logits_by_method(model, "step")
    assert {name.rpartition(".")[2] for name in never} == {"", "layers", "w_qkv"}
