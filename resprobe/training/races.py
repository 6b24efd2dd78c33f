"""Several trainings under one recipe, side by side."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import nn

from resprobe import results
from resprobe.data import ImageData
from resprobe.training.log import VARIABLES, Log, measure_epoch
from resprobe.training.loop import Split, make_optimizer, train_epoch
from resprobe.training.recipe import Recipe


class Racer(NamedTuple):
    """One network's training.

    Attributes:
        layers: Its weight layers.
        before: What is measured before the first epoch, a value for each variable of a log.
        log: A value for each variable and epoch, such as the result of `resprobe.train`.
    """

    layers: int
    before: Mapping[str, float]
    log: Mapping[str, Any]


def before_training(network: nn.Module, train: Split, test: Split, *, recipe: Recipe) -> dict[str, float]:
    """Measure a network as after an epoch, before the first one; it has no learning rate.

    Args:
        network: The network; left in evaluation mode.
        train: The training images.
        test: The test images.
        recipe: The recipe.

    Returns:
        One value per variable of a log.
    """
    return {**measure_epoch(network, train, test, recipe=recipe, epoch=1), "learning_rate": np.nan}


def run_racer(network: nn.Module, layers: int, train: Split, test: Split, *, recipe: Recipe) -> Racer:
    """Train any network in memory; for one that takes seconds, since nothing is written.

    Args:
        network: The network; changed in place.
        layers: Its weight layers.
        train: The training images.
        test: The test images.
        recipe: The recipe.

    Returns:
        Its training. Once the loss is not finite all that follows is NaN.
    """
    before = before_training(network, train, test, recipe=recipe)
    optimizer = make_optimizer(network, recipe)
    log: Log = {name: [] for name in VARIABLES}
    finite = True
    for epoch in range(1, recipe.epochs + 1):
        finite = finite and train_epoch(
            network, optimizer, train, recipe=recipe, epoch=epoch, report=lambda num_batches: None
        )
        row = measure_epoch(network, train, test, recipe=recipe, epoch=epoch)
        for name in VARIABLES:
            log[name].append(row[name] if finite or name == "learning_rate" else np.nan)
    return Racer(layers, before, log)


def race_dataset(
    racers: Mapping[str, Racer],
    *,
    title: str,
    references: str,
    options: Mapping[str, Any],
    data: ImageData,
    provenance: Mapping[str, Any] | None = None,
    device: str | torch.device = "cpu",
) -> xr.Dataset:
    """Put trainings of the same number of epochs side by side.

    Args:
        racers: The trainings by name.
        title: One line for people.
        references: The papers that they follow.
        options: Recipe, and what else decides the numbers.
        data: The training images.
        provenance: Where the network came from that they have in common.
        device: Where they ran.

    Returns:
        `train_loss`, `test_loss` (nat), `train_error`, `test_error` (fractions) by net and epoch, epoch 0 being before
        training; `learning_rate` (epoch); the coord `layers` (net).
    """
    rows = {
        name: [[racer.before[name], *np.asarray(racer.log[name], float)] for racer in racers.values()]
        for name in VARIABLES
    }
    learning_rate = rows.pop("learning_rate")[0]
    dataset = xr.Dataset(
        {name: (("net", "epoch"), np.array(values)) for name, values in rows.items()}
        | {"learning_rate": ("epoch", np.array(learning_rate))},
        {
            "net": list(racers),
            "layers": ("net", [racer.layers for racer in racers.values()]),
            "epoch": np.arange(len(learning_rate)),
        },
    )
    dataset = results.label(dataset, "race")
    dataset.attrs = results.make_attrs(
        "race",
        title=title,
        references=references,
        options=options,
        model=provenance,
        data=data.provenance,
        device=str(device),
    )
    return dataset
