"""Who computes: the plain model, or compiled code that has proved to give the same numbers."""

from typing import Literal

Mode = Literal["auto", "off", "require"]  # compiled code where it proves itself; never; or else an error
