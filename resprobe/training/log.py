"""The log of a training: one value per variable and epoch, as a Dataset with its provenance."""

import math
from pathlib import Path

import torch
import xarray as xr
from torch import nn

from resprobe import results
from resprobe.data import ImageData
from resprobe.networks.residual import Architecture
from resprobe.training.loop import Split, evaluate
from resprobe.training.recipe import Recipe, learning_rate

Log = dict[str, list[float]]
VARIABLES = ("train_loss", "train_error", "test_loss", "test_error", "learning_rate")


def measure_epoch(network: nn.Module, train: Split, test: Split, *, recipe: Recipe, epoch: int) -> dict[str, float]:
    """Measure what is logged after an epoch.

    Losses and errors are those of the network as it stands after the epoch, in evaluation mode and float32,
    on the images without augmentation: the quantity that the degradation claim is about, and what a probe
    of the checkpoint will measure. The price is a forward pass over the training images.

    Args:
        network: The network; left in evaluation mode.
        train: The training images.
        test: The test images.
        recipe: The recipe.
        epoch: The epoch, from 1.

    Returns:
        One value per variable of the log.
    """
    train_loss, train_error = evaluate(network, train)
    test_loss, test_error = evaluate(network, test)
    return {
        "train_loss": train_loss,
        "train_error": train_error,
        "test_loss": test_loss,
        "test_error": test_error,
        "learning_rate": learning_rate(recipe, epoch),
    }


def is_finite(row: dict[str, float]) -> bool:
    """Say whether every value of an epoch is a finite number.

    Args:
        row: One value per variable.

    Returns:
        Whether none is NaN or infinite.
    """
    return all(math.isfinite(value) for value in row.values())


def log_dataset(
    log: Log,
    *,
    architecture: Architecture,
    recipe: Recipe,
    data: ImageData,
    checkpoint: Path,
    device: torch.device,
    start_sha256: str | None = None,
) -> xr.Dataset:
    """Make the log a Dataset.

    Args:
        log: A list of one value per epoch for each variable.
        architecture: The network's facts.
        recipe: The recipe.
        data: The training images.
        checkpoint: The file of the trained network.
        device: Where it was trained.
        start_sha256: Hash of the tensors that it started from, where these were not drawn.

    Returns:
        ``train_loss``, ``test_loss`` (nat), ``train_error``, ``test_error`` (fractions) and
        ``learning_rate``, each of dims (epoch,).
    """
    epochs = range(1, len(log["train_loss"]) + 1)
    dataset = xr.Dataset({name: ("epoch", log[name]) for name in VARIABLES}, coords={"epoch": list(epochs)})
    facts = {name: {"value": value, "how": "read"} for name, value in architecture.as_dict().items()}
    dataset = results.label(dataset, "training")
    dataset.attrs = results.make_attrs(
        "training",
        title=f"training of {architecture.name} on {data.name}",
        references="He et al. 2015, arXiv 1512.03385, section 4.2",
        options={**recipe.as_dict(), "start_sha256": start_sha256},
        model={
            "checkpoint": checkpoint.name,
            "architecture": architecture.name,
            "facts": facts,
        },
        data=data.provenance,
        device=str(device),
    )
    return dataset
