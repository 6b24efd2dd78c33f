"""What the results of lesions of batch normalisation hold."""

from resprobe.results.fields import BASELINE, Field, Fields

_LAYER = ("layer",)

NORM_LESION = Fields(
    variables={
        "num_correct": Field("images right with the normalisation replaced", _LAYER, "int"),
        "num_newly_wrong": Field("images that the replacement makes wrong", _LAYER, "int"),
        "num_newly_right": Field("images that the replacement makes right", _LAYER, "int"),
        "loss": Field("mean loss with the normalisation replaced", _LAYER, "float", "nat"),
        "error": Field("error with the normalisation replaced", _LAYER, "float", "1"),
        "error_low": Field("error, lower end of the 95 % Wilson interval", _LAYER, "float", "1"),
        "error_high": Field("error, upper end of the 95 % Wilson interval", _LAYER, "float", "1"),
        **BASELINE,
    },
    coords={
        "layer": Field("batch normalisation, in order", _LAYER, "text"),
        "depth": Field("position of the layer among those of its kind", _LAYER, "int"),
        "stage": Field("stage of the network, by the size of its images", _LAYER, "int"),
        "type": Field("kind of module", _LAYER, "text"),
        "num_channels": Field("channels that it normalises", _LAYER, "int"),
    },
)
