"""Cases of the reference that no model is compared with: very large scores, and attention without keys."""

import numpy as np

from minitrans.model import reference


def test_the_softmax_of_very_large_scores_is_finite() -> None:
    weights = reference.softmax(np.array([1e4, -1e4, 1e4 - 1.0]))  # exp(1e4) is not
    assert weights.round(4).tolist() == [0.7311, 0.0, 0.2689]


def test_attend_without_keys_gives_zero() -> None:
    output, weights = reference.attend_one_query(np.ones(4), np.zeros((0, 4)), np.zeros((0, 3)))
    assert output.tolist() == [0.0, 0.0, 0.0]
    assert weights.shape == (0,)
