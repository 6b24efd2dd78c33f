"""What the results of loss surfaces hold."""

from resprobe.results.fields import BASELINE, DRAW, Field, Fields

_LINE = ("direction_x",)
_PLANE = (*_LINE, "direction_y")
# several lines or planes; lines along eigenvectors; one plane
_ALSO = (("draw", *_LINE), ("rank", *_LINE), _PLANE, ("draw", *_PLANE))

# Where a point is not done, its loss and error are NaN and its count is -1; so are error and count of a loss that was
# given and whose outputs are no logits.
SURFACE = Fields(
    variables={
        "loss": Field("mean loss at the point", _LINE, "float", "nat", also=_ALSO),
        "error": Field("error at the point", _LINE, "float", "1", also=_ALSO),
        "num_correct": Field("images that are right at the point", _LINE, "int", also=_ALSO),
        "done": Field("whether the point is measured", _LINE, "bool", also=_ALSO),
        "num_nonfinite": Field("points whose loss is not finite", (), "int"),
        "eigenvalue": Field("eigenvalue of the Hessian", ("rank",), "float", "nat", required=False),
        **BASELINE,
    },
    # shares of a filter's norm, or distances of the weights, which have no unit either
    coords={
        "direction_x": Field("distance along the first direction", ("direction_x",), "float", "1"),
        "direction_y": Field("distance along the second direction", ("direction_y",), "float", "1", required=False),
        "draw": DRAW["draw"]._replace(required=False),
        "rank": Field("rank of the eigenvalue", ("rank",), "int", required=False),
    },
)
