"""What the result of responses holds."""

from resprobe.results.fields import BASELINE, LAYER_COORDS, Field, Fields

RESPONSES = Fields(
    variables={
        "response_mean": Field("mean of the layer's responses", ("layer",), "float", "1"),
        "response_std": Field("standard deviation of the layer's responses", ("layer",), "float", "1"),
        "num_responses": Field("responses of the layer", ("layer",), "int"),
        "num_images": BASELINE["num_images"],
    },
    coords={
        **LAYER_COORDS,
        "measured_at": Field("module whose output was measured", ("layer",), "text"),
    },
)
