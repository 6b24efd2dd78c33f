"""Loss and error around the trained weights, along lines and in planes."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import xarray as xr
from torch import nn

from resprobe.engine.batches import Batch
from resprobe.engine.devices import device_of, exact_dtype, exact_float32
from resprobe.engine.repeated_batches import RepeatedBatches, check_outputs
from resprobe.engine.scoring import Progress
from resprobe.errors import ResprobeError
from resprobe.normalisation.bn_modes import BN_MODES, in_mode, modes_of
from resprobe.probes.landscape.loss_lines import Loss
from resprobe.probes.landscape.moving import MovingNetwork, Place
from resprobe.probes.surfaces.grid import Grid, check_grid
from resprobe.probes.surfaces.report import Finished, check_same, make_result
from resprobe.probes.surfaces.sides import Sides, choose_sides
from resprobe.units.random_state import kept_random_state

SECONDS_BETWEEN_KEEPS = 5.0
LARGEST_HELD_BYTES = 2**28

Keep = Callable[[xr.Dataset], object]
"""Takes what is measured so far."""


def surface(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    dims: int = 1,
    points: int = 51,
    radius: float = 1.0,
    directions: str = "random",
    draws: int | None = None,
    seed: int = 0,
    bn_mode: str | None = None,
    loss: Loss | None = None,
    precision: str = "float32",
    provenance: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    resume: xr.Dataset | None = None,
    keep: Keep | None = None,
) -> xr.Dataset:
    """Measure mean loss and error along lines, or in a plane, through the trained weights.

    At each point all weights are `theta + x d_x`, in a plane `theta + x d_x + y d_y`, with x and y from -radius to
    radius, and all images pass. Directions:

    - `random`: standard normal numbers, each filter (a slice along the first dimension of a tensor of two or more)
      rescaled to the norm of the trained filter, 0 for biases and for the scales and offsets of normalisations. So x
      is a share of each filter's norm, and networks whose weights differ in scale can be compared. Different
      directions give different profiles: there are several by default;
    - `hessian`: the two eigenvectors with the largest eigenvalues of the Hessian of the mean loss, each of norm 1 over
      all trainable parameters and not rescaled, since it would be no eigenvector then; x is a distance in the space of
      the weights, and near 0 the loss grows by `eigenvalue x^2 / 2`. In one dimension along either, in two in their
      plane.

    The weights move on a private copy; nothing of the model changes, and no stored statistics are updated. A loss that
    is not finite stays inf or NaN and is counted.

    Args:
        model: Maps images `(B, C, H, W)` to logits `(B, classes)`; it is not touched.
        batches: Normalised images and class indices `(B,)`, such as an `ImageData`; the same each time they are read,
            which is once for each row of points, or once in all where they are at most 256 MiB.
        dims: 1 for lines, 2 for a plane.
        points: Points along each direction; with an odd number the trained weights are one of them.
        radius: How far to go, in the unit of x.
        directions: `random` or `hessian`.
        draws: Random lines or planes. Default: 5 lines, one plane. The first ones don't depend on their number.
        seed: Seed of the random directions, and of the search for eigenvectors.
        bn_mode: What batch normalisation does: `running` (stored statistics), `batch` (those of the batch), `folded`
            (that of `running`, absorbed by the weights, which are other parameters) or `none`, for a model without.
            Default: `running`, or `none`.
        loss: Gives the mean loss of a batch, one number, from `(outputs, labels)`. Default: cross-entropy in nats.
        precision: `float32` or `float64`.
        provenance: As in `resprobe.lesion`.
        progress: Called with images times points done, and the total of what is left to do; before, while eigenvectors
            are sought, with images times products and None.
        resume: A result of the same question that was interrupted: only what is missing in it is measured.
        keep: Called every few seconds with what is measured so far, and when the measurement is interrupted or fails;
            it may save it, such as `lambda part: resprobe.results.save(part, FILE, overwrite=True)`.

    Returns:
        `loss` in nats, `error`, `num_correct` and `done` (direction_x[, direction_y]), with the dim `draw` first where
        there are several, `rank` for lines along eigenvectors; `eigenvalue` (rank) with those; `num_nonfinite`, the
        points with a loss that is not finite; of the trained weights `baseline_loss`, `baseline_error`,
        `baseline_num_correct`. Where a given loss is of outputs that are no logits, errors are NaN and counts -1; so
        they are, and the loss, where `done` is false.

    Raises:
        ResprobeError: If an option is out of range, the outputs are no logits or others each time, the batches differ
            between passes, or `resume` answers another question.

    References:
        Li, Xu, Taylor, Studer, Goldstein 2018, Visualizing the Loss Landscape of Neural Nets (arXiv 1712.09913),
        sections 3 and 4.

    Example:
        >>> import resprobe
        >>> net = resprobe.build(resprobe.parse_architecture("resnet8", in_channels=1), seed=0)
        >>> digits = resprobe.open_data("digits", num_images=20)
        >>> dict(resprobe.surface(net, digits, points=3).loss.sizes)
        {'draw': 5, 'direction_x': 3}
        >>> dict(resprobe.surface(net, digits, dims=2, points=3).loss.sizes)
        {'direction_x': 3, 'direction_y': 3}
    """
    grid = check_grid(dims, points, radius, directions, draws, seed)
    dtype = exact_dtype(precision)
    mode = _choose_mode(model, bn_mode)
    with torch.inference_mode(False), torch.enable_grad(), exact_float32():
        data = RepeatedBatches(batches, device_of(model), dtype)
        if mode == "batch":
            data.check_statistics()
        network = in_mode(model, mode, dtype, data.example)
        with kept_random_state(data.device):
            check_outputs(network, data, needs_logits=loss is None)
        count = _Count(progress)
        sides = choose_sides(network, data, grid, loss=loss, advance=count.advance)
        moving = MovingNetwork(network, mode, dtype, loss)
        options = {
            **{"dims": grid.dims, "points": grid.points, "radius": grid.radius},
            # as completed: what is asked for in words is the same question as the default
            **{"directions": directions, "draws": grid.draws, "seed": grid.seed, "bn_mode": mode},
            "batch_size": data.sizes[0],
            "loss": None if loss is None else getattr(loss, "__name__", type(loss).__name__),
            "precision": precision,
        }

        def result() -> xr.Dataset:
            return make_result(finished, grid, sides, options=options, provenance=provenance, data=data, bn_mode=mode)

        finished = Finished.nothing(grid, moving.measure([Place((), ())], data)[0], data.num_images)
        if resume is not None:
            check_same(resume, result())
            finished.take(resume)
        count.expect(int((~finished.done).sum()) * data.num_images)
        _measure(moving, data, grid, sides, finished, count, None if keep is None else lambda: keep(result()))
        return result()


def _measure(
    moving: MovingNetwork,
    data: RepeatedBatches,
    grid: Grid,
    sides: Sides,
    finished: Finished,
    count: "_Count",
    keep: Callable[[], object] | None,
) -> None:
    """Measure every point that is not done, row by row; hand on what is done from time to time, and if it stops."""
    # images that are at hand can be passed point by point; one pass through others serves a whole row
    is_small = data.num_images * data.example[0].numel() * data.dtype.itemsize <= LARGEST_HELD_BYTES
    images: Iterable[Batch] = list(data) if is_small else data
    kept_at, num_kept = time.monotonic(), int(finished.done.sum())
    try:
        for line, row in grid.rows(finished.done):
            directions = sides.of(line)
            for chunk in [[point] for point in row] if is_small else [row]:
                places = [Place(directions, grid.at(point)) for point in chunk]
                for point, measured in zip(chunk, moving.measure(places, images, count.advance), strict=True):
                    finished.enter(point, measured)
                if keep is not None and time.monotonic() - kept_at > SECONDS_BETWEEN_KEEPS:
                    keep()
                    kept_at, num_kept = time.monotonic(), int(finished.done.sum())
    except BaseException:
        # Ctrl-C too: the work of hours is not lost
        if keep is not None and int(finished.done.sum()) > num_kept:
            keep()
        raise


class _Count:
    """Counts the images that have passed, for the caller's progress.

    Args:
        progress: As in `surface`.
    """

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._passed = 0
        self._total: int | None = None

    def expect(self, number: int) -> None:
        """Say how many more images will pass."""
        self._total = self._passed + number

    def advance(self, number: int) -> None:
        """Count some images."""
        self._passed += number
        if self._progress is not None:
            self._progress(self._passed, self._total)


def _choose_mode(model: nn.Module, bn_mode: str | None) -> str:
    possible = modes_of(model) if isinstance(model, nn.Module) else BN_MODES
    if bn_mode is not None and bn_mode not in possible:
        raise ResprobeError(
            f"bn_mode: expected one of {', '.join(possible)} for {type(model).__name__}, got {bn_mode!r}; leave it out "
            f"for {possible[0]}"
        )
    return bn_mode or possible[0]
