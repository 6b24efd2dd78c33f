"""The one exception that resprobe raises for bad input, and the one warning."""


class ResprobeError(Exception):
    """Input that can't be used: the message is one line that says what, expected, got, and what to do."""


class ResprobeWarning(UserWarning):
    """Something that the user should know, though the analysis goes on: one line."""
