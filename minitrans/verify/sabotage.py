"""What a sabotage is: an edit of this package's source, in the running process alone."""

import inspect
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from types import CodeType, FunctionType
from typing import Any

from minitrans.cachecheck.self_test import Fault
from minitrans.errors import UserError

NEEDS = {"compiled": "minitrans.compiled", "export": "ctranslate2"}  # by what an id begins with


@dataclass(frozen=True)
class Sabotage(Fault):
    """A fault that the code has.

    Attributes:
        edits: For each function to be edited, as "module:name" below `minitrans`, pieces of its source, and what takes
            the place of each, wherever it stands in the function.
        noticed_by: Ids of the checks that must notice it, by what they measure; of those that there are.
        no_other: Whether no other check may notice it.
        plain: Whether it is as plain in a lower dtype: far above what that may round.
        probe: Which looks of the probe of compiled code must refuse it, and which not, if it is for the probe too:
            training, decoding, or both.
    """

    edits: dict[str, list[tuple[str, str]]]
    noticed_by: list[str]
    no_other: bool = False
    plain: bool = False
    probe: Sequence[str] = ()

    @contextmanager
    def applied(self) -> Iterator[Callable[[Any], Any]]:
        """The code has the fault until the block ends; a subject that is made in it need not be changed.

        Raises:
            UserError: A piece is not there, since the code has been edited for good.
        """
        with ExitStack() as stack:
            for name, pieces in self.edits.items():
                function = inspect.unwrap(resolve_name(f"minitrans.{name}"))
                source = textwrap.dedent(inspect.getsource(function))
                for right, wrong in pieces:
                    if right not in source:
                        gone = f"{self.id} edits {right!r} in {name}, where it isn't"
                        raise UserError(f"{gone}; edit verify/sabotages.toml too")
                    source = source.replace(right, wrong)
                stack.callback(setattr, function, "__code__", function.__code__)
                function.__code__ = edited(function, source)
            yield lambda subject: subject


def edited(function: FunctionType, source: str) -> CodeType:
    """The code of a function's edited source, with the free variables that it has now, such as `__class__`."""
    name, free = function.__name__, ", ".join(function.__code__.co_freevars)
    around = f"def around({free}):\n global {name}\n{textwrap.indent(source, ' ')}"
    code = compile(around, f"<{function.__qualname__}, sabotaged>", "exec", dont_inherit=True)
    for inside in ("around", name):
        code = next(each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == inside)
    return code


def load_sabotages() -> list[Sabotage]:
    """Read them, without those of what is not installed."""
    table = tomllib.loads(Path(__file__).with_name("sabotages.toml").read_text(encoding="utf-8"))
    there = {kind: find_spec(module) is not None for kind, module in NEEDS.items()}
    return [Sabotage(id_, **fields) for id_, fields in table.items() if there.get(id_.split(".")[0], True)]


SABOTAGES = load_sabotages()
