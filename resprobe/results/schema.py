"""What the result of each analysis holds, as one table, and the two functions that read the table."""

import json
from collections.abc import Iterator
from typing import NamedTuple

import xarray as xr

from resprobe.errors import ResprobeError

SCHEMA_VERSION = "1"

ATTRIBUTES = (
    *("title", "schema", "analysis", "created_at", "resprobe_version", "torch_version", "device"),
    *("checkpoint", "checkpoint_sha256", "architecture", "facts"),
    *("data", "data_sha256", "split", "num_images", "normalisation", "seed", "settings", "references"),
)

# numpy's dtype kinds. A bool is an int8 if another program wrote the file; text may be an array of objects.
KINDS = {"int": "iu", "float": "f", "bool": "biu", "text": "UOT"}


class Field(NamedTuple):
    """One variable or coordinate: its label, its dims, its kind of dtype (a key of `KINDS`), its units."""

    long_name: str
    dims: tuple[str, ...]
    kind: str
    units: str = ""
    required: bool = True


class Fields(NamedTuple):
    """All variables and all coordinates of one analysis, by name."""

    variables: dict[str, Field]
    coords: dict[str, Field]


_BASELINE = {
    "num_images": Field("number of images", (), "int"),
    "baseline_num_correct": Field("images that the intact network gets right", (), "int"),
    "baseline_loss": Field("mean loss of the intact network", (), "float", "nat"),
    "baseline_error": Field("error of the intact network", (), "float", "1"),
}

# Where `status` is not "ok" the unit could not be changed: its floats are NaN and its counts are -1.
_UNIT_COORDS = {
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
_OPTIONAL_UNIT_COORDS = {name: field._replace(required=name == "unit") for name, field in _UNIT_COORDS.items()}
_DRAW = {"draw": Field("repetition of the random experiment", ("draw",), "int")}

_LESION = Fields(
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
        **_BASELINE,
    },
    coords={
        **_UNIT_COORDS,
        "image": Field("row of the dataset", ("image",), "int", required=False),
        "label": Field("class of the image", ("image",), "int", required=False),
    },
)

_LESION_CURVE = Fields(
    variables={
        "num_correct": Field("images right with the units deleted", ("num_deleted", "draw"), "int"),
        "loss": Field("mean loss with the units deleted", ("num_deleted", "draw"), "float", "nat"),
        "error": Field("error with the units deleted", ("num_deleted", "draw"), "float", "1"),
        "deleted": Field("unit is deleted", ("num_deleted", "draw", "unit"), "bool"),
        **_BASELINE,
    },
    coords={
        "num_deleted": Field("number of deleted units", ("num_deleted",), "int"),
        **_DRAW,
        **_OPTIONAL_UNIT_COORDS,
    },
)

_REORDER = Fields(
    variables={
        "num_correct": Field("images right with the units reordered", ("num_swaps", "draw"), "int"),
        "loss": Field("mean loss with the units reordered", ("num_swaps", "draw"), "float", "nat"),
        "error": Field("error with the units reordered", ("num_swaps", "draw"), "float", "1"),
        "kendall_tau": Field("Kendall's tau with the original order", ("num_swaps", "draw"), "float", "1"),
        "order": Field("index of the unit that stands at this position", ("num_swaps", "draw", "unit"), "int"),
        **_BASELINE,
    },
    coords={
        "num_swaps": Field("number of swapped pairs of units", ("num_swaps",), "int"),
        **_DRAW,
        **_OPTIONAL_UNIT_COORDS,
    },
)

_TRAINING = Fields(
    variables={
        "train_loss": Field("mean loss on the training images", ("epoch",), "float", "nat"),
        "train_error": Field("error on the training images", ("epoch",), "float", "1"),
        "test_loss": Field("mean loss on the test images", ("epoch",), "float", "nat"),
        "test_error": Field("error on the test images", ("epoch",), "float", "1"),
        "learning_rate": Field("learning rate", ("epoch",), "float", "1"),
    },
    coords={"epoch": Field("epoch of training", ("epoch",), "int")},
)

SCHEMA: dict[str, Fields] = {
    "lesion": _LESION,
    "lesion-curve": _LESION_CURVE,
    "reorder": _REORDER,
    "training": _TRAINING,
}


def label(dataset: xr.Dataset, analysis: str) -> xr.Dataset:
    """Attach `long_name` and `units` to every variable and coordinate, replacing what attributes they had.

    Args:
        dataset: The result of an analysis, with or without labels.
        analysis: A key of `SCHEMA`.

    Returns:
        The same data with the labels of `SCHEMA`; `dataset` itself is left as it is.

    Raises:
        LookupError: A variable or coordinate is not in the table: that is a mistake of the analysis, not of
            its input.
    """
    fields = SCHEMA[analysis].variables | SCHEMA[analysis].coords
    unknown = sorted(str(name) for name in dataset.variables if name not in fields)
    if unknown:
        raise LookupError(f"{analysis}: {', '.join(unknown)} not in resprobe.results.SCHEMA")
    labelled = dataset.copy()
    for name in map(str, labelled.variables):
        field = fields[name]
        units = {"units": field.units} if field.units else {}
        labelled[name].attrs = {"long_name": field.long_name, **units}
    return labelled


def check(dataset: xr.Dataset) -> None:
    """Check that a Dataset holds what the schema says of its analysis.

    Args:
        dataset: A result with its attributes.

    Raises:
        ResprobeError: Something is missing or of the wrong form; the message lists everything that is.
    """
    analysis = dataset.attrs.get("analysis")
    version = dataset.attrs.get("schema")
    if analysis is None or version is None:
        raise ResprobeError(
            "result: expected the attributes analysis and schema, got none: this is no result of resprobe; "
            "make one with a resprobe analysis"
        )
    problems = list(_attribute_problems(dataset))
    if isinstance(analysis, str) and analysis in SCHEMA:
        fields = SCHEMA[analysis]
        problems += _field_problems(dataset, fields.variables, among=set(dataset.data_vars), what="variable")
        problems += _field_problems(dataset, fields.coords, among=set(dataset.coords), what="coord")
    else:
        problems.append(f"unknown analysis {analysis!r} (known: {', '.join(SCHEMA)})")
    problems += _label_problems(dataset)
    if problems:
        raise ResprobeError(
            f"{analysis} result: expected what schema {SCHEMA_VERSION} says, got {'; '.join(problems)}; "
            "compute it again with this version of resprobe"
        )


def _attribute_problems(dataset: xr.Dataset) -> Iterator[str]:
    """Name what is wrong with the attributes of the whole Dataset."""
    version = dataset.attrs["schema"]
    if version != SCHEMA_VERSION:
        yield f"schema version {version}"
    for name in ATTRIBUTES:
        if name not in dataset.attrs:
            yield f"no attribute {name}"
    for name in ("settings", "facts"):
        try:
            is_object = isinstance(json.loads(dataset.attrs.get(name, "{}")), dict)
        except (TypeError, ValueError):
            is_object = False
        if not is_object:
            yield f"attribute {name} is not a JSON object"


def _field_problems(dataset: xr.Dataset, fields: dict[str, Field], *, among: set[object], what: str) -> Iterator[str]:
    """Name the fields that are missing, or whose dims or dtype are not those of the table."""
    for name, field in fields.items():
        if name not in among:
            if field.required:
                yield f"no {what} {name}"
            continue
        array = dataset[name]
        if array.dims != field.dims:
            yield f"{what} {name} with dims ({', '.join(map(str, array.dims))}) not ({', '.join(field.dims)})"
        if array.dtype.kind not in KINDS[field.kind]:
            yield f"{what} {name} of dtype {array.dtype} not {field.kind}"


def _label_problems(dataset: xr.Dataset) -> Iterator[str]:
    """Name the variables and coordinates that don't say what they are."""
    for name, variable in dataset.variables.items():
        if "long_name" not in variable.attrs:
            yield f"{name} without long_name"
        if variable.dtype.kind == "f" and "units" not in variable.attrs:
            yield f"{name} without units"
