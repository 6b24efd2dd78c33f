"""The names that scripts and notebooks use stay where they are."""

import importlib.metadata
import inspect

import pytest

import resprobe

NAMES = {
    "modules": ["data", "plots", "results", "units"],
    "analyses": [
        "compare_logits",
        "costs",
        "curvature",
        "gradients",
        "lesion",
        "lesion_curve",
        "norm_lesion",
        "paths",
        "reorder",
        "responses",
        "smoothness",
        "surface",
    ],
    "functions": [
        "build",
        "deepen",
        "default_recipe",
        "deleted",
        "fold_norm",
        "load",
        "open_data",
        "parse_architecture",
    ],
    "training": ["train"],
    "classes": [
        "Architecture",
        "Checkpoint",
        "FoldedNetwork",
        "ImageData",
        "Normalisation",
        "Recipe",
        "Segments",
        "Unit",
    ],
    "of models": ["WholeModel"],
    "errors": ["ResprobeError", "ResprobeWarning"],
}


def test_all_names_are_public():
    expected = {name for names in NAMES.values() for name in names}
    assert expected - set(resprobe.__all__) == set()
    assert set(resprobe.__all__) <= set(dir(resprobe))


@pytest.mark.parametrize("name", resprobe.__all__)
def test_name_is_found_and_documented(name):
    found = getattr(resprobe, name)
    assert inspect.getdoc(found)
    assert found.__name__.rpartition(".")[2] == name


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'lesoin'"):
        resprobe.lesoin  # noqa: B018


def test_version_is_that_of_the_installed_package():
    assert resprobe.__version__ == importlib.metadata.version("resprobe")
