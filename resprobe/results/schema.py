"""What the result of each analysis holds, and the two functions that hold a Dataset against it."""

import json
from collections.abc import Iterator, Mapping

import xarray as xr

from resprobe.errors import ResprobeError
from resprobe.results.catalogue import CATALOGUE, fields_of
from resprobe.results.fields import KINDS, Field, Fields

SCHEMA_VERSION = "1"

ATTRIBUTES = (
    *("title", "schema", "analysis", "created_at", "resprobe_version", "torch_version", "device"),
    *("checkpoint", "checkpoint_sha256", "architecture", "facts"),
    *("data", "data_sha256", "split", "num_images", "normalisation", "seed", "settings", "references"),
)


class _Schema(Mapping[str, Fields]):
    """What the result of each analysis holds; an analysis' fields are imported when they are asked for."""

    def __getitem__(self, analysis: str) -> Fields:
        if analysis not in CATALOGUE:
            raise KeyError(analysis)
        return fields_of(analysis)

    def __iter__(self) -> Iterator[str]:
        return iter(CATALOGUE)

    def __len__(self) -> int:
        return len(CATALOGUE)


SCHEMA: Mapping[str, Fields] = _Schema()


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
    """Name the fields that are missing, or whose dims or dtype are not those of the table.

    Variables of several networks have the dim `checkpoint` before those of the table.
    """
    several = ("checkpoint",) if what == "variable" and "checkpoint" in dataset.coords else ()
    for name, field in fields.items():
        if name not in among:
            if field.required:
                yield f"no {what} {name}"
            continue
        array = dataset[name]
        expected = [(*several, *dims) for dims in (field.dims, *field.also)]
        if array.dims not in expected:
            wanted = " or ".join(f"({', '.join(dims)})" for dims in expected)
            yield f"{what} {name} with dims ({', '.join(map(str, array.dims))}) not {wanted}"
        if array.dtype.kind not in KINDS[field.kind]:
            yield f"{what} {name} of dtype {array.dtype} not {field.kind}"


def _label_problems(dataset: xr.Dataset) -> Iterator[str]:
    """Name the variables and coordinates that don't say what they are."""
    for name, variable in dataset.variables.items():
        if "long_name" not in variable.attrs:
            yield f"{name} without long_name"
        if variable.dtype.kind == "f" and "units" not in variable.attrs:
            yield f"{name} without units"
