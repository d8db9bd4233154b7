"""Translate lines of text: the same as `minitrans translate`."""

import sys

from minitrans import cli

if __name__ == "__main__":
    sys.exit(cli.main(["translate", *sys.argv[1:]]))
