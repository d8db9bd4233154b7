"""The cache by itself: what is written comes back, in the rows asked for, and nothing else does."""

import pytest
import torch
from conftest import random_tensor
from torch import Tensor

from minitrans.model.cache import DecoderCache, KeyValues

B, H, S, DH, CAPACITY, LAYERS = 3, 2, 7, 4, 9, 5


def key_values(seed: int, n: int, batch: int = B) -> KeyValues:
    return KeyValues(random_tensor(seed, batch, H, n, DH), random_tensor(seed + 1, batch, H, n, DH))


def make_cache() -> DecoderCache:
    """An empty cache of distinct random cross keys and values, ragged sources."""
    src_mask = torch.arange(S) < torch.tensor([7, 2, 5])[:, None]
    return DecoderCache([key_values(2 * i, S) for i in range(LAYERS)], src_mask[:, None, None, :], CAPACITY)


def fill(cache: DecoderCache, n: int, seed: int) -> list[KeyValues]:
    """Write `n` random tokens to every layer as a step does, and return what was written."""
    written = [key_values(seed + 2 * i, n, len(cache.src_mask)) for i in range(LAYERS)]
    for layer, new in zip(cache.layers, written, strict=True):
        layer.target.write(new.k, new.v, cache.length)
    cache.length += n
    return written


def assert_holds(stored: KeyValues, k: Tensor, v: Tensor) -> None:
    """The first slots are these, exactly."""
    assert torch.equal(stored.k[:, :, : k.size(2)], k)
    assert torch.equal(stored.v[:, :, : v.size(2)], v)


# Buffers


def test_a_new_cache_is_empty_and_has_room_in_the_layer_that_grows() -> None:
    cache = make_cache()
    assert (cache.length, cache.capacity, len(cache.layers)) == (0, CAPACITY, LAYERS)
    for i, layer in enumerate(cache.layers):
        target, source = layer
        assert (target, source) == (layer.target, layer.source)
        assert target.k.shape == target.v.shape == (B, H, CAPACITY, DH)
        target.k.fill_(torch.nan), target.v.fill_(torch.nan)
        want = key_values(2 * i, S)
        assert_holds(source, want.k, want.v)


@pytest.mark.parametrize("n", [0, 1, S, CAPACITY])
def test_there_is_room_for_any_number_of_tokens_in_buffers_of_its_own(n: int) -> None:
    source, want = key_values(0, S), key_values(0, S)
    room = source.room_for(n)
    assert room.k.shape == room.v.shape == (B, H, n, DH)
    room.k.fill_(torch.nan), room.v.fill_(torch.nan)
    assert_holds(source, want.k, want.v)


def test_buffers_have_the_dtypes_and_the_device_of_the_sources_keys_and_values() -> None:
    source = KeyValues(*(torch.zeros(B, H, S, DH, dtype=t, device="meta") for t in (torch.bfloat16, torch.float16)))
    for target in (source.room_for(CAPACITY), DecoderCache([source], make_cache().src_mask, CAPACITY).layers[0].target):
        assert (target.k.dtype, target.v.dtype) == (torch.bfloat16, torch.float16)
        assert target.k.is_meta
        assert target.v.is_meta


# Writing


def test_write_returns_all_tokens_so_far_without_a_copy_and_no_unfilled_slot() -> None:
    target, tokens = make_cache().layers[0].target, key_values(1, 6)
    target.k.fill_(torch.nan), target.v.fill_(torch.nan)
    for start, end in [(0, 1), (1, 4), (4, 6), (2, 5)]:  # the last once more
        k, v = target.write(tokens.k[:, :, start:end], tokens.v[:, :, start:end], start)
        assert torch.equal(k, tokens.k[:, :, :end])
        assert torch.equal(v, tokens.v[:, :, :end])
        assert (k.data_ptr(), v.data_ptr()) == (target.k.data_ptr(), target.v.data_ptr())


def test_what_is_written_again_replaces_what_stood_there() -> None:
    target, first, second = make_cache().layers[0].target, key_values(1, 4), key_values(3, 3)
    target.write(first.k, first.v, 0)
    target.write(second.k, second.v, 2)
    assert_holds(target, torch.cat([first.k[:, :, :2], second.k], 2), torch.cat([first.v[:, :, :2], second.v], 2))


def test_room_is_checked_with_both_numbers() -> None:
    cache = make_cache()
    fill(cache, 6, seed=100)
    cache.check_room(3)
    with pytest.raises(ValueError, match=r"the cache holds 6 of 9 tokens: no room for 4 more"):
        cache.check_room(4)


# Selecting


@pytest.mark.parametrize("rows", [[2, 0, 1], [2], [1, 1, 0, 2, 1], [], [0, 1, 2], [2, 1, 0]])
@pytest.mark.parametrize("filled", [0, 1, 6, CAPACITY])
def test_select_rows_takes_every_tensor_along_and_goes_on_filling_up(rows: list[int], filled: int) -> None:
    cache, index = make_cache(), torch.tensor(rows, dtype=torch.int64)
    src_mask = cache.src_mask.clone()
    before = fill(cache, filled, seed=100)
    cache.select_rows(index)
    assert (cache.length, cache.capacity) == (filled, CAPACITY)
    assert torch.equal(cache.src_mask, src_mask[index])
    after = fill(cache, CAPACITY - filled, seed=200)  # rows that are repeated go their own ways
    for i, (layer, old, new) in enumerate(zip(cache.layers, before, after, strict=True)):
        source = key_values(2 * i, S)
        assert layer.target.k.shape == layer.target.v.shape == (len(rows), H, CAPACITY, DH)
        assert_holds(layer.source, source.k[index], source.v[index])
        assert_holds(layer.target, torch.cat([old.k[index], new.k], 2), torch.cat([old.v[index], new.v], 2))


def test_select_rows_copies_filled_slots_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, copied = make_cache(), []
    fill(cache, 6, seed=100)
    index_select = torch.index_select

    def spy(x: Tensor, dim: int, index: Tensor, *, out: Tensor) -> Tensor:
        copied.append(x.size(2))
        return index_select(x, dim, index, out=out)

    monkeypatch.setattr(torch, "index_select", spy)
    cache.select_rows(torch.tensor([2, 1]))
    assert copied == [6, 6, S, S] * LAYERS


def test_rows_are_selected_also_where_autograd_records() -> None:
    cache, new = make_cache(), key_values(1, 2)
    for layer in cache.layers:
        layer.target.write(new.k.requires_grad_(), new.v.requires_grad_(), 0)
    cache.length = 2
    cache.select_rows(torch.tensor([2, 0]))
    assert_holds(cache.layers[0].target, new.k[[2, 0]], new.v[[2, 0]])


def test_selection_does_not_touch_the_buffers_before_it() -> None:
    kept, want = key_values(1, S), key_values(1, S)
    KeyValues(kept.k, kept.v).select_rows(torch.tensor([2, 0, 1]), S)
    assert_holds(kept, want.k, want.v)
