"""The cache by itself: what is written comes back, in the rows asked for, and nothing else does."""

import pytest
import torch
from conftest import random_tensor
from torch import Tensor

from minitrans.model.cache import DecoderCache, KeyValues

B, H, S, DH, CAPACITY, LAYERS = 3, 2, 7, 4, 9, 5


def make_cache() -> DecoderCache:
    """An empty cache of distinct random cross keys and values, ragged sources."""
    source = [
        KeyValues(random_tensor(2 * i, B, H, S, DH), random_tensor(2 * i + 1, B, H, S, DH)) for i in range(LAYERS)
    ]
    src_mask = torch.arange(S) < torch.tensor([7, 2, 5])[:, None]
    return DecoderCache(source, src_mask[:, None, None, :], CAPACITY)


def fill(cache: DecoderCache, n: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Write `n` random tokens to every layer as a step does, and return what was written."""
    batch = len(cache.src_mask)
    written = []
    for i, layer in enumerate(cache.layers):
        k = random_tensor(seed + 2 * i, batch, H, n, DH)
        v = random_tensor(seed + 2 * i + 1, batch, H, n, DH)
        layer.target.write(k, v, cache.length)
        written.append((k, v))
    cache.length += n
    return written


def read(cache: DecoderCache) -> list[tuple[Tensor, Tensor]]:
    """The filled slots of every layer."""
    return [(layer.target.k[:, :, : cache.length], layer.target.v[:, :, : cache.length]) for layer in cache.layers]


def test_a_new_cache_is_empty_and_has_room() -> None:
    cache = make_cache()
    assert cache.length == 0
    assert cache.capacity == CAPACITY
    assert len(cache.layers) == LAYERS
    for layer in cache.layers:
        assert layer.target.k.shape == layer.target.v.shape == (B, H, CAPACITY, DH)


def test_buffers_take_the_dtypes_of_the_sources_keys_and_values() -> None:
    source = KeyValues(torch.zeros(B, H, S, DH).bfloat16(), torch.zeros(B, H, S, DH).half())
    for target in (source.room_for(CAPACITY), DecoderCache([source], make_cache().src_mask, CAPACITY).layers[0].target):
        assert target.k.dtype == torch.bfloat16
        assert target.v.dtype == torch.float16


def test_buffers_are_made_where_the_sources_keys_and_values_are() -> None:
    room = KeyValues(*(torch.zeros(B, H, S, DH, device="meta") for _ in range(2))).room_for(CAPACITY)
    assert room.k.is_meta
    assert room.v.is_meta


@pytest.mark.parametrize("n", [0, 1, S, CAPACITY])
def test_there_is_room_for_any_number_of_tokens_in_buffers_of_its_own(n: int) -> None:
    source = make_cache().layers[0].source
    k, v = source.k.clone(), source.v.clone()
    room = source.room_for(n)
    assert room.k.shape == room.v.shape == (B, H, n, DH)
    room.k.fill_(torch.nan), room.v.fill_(torch.nan)
    assert torch.equal(source.k, k)
    assert torch.equal(source.v, v)


def test_the_cross_keys_and_values_are_kept_apart() -> None:
    k, v = random_tensor(0, B, H, S, DH), random_tensor(1, B, H, S, DH)
    layer = DecoderCache([KeyValues(k, v)], make_cache().src_mask, CAPACITY).layers[0]
    layer.target.write(random_tensor(2, B, H, CAPACITY, DH), random_tensor(3, B, H, CAPACITY, DH), 0)
    assert torch.equal(layer.source.k, k)
    assert torch.equal(layer.source.v, v)
    assert torch.equal(k, random_tensor(0, B, H, S, DH))
    assert torch.equal(v, random_tensor(1, B, H, S, DH))


def test_a_layer_names_what_grows_first() -> None:
    layer = make_cache().layers[0]
    target, source = layer
    assert target is layer.target
    assert source is layer.source


def test_write_returns_all_tokens_so_far_and_no_unfilled_slot() -> None:
    target = make_cache().layers[0].target
    target.k.fill_(torch.nan)
    target.v.fill_(torch.nan)
    k, v = random_tensor(1, B, H, 6, DH), random_tensor(2, B, H, 6, DH)
    for start, end in [(0, 1), (1, 4), (4, 6)]:
        keys, values = target.write(k[:, :, start:end], v[:, :, start:end], start)
        assert torch.equal(keys, k[:, :, :end])
        assert torch.equal(values, v[:, :, :end])


def test_write_copies_nothing_that_it_returns() -> None:
    target = make_cache().layers[0].target
    keys, values = target.write(random_tensor(1, B, H, 2, DH), random_tensor(2, B, H, 2, DH), 0)
    assert keys.data_ptr() == target.k.data_ptr()
    assert values.data_ptr() == target.v.data_ptr()


def test_what_is_written_again_replaces_what_stood_there() -> None:
    target = make_cache().layers[0].target
    target.write(random_tensor(1, B, H, 4, DH), random_tensor(2, B, H, 4, DH), 0)
    k, v = random_tensor(3, B, H, 3, DH), random_tensor(4, B, H, 3, DH)
    keys, values = target.write(k, v, 2)
    assert torch.equal(keys, torch.cat([random_tensor(1, B, H, 4, DH)[:, :, :2], k], 2))
    assert torch.equal(values, torch.cat([random_tensor(2, B, H, 4, DH)[:, :, :2], v], 2))


def test_room_is_checked_with_both_numbers() -> None:
    cache = make_cache()
    fill(cache, 6, seed=100)
    with pytest.raises(ValueError, match=r"the cache holds 6 of 9 tokens: no room for 4 more"):
        cache.check_room(4)


def test_exactly_full_is_not_too_full() -> None:
    cache = make_cache()
    fill(cache, 6, seed=100)
    cache.check_room(3)


@pytest.mark.parametrize("rows", [[2, 0, 1], [2], [1, 1, 0, 2, 1], [], [0, 1, 2], [2, 1, 0]])
def test_select_rows_takes_every_tensor_along(rows: list[int]) -> None:
    cache = make_cache()
    cross = [(layer.source.k.clone(), layer.source.v.clone()) for layer in cache.layers]
    src_mask = cache.src_mask.clone()
    written = fill(cache, 6, seed=100)
    index = torch.tensor(rows, dtype=torch.int64)
    cache.select_rows(index)
    assert torch.equal(cache.src_mask, src_mask[index])
    for layer, (cross_k, cross_v) in zip(cache.layers, cross, strict=True):
        assert torch.equal(layer.source.k, cross_k[index])
        assert torch.equal(layer.source.v, cross_v[index])
    for (keys, values), (k, v) in zip(read(cache), written, strict=True):
        assert torch.equal(keys, k[index])
        assert torch.equal(values, v[index])


def test_select_rows_leaves_length_and_room_alone() -> None:
    cache = make_cache()
    fill(cache, 6, seed=100)
    cache.select_rows(torch.tensor([2, 1]))
    assert cache.length == 6
    assert cache.capacity == CAPACITY
    assert all(layer.target.k.shape == layer.target.v.shape == (2, H, CAPACITY, DH) for layer in cache.layers)


def test_select_rows_copies_filled_slots_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = make_cache()
    fill(cache, 6, seed=100)
    copied = []
    index_select = torch.index_select

    def spy(x: Tensor, dim: int, index: Tensor, *, out: Tensor) -> Tensor:
        copied.append(x.size(2))
        return index_select(x, dim, index, out=out)

    monkeypatch.setattr(torch, "index_select", spy)
    cache.select_rows(torch.tensor([2, 1]))
    assert copied == [6, 6, S, S] * LAYERS


def test_select_rows_before_the_first_token() -> None:
    cache = make_cache()
    cross_k = cache.layers[0].source.k.clone()
    cache.select_rows(torch.tensor([2, 2, 0, 1]))
    assert torch.equal(cache.layers[0].source.k, cross_k[[2, 2, 0, 1]])
    assert cache.layers[0].target.k.shape == (4, H, CAPACITY, DH)


def test_select_rows_of_a_full_cache() -> None:
    cache = make_cache()
    written = fill(cache, CAPACITY, seed=100)
    cache.select_rows(torch.tensor([1, 0]))
    assert torch.equal(cache.layers[4].target.v, written[4][1][[1, 0]])


def test_selected_rows_go_on_filling_up() -> None:
    cache = make_cache()
    before = fill(cache, 4, seed=100)
    cache.select_rows(torch.tensor([2, 0]))
    after = fill(cache, 5, seed=200)
    for (keys, values), (k1, v1), (k2, v2) in zip(read(cache), before, after, strict=True):
        assert torch.equal(keys, torch.cat([k1[[2, 0]], k2], 2))
        assert torch.equal(values, torch.cat([v1[[2, 0]], v2], 2))


def test_rows_are_selected_also_where_autograd_records() -> None:
    cache = make_cache()
    k, v = (random_tensor(seed, B, H, 2, DH).requires_grad_() for seed in (1, 2))
    for layer in cache.layers:
        layer.target.write(k, v, 0)
    cache.length = 2
    cache.select_rows(torch.tensor([2, 0]))
    assert torch.equal(cache.layers[0].target.k[:, :, :2], k[[2, 0]])


def test_a_repeated_row_is_a_copy_that_goes_its_own_way() -> None:
    cache = make_cache()
    fill(cache, 2, seed=100)
    cache.select_rows(torch.tensor([1, 1]))
    written = fill(cache, 1, seed=200)
    keys, _ = read(cache)[0]
    assert torch.equal(keys[0, :, :2], keys[1, :, :2])
    assert torch.equal(keys[:, :, 2:], written[0][0])
    assert not torch.equal(keys[0, :, 2:], keys[1, :, 2:])


@pytest.mark.parametrize("filled", [0, 1, 4, CAPACITY])
def test_keys_and_values_select_the_filled_slots_of_the_rows(filled: int) -> None:
    k, v = random_tensor(1, B, H, CAPACITY, DH), random_tensor(2, B, H, CAPACITY, DH)
    kept = KeyValues(k.clone(), v.clone())
    kept.select_rows(torch.tensor([2, 0, 2, 1]), filled)
    assert kept.k.shape == kept.v.shape == (4, H, CAPACITY, DH)
    assert torch.equal(kept.k[:, :, :filled], k[[2, 0, 2, 1], :, :filled])
    assert torch.equal(kept.v[:, :, :filled], v[[2, 0, 2, 1], :, :filled])


def test_selection_does_not_touch_the_buffers_before_it() -> None:
    k, v = random_tensor(1, B, H, S, DH), random_tensor(2, B, H, S, DH)
    KeyValues(k, v).select_rows(torch.tensor([2, 0, 1]), S)
    assert torch.equal(k, random_tensor(1, B, H, S, DH))
    assert torch.equal(v, random_tensor(2, B, H, S, DH))
