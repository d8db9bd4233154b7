import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from corpora import data_config
from hypothesis import example, given
from hypothesis import strategies as st

from minitrans.data.filters import duplicate_pairs, empty_sides, hash_pairs, length_faults
from minitrans.text.reading import clean

NOT_VISIBLE = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) in ("Cc", "Cf", "Zs", "Zl", "Zp")]


def pair_table(pairs: list[tuple[str, str]], chunk: int = 2) -> pa.Table:
    schema = pa.schema({"source": pa.string(), "target": pa.string()})
    columns = pa.table([list(side) for side in zip(*pairs, strict=True)] or [[], []], schema=schema)
    return pa.Table.from_batches(columns.to_batches(chunk), schema)


def test_hashes_are_equal_where_the_clean_text_is() -> None:
    lines = ["a b", " a \t b\n", "a\u3000b", "a\x85b", "ab", "a\u200bb", "e\u0301", "é", "", " ", "A b"]
    rare = [c for c in NOT_VISIBLE if c < "\u3100"]
    lines += [f"x{c}y" for c in rare] + [f"{c}z" for c in rare] + ["a" * 3000, "b" * 3000]
    hashes = hash_pairs(pair_table([(line, line) for line in lines], chunk=7))
    cleaned = [clean(line) for line in lines]
    for values in hashes:
        assert values.dtype == np.uint64
        assert (values[:, None] == values).tolist() == [[one == other for other in cleaned] for one in cleaned]


def test_empty_sides_are_found() -> None:
    """The quicker code must agree with `clean` for every space, control and format character."""
    lines = [f" {c}" for c in (*NOT_VISIBLE, *"▁a.我́\ue000\U0001f600\U0010ffff")]
    for pairs in ([(line, "x") for line in lines], [("x", line) for line in lines]):
        assert empty_sides(pair_table(pairs)).tolist() == [not clean(line) for line in lines]


@example([("a", "b"), ("b", "a"), ("a", "a"), ("b", "b")], 2)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), max_size=12), st.integers(1, 5))
def test_duplicates_are_all_copies_but_the_first(pairs: list[tuple[str, str]], chunk: int) -> None:
    expected = [pair in pairs[:i] for i, pair in enumerate(pairs)]
    assert duplicate_pairs(hash_pairs(pair_table(pairs, chunk))).tolist() == expected


@pytest.mark.parametrize(
    ("limits", "wrong"),
    [
        ({}, {}),
        ({"max_length": 8}, {"longer than data.max_length, 8 tokens": [0, 0, 0, 1, 1]}),
        ({"min_length": 2}, {"shorter than data.min_length, 2 tokens": [1, 0, 0, 0, 0]}),
        ({"max_length_ratio": 2.5}, {"lengths further apart than data.max_length_ratio, 2.5": [1, 1, 0, 0, 0]}),
    ],
)
def test_wrong_lengths_are_found(limits: dict[str, int], wrong: dict[str, list[int]]) -> None:
    too_long = {"longer than max_len, 9 tokens": [0, 0, 0, 1, 0]}
    empty = {"one side is empty once it is read": [1, 0, 0, 0, 0]}
    one, other = np.array([1, 3, 2, 9, 9]), np.array([3, 8, 5, 10, 9])
    for src, tgt in ((one, other), (other, one)):
        for settings, expected in ((data_config("x", **limits), too_long | empty | wrong), (None, too_long)):
            faults = length_faults(src, tgt, 9, settings)
            assert {fault: pairs.astype(int).tolist() for fault, pairs in faults.items()} == expected
