"""Reads a normalisation from the text that names it."""

import difflib
from pathlib import Path

from resprobe.data.normalisation import NORMALISATIONS, Normalisation
from resprobe.data.pixel_means import read_pixel_normalisation
from resprobe.errors import ResprobeError


def parse_normalisation(text: str) -> Normalisation:
    """Read a normalisation from a name or from numbers.

    Args:
        text: a key of `NORMALISATIONS`, or `MEAN,../STD,..` with one mean and one std per channel, on pixels
            scaled to [0, 1]; or `npz:FILE` with a mean image, as in `read_pixel_normalisation`.

    Returns:
        The normalisation; its name is `custom` where numbers were given.

    Raises:
        ResprobeError: the name is unknown, or the numbers can't be read or used.

    Examples:
        >>> parse_normalisation("mnist")
        Normalisation(name='mnist', mean=(0.1307,), std=(0.3081,))
        >>> parse_normalisation(".5,.5,.5/.25,.25,.25").as_text()
        'custom (0.5,0.5,0.5/0.25,0.25,0.25)'
    """
    if text in NORMALISATIONS:
        return NORMALISATIONS[text]
    if text.startswith("npz:"):
        return read_pixel_normalisation(Path(text.removeprefix("npz:")).expanduser())
    mean_text, slash, std_text = text.partition("/")
    if not slash:
        close = difflib.get_close_matches(text, NORMALISATIONS, n=1)
        meant = f"did you mean {close[0]}?" if close else "pass one of these"
        raise ResprobeError(
            f"normalisation: expected one of {', '.join(NORMALISATIONS)} or MEAN,../STD,.. or npz:FILE, got {text!r}; "
            f"{meant}"
        )
    try:
        mean, std = (tuple(float(value) for value in values.split(",")) for values in (mean_text, std_text))
    except ValueError:
        raise ResprobeError(
            f"normalisation: expected numbers as MEAN,../STD,.., got {text!r}; write e.g. .5,.5,.5/.2,.2,.2"
        ) from None
    return Normalisation("custom", mean, std)
