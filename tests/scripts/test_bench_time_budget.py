"""A benchmark repeats what fits into its minutes, and prints its progress every few seconds."""

import time
from types import SimpleNamespace

import pytest
import time_budget
from time_budget import TimeBudget


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still until a test moves it."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time_budget, "monotonic", lambda: clock.now)
    return clock


@pytest.mark.parametrize(("turn", "turns"), [(1.0, 30), (7.0, 4), (0.1, 50), (25.0, 3)])
def test_as_many_turns_as_fit_into_the_share(clock: SimpleNamespace, turn: float, turns: int) -> None:
    minute = TimeBudget("bench", 1)
    for _ in minute.repeat("steps", 0.5, 3, 50):
        clock.now += turn
    assert clock.now == pytest.approx(100 + turn * turns)
    assert minute.seconds_left() == pytest.approx(max(0.0, 60 - turn * turns))


def test_slow_measurements_end_in_time(clock: SimpleNamespace) -> None:
    five = TimeBudget("bench", 5)
    for fraction, turn in ((0.1, 4.0), (0.4, 20.0), (0.5, 9.0), (1.0, 2.5)):
        for _ in five.repeat("something", fraction, 1, 1000):
            clock.now += turn
    assert 0 < five.seconds_left() < 5


def test_measurement_progress_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert time_budget.PROGRESS_INTERVAL <= 20
    monkeypatch.setattr(time_budget, "PROGRESS_INTERVAL", 0.01)
    with TimeBudget("bench", 2) as two:
        two.announce("memory")
        time.sleep(0.5)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 2
    assert set(lines) <= {f"bench: memory; at most {seconds} s left" for seconds in range(90, 121)}
