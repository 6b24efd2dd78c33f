"""What the result of a reordering holds."""

from resprobe.results.fields import BASELINE, DRAW, OPTIONAL_UNIT_COORDS, Field, Fields

REORDER = Fields(
    variables={
        "num_correct": Field("images right with the units reordered", ("num_swaps", "draw"), "int"),
        "loss": Field("mean loss with the units reordered", ("num_swaps", "draw"), "float", "nat"),
        "error": Field("error with the units reordered", ("num_swaps", "draw"), "float", "1"),
        "kendall_tau": Field("Kendall's tau with the original order", ("num_swaps", "draw"), "float", "1"),
        "order": Field("index of the unit that stands at this position", ("num_swaps", "draw", "unit"), "int"),
        **BASELINE,
    },
    coords={
        "num_swaps": Field("number of swapped pairs of units", ("num_swaps",), "int"),
        **DRAW,
        **OPTIONAL_UNIT_COORDS,
    },
)
