"""Of the reference what no model is compared with: very large scores, and attention to nothing."""

import numpy as np
import pytest

from minitrans.model import reference


@pytest.mark.parametrize(
    ("scores", "weights"),
    [
        ([4.0, -1.0, 2.1], [0.8648, 0.0058, 0.1294]),
        ([1e4, -1e4, 1e4 - 1.0], [0.7311, 0.0, 0.2689]),  # finite though exp(1e4) is not
    ],
)
def test_softmax_gives_known_weights(scores: list[float], weights: list[float]) -> None:
    assert reference.softmax(np.array(scores)).round(4).tolist() == weights


def test_attend_without_keys_gives_zero() -> None:
    output, weights = reference.attend(np.ones(4), np.zeros((0, 4)), np.zeros((0, 3)))
    assert output.tolist() == [0.0, 0.0, 0.0]
    assert weights.shape == (0,)
