import pytest

from minitrans.training.module import warmup_cosine


def test_the_rate_grows_in_a_line_and_never_begins_at_0() -> None:
    assert [warmup_cosine(step, 4, 100) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]


def test_the_rate_falls_along_half_a_cosine_to_0() -> None:
    assert warmup_cosine(10, 10, 110) == 1.0
    assert warmup_cosine(60, 10, 110) == pytest.approx(0.5)
    assert warmup_cosine(110, 10, 110) == pytest.approx(0.0)
    assert warmup_cosine(200, 10, 110) == pytest.approx(0.0)


def test_no_warmup_begins_at_the_peak() -> None:
    assert warmup_cosine(0, 0, 100) == 1.0
