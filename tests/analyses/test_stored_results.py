"""The results that the notebooks show are those of the checkpoints beside them."""

import hashlib
import json
from pathlib import Path

import pytest

from resprobe import results

ROOT = Path(__file__).parents[2]
STORED = ROOT / "notebooks" / "data"
REAL = ROOT.parent / "shared" / "real"
# of many networks together, in the form of their scripts
TABLES = {"degradation", "factorial", "normalisation"}


def images_of(dataset):
    """Give the number of images that a stored result is of."""
    if dataset.attrs["analysis"] in ("paths", "race"):
        return {"paths": 100, "race": 1297}[dataset.attrs["analysis"]]
    if dataset.attrs["data"] == "digits":
        return 500
    return 1000 if dataset.attrs["analysis"] == "lesion" else 300


@pytest.mark.parametrize(
    "path",
    sorted(path for path in STORED.glob("*.nc") if path.stem not in TABLES),
    ids=lambda path: path.stem,
)
def test_checkpoint_and_images(path):
    dataset = results.open(path)
    if not dataset.attrs["checkpoint"]:
        assert dataset.attrs["analysis"] in ("costs", "gradient-gain", "race")
        return
    file = ROOT / "checkpoints" / dataset.attrs["checkpoint"]
    if dataset.attrs["data"] != "digits":
        file = REAL / file.name
        if not file.exists():
            pytest.skip("the folder shared/real with real checkpoints is not beside the repository")
    assert dataset.attrs["checkpoint_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert dataset.attrs["num_images"] == images_of(dataset)


def test_lesions_of_others_are_those_of_an_independent_count(real):
    expected = json.loads((real / "expected-lesions.json").read_text())
    for name in ("tomgoldstein-resnet56", "tomgoldstein-plain56"):
        dataset = results.open(STORED / f"lesion-{name}.nc")
        counts = {unit: entry["num_correct"] for unit, entry in expected[f"{name}.t7"].items()}
        assert abs(int(dataset.baseline_num_correct) - counts["baseline"]) <= 1
        for unit, count in zip(dataset.unit.values, dataset.num_correct.values, strict=True):
            assert abs(int(count) - counts[unit]) <= 1
