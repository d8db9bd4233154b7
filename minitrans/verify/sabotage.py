"""What a sabotage is: wrong code in the place of right code of this package."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest import mock

from minitrans.cachecheck.fault import Fault

Code = TypeVar("Code", bound=Callable[..., Any])


class Patch:
    """Puts wrong code in the place of right code until the sabotage ends."""

    def __init__(self, stack: ExitStack) -> None:
        """Undo everything when `stack` closes."""
        self._stack = stack

    def __call__(self, owner: object, name: str, wrong: object) -> None:
        """Replace an attribute of a class or module."""
        self._stack.enter_context(mock.patch.object(owner, name, wrong))

    def everywhere(self, function: Callable[..., object], wrong: Callable[..., object]) -> None:
        """Replace a function in every module of the package that knows it, but for the sabotages themselves."""
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith("minitrans.") and not module_name.startswith("minitrans.verify.sabotages"):
                for name in [name for name, value in vars(module).items() if value is function]:
                    self(module, name, wrong)


@dataclass(frozen=True)
class Sabotage(Fault):
    """A fault that the code has.

    Attributes:
        apply: Replaces the code.
    """

    apply: Callable[[Patch], None]

    @contextmanager
    def applied(self) -> Iterator[Callable[[Any], Any]]:
        """The code has the fault until the block ends; a subject that is made in it need not be changed."""
        with ExitStack() as stack:
            self.apply(Patch(stack))
            yield lambda subject: subject


def into(registry: list[Sabotage]) -> Callable[..., Callable[[Code], Code]]:
    """Returns the decorator that adds sabotages to the registry.

    The decorator takes the sabotage's id and what is wrong, in one sentence; then what the decorated function stands in
    for: a function, wherever the package knows it, or a class or module and the name of what is in it. If nothing is
    named, the decorated function takes a `Patch`, and replaces the code itself.
    """

    def sabotage(id_: str, fault: str, *replaced: Any) -> Callable[[Code], Code]:
        def register(wrong: Code) -> Code:
            def apply(patch: Patch) -> None:
                match replaced:
                    case ():
                        wrong(patch)
                    case (function,):
                        patch.everywhere(function, wrong)
                    case owner, name:
                        patch(owner, name, wrong)

            registry.append(Sabotage(id_, fault, apply))
            return wrong

        return register

    return sabotage
