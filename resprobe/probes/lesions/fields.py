"""What the results of lesions hold."""

from resprobe.results.fields import BASELINE, DRAW, OPTIONAL_UNIT_COORDS, UNIT_COORDS, Field, Fields

LESION = Fields(
    variables={
        "num_correct": Field("images right with the unit deleted", ("unit",), "int"),
        "num_newly_wrong": Field("images that the deletion makes wrong", ("unit",), "int"),
        "num_newly_right": Field("images that the deletion makes right", ("unit",), "int"),
        "loss": Field("mean loss with the unit deleted", ("unit",), "float", "nat"),
        "error": Field("error with the unit deleted", ("unit",), "float", "1"),
        "error_low": Field("error, lower end of the 95 % Wilson interval", ("unit",), "float", "1"),
        "error_high": Field("error, upper end of the 95 % Wilson interval", ("unit",), "float", "1"),
        "correct": Field("image right with the unit deleted", ("unit", "image"), "bool", required=False),
        "image_loss": Field(
            "loss of the image with the unit deleted", ("unit", "image"), "float", "nat", required=False
        ),
        **BASELINE,
    },
    coords={
        **UNIT_COORDS,
        "image": Field("row of the dataset", ("image",), "int", required=False),
        "label": Field("class of the image", ("image",), "int", required=False),
    },
)

LESION_CURVE = Fields(
    variables={
        "num_correct": Field("images right with the units deleted", ("num_deleted", "draw"), "int"),
        "loss": Field("mean loss with the units deleted", ("num_deleted", "draw"), "float", "nat"),
        "error": Field("error with the units deleted", ("num_deleted", "draw"), "float", "1"),
        "deleted": Field("unit is deleted", ("num_deleted", "draw", "unit"), "bool"),
        **BASELINE,
    },
    coords={
        "num_deleted": Field("number of deleted units", ("num_deleted",), "int"),
        **DRAW,
        **OPTIONAL_UNIT_COORDS,
    },
)
