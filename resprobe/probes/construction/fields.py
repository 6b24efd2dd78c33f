"""What the results of comparing two networks of the same function hold, and those of a race of several."""

from resprobe.results.fields import Field, Fields
from resprobe.training.fields import TRAINING

_MODE = ("bn_mode",)

# All may have the dim `checkpoint` first.
COMPARISON = Fields(
    variables={
        "logit_change": Field("largest change of a logit", _MODE, "float", "1"),
        "largest_logit": Field("largest logit of the reference, by its size", _MODE, "float", "1"),
        "num_identical": Field("images with the same logits to the bit", _MODE, "int"),
        "num_changed": Field("images of which another class is predicted", _MODE, "int"),
        "reference_loss": Field("mean loss of the reference", _MODE, "float", "nat"),
        "reference_error": Field("error of the reference", _MODE, "float", "1"),
        "loss": Field("mean loss", _MODE, "float", "nat"),
        "error": Field("error", _MODE, "float", "1"),
        "num_images": Field("number of images", (), "int"),
    },
    coords={
        "bn_mode": Field("what batch normalisation does", _MODE, "text"),
        "checkpoint": Field("network", ("checkpoint",), "text", required=False),
    },
)

_RACE = ("net", "epoch")

# Epoch 0 is before training, in evaluation mode like all others. Where there is no such row the values are NaN.
RACE = Fields(
    variables={
        name: field._replace(dims=("epoch",) if name == "learning_rate" else _RACE)
        for name, field in TRAINING.variables.items()
    },
    coords={
        "net": Field("network, by how it started", ("net",), "text"),
        "layers": Field("weight layers", ("net",), "int"),
        **TRAINING.coords,
    },
)
