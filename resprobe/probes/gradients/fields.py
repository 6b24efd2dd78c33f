"""What the result of gradients holds."""

from resprobe.results.fields import BASELINE, LAYER_COORDS, UNIT_COORDS, Field, Fields

# the status of a unit says here whether it was measured, not whether it can be deleted
_UNIT_COORDS = UNIT_COORDS | {
    "status": Field("ok, or why nothing was measured at the unit", ("unit",), "text"),
}

# losses are in nats; activations and weights have no unit
GRADIENTS = Fields(
    variables={
        "weight_grad_norm": Field("norm of the batch's mean-loss gradient by the weights", ("layer",), "float", "nat"),
        "weight_grad_norm_sem": Field("standard error of the norm over batches", ("layer",), "float", "nat"),
        "full_weight_grad_norm": Field(
            "norm of the gradient of the mean loss of all images by the weights", ("layer",), "float", "nat"
        ),
        "weight_norm": Field("norm of the weights", ("layer",), "float", "1"),
        "grad_weight_ratio": Field("gradient norm divided by weight norm", ("layer",), "float", "nat"),
        "grad_weight_ratio_sem": Field("standard error of the ratio over batches", ("layer",), "float", "nat"),
        "num_nonfinite_batches": Field("batches whose gradient norm is not finite", ("layer",), "int"),
        "activation_grad_norm": Field(
            "norm of an image's loss gradient by the unit's output, mean", ("unit",), "float", "nat"
        ),
        "activation_grad_norm_sem": Field("standard error of the norm over batches", ("unit",), "float", "nat"),
        "grad_gain": Field("gradient norm at the unit's input by that at its output, mean", ("unit",), "float", "1"),
        "grad_gain_sem": Field("standard error of the gain over batches", ("unit",), "float", "1"),
        "branch_ratio": Field("norm of the branch divided by that of the shortcut, mean", ("unit",), "float", "1"),
        "branch_ratio_sem": Field("standard error of the branch ratio over batches", ("unit",), "float", "1"),
        "num_zero_grad": Field("images without gradient at the unit's output, left out of the gain", ("unit",), "int"),
        "num_nonfinite": Field("images of which a quantity of the unit is not finite", ("unit",), "int"),
        "grad_correlation": Field(
            "cosine between two images' gradients of the first logit by the unit's input, mean over pairs",
            *(("unit",), "float", "1"),
            required=False,
        ),
        **BASELINE,
    },
    coords={
        **_UNIT_COORDS,
        "layer": LAYER_COORDS["layer"],
        "layer_depth": LAYER_COORDS["depth"],
        "layer_stage": LAYER_COORDS["stage"],
        "type": LAYER_COORDS["type"],
    },
)
