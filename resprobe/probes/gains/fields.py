"""What the results of gradient gains hold. All variables have the dim `checkpoint` first."""

from resprobe.results.fields import DRAW, Field, Fields

_NETWORK = ("checkpoint",)

GRADIENT_GAIN = Fields(
    variables={
        "relative_grad_norm": Field(
            "norm of an image's loss gradient by the unit's output, relative to the last unit's, mean",
            *(("draw", "place"), "float", "1"),
        ),
        "predicted_grad_norm": Field("the same from random Jacobians", ("place",), "float", "1"),
    },
    coords={
        "checkpoint": Field("network", _NETWORK, "text"),
        "family": Field("plain or resnet", _NETWORK, "text"),
        "norm": Field("batch or none", _NETWORK, "text"),
        "init": Field("initialisation", _NETWORK, "text"),
        "num_layers": Field("weight layers", _NETWORK, "int"),
        "num_units": Field("units", _NETWORK, "int"),
        "place": Field("place of the unit, from input to output", ("place",), "int"),
        **DRAW,
    },
)
