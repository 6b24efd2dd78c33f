"""Images and labels, streamed in dataset order: named datasets, class folders and npz files."""

from resprobe.data.images import ImageData
from resprobe.data.normalisation import NORMALISATIONS, Normalisation, parse_normalisation
from resprobe.data.opening import open_data

__all__ = [
    # opening a dataset
    "ImageData",
    "open_data",
    # scaling its pixels
    "NORMALISATIONS",
    "Normalisation",
    "parse_normalisation",
]
