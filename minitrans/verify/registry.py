"""The checks of our own model, in the order in which they are defined, which is the order in which they teach."""

from minitrans.cachecheck.check import Check

CHECKS: list[Check] = []
