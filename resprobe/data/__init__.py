"""Images and labels, streamed in dataset order: named datasets, class folders and npz files."""

from resprobe.data.images import ImageData
from resprobe.data.normalisation import NORMALISATIONS, Normalisation
from resprobe.data.opening import open_data
from resprobe.data.parsing import parse_normalisation

__all__ = [
    # opening a dataset
    "ImageData",
    "open_data",
    # scaling its pixels
    "NORMALISATIONS",
    "Normalisation",
    "parse_normalisation",
]
