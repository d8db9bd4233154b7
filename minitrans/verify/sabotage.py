"""What a sabotage is, and the self-test: a check that has never failed proves nothing."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock


class Patch:
    """Puts wrong code in the place of right code until the sabotage ends."""

    def __init__(self, stack: ExitStack) -> None:
        """Undo everything when `stack` closes."""
        self._stack = stack

    def __call__(self, owner: object, name: str, fault: object) -> None:
        """Replace an attribute of a class or module."""
        self._stack.enter_context(mock.patch.object(owner, name, fault))

    def everywhere(self, function: Callable[..., object], fault: Callable[..., object]) -> None:
        """Replace a function in every module of the package that knows it, but for the sabotages themselves."""
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith("minitrans.") and not module_name.startswith("minitrans.verify.sabotages"):
                for name in [name for name, value in vars(module).items() if value is function]:
                    self(module, name, fault)


@dataclass(frozen=True)
class Sabotage:
    """A fault, and how to bring it about.

    Attributes:
        id: Its name.
        fault: What is wrong with the code, in one sentence.
        apply: Replaces the code.
    """

    id: str
    fault: str
    apply: Callable[[Patch], None]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The code has the fault until the block ends."""
        with ExitStack() as stack:
            self.apply(Patch(stack))
            yield


SABOTAGES: list[Sabotage] = []


def sabotage(id_: str, fault: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Register the decorated function."""

    def register(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        SABOTAGES.append(Sabotage(id_, fault, apply))
        return apply

    return register
