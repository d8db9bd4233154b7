"""The whole model: its settings, its sizes, and its numbers against the reference and PyTorch's Transformer."""

import dataclasses
import math

import pytest
import torch
from conftest import (
    ATOL,
    BOS,
    EOS,
    PAD,
    as_numpy,
    as_torch_state,
    random_ids,
    random_model,
    random_targets,
    random_tensor,
    worst_deviation,
)
from torch import Tensor, nn

from minitrans.model import reference
from minitrans.model.attention import MultiHeadAttention
from minitrans.model.dropout import Dropout
from minitrans.model.layers import sinusoidal_positions
from minitrans.model.transformer import Transformer, TransformerConfig

B, S, T, H, DH, D, D_FF, V, MAX_LEN = 3, 7, 5, 2, 4, 6, 13, 11, 17
LENGTHS = [4, 7, 1]

CONFIG = TransformerConfig(vocab_size=V, pad_id=PAD, bos_id=BOS, eos_id=EOS)


# Settings


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("vocab_size", 0, r"model\.vocab_size must be at least 1, got 0"),
        ("d_model", 0, r"model\.d_model must be at least 1, got 0"),
        ("n_heads", 0, r"model\.n_heads must be at least 1, got 0"),
        ("d_ff", -2, r"model\.d_ff must be at least 1, got -2"),
        ("n_layers", 0, r"model\.n_layers must be at least 1, got 0"),
        ("max_len", 0, r"model\.max_len must be at least 1, got 0"),
        ("d_head", 0, r"model\.d_head must be at least 1, got 0"),
        ("dropout", 1.0, r"model\.dropout must be in \[0, 1\), got 1\.0"),
        ("dropout", -0.1, r"model\.dropout must be in \[0, 1\), got -0\.1"),
        ("dropout", math.nan, r"model\.dropout must be in \[0, 1\), got nan"),
        ("attention_dropout", 1.5, r"model\.attention_dropout must be in \[0, 1\), got 1\.5"),
        ("pad_id", V, r"model\.pad_id is 11, not one of the 11 ids"),
        ("bos_id", V + 1, r"model\.bos_id is 12, not one of the 11 ids"),
        ("eos_id", -1, r"model\.eos_id is -1, not one of the 11 ids"),
        ("n_heads", 3, r"model\.d_model \(128\) is not divisible by model\.n_heads \(3\)"),
        ("n_heads", 48, r"model\.d_model \(128\) is not divisible by model\.n_heads \(48\)"),  # but by 128 // 48 = 2
    ],
)
def test_a_setting_that_makes_no_sense_is_named(setting: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **{setting: value})  # type: ignore[arg-type]


def test_of_many_settings_that_make_no_sense_the_first_is_named() -> None:
    sizes = dict.fromkeys(("vocab_size", "d_model", "n_heads", "d_ff", "n_layers", "max_len"), 0)
    wrong = (
        sizes | dict.fromkeys(("dropout", "attention_dropout"), 1) | dict.fromkeys(("pad_id", "bos_id", "eos_id"), V)
    )
    for name in list(wrong):
        with pytest.raises(ValueError, match=rf"^model\.{name} "):
            dataclasses.replace(CONFIG, **wrong)  # type: ignore[arg-type]
        del wrong[name]


def test_a_setting_left_out_has_its_default() -> None:
    """The defaults are part of the interface, for a settings file need not name them."""
    assert dataclasses.asdict(CONFIG) == {
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


def test_the_smallest_settings_are_accepted() -> None:
    config = dataclasses.replace(
        TransformerConfig(3, 2, 1, 0), d_model=1, n_heads=1, d_head=1, d_ff=1, n_layers=1, max_len=1, dropout=0.0
    )
    one = torch.zeros(1, 1, dtype=torch.int64)
    assert Transformer(config)(one, one).shape == (1, 1, 3)


def test_special_ids_must_differ() -> None:
    with pytest.raises(ValueError, match="pad_id, bos_id and eos_id must differ, got 0, 1, 0"):
        TransformerConfig(V, 0, 1, 0)


def test_a_cast_model_has_positions_as_exact_as_its_dtype() -> None:
    exact = sinusoidal_positions(CONFIG.max_len, CONFIG.d_model)
    assert torch.equal(Transformer(CONFIG).positions, exact.float())
    assert torch.equal(Transformer(CONFIG).bfloat16().double().positions, exact)


def test_positions_move_with_the_weights_alone() -> None:
    with torch.device("meta"):
        assert Transformer(CONFIG).positions.is_meta
    assert Transformer(CONFIG).to("meta").positions.is_meta
    unmoved = Transformer(CONFIG).to_empty(device="meta", recurse=False)  # the weights are in modules of their own
    assert not unmoved.output.weight.is_meta
    assert not unmoved.positions.is_meta


@torch.no_grad()
def test_everything_is_made_on_the_device_of_the_ids() -> None:
    model, src_ids, tgt_in = random_model(0), random_ids(1, LENGTHS, S), random_targets(2, B, T)
    before = model(src_ids, tgt_in)
    with torch.device("meta"):  # where a tensor goes that is made without a device; it cannot be computed with
        assert torch.equal(model(src_ids, tgt_in), before)
        cache = model.init_cache(*model.encode(src_ids))
        stepped = torch.cat([model.step(chunk, cache) for chunk in tgt_in.split(2, 1)], 1)
    assert worst_deviation([stepped], [before]) <= ATOL


def test_settings_do_not_change_under_a_model() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CONFIG.d_model = 12  # type: ignore[misc]


def test_the_size_of_a_head_is_a_share_of_the_model_unless_given() -> None:
    assert dataclasses.replace(CONFIG, d_model=12, n_heads=3).head_size == 4
    assert dataclasses.replace(CONFIG, d_model=12, n_heads=5, d_head=7).head_size == 7


def test_settings_reach_every_layer() -> None:
    config = dataclasses.replace(CONFIG, n_layers=4, d_head=DH, dropout=0.25, attention_dropout=0.5)
    model = Transformer(config)
    assert len(model.encoder.layers) == len(model.decoder.layers) == 4
    attentions = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    assert len(attentions) == 12
    assert {(module.n_heads, module.d_head, module.dropout) for module in attentions} == {(4, DH, 0.5)}
    dropouts = [module.p for module in model.modules() if isinstance(module, Dropout)]
    assert dropouts == [0.25] * 17  # the embeddings, and in each layer answers and hidden elements


# Parameters


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def expected_parameters(embeddings: int, inner: int, n_layers: int) -> int:
    """Counted by hand; `inner` is H * Dh."""
    attention = 3 * (D * inner + inner) + inner * D + D
    feed_forward = D * D_FF + D_FF + D_FF * D + D
    norm = 2 * D
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    return embeddings * V * D + n_layers * (encoder_layer + decoder_layer) + 2 * norm


@pytest.mark.parametrize(("tied", "matrices"), [(True, 1), (False, 3)])
def test_parameters_are_as_many_as_counted_by_hand(tied: bool, matrices: int) -> None:
    assert count(random_model(0, tie_embeddings=tied)) == expected_parameters(matrices, H * DH, n_layers=2)


def test_tied_embeddings_are_one_matrix() -> None:
    model = random_model(0)
    assert model.src_embedding.weight is model.tgt_embedding.weight
    assert model.src_embedding.weight is model.output.weight


def test_untied_embeddings_are_three_matrices() -> None:
    model = random_model(0, tie_embeddings=False)
    tables = [model.src_embedding.weight, model.tgt_embedding.weight, model.output.weight]
    assert len({table.data_ptr() for table in tables}) == 3
    assert all(table.shape == (V, D) for table in tables)


@pytest.mark.parametrize("n_heads", [1, 2, 4, 8])
def test_the_number_of_parameters_does_not_depend_on_the_number_of_heads(n_heads: int) -> None:
    model = random_model(0, n_heads=n_heads, d_head=8 // n_heads)
    assert count(model) == expected_parameters(1, 8, n_layers=2)


@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_gets_a_gradient(tied: bool) -> None:
    model = random_model(0, tie_embeddings=tied)
    model(random_ids(1, LENGTHS, S), random_targets(2, B, T))[..., :-1].square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_begin_normal_with_the_right_spread(tied: bool) -> None:
    torch.manual_seed(0)
    config = dataclasses.replace(CONFIG, vocab_size=500, d_model=64, n_heads=2, n_layers=1, tie_embeddings=tied)
    model = Transformer(config)
    for table in (model.src_embedding, model.tgt_embedding, model.output):
        spread = table.weight * math.sqrt(64)  # of 32000 elements
        assert abs(spread.mean().item()) < 0.02
        assert abs(spread.std().item() - 1.0) < 0.02


def test_norms_begin_with_one_and_zero() -> None:
    norms = [module for module in Transformer(CONFIG).modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 3 * (2 + 3) + 2
    assert all(norm.weight.eq(1.0).all() and norm.bias.eq(0.0).all() for norm in norms)


def test_positions_are_not_saved_and_weights_come_back_the_same() -> None:
    model, other = random_model(0), random_model(1)
    assert [name for name, _ in model.named_buffers()] == ["positions"]
    assert "positions" not in model.state_dict()
    src_ids, tgt_in = random_ids(1, LENGTHS, S), random_targets(2, B, T)
    assert worst_deviation([other(src_ids, tgt_in)], [model(src_ids, tgt_in)]) > 1e-3
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(src_ids, tgt_in), model(src_ids, tgt_in))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_do_not_change_the_dtype(dtype: torch.dtype) -> None:
    model = Transformer(CONFIG).to(dtype)
    assert model(random_ids(1, LENGTHS, S), random_targets(2, B, T)).dtype == dtype


def test_a_model_made_double_has_exact_positions() -> None:
    model = Transformer(CONFIG).double()
    want = torch.from_numpy(reference.positions(CONFIG.max_len, CONFIG.d_model))
    assert worst_deviation([model.positions], [want]) <= ATOL


# Oracles


@torch.no_grad()
def deviation_from_reference(model: Transformer, n_heads: int) -> float:
    """How far the logits of a ragged batch are from the reference's on each row alone."""
    src_ids, tgt_in = random_ids(1, LENGTHS, S), random_targets(2, B, T)
    weights = as_numpy(model)
    want = [
        torch.from_numpy(reference.transformer(weights, n_heads, src[:n].tolist(), tgt.tolist()))
        for src, n, tgt in zip(src_ids, LENGTHS, tgt_in, strict=True)
    ]
    got = model(src_ids, tgt_in)
    assert got.shape == (B, T, V)
    return worst_deviation([got], [torch.stack(want)])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("n_heads", "d_head"), [(H, DH), (3, None), (1, 7)])
def test_the_model_equals_the_reference(tied: bool, n_heads: int, d_head: int | None) -> None:
    model = random_model(3, n_heads=n_heads, d_head=d_head, tie_embeddings=tied)
    assert deviation_from_reference(model, n_heads) <= ATOL


def test_control_the_reference_reports_a_missing_scale_of_the_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    def embed(self: Transformer, embedding: nn.Embedding, ids: Tensor, offset: int) -> Tensor:
        return embedding(ids) + self.positions[offset : offset + ids.size(1)]

    monkeypatch.setattr(Transformer, "embed", embed)
    assert deviation_from_reference(random_model(3), H) > 1e-3


def test_control_the_reference_reports_padding_that_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "minitrans.model.transformer.padding_mask", lambda ids, pad_id: torch.ones(B, 1, 1, S, dtype=torch.bool)
    )
    assert deviation_from_reference(random_model(3), H) > 1e-3


def their_transformer(ours: Transformer, n_heads: int, n_layers: int) -> nn.Transformer:
    """PyTorch's Transformer with our weights, final norms included."""
    d_model = ours.config.d_model
    sizes = (d_model, n_heads, ours.config.d_ff)
    encoder_layer = nn.TransformerEncoderLayer(*sizes, dropout=0.0, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(encoder_layer, n_layers, nn.LayerNorm(d_model), enable_nested_tensor=False)
    theirs = nn.Transformer(
        *sizes[:2],
        num_decoder_layers=n_layers,
        dim_feedforward=ours.config.d_ff,
        dropout=0.0,
        custom_encoder=encoder,
        batch_first=True,
        norm_first=True,
    ).double()
    stacks = {n: w for n, w in ours.state_dict().items() if n.startswith(("encoder.", "decoder."))}
    theirs.load_state_dict(as_torch_state(stacks))
    return theirs


def test_the_model_equals_pytorchs_transformer() -> None:
    ours = random_model(4, d_model=8, n_heads=2, d_head=None)
    theirs = their_transformer(ours, 2, n_layers=2)
    src_ids, tgt_in = random_ids(1, LENGTHS, S), random_targets(2, B, T)
    future = torch.ones(T, T).triu(1).bool()
    embedded = [
        table(ids) * math.sqrt(8) + torch.from_numpy(reference.positions(n, 8))
        for table, ids, n in ((ours.src_embedding, src_ids, S), (ours.tgt_embedding, tgt_in, T))
    ]
    padded = src_ids == PAD
    hidden = theirs(*embedded, tgt_mask=future, src_key_padding_mask=padded, memory_key_padding_mask=padded)
    memory, _ = ours.encode(src_ids)
    their_memory = theirs.encoder(embedded[0], src_key_padding_mask=padded)
    got = [memory, ours(src_ids, tgt_in)]
    assert worst_deviation(got, [their_memory, hidden @ ours.output.weight.T]) <= ATOL


# Passes


def test_forward_is_encode_then_decode() -> None:
    model = random_model(5)
    src_ids, tgt_in = random_ids(1, LENGTHS, S), random_targets(2, B, T)
    memory, src_mask = model.encode(src_ids)
    assert memory.shape == (B, S, D)
    assert torch.equal(src_mask[:, 0, 0], src_ids != PAD)
    assert torch.equal(model.decode(tgt_in, memory, src_mask), model(src_ids, tgt_in))


def test_traces_hold_each_layers_output_and_weights_only_when_asked_for() -> None:
    model = random_model(5)
    src_ids, tgt_in = random_ids(1, LENGTHS, S), random_targets(2, B, T)
    for need in (False, True):
        memory, src_mask, read = model.run_encoder(src_ids, need)
        _, written = model.run_decoder(tgt_in, memory, src_mask, None, need)
        assert len(read) == len(written) == 2
        assert torch.equal(model.encoder.norm(read[-1].output), memory)
        weights: list[Tensor | None] = [trace.self_weights for trace in read + written]
        weights += [trace.cross_weights for trace in written]
        assert [w is not None for w in weights] == [need] * 6
        assert [trace.cross_weights for trace in read] == [None, None]
        if need:
            sizes = [tuple(w.shape) for w in weights if w is not None]
            assert sizes == [(B, H, S, S)] * 2 + [(B, H, T, T)] * 2 + [(B, H, T, S)] * 2


def test_no_weights_are_kept_unless_asked_for() -> None:
    model = random_model(5)
    x = random_tensor(1, B, S, D)
    memory, src_mask, read = model.run_encoder(random_ids(1, LENGTHS, S))
    _, written = model.run_decoder(random_targets(2, B, T), memory, src_mask)
    traces = [*read, *written, *model.encoder(x, src_mask)[1], *model.decoder(x, memory, src_mask)[1]]
    assert [(trace.self_weights, trace.cross_weights) for trace in traces] == [(None, None)] * 8


@torch.no_grad()
@pytest.mark.parametrize(("n_layers", "message"), [(1, "shorter"), (3, "longer")])
def test_a_cache_of_another_number_of_layers_is_refused(n_layers: int, message: str) -> None:
    memory, src_mask = random_model(5).encode(random_ids(1, LENGTHS, S))
    cache = random_model(5, n_layers=n_layers).init_cache(memory, src_mask)
    with pytest.raises(ValueError, match=message):
        random_model(5).run_decoder(random_targets(2, B, T), None, src_mask, cache)
    assert cache.length == 0


def test_the_output_projection_makes_logits_of_the_hidden_states() -> None:
    model = random_model(5)
    src_ids, tgt_in = random_ids(1, LENGTHS, S), random_targets(2, B, T)
    hidden = model.hidden(src_ids, tgt_in)
    assert hidden.shape == (B, T, D)
    assert torch.equal(hidden @ model.output.weight.T, model(src_ids, tgt_in))


def dtypes_on_the_way(model: Transformer) -> list[torch.dtype]:
    """Those of each layer's output, of the encoder's and of the hidden states."""
    src_ids, tgt_in = random_ids(1, LENGTHS, S), random_targets(2, B, T)
    memory, src_mask, read = model.run_encoder(src_ids)
    _, written = model.run_decoder(tgt_in, memory, src_mask)
    return [x.dtype for x in (*(trace.output for trace in read + written), memory, model.hidden(src_ids, tgt_in))]


@pytest.mark.parametrize("training", [False, True])
def test_under_autocast_all_is_in_its_dtype_from_the_embeddings_on(training: bool) -> None:
    model = random_model(5).float().train(training)
    with torch.autocast("cpu", torch.bfloat16):
        assert dtypes_on_the_way(model) == [torch.bfloat16] * 6
    with torch.autocast("cpu", torch.bfloat16, enabled=False):
        assert dtypes_on_the_way(model) == [torch.float32] * 6
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_without_autocast_all_is_in_the_dtype_of_the_weights(dtype: torch.dtype) -> None:
    assert dtypes_on_the_way(random_model(5).to(dtype)) == [dtype] * 6


def test_embedding_dropout_acts_on_the_embeddings_in_training_alone() -> None:
    model = random_model(5)
    src_ids = random_ids(1, LENGTHS, S)
    evaluated = model.encode(src_ids)[0]
    model.dropout.p = 1.0
    seen: list[Tensor] = []
    model.encoder.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    assert torch.equal(model.encode(src_ids)[0], evaluated)
    assert seen[0].any()
    model.train()
    model.encode(src_ids)
    assert not seen[1].any()


def test_dropout_changes_the_logits_in_training_alone() -> None:
    torch.manual_seed(0)
    model = Transformer(CONFIG).double()
    src_ids, tgt_in = random_ids(1, LENGTHS, S), random_targets(2, B, T)
    model.train()
    assert worst_deviation([model(src_ids, tgt_in)], [model(src_ids, tgt_in)]) > 1e-3
    model.eval()
    assert torch.equal(model(src_ids, tgt_in), model(src_ids, tgt_in))


# Limits


def test_sequences_of_max_len_fit() -> None:
    model = random_model(6)
    longest = random_ids(1, [MAX_LEN] * B, MAX_LEN)
    assert model(longest, longest).shape == (B, MAX_LEN, V)


def test_a_source_beyond_max_len_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"18 tokens are more than model\.max_len \(17\)"):
        random_model(6).encode(random_ids(1, [MAX_LEN + 1], MAX_LEN + 1))


def test_a_target_beyond_max_len_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"19 tokens are more than model\.max_len \(17\)"):
        random_model(6)(random_ids(1, LENGTHS, S), random_targets(2, B, MAX_LEN + 2))


def test_a_cache_has_room_for_max_len_unless_told() -> None:
    model = random_model(6)
    memory, src_mask = model.encode(random_ids(1, LENGTHS, S))
    assert model.init_cache(memory, src_mask).capacity == MAX_LEN
    cache = model.init_cache(memory, src_mask, 9)
    assert cache.capacity == 9
    assert [tuple(layer.target.k.shape) for layer in cache.layers] == [(B, H, 9, DH)] * 2
    assert [tuple(layer.source.v.shape) for layer in cache.layers] == [(B, H, S, DH)] * 2


@torch.no_grad()
def test_a_step_beyond_the_cache_is_refused_with_both_numbers_and_changes_nothing() -> None:
    model = random_model(6)
    tgt_in = random_targets(2, B, 9)
    cache = model.init_cache(*model.encode(random_ids(1, LENGTHS, S)), capacity=8)
    model.step(tgt_in[:, :6], cache)
    with pytest.raises(ValueError, match=r"the cache holds 6 of 8 tokens: no room for 3 more"):
        model.step(tgt_in[:, 6:], cache)
    assert cache.length == 6
    want = model(random_ids(1, LENGTHS, S), tgt_in[:, :8])[:, 6:]
    assert worst_deviation([model.step(tgt_in[:, 6:8], cache)], [want]) <= ATOL


@torch.no_grad()
def test_a_step_beyond_max_len_is_refused_however_large_the_cache() -> None:
    model = random_model(6)
    cache = model.init_cache(*model.encode(random_ids(1, LENGTHS, S)), capacity=30)
    model.step(random_targets(2, B, MAX_LEN), cache)
    with pytest.raises(ValueError, match=r"18 tokens are more than model\.max_len \(17\)"):
        model.step(random_targets(2, B, 1), cache)
    assert cache.length == MAX_LEN


@torch.no_grad()
def test_a_step_that_fails_on_its_way_leaves_the_length_as_it_was_and_can_be_tried_again() -> None:
    model = random_model(6)
    src_ids, tgt_in = random_ids(1, LENGTHS, S), random_targets(2, B, T)
    cache = model.init_cache(*model.encode(src_ids), capacity=T)
    model.step(tgt_in[:, :2], cache)
    with pytest.raises(RuntimeError, match="expanded size"):  # another number of rows than the cache has
        model.step(tgt_in[:2, 2:], cache)
    assert cache.length == 2
    assert worst_deviation([model.step(tgt_in[:, 2:], cache)], [model(src_ids, tgt_in)[:, 2:]]) <= ATOL
    assert cache.length == T


@torch.no_grad()
def test_each_step_hands_every_layer_the_number_of_tokens_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = []
    model = random_model(6)
    for layer in model.decoder.layers:
        layer.register_forward_pre_hook(lambda module, arguments: offsets.append(arguments[5]))
    cache = model.init_cache(*model.encode(random_ids(1, LENGTHS, S)))
    tgt_in = random_targets(2, B, T)
    model.step(tgt_in[:, :2], cache)
    model.step(tgt_in[:, 2:], cache)
    model(random_ids(1, LENGTHS, S), tgt_in)
    assert offsets == [0, 0, 2, 2, 0, 0]


# Hooks: every attention is called as a module, whichever way the model is used

WAYS = ["forward", "hidden", "decode", "step"]


def run(model: Transformer, way: str) -> Tensor:
    """The logits of one batch, the target fed in two chunks where it is fed step by step."""
    src_ids, tgt_in = random_ids(1, LENGTHS, S), random_targets(2, B, T)
    match way:
        case "forward":
            return model(src_ids, tgt_in)
        case "hidden":
            return model.output(model.hidden(src_ids, tgt_in))
        case "decode":
            return model.decode(tgt_in, *model.encode(src_ids))
    cache = model.init_cache(*model.encode(src_ids))
    return torch.cat([model.step(chunk, cache) for chunk in tgt_in.split([2, 3], 1)], 1)


def attentions(model: Transformer) -> dict[str, MultiHeadAttention]:
    return {name: module for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)}


@torch.no_grad()
@pytest.mark.parametrize("way", WAYS)
def test_a_hook_on_any_attention_fires_each_time_it_computes(way: str) -> None:
    model = random_model(5)
    fired = []
    for name, module in attentions(model).items():
        module.register_forward_hook(lambda _, arguments, out, name=name: fired.append((name, out[0].size(1), out[1])))
    run(model, way)
    encoder = [(f"encoder.layers.{i}.self_attn", S, None) for i in range(2)]
    of_chunks = [
        (f"decoder.layers.{i}.{kind}_attn", n, None)
        for n in ([2, 3] if way == "step" else [T])
        for i in range(2)
        for kind in ("self", "cross")
    ]
    assert fired == encoder + of_chunks


@torch.no_grad()
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", list(attentions(random_model(5))))
def test_what_a_hook_puts_in_the_place_of_an_output_reaches_the_logits(name: str, way: str) -> None:
    model = random_model(5)
    before = run(model, way)
    hook = attentions(model)[name].register_forward_hook(
        lambda module, arguments, out: (torch.zeros_like(out[0]), None)
    )
    got = run(model, way)
    hook.remove()
    assert torch.equal(run(model, way), before)
    nn.init.zeros_(attentions(model)[name].w_o.weight)
    nn.init.zeros_(attentions(model)[name].w_o.bias)
    assert worst_deviation([got], [run(model, way)]) <= ATOL
    assert worst_deviation([got], [before]) > 1e-3


def ask(module: nn.Module, arguments: tuple[object, ...]) -> tuple[object, ...]:
    """A forward pre-hook that asks an attention for its weights."""
    return *arguments[:4], True, *arguments[5:]


def ask_by_name(
    module: nn.Module, arguments: tuple[object, ...], named: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """The same, by the names of the arguments."""
    names = ("query", "key", "value", "mask", "need_weights", "cache", "offset")
    return (), {**dict(zip(names, arguments, strict=False)), **named, "need_weights": True}


@torch.no_grad()
@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_weights_can_be_looked_at_from_outside(way: str, by_name: bool) -> None:
    model = random_model(5)
    src_ids, tgt_in = random_ids(1, LENGTHS, S), random_targets(2, B, T)
    memory, src_mask, read = model.run_encoder(src_ids, need_weights=True)
    _, written = model.run_decoder(tgt_in, memory, src_mask, need_weights=True)
    want = {f"encoder.layers.{i}.self_attn": trace.self_weights for i, trace in enumerate(read)}
    for i, trace in enumerate(written):
        want[f"decoder.layers.{i}.self_attn"] = trace.self_weights
        want[f"decoder.layers.{i}.cross_attn"] = trace.cross_weights
    before = run(model, way)

    seen: dict[str, list[Tensor]] = {name: [] for name in want}
    for name, module in attentions(model).items():
        if by_name:
            module.register_forward_pre_hook(ask_by_name, with_kwargs=True)
        else:
            module.register_forward_pre_hook(ask)
        module.register_forward_hook(lambda _, arguments, out, name=name: seen[name].append(out[1]))
    assert torch.equal(run(model, way), before)
    for name, weights in want.items():
        assert weights is not None
        width = weights.size(-1)
        got = torch.cat([nn.functional.pad(part, (0, width - part.size(-1))) for part in seen[name]], 2)
        assert worst_deviation([got], [weights]) <= ATOL
