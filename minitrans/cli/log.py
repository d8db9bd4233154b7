"""What is written to standard error: one line a message, in which names from files cannot move the cursor."""

import logging
import sys
from typing import TextIO

from minitrans.text.lines import visible


class Visible(logging.Formatter):
    """One line for a record, in which names from files cannot move the cursor."""

    def format(self, record: logging.LogRecord) -> str:
        """Escape them."""
        return visible(super().format(record))


class StandardError(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is by then: while there is a progress bar, above it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Look it up, and write."""
        self.setStream(sys.stderr)
        super().emit(record)


def start_log(debug: bool) -> None:
    """Warnings go to standard error; with --debug, more."""
    handler = StandardError()
    handler.setFormatter(Visible("minitrans: %(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.addLevelName(logging.WARNING, "warning")
    if debug:
        logging.getLogger("minitrans").setLevel(logging.INFO)
