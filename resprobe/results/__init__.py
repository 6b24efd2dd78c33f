"""Results: what a Dataset of each analysis holds, where it came from, and its file.

Every analysis returns an `xarray.Dataset` that `check` accepts and `save` writes as netCDF4. `SCHEMA` is the
table of names, dims, labels and units; `make_attrs` makes the attributes; `fingerprint` says whether two
results answer the same question.
"""

from resprobe.results.fields import Field, Fields
from resprobe.results.files import find_existing, open, save
from resprobe.results.provenance import fingerprint, make_attrs
from resprobe.results.reuse import complete_options, find_or_compute, is_unfinished
from resprobe.results.schema import ATTRIBUTES, SCHEMA, SCHEMA_VERSION, check, label

__all__ = [
    # what a result holds
    "ATTRIBUTES",
    "SCHEMA",
    "SCHEMA_VERSION",
    "Field",
    "Fields",
    "check",
    "label",
    # where it came from
    "fingerprint",
    "make_attrs",
    # its file
    "find_existing",
    "find_or_compute",
    "complete_options",
    "is_unfinished",
    "open",
    "save",
]
