from collections.abc import Iterable
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitrans.data import batching, loader
from minitrans.data.batching import Batch, collate, collate_rows, id_rows, plan_batches
from minitrans.data.loader import EpochLoader
from minitrans.errors import UserError

length_pair_lists = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=200)
SRC_LENGTHS = np.random.default_rng(0).integers(1, 60, 500)
PAD = 500
TGT_LENGTHS = np.maximum(1, SRC_LENGTHS + np.random.default_rng(1).integers(-9, 10, 500))


def make_loader() -> EpochLoader:
    src, tgt = (id_rows([[i] * n for i, n in enumerate(lengths)]) for lengths in (SRC_LENGTHS, TGT_LENGTHS))
    return EpochLoader(src, tgt, (PAD, 501, 502), batch_tokens=300, seed=3)


def batch_row_numbers(batches: Iterable[Batch]) -> list[list[int]]:
    """The row numbers of each batch, which are the first tokens of the rows; rows of padding are left out."""
    return [[row for row in batch.src_ids[:, 0].tolist() if row != PAD] for batch in batches]


def patch_rank(patch: pytest.MonkeyPatch, rank: int, n: int) -> None:
    patch.setattr(batching, "rank", lambda: rank)
    for module in (batching, loader):
        patch.setattr(module, "n_processes", lambda: n)


@given(length_pair_lists, st.integers(1, 200), st.none() | st.integers(0, 5))
def test_the_plan_is_that_of_a_plain_sort(pairs: list[tuple[int, int]], batch_tokens: int, seed: int | None) -> None:
    """The plan must never change, or runs could not be repeated."""
    src, tgt = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    width = np.maximum(src, tgt).tolist()
    rng = np.random.default_rng(seed)
    rows = list(range(len(pairs))) if seed is None else rng.permutation(len(pairs)).tolist()
    rows.sort(key=lambda row: -width[row])
    batches = []
    while rows:
        size = max(1, batch_tokens // width[rows[0]])
        batches.append(rows[:size])
        rows = rows[size:]
    if seed is not None:
        batches = [batches[i] for i in rng.permutation(len(batches))]
    planned = plan_batches(src, tgt, batch_tokens, None if seed is None else np.random.default_rng(seed))
    assert [batch.tolist() for batch in planned] == batches


@pytest.mark.parametrize("process", [(0, 1), (1, 3)])
@pytest.mark.parametrize("position", [0, 1, 17, -1, None])  # of the second epoch; None is its end
def test_a_resumed_loader_continues_as_if_never_stopped(
    position: int | None, process: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_rank(monkeypatch, *process)
    unbroken = make_loader()
    expected = [batch for _ in range(4) for batch in batch_row_numbers(unbroken)]
    taken = len(unbroken) + len(range(len(unbroken))[:position])

    stopped = make_loader()
    taken_before = batch_row_numbers(stopped)
    taken_before += batch_row_numbers(islice(stopped, taken - len(unbroken)))
    assert taken_before == expected[:taken]
    state = stopped.state_dict()
    assert state == {"buffer": taken // len(unbroken), "position": taken % len(unbroken)}

    resumed = make_loader()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    iter(resumed)  # an iterator that is never used takes nothing
    rest = batch_row_numbers(resumed)
    assert rest == expected[taken : (taken // len(unbroken) + 1) * len(unbroken)]  # to the end of the epoch, no further
    assert rest + batch_row_numbers(resumed) == expected[taken : taken + len(rest) + len(unbroken)]


def test_a_state_of_a_longer_epoch_is_refused() -> None:
    batches = make_loader()
    batches.load_state_dict({"buffer": 0, "position": len(batches)})
    with pytest.raises(UserError, match=rf"after {len(batches)} batches of pairs that make {len(batches)} now"):
        next(iter(batches))


@pytest.mark.parametrize("n", [3, 5, 7, 100])
def test_processes_share_the_batches_of_one_plan_equally(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = make_loader(), [make_loader() for _ in range(n)]
    assert len(whole) % n, "some process has to go without a batch in the last step"
    for _ in range(2):  # epochs
        patch_rank(monkeypatch, 0, 1)
        plan, dealt = batch_row_numbers(whole), []
        for rank, part in enumerate(parts):
            patch_rank(monkeypatch, rank, n)
            dealt.append(batch_row_numbers(part))
            assert len(dealt[-1]) == len(part) == -(-len(plan) // n)
        in_turn = [batch for step in zip(*dealt, strict=True) for batch in step]
        assert in_turn[: len(plan)] == plan
        assert not any(in_turn[len(plan) :])


def test_a_batch_has_the_special_ids_and_is_padded_to_its_longest_rows() -> None:
    rng = np.random.default_rng(0)
    src, tgt = ([rng.integers(4, 99, n).tolist() for n in (0, *rng.integers(0, 9, 49))] for _ in range(2))
    for numbers in ([0], [49, 0, 7, 7], list(range(50))):
        batch = collate_rows(id_rows(src).take(numbers), id_rows(tgt).take(numbers), 3, 1, 2)
        same = collate([src[n] for n in numbers], [tgt[n] for n in numbers], pad_id=3, bos_id=1, eos_id=2)
        lists = [[*src[n], 2] for n in numbers], [[1, *tgt[n]] for n in numbers], [[*tgt[n], 2] for n in numbers]
        for tensor, other, rows in zip(batch, same, lists, strict=True):
            assert tensor.dtype == other.dtype == torch.int64
            width = max(map(len, rows))
            assert tensor.tolist() == other.tolist() == [row + [3] * (width - len(row)) for row in rows]
    assert [ids.tolist() for ids in collate([], [], pad_id=3, bos_id=1, eos_id=2)] == [[[3]]] * 3  # a row of padding
