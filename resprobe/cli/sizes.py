"""Lists of whole numbers as the command line writes them."""

from resprobe.errors import ResprobeError


def read_sizes(option: str, text: str) -> list[int]:
    """Read `1:20`, `2:20:2` (both ends included) or `1,5,10`."""
    try:
        if ":" not in text:
            return [int(part) for part in text.split(",")]
        first, last, *step = (int(part) for part in text.split(":"))
        (step_size,) = step or [1]
        return list(range(first, last + 1, step_size))
    except ValueError:
        raise ResprobeError(
            f"{option}: expected FIRST:LAST, FIRST:LAST:STEP or numbers with commas, got {text!r}; "
            f"write --{option} 1:20"
        ) from None
