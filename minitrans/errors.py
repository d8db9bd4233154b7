"""The one exception that means "the user can put this right", helpers for its messages, and a handler of signals."""

import difflib
import signal
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any


class UserError(Exception):
    """Bad input or usage. The message is one line: what is wrong, where, and what to do.

    The command line prints it without a traceback and ends with exit code 2.
    """


def interrupt_once(number: int, frame: FrameType | None) -> None:
    """Handle a signal as Ctrl-C, and ignore it from then on, because it often comes twice."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def nearest_name_error(what: str, name: str, known: Iterable[str]) -> UserError:
    """Make an error for an unknown name; it suggests the nearest known one."""
    (nearest,) = difflib.get_close_matches(name, [*known], n=1, cutoff=0)
    return UserError(f"{what}; the nearest is {nearest}")


def truncate(value: Any) -> str:
    """A value as text for a message, cut to 80 characters."""
    try:
        text = str(value)
    except ValueError:  # a number of thousands of digits, which Python does not print
        return "far too large"
    return text if len(text) <= 80 else f"{text[:77]}..."


def unknown_argument_error(prog: str, words: Sequence[str], known: Iterable[str]) -> UserError:
    """Make an error for an argument that a command does not take; for a flag, it suggests the nearest known one."""
    flag = next((word.partition("=")[0] for word in words if word.startswith("-") and word.strip("-")), None)
    if flag is None:
        return UserError(f"{words[0]} is one argument too many; see {prog} --help")
    return nearest_name_error(f"there is no flag {flag} (see {prog} --help)", flag, known)
