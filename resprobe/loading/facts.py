"""Facts about a network, each with how it is known."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

READ, SETTLED, ASSUMED, UNSETTLED = "read", "settled", "assumed", "unsettled"
LARGEST_SCORE = 1e12


@dataclass(frozen=True)
class Fact:
    """One fact about an architecture.

    Attributes:
        value: The fact; None where it is unsettled.
        how: `read` from the file; `settled` by the statistics of its batch normalisations; `assumed` by convention or
            on the caller's word; `unsettled`.
        scores: Where statistics were compared, the score of each candidate, lower is better.
        options: Where it is unsettled, the possible values.
    """

    value: bool | int | str | None
    how: str
    scores: Mapping[str, float] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values: `value` and `how`, and `scores` and `options` where there are any."""
        extra: dict[str, Any] = {}
        if self.scores:
            extra["scores"] = {name: min(float(f"{score:.3g}"), LARGEST_SCORE) for name, score in self.scores.items()}
        if self.options:
            extra["options"] = list(self.options)
        return {"value": self.value, "how": self.how, **extra}
