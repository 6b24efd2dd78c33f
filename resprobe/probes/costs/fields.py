"""What the results of costs hold. All may have the dim `checkpoint` first."""

from resprobe.results.fields import BASELINE, Field, Fields

COSTS = Fields(
    variables={
        "num_params": Field("parameters", (), "int"),
        "multiply_adds": Field("multiply-adds for one image", (), "int"),
        "activation_bytes": Field("bytes that a training step keeps for one image", (), "int"),
        "seconds_per_image": Field("time of a forward pass per image, fastest", (), "float", "s"),
        "seconds_per_image_median": Field("time of a forward pass per image, median", (), "float", "s"),
        "paper_num_params": Field("parameters according to the paper", (), "float", "1", required=False),
        "paper_multiply_adds": Field("multiply-adds according to the paper", (), "float", "1", required=False),
        "num_images": BASELINE["num_images"]._replace(long_name="images of the timed batch"),
    },
    coords={"checkpoint": Field("network", ("checkpoint",), "text", required=False)},
)
