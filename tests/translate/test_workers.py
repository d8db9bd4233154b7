"""Several processes give what one gives, in the same order."""

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

from minitrans.errors import UserError
from minitrans.translate.translator import Translator
from minitrans.translate.workers import Workers

LINES = [f"line {i}" for i in range(7)]


@pytest.fixture(scope="module")
def three_workers(tiny_run: Path) -> Iterator[Workers]:
    threads = torch.get_num_threads()
    torch.set_num_threads(7)
    with Workers(3, partial(Translator.load, tiny_run)) as workers:
        torch.set_num_threads(threads)
        yield workers


def number_lines(translator: Translator, lines: Sequence[str], first_line: int) -> list[str]:
    return [f"{i} {line}" for i, line in enumerate(lines, start=first_line)]


def process_and_threads(translator: Translator, lines: Sequence[str], first_line: int) -> list[tuple[int, int]]:
    return [(os.getpid(), torch.get_num_threads())] * len(lines)


def fail_on_line_6(translator: Translator, lines: Sequence[str], first_line: int) -> list[str]:
    if "line 6" in lines:
        raise UserError("line 6 is too much")
    return []


def kill_worker(translator: Translator, lines: Sequence[str], first_line: int) -> list[str]:
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def sleep_10_minutes(translator: Translator, lines: Sequence[str], first_line: int) -> list[str]:
    time.sleep(600)
    return []


def test_every_line_goes_to_one_process_and_comes_back_in_its_place(three_workers: Workers) -> None:
    for n in (0, 1, 2, 4, 7):  # fewer than processes, and more
        assert three_workers.run(number_lines, LINES[:n], first_line=5) == [f"{i + 5} line {i}" for i in range(n)]
    assert three_workers.run(number_lines, LINES[:1]) == ["1 line 0"]
    given = three_workers.run(process_and_threads, LINES)
    assert given == three_workers.run(process_and_threads, LINES)
    assert len({process for process, _ in given} - {os.getpid()}) == 3
    assert {threads for _, threads in given} == {2}  # a third of the seven there were


def test_one_process_is_this_one(tiny_run: Path) -> None:
    with Workers(1, partial(Translator.load, tiny_run)) as workers:
        assert {process for process, _ in workers.run(process_and_threads, LINES)} == {os.getpid()}
        assert workers.run(number_lines, LINES, first_line=5) == [f"{i + 5} line {i}" for i in range(7)]


def test_an_error_of_one_is_raised_here_and_says_where_and_a_death_is_told(tiny_run: Path) -> None:
    with Workers(2, partial(Translator.load, tiny_run)) as workers:
        with pytest.raises(UserError, match="line 6 is too much") as error:
            workers.run(fail_on_line_6, LINES)
        assert str(error.value) == "line 6 is too much"
        assert "in fail" in "".join(traceback.format_exception(error.value))
        with pytest.raises(UserError, match="a worker process has died"):
            workers.run(kill_worker, LINES)


@pytest.mark.slow
def test_leaving_ends_those_that_are_busy_too(tiny_run: Path) -> None:
    others = multiprocessing.active_children()
    ctrl_c = threading.Timer(1, signal.pthread_kill, [threading.get_ident(), signal.SIGINT])
    with Workers(2, partial(Translator.load, tiny_run)) as workers:
        ctrl_c.start()
        with pytest.raises(KeyboardInterrupt):
            workers.run(sleep_10_minutes, LINES)
    assert multiprocessing.active_children() == others
