"""What test_verify_checks.py does not ask of the cache: dtypes, room, and what is copied."""

import pytest
import torch
from conftest import random_tensor
from torch import Tensor

from minitrans.model.cache import DecoderCache, KeyValues

B, H, S, DH, CAPACITY, LAYERS = 3, 2, 7, 4, 9, 5


def random_key_values(seed: int, n: int, batch: int = B) -> KeyValues:
    return KeyValues(random_tensor(seed, batch, H, n, DH), random_tensor(seed + 1, batch, H, n, DH))


def make_cache() -> DecoderCache:
    """An empty cache of distinct random cross keys and values, ragged sources."""
    src_mask = torch.arange(S) < torch.tensor([7, 2, 5])[:, None]
    return DecoderCache([random_key_values(2 * i, S) for i in range(LAYERS)], src_mask[:, None, None, :], CAPACITY)


def fill_cache(cache: DecoderCache, n: int, seed: int) -> list[KeyValues]:
    """Write `n` random tokens to every layer as a step does, and return what was written."""
    written = [random_key_values(seed + 2 * i, n, len(cache.src_mask)) for i in range(LAYERS)]
    for layer, new in zip(cache.layers, written, strict=True):
        layer.target.update(new.k, new.v, cache.length)
    cache.length += n
    return written


def assert_first_slots(stored: KeyValues, k: Tensor, v: Tensor) -> None:
    """The first slots are these, exactly."""
    assert torch.equal(stored.k[:, :, : k.size(2)], k)
    assert torch.equal(stored.v[:, :, : v.size(2)], v)


def test_buffers_have_the_dtypes_and_the_device_of_the_sources_keys_and_values() -> None:
    source = KeyValues(*(torch.zeros(B, H, S, DH, dtype=t, device="meta") for t in (torch.bfloat16, torch.float16)))
    for target in (
        source.empty_buffers(CAPACITY),
        DecoderCache([source], make_cache().src_mask, CAPACITY).layers[0].target,
    ):
        assert (target.k.dtype, target.v.dtype) == (torch.bfloat16, torch.float16)
        assert target.k.is_meta
        assert target.v.is_meta


def test_room_is_checked_with_both_numbers() -> None:
    cache = make_cache()
    fill_cache(cache, 6, seed=100)
    cache.check_room(3)
    with pytest.raises(ValueError, match=r"the cache holds 6 of 9 tokens: no room for 4 more"):
        cache.check_room(4)


def test_select_rows_copies_filled_slots_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, copied = make_cache(), []
    fill_cache(cache, 6, seed=100)
    index_select = torch.index_select

    def spy(x: Tensor, dim: int, index: Tensor, *, out: Tensor) -> Tensor:
        copied.append(x.size(2))
        return index_select(x, dim, index, out=out)

    monkeypatch.setattr(torch, "index_select", spy)
    cache.select_rows(torch.tensor([2, 1]))
    assert copied == [6, 6, S, S] * LAYERS


def test_rows_are_selected_also_where_autograd_records() -> None:
    cache, new = make_cache(), random_key_values(1, 2)
    for layer in cache.layers:
        layer.target.update(new.k.requires_grad_(), new.v.requires_grad_(), 0)
    cache.length = 2
    cache.select_rows(torch.tensor([2, 0]))
    assert_first_slots(cache.layers[0].target, new.k[[2, 0]], new.v[[2, 0]])


def test_selection_does_not_touch_the_buffers_before_it() -> None:
    kept, want = random_key_values(1, S), random_key_values(1, S)
    KeyValues(kept.k, kept.v).select_rows(torch.tensor([2, 0, 1]), S)
    assert_first_slots(kept, want.k, want.v)
