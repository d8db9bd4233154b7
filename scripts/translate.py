"""Translate lines of text: the same as `minitrans translate`."""

import sys
from collections.abc import Sequence

from minitrans import cli


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments and return its exit code."""
    return cli.main(["translate", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(main())
