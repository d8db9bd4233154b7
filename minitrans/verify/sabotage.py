"""Sabotages: edits of this package's source, made only in the running process."""

import inspect
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from types import CodeType, FunctionType

from minitrans.errors import UserError


@dataclass(frozen=True)
class Sabotage:
    """A fault that can be put into the code.

    Attributes:
        id: Its name.
        fault: What is wrong, in one sentence.
        edits: For each function to be edited, as "module:name" below `minitrans`, pieces of its source, and what
            replaces each of them wherever it occurs in the function.
        noticed_by: Ids of the checks that must notice it because of what they measure, where they are available;
            where none is, it is not applied.
        no_other: Whether no other check may notice it.
        large_in_lower_dtypes: Whether the deviation in each lower dtype is far above that dtype's rounding.
        refused_by_probe: Which parts of the probe of compiled code must refuse it, while any other part must not:
            training, decoding, or both. Empty for a fault that the probe is not tested on.
    """

    id: str
    fault: str
    edits: dict[str, list[tuple[str, str]]]
    noticed_by: list[str]
    no_other: bool = False
    large_in_lower_dtypes: bool = False
    refused_by_probe: Sequence[str] = ()

    @contextmanager
    def apply_fault(self) -> Iterator[None]:
        """Give the code the fault until the block ends; a subject made in the block has it already.

        Raises:
            UserError: A piece is not in the source, which has changed since the sabotage was written.
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
                function.__code__ = compile_edited_function(function, source)
            yield


def compile_edited_function(function: FunctionType, source: str) -> CodeType:
    """Compile a function's edited source, with the free variables that the function has, such as `__class__`."""
    name, free = function.__name__, ", ".join(function.__code__.co_freevars)
    around = f"def around({free}):\n global {name}\n{textwrap.indent(source, ' ')}"
    code = compile(around, f"<{function.__qualname__}, sabotaged>", "exec", dont_inherit=True)
    for inside in ("around", name):
        code = next(each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == inside)
    return code


SABOTAGES = [
    Sabotage(id_, **fields)
    for id_, fields in tomllib.loads(Path(__file__).with_name("sabotages.toml").read_text(encoding="utf-8")).items()
]
