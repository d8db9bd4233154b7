"""The cache by itself: what is written comes back, in the rows asked for, and nothing else does."""

import pytest
import torch
from conftest import random_tensor
from torch import Tensor

from minitrans.model.cache import DecoderCache, LayerCache

B, H, S, DH, CAPACITY, LAYERS = 3, 2, 7, 4, 9, 5


def make_cache() -> DecoderCache:
    """An empty cache of distinct random cross keys and values, ragged sources."""
    cross = [(random_tensor(2 * i, B, H, S, DH), random_tensor(2 * i + 1, B, H, S, DH)) for i in range(LAYERS)]
    src_mask = torch.arange(S) < torch.tensor([7, 2, 5])[:, None]
    return DecoderCache(cross, src_mask[:, None, None, :], CAPACITY)


def fill(cache: DecoderCache, n: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Write `n` random tokens to every layer as a step does, and return what was written."""
    batch = len(cache.src_mask)
    written = []
    for i, layer in enumerate(cache.layers):
        k = random_tensor(seed + 2 * i, batch, H, n, DH)
        v = random_tensor(seed + 2 * i + 1, batch, H, n, DH)
        layer.write(k, v, cache.length)
        written.append((k, v))
    cache.length += n
    return written


def read(cache: DecoderCache) -> list[tuple[Tensor, Tensor]]:
    """The filled slots of every layer."""
    return [(layer.k[:, :, : cache.length], layer.v[:, :, : cache.length]) for layer in cache.layers]


def test_a_new_cache_is_empty_and_has_room() -> None:
    cache = make_cache()
    assert cache.length == 0
    assert cache.capacity == CAPACITY
    assert len(cache.layers) == LAYERS
    for layer in cache.layers:
        assert layer.k.shape == layer.v.shape == (B, H, CAPACITY, DH)


def test_buffers_take_the_dtypes_of_the_sources_keys_and_values() -> None:
    layer = LayerCache(torch.zeros(B, H, S, DH).bfloat16(), torch.zeros(B, H, S, DH).half(), CAPACITY)
    assert layer.k.dtype == torch.bfloat16
    assert layer.v.dtype == torch.float16


def test_the_cross_keys_and_values_are_kept_apart() -> None:
    k, v = random_tensor(0, B, H, S, DH), random_tensor(1, B, H, S, DH)
    layer = LayerCache(k, v, CAPACITY)
    assert torch.equal(layer.cross_k, k)
    assert torch.equal(layer.cross_v, v)


def test_write_returns_all_tokens_so_far_and_no_unfilled_slot() -> None:
    layer = make_cache().layers[0]
    layer.k.fill_(torch.nan)
    layer.v.fill_(torch.nan)
    k, v = random_tensor(1, B, H, 6, DH), random_tensor(2, B, H, 6, DH)
    for start, end in [(0, 1), (1, 4), (4, 6)]:
        keys, values = layer.write(k[:, :, start:end], v[:, :, start:end], start)
        assert torch.equal(keys, k[:, :, :end])
        assert torch.equal(values, v[:, :, :end])


def test_write_copies_nothing_that_it_returns() -> None:
    layer = make_cache().layers[0]
    keys, values = layer.write(random_tensor(1, B, H, 2, DH), random_tensor(2, B, H, 2, DH), 0)
    assert keys.data_ptr() == layer.k.data_ptr()
    assert values.data_ptr() == layer.v.data_ptr()


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
    cross = [(layer.cross_k.clone(), layer.cross_v.clone()) for layer in cache.layers]
    src_mask = cache.src_mask.clone()
    written = fill(cache, 6, seed=100)
    index = torch.tensor(rows, dtype=torch.int64)
    cache.select_rows(index)
    assert torch.equal(cache.src_mask, src_mask[index])
    for layer, (cross_k, cross_v) in zip(cache.layers, cross, strict=True):
        assert torch.equal(layer.cross_k, cross_k[index])
        assert torch.equal(layer.cross_v, cross_v[index])
    for (keys, values), (k, v) in zip(read(cache), written, strict=True):
        assert torch.equal(keys, k[index])
        assert torch.equal(values, v[index])


def test_select_rows_leaves_length_and_room_alone() -> None:
    cache = make_cache()
    fill(cache, 6, seed=100)
    cache.select_rows(torch.tensor([2, 1]))
    assert cache.length == 6
    assert cache.capacity == CAPACITY
    assert all(layer.k.shape == layer.v.shape == (2, H, CAPACITY, DH) for layer in cache.layers)


def test_select_rows_before_the_first_token() -> None:
    cache = make_cache()
    cross_k = cache.layers[0].cross_k.clone()
    cache.select_rows(torch.tensor([2, 2, 0, 1]))
    assert torch.equal(cache.layers[0].cross_k, cross_k[[2, 2, 0, 1]])
    assert cache.layers[0].k.shape == (4, H, CAPACITY, DH)


def test_select_rows_of_a_full_cache() -> None:
    cache = make_cache()
    written = fill(cache, CAPACITY, seed=100)
    cache.select_rows(torch.tensor([1, 0]))
    assert torch.equal(cache.layers[4].v, written[4][1][[1, 0]])


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
        layer.write(k, v, 0)
    cache.length = 2
    cache.select_rows(torch.tensor([2, 0]))
    assert torch.equal(cache.layers[0].k[:, :, :2], k[[2, 0]])


def test_a_repeated_row_is_a_copy_that_goes_its_own_way() -> None:
    cache = make_cache()
    fill(cache, 2, seed=100)
    cache.select_rows(torch.tensor([1, 1]))
    written = fill(cache, 1, seed=200)
    keys, _ = read(cache)[0]
    assert torch.equal(keys[0, :, :2], keys[1, :, :2])
    assert torch.equal(keys[:, :, 2:], written[0][0])
    assert not torch.equal(keys[0, :, 2:], keys[1, :, 2:])
