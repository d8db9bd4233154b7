"""What test_verify_checks.py does not ask of the cache: how much is copied, and where autograd records."""

import pytest
import torch
from conftest import random_tensor, record_calls

from minitrans.model.cache import DecoderCache, KeyValues

B, H, S, DH, CAPACITY, LAYERS = 3, 2, 7, 4, 9, 5


def random_key_values(seed: int, n: int) -> KeyValues:
    return KeyValues(random_tensor(seed, B, H, n, DH), random_tensor(seed + 1, B, H, n, DH))


def make_decoder_cache() -> DecoderCache:
    """An empty cache of distinct random cross keys and values, ragged sources."""
    src_mask = torch.arange(S) < torch.tensor([7, 2, 5])[:, None]
    return DecoderCache([random_key_values(2 * i, S) for i in range(LAYERS)], src_mask[:, None, None, :], CAPACITY)


def test_select_rows_copies_filled_slots_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, copied = make_decoder_cache(), record_calls(monkeypatch, torch, "index_select")
    cache.length = 6
    cache.select_rows(torch.tensor([2, 1]))
    assert [x.size(2) for x, *_ in copied] == [6, 6, S, S] * LAYERS


def test_rows_are_selected_also_where_autograd_records() -> None:
    cache, new = make_decoder_cache(), random_key_values(1, 2)
    for layer in cache.layers:
        layer.target.update(new.k.requires_grad_(), new.v.requires_grad_(), 0)
    cache.length = 2
    cache.select_rows(torch.tensor([2, 0]))
    target = cache.layers[0].target
    assert torch.equal(target.k[:, :, :2], new.k[[2, 0]])
    assert torch.equal(target.v[:, :, :2], new.v[[2, 0]])
