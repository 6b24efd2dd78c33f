"""The one exception that resprobe raises for bad input."""


class ResprobeError(Exception):
    """Input that can't be used: the message is one line that says what, expected, got, and what to do."""
