"""Many keys as a few lines: `layer{1-3}.{0-8}.conv{1,2}.weight`."""

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"\d+")


def compact(keys: Iterable[str], *, most: int = 12) -> str:
    """Write the names of tensors compactly.

    Keys that differ only in their numbers become one, with every number in its place; then the keys of one module.
    The result stands for at least the given keys.

    Args:
        keys: Names of tensors.
        most: How many patterns to list.

    Returns:
        Patterns, separated by commas.

    Example:
        >>> compact(["layer1.0.conv1.weight", "layer1.1.conv1.weight", "bn.weight", "bn.bias"])
        'layer1.{0,1}.conv1.weight, bn.{weight,bias}'
    """
    numbers: dict[str, list[dict[int, None]]] = {}
    for key in keys:
        found = [int(number) for number in _NUMBER.findall(key)]
        places = numbers.setdefault(_NUMBER.sub("#", key), [{} for _ in found])
        for place, number in zip(places, found, strict=True):
            place[number] = None
    modules: dict[str, list[str]] = {}
    for skeleton, places in numbers.items():
        pieces = skeleton.split("#")
        spans = [*(_span(sorted(place)) for place in places), ""]
        module, _, leaf = "".join(a + b for a, b in zip(pieces, spans, strict=True)).rpartition(".")
        modules.setdefault(module, []).append(leaf)
    patterns = [".".join(filter(None, (name, _braced(leaves)))) for name, leaves in modules.items()]
    rest = f" and {len(patterns) - most} more" if len(patterns) > most else ""
    return ", ".join(patterns[:most]) + rest


def _span(numbers: list[int]) -> str:
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and last - first + 1 == len(numbers):
        return f"{{{first}-{last}}}"
    return _braced([str(number) for number in numbers])


def _braced(values: list[str]) -> str:
    return values[0] if len(values) == 1 else f"{{{','.join(values)}}}"
