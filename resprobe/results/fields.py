"""Variables and coordinates that several analyses share, and what describes one."""

from typing import NamedTuple

# numpy's dtype kinds. A bool is an int8 if another program wrote the file; text may be an array of objects.
KINDS = {"int": "iu", "float": "f", "bool": "biu", "text": "UOT", "count": "iuUOT"}


class Field(NamedTuple):
    """One variable or coordinate: its label, its dims, its kind of dtype (a key of `KINDS`), its units.

    Floats have units, "1" where they have no dimension; counts and texts have none. Each dim is a coordinate of the
    result. `also` lists the other dims that it may have; one that isn't `required` may be missing.
    """

    long_name: str
    dims: tuple[str, ...]
    kind: str
    units: str = ""
    required: bool = True
    also: tuple[tuple[str, ...], ...] = ()


class Fields(NamedTuple):
    """All variables and all coordinates of one analysis, by name."""

    variables: dict[str, Field]
    coords: dict[str, Field]


BASELINE = {
    "num_images": Field("number of images", (), "int"),
    "baseline_num_correct": Field("images that the intact network gets right", (), "int"),
    "baseline_loss": Field("mean loss of the intact network", (), "float", "nat"),
    "baseline_error": Field("error of the intact network", (), "float", "1"),
}

# Where `status` is not "ok" the unit could not be changed: its floats are NaN and its counts are -1.
UNIT_COORDS = {
    "unit": Field("residual unit or plain layer, in order", ("unit",), "text"),
    "depth": Field("position of the unit, counted from the input", ("unit",), "int"),
    "stage": Field("stage of the network", ("unit",), "int"),
    "kind": Field("kind of unit", ("unit",), "text"),
    "shortcut": Field("kind of shortcut", ("unit",), "text"),
    "bypass": Field("what stands in for the deleted unit", ("unit",), "text"),
    "branch_layers": Field("weight layers in the branch", ("unit",), "int"),
    "num_params": Field("parameters of the unit", ("unit",), "int"),
    "status": Field("ok, or why the unit could not be changed", ("unit",), "text"),
}
OPTIONAL_UNIT_COORDS = {name: field._replace(required=name == "unit") for name, field in UNIT_COORDS.items()}
DRAW = {"draw": Field("repetition of the random experiment", ("draw",), "int")}

# Where a result has units as well, `depth` and `stage` are theirs, and the layers' are named apart.
LAYER_COORDS = {
    "layer": Field("module with weights, in the order of execution", ("layer",), "text"),
    "depth": Field("position of the layer, in the order of execution", ("layer",), "int"),
    "stage": Field("resolution of the layer's output, numbered as they first appear", ("layer",), "int"),
    "type": Field("class of the layer's module", ("layer",), "text"),
}
