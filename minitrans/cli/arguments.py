"""The arguments of a command: argparse, with a `UserError` for every mistake, and with bounds for numbers."""

import argparse
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from minitrans.errors import UserError, unknown_argument_error

N_CORES = os.cpu_count() or 1


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Adds the default to the help of each flag that has one and takes a value."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, []) or action.nargs == 0 else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """Parses the arguments of a command: flags, never abbreviated, may stand between positional arguments."""

    def __init__(self, prog: str, description: str, **others: Any) -> None:
        """`others` are what argparse passes on to the parser of a command: `color` in Python 3.14."""
        super().__init__(prog, description=description, formatter_class=HelpFormatter, allow_abbrev=False, **others)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments. Everything after -- belongs to `texts`, even if it begins with a dash.

        A value can be joined to a short flag by = alone; otherwise, -output F would be -o with the value utput.
        """
        end = argv.index("--") if "--" in argv else len(argv)
        short = (word for word in argv[:end] if word[:2] in self._option_string_actions)
        if joined := [word for word in short if word[2:3] not in ("", "=")]:
            raise unknown_argument_error(self.prog, joined, self._option_string_actions)
        args, others = self.parse_known_intermixed_args(argv[:end])
        (args.texts if "texts" in args else others).extend(argv[end + 1 :])
        if others:
            raise unknown_argument_error(self.prog, others, self._option_string_actions)
        return args

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse an empty word, such as an unset shell variable leaves; only a text may be empty."""
        if value == "" and action.dest != "texts":
            raise argparse.ArgumentError(action, "it is empty; leave it out, or give a value")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print."""
        raise UserError(f"{message}; see {self.prog} --help")


def bounded_number(kind: type[float], least: float, most: float = math.inf, why: str = "") -> Callable[[str], float]:
    """Return a function that converts a flag's text to an int or a float, and refuses what is out of bounds.

    Where it is not obvious, `why` says why no larger number is allowed.
    """
    name = "whole number" if kind is int else "number"
    reason = f" ({why})" if why else ""

    def convert(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"it must be a {name} from {least} to {most}{reason}, not {text}")
        return value

    return convert


positive_int = bounded_number(int, 1, 2**31 - 1)
core_count = bounded_number(int, 1, N_CORES, "this machine's cores")
