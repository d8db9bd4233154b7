"""The log on standard error: one line a message, in which no name from a file can move the cursor."""

import logging
import sys
from typing import TextIO

from minitrans.text.lines import escape_controls


class StandardErrorHandler(logging.StreamHandler[TextIO]):
    """Writes each record as a line to the current `sys.stderr`: while there is a progress bar, above it."""

    def format(self, record: logging.LogRecord) -> str:
        """Escape what could move the cursor."""
        return escape_controls(super().format(record))

    def emit(self, record: logging.LogRecord) -> None:
        """Look up `sys.stderr`, and write to it."""
        self.setStream(sys.stderr)
        super().emit(record)


def start_log(debug: bool) -> None:
    """Warnings go to standard error; with --debug, more."""
    line = "minitrans: %(levelname)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, format=line, handlers=[StandardErrorHandler()])
    logging.addLevelName(logging.WARNING, "warning")
    if debug:
        logging.getLogger("minitrans").setLevel(logging.INFO)
