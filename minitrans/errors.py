"""The one exception that means "the user can put this right"."""


class UserError(Exception):
    """Bad input or usage. The message is one line: what is wrong, where, and what to do.

    The command line prints it without a traceback and ends with exit code 2.
    """
