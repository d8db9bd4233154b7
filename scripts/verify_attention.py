"""Measure every claim about attention: the same as `minitrans verify`."""

import sys

from minitrans import cli

if __name__ == "__main__":
    sys.exit(cli.main(["verify", *sys.argv[1:]]))
