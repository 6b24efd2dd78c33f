"""What the results of smoothness hold. All may have the dim `checkpoint` first."""

from resprobe.results.fields import Field, Fields

_LINE = ("bn_mode", "batch", "step")
_BATCH = ("bn_mode", "batch")

# Gradients are per unit of the weights, which have none. What was not measured is NaN, or -1.
SMOOTHNESS = Fields(
    variables={
        "loss": Field("mean loss of the batch at the step", _LINE, "float", "nat"),
        "grad_change": Field("norm of the gradient's change from the start", _LINE, "float", "nat"),
        "step_norm": Field("distance of the weights from the start", _LINE, "float", "1"),
        "effective_beta": Field("largest change of the gradient per distance", _BATCH, "float", "nat"),
        "loss_range": Field("largest less smallest loss over the steps", _BATCH, "float", "nat"),
        "grad_norm": Field("norm of the gradient at the start", _BATCH, "float", "nat"),
        "num_nonfinite": Field("steps at which loss or gradient is not finite", _BATCH, "int"),
    },
    coords={
        "bn_mode": Field("what batch normalisation does", ("bn_mode",), "text"),
        "batch": Field("mini-batch", ("batch",), "int"),
        "batch_images": Field("images in the batch", ("batch",), "int"),
        "step": Field("step length, as the step rule defines it", ("step",), "float", "1"),
        "checkpoint": Field("network", ("checkpoint",), "text", required=False),
    },
)
