"""The flags and words of a command: argparse, with errors that are a `UserError`, and numbers within bounds."""

import argparse
import math
import os
from collections.abc import Callable, Sequence
from typing import NoReturn

from minitrans.errors import UserError, unexpected

CORES = os.cpu_count() or 1


class Parser(argparse.ArgumentParser):
    """Parses what follows a command; flags may stand between the other words.

    Args:
        prog: The command.
        description: What it does.
    """

    def __init__(self, prog: str, description: str) -> None:
        """Show defaults in --help, and take no abbreviated flags."""
        formatter = argparse.ArgumentDefaultsHelpFormatter
        super().__init__(prog=prog, description=description, formatter_class=formatter, allow_abbrev=False)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The values of flags and words. After -- all words are `texts`, also those that begin with a dash.

        Raises:
            UserError: A flag that is unknown (the nearest known one is named), wrong or missing, or a word too many.
            SystemExit: After --help, with code 0.
        """
        end = argv.index("--") if "--" in argv else len(argv)
        args, others = self.parse_known_intermixed_args(argv[:end])
        texts = argv[end + 1 :]
        if "texts" in args:
            args.texts += texts
        else:
            others += texts
        if others:
            raise unexpected(self.prog, others, self._option_string_actions)
        return args

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print."""
        raise UserError(f"{message}; see {self.prog} --help")


def bounded(kind: type[float], least: float, most: float = math.inf, why: str = "") -> Callable[[str], float]:
    """What makes a number of the text of a flag, and refuses others.

    Args:
        kind: int or float.
        least: The smallest number that is right.
        most: The largest one.
        why: Why not more, where that is not plain.
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


count = bounded(int, 1, 2**31 - 1)
cores = bounded(int, 1, CORES, "this machine's cores")
