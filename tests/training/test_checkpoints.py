import functools
import hashlib
import json
from pathlib import Path

import pytest
import torch

import resprobe
from resprobe import results
from resprobe.training.loop import Split, evaluate

FOLDER = Path(__file__).parents[2] / "checkpoints"
MANIFEST = {entry["file"]: entry for entry in json.loads((FOLDER / "manifest.json").read_text())}


@functools.cache
def loaded(name):
    return resprobe.load(FOLDER / name)


def test_every_file_is_in_the_manifest():
    assert {path.name for path in FOLDER.glob("*.pt")} == set(MANIFEST)
    expected = {"plain20", "plain56", "plain110", "resnet20", "resnet56", "resnet110", "preresnet110"}
    expected |= {f"{name}-nonorm" for name in ("plain20", "plain56", "resnet20", "resnet56")}
    assert expected <= {name.removesuffix(".pt") for name in MANIFEST}


def test_folder_is_small():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 50e6


@pytest.mark.parametrize("name", MANIFEST)
def test_hash_and_what_the_file_says(name):
    entry = MANIFEST[name]
    assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == entry["sha256"]
    checkpoint = loaded(name)
    ending = "-nonorm" if checkpoint.architecture.norm == "none" else ""
    assert f"{checkpoint.architecture.name}{ending}.pt" == name
    assert checkpoint.data == "digits"
    assert checkpoint.normalisation.name == "digits"
    assert checkpoint.claimed_error == entry["test_error"]
    assert f"--seed {entry['seed']} --out checkpoints/{name}" in entry["command"]


@pytest.mark.parametrize("name", MANIFEST)
def test_errors_are_those_of_the_manifest(name):
    checkpoint = loaded(name)
    data = resprobe.open_data("digits", normalisation=checkpoint.normalisation)
    _, error = evaluate(checkpoint.model, Split.from_data(data, torch.device("cpu")))
    # another machine rounds differently: one image of 500 may change sides
    assert abs(error - MANIFEST[name]["test_error"]) <= 0.0021


@pytest.mark.parametrize("name", MANIFEST)
def test_log_ends_with_the_manifest(name):
    log = results.open(FOLDER / name.replace(".pt", "-training.nc"))
    assert log.attrs["checkpoint_sha256"] == MANIFEST[name]["sha256"]
    for variable in ("train_loss", "train_error", "test_loss", "test_error"):
        assert float(log[variable][-1]) == MANIFEST[name][variable]


def test_deeper_plain_nets_train_worse_and_the_residual_one_does_not():
    """The degradation problem (He et al. 2015, section 1): on the training data itself."""
    train_error = {name.removesuffix(".pt"): entry["train_error"] for name, entry in MANIFEST.items()}
    assert train_error["plain20"] < train_error["plain56"]
    assert train_error["plain20"] < train_error["plain110"]
    assert train_error["resnet110"] < train_error["plain56"]
