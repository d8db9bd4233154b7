import math

import pytest
import torch

from minitrans.model.dropout import Dropout, draw_seed, dropout, random_bytes

N = 1_000_003  # not a multiple of 8: the last bytes are cut


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9, 0.996])
def test_elements_are_dropped_with_probability_p_and_the_mean_stays(p: float) -> None:
    torch.manual_seed(0)
    out = dropout(torch.ones(N, dtype=torch.float64), p, training=True)
    exact = round(256 * p) / 256
    values = out.unique()
    assert len(values) == 2
    assert values[0] == 0
    assert values[1].item() == pytest.approx(1 / (1 - exact), rel=1e-12)
    deviation = (exact * (1 - exact) / N) ** 0.5
    assert abs((out == 0).double().mean().item() - exact) < 4 * deviation
    assert abs(out.mean().item() - 1) < 4 * deviation / (1 - exact)


@pytest.mark.parametrize("shape", [(0, 4), (1,), (8,), (30, 50)])
def test_each_element_is_dropped_by_its_byte_drawn_from_one_seed(shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    dropped = random_bytes(math.prod(shape), draw_seed()).view(shape) < 128
    after = torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(dropout(torch.ones(shape), 0.5, training=True), 2.0 * ~dropped)
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63), 123456789])
def test_the_bytes_are_those_of_splitmix64(seed: int) -> None:
    expected, state = b"", seed % 2**64
    for _ in range(20):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        expected += (z ^ z >> 31).to_bytes(8, "little")
    for n in (0, 1, 8, 9, 160):
        assert bytes(random_bytes(n, seed).tolist()) == expected[:n]


def test_nothing_is_dropped_outside_training_or_at_0_and_everything_at_1() -> None:
    x = torch.ones(1000)
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0, training=True) is x
    assert Dropout(0.5).eval()(x) is x
    assert 0 < (Dropout(0.5).train()(x) == 0).sum() < 1000
    assert not dropout(x, 1.0, training=True).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_shape_dtype_and_device_are_kept(dtype: torch.dtype) -> None:
    out = dropout(torch.ones(3, 1, 5, dtype=dtype, device="meta"), 0.5, training=True)
    assert (out.shape, out.dtype, out.is_meta) == ((3, 1, 5), dtype, True)


def test_seeds_are_63_bit_integers() -> None:
    torch.manual_seed(6)
    seeds = [draw_seed() for _ in range(100)]
    assert all(type(seed) is int for seed in seeds)
    assert len({seed % 2**16 for seed in seeds}) > 90
    assert max(seeds) > 2**61
