"""What is written to standard error: one line a message, in which names from files cannot move the cursor."""

import logging
import sys
from typing import TextIO

from minitrans.text.lines import visible


class StandardError(logging.StreamHandler[TextIO]):
    """Writes a line for a record to what `sys.stderr` is by then: while there is a progress bar, above it."""

    def format(self, record: logging.LogRecord) -> str:
        """Escape what could move the cursor."""
        return visible(super().format(record))

    def emit(self, record: logging.LogRecord) -> None:
        """Look it up, and write."""
        self.setStream(sys.stderr)
        super().emit(record)


def start_log(debug: bool) -> None:
    """Warnings go to standard error; with --debug, more."""
    line = "minitrans: %(levelname)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, format=line, handlers=[StandardError()])
    logging.addLevelName(logging.WARNING, "warning")
    if debug:
        logging.getLogger("minitrans").setLevel(logging.INFO)
