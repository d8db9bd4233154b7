"""Train a model: the same as `minitrans train`."""

import sys

from minitrans import cli

if __name__ == "__main__":
    sys.exit(cli.main(["train", *sys.argv[1:]]))
