"""Masks: bool, True = may attend, (B, H, Tq, Tk)."""

import pytest
import torch
from conftest import PAD

from minitrans.model.masks import causal_mask, check_mask, padding_mask

SCORES_SHAPE = torch.Size((2, 4, 3, 5))


def test_causal_mask_is_the_matrix_of_its_docstring() -> None:
    assert causal_mask.__doc__ is not None
    drawn = [line.split()[2:] for line in causal_mask.__doc__.splitlines() if line.split()[:1] == ["query"]]
    assert drawn == [["x", "x", "x", "x", "."], ["x", "x", "x", "x", "x"]]
    mask = causal_mask(q_len=2, kv_len=5, offset=3)
    assert mask.dtype == torch.bool
    assert mask.tolist() == [[[[cell == "x" for cell in row] for row in drawn]]]


@pytest.mark.parametrize(("q_len", "offset"), [(7, 0), (1, 0), (1, 6), (3, 2), (2, 5), (4, 3), (0, 2), (0, 7)])
def test_causal_mask_is_the_query_rows_of_the_lower_triangle(q_len: int, offset: int) -> None:
    triangle = torch.ones(7, 7).tril().bool()
    assert torch.equal(causal_mask(q_len, 7, offset), triangle[None, None, offset : offset + q_len])


@pytest.mark.parametrize(
    ("q_len", "kv_len", "offset", "message"),
    [
        (3, 5, 3, r"queries 3\.\.5 do not lie among 5 keys"),
        (6, 5, 0, r"queries 0\.\.5 do not lie among 5 keys"),
        (2, 5, -1, r"queries -1\.\.0 do not lie among 5 keys"),
        (-1, 5, 2, r"do not lie among 5 keys"),
    ],
)
def test_causal_mask_refuses_queries_outside_the_keys(q_len: int, kv_len: int, offset: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        causal_mask(q_len, kv_len, offset)


@pytest.mark.parametrize("shape", [(4,), (2, 1, 4)])
def test_padding_mask_refuses_ids_that_are_not_rows_of_a_batch(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"shape \(B, Tk\), got \(" + str(shape[0])):
        padding_mask(torch.zeros(shape, dtype=torch.int64), PAD)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 1, 1, 5), (1, 1, 3, 5), (2, 1, 3, 5), (2, 4, 3, 5)])
def test_check_mask_accepts_what_broadcasts(shape: tuple[int, ...]) -> None:
    check_mask(torch.ones(shape, dtype=torch.bool), SCORES_SHAPE)


@pytest.mark.parametrize(
    "shape",
    [
        (3, 5),  # (B, Tk) would be taken for (Tq, Tk) when B = Tq
        (4, 3, 5),
        (1, 1),
        (1, 2, 4, 3, 5),
        (1, 1, 1, 1, 1),
        (1, 1, 5, 3),  # transposed
        (4, 2, 3, 5),  # heads before batch
        (2, 4, 3, 3),  # a square mask for a chunk
        (2, 4, 5, 5),
        (3, 1, 3, 5),
    ],
)
def test_check_mask_refuses_what_does_not_broadcast(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"mask \(.*\) does not broadcast to scores \(2, 4, 3, 5\)"):
        check_mask(torch.ones(shape, dtype=torch.bool), SCORES_SHAPE)
