"""A whole training: from an architecture and data to a checkpoint and its log."""

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
import xarray as xr

from resprobe import results
from resprobe.data import ImageData
from resprobe.errors import ResprobeError
from resprobe.networks.residual import Architecture, ResidualNetwork, build
from resprobe.results.writing import whole_file
from resprobe.training.checking import check_data, check_folder, check_labels, check_start, checked_device
from resprobe.training.log import VARIABLES, Log, is_finite, log_dataset, measure_epoch
from resprobe.training.loop import Split, deterministic_cudnn, make_optimizer, train_epoch
from resprobe.training.recipe import Recipe
from resprobe.training.resuming import (
    Identity,
    RunFiles,
    checkpoint_bytes,
    finished_log,
    identify,
    load_partial,
    save_partial,
)

Progress = Callable[[int, int, str], None]


def train(
    architecture: Architecture,
    train_data: ImageData,
    test_data: ImageData,
    *,
    recipe: Recipe,
    out: Path,
    start: Mapping[str, torch.Tensor] | None = None,
    device: str | torch.device = "cpu",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Train a network and write its checkpoint and log.

    After every epoch the state is written to ``<out>.partial``. A training that was interrupted, at any time
    and by whatever, goes on from there when it is called again, and ends with the same weights and the same
    log, bit for bit on the same machine and number of threads: order and augmentation of the images depend
    on seed and epoch alone. When it is done the checkpoint appears at ``out`` and the log beside it as
    ``<stem>-training.nc``, and the partial state goes. A training whose checkpoint is there already is not
    repeated. The global random state is neither read nor changed.

    The checkpoint is a dict of tensors and plain values: ``state_dict``, ``architecture``, ``recipe``,
    ``data``, ``normalisation``, ``train_data`` and ``test_data`` (provenance), the last values of the log,
    ``epochs``, versions.

    Args:
        architecture: The network's facts.
        train_data: Training images.
        test_data: Test images, normalised as the training images.
        recipe: How to train.
        out: The checkpoint's file, in a folder that exists.
        start: Tensors to start from, such as the `state_dict` of a trained network; by default weights are drawn as
            the recipe's seed says. Momentum starts at zero, and the epochs are counted from 1.
        device: Where to train.
        overwrite: Replace checkpoint, log and partial state of another training, and repeat a finished one.
        progress: Called after every batch with the number of batches done, the number in all, and a line of
            text.

    Returns:
        ``train_loss``, ``test_loss`` (nat), ``train_error``, ``test_error`` (fractions) and
        ``learning_rate``, each of dims (epoch,). Losses and errors are measured after the epoch, in
        evaluation mode, without augmentation.

    Raises:
        ResprobeError: If data, network and start don't fit, the folder can't be written, files of another training
            are in the way, or the loss is no longer finite; then the state of the last good epoch is kept.
    """
    files = RunFiles(Path(out))
    device = checked_device(device)
    check_data(architecture, train_data, test_data)
    check_folder(files.checkpoint)
    check_start(architecture, start)
    identity = identify(architecture, recipe, train_data, test_data, start)
    if not overwrite:
        finished = finished_log(files, identity)
        if finished is not None:
            files.partial.unlink(missing_ok=True)
            return finished
    train_split, test_split = (Split.from_data(data, device) for data in (train_data, test_data))
    check_labels(architecture, train_split, test_split)
    with deterministic_cudnn(device):
        network, log = _train_epochs(
            architecture,
            train_split,
            test_split,
            recipe=recipe,
            start=start,
            identity=identity,
            path=files.partial,
            overwrite=overwrite,
            progress=progress,
        )
    dataset = log_dataset(
        log,
        architecture=architecture,
        recipe=recipe,
        data=train_data,
        checkpoint=files.checkpoint,
        device=device,
        start_sha256=identity.get("start", {}).get("sha256"),
    )
    _write(files, checkpoint_bytes(identity, network, dataset, train_data), dataset)
    return dataset


def _write(files: RunFiles, content: bytes, log: xr.Dataset) -> None:
    """Write a checkpoint and its log, which gets the checkpoint's hash."""
    log.attrs["checkpoint_sha256"] = hashlib.sha256(content).hexdigest()
    # In this order a training that is killed in between finds its partial state and writes both again.
    results.save(log, files.log, overwrite=True)
    with whole_file(files.checkpoint) as temporary:
        temporary.write_bytes(content)
    files.partial.unlink(missing_ok=True)


def _train_epochs(
    architecture: Architecture,
    train_split: Split,
    test_split: Split,
    *,
    recipe: Recipe,
    start: Mapping[str, torch.Tensor] | None,
    identity: Identity,
    path: Path,
    overwrite: bool,
    progress: Progress | None,
) -> tuple[ResidualNetwork, Log]:
    """Run the epochs that are left, keeping the state after each at `path`."""
    # Convolutions are a quarter faster in this layout on a CPU; the numbers of the state_dict don't change.
    network = build(architecture, seed=recipe.seed).to(memory_format=torch.channels_last)
    if start is not None:
        network.load_state_dict(start)
    network = network.to(train_split.pixels.device)
    optimizer = make_optimizer(network, recipe)
    log: Log = {name: [] for name in VARIABLES}
    if path.exists():
        try:
            log = load_partial(path, identity, network, optimizer)
        except ResprobeError:
            if not overwrite:
                raise
    for epoch in range(len(log["train_loss"]) + 1, recipe.epochs + 1):
        report = partial(_report, progress, recipe, len(train_split.labels), epoch, log)
        finite = train_epoch(network, optimizer, train_split, recipe=recipe, epoch=epoch, report=report)
        row = measure_epoch(network, train_split, test_split, recipe=recipe, epoch=epoch)
        if not (finite and is_finite(row)):
            raise ResprobeError(
                f"training of {architecture.name}: expected a finite loss, got NaN or infinity "
                f"in epoch {epoch}; try a lower --learning-rate than {recipe.learning_rate:g}, or --clip 1, "
                "with --overwrite" + (f" (the state after epoch {epoch - 1} is in {path})" if epoch > 1 else "")
            )
        for name, value in row.items():
            log[name].append(value)
        save_partial(path, identity, network, optimizer, log)
    return network, log


def _report(progress: Progress | None, recipe: Recipe, num_images: int, epoch: int, log: Log, num_batches: int) -> None:
    """Tell the caller how far the training is, with the newest measurement."""
    if progress is None:
        return
    per_epoch = -(-num_images // recipe.batch_size)
    message = f"epoch {epoch}/{recipe.epochs}"
    if log["train_loss"]:
        message += f", train loss {log['train_loss'][-1]:.4f}, test error {log['test_error'][-1]:.1%}"
    progress((epoch - 1) * per_epoch + num_batches, recipe.epochs * per_epoch, message)
