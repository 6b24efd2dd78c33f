"""What of a surface is measured, and its labelled Dataset."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from resprobe.engine.repeated_batches import RepeatedBatches
from resprobe.engine.reporting import report
from resprobe.errors import ResprobeError
from resprobe.probes.landscape.moving import NOT_COUNTED, Total
from resprobe.probes.surfaces.grid import NUM_EIGENVECTORS, Grid, Index
from resprobe.probes.surfaces.sides import Sides
from resprobe.results import fingerprint

REFERENCES = "Li, Xu, Taylor, Studer, Goldstein 2018, arXiv 1712.09913"
UNITS = {
    "random": "share of each filter's norm",
    "hessian": "norm of the change of all weights",
}


@dataclass
class Finished:
    """The points that are measured so far.

    Attributes:
        baseline: What the trained network makes of all images.
        num_images: How many these are.
        loss: Mean loss, of the grid's shape.
        num_correct: Images that it gets right.
        done: Whether a point is measured.
    """

    baseline: Total
    num_images: int
    loss: npt.NDArray[np.float64]
    num_correct: npt.NDArray[np.int64]
    done: npt.NDArray[np.bool_]

    @classmethod
    def nothing(cls, grid: Grid, baseline: Total, num_images: int) -> "Finished":
        """Begin with the trained network alone."""
        loss, num_correct = np.full(grid.shape, np.nan), np.full(grid.shape, NOT_COUNTED, np.int64)
        return cls(baseline, num_images, loss, num_correct, np.zeros(grid.shape, bool))

    def enter(self, point: Index, total: Total) -> None:
        """Enter a point."""
        self.loss[point] = total.loss_sum / self.num_images
        self.num_correct[point] = total.num_correct
        # last, so that an interruption leaves no half point
        self.done[point] = True

    def take(self, earlier: xr.Dataset) -> None:
        """Enter what an earlier result of the same question holds."""
        self.done[:] = earlier["done"].values.astype(bool).reshape(self.done.shape)
        self.loss[:] = earlier["loss"].values.reshape(self.loss.shape)
        self.num_correct[:] = earlier["num_correct"].values.reshape(self.loss.shape)


def check_same(earlier: xr.Dataset, now: xr.Dataset) -> None:
    """Refuse to go on with a result of another question.

    Args:
        earlier: What is to be gone on with.
        now: The result of this question, of which nothing is done yet.

    Raises:
        ResprobeError: If analysis, checkpoint, data, settings, weights or directions differ.
    """
    for what, get in (("fingerprint", _fingerprint), ("weights_sha256", lambda one: one.attrs.get("weights_sha256"))):
        if get(earlier) != get(now):
            raise ResprobeError(
                f"resume: expected a result of the same model, data and settings, got another {what}; "
                "begin anew, on the command line with --overwrite"
            )


def make_result(
    finished: Finished,
    grid: Grid,
    sides: Sides,
    *,
    options: Mapping[str, Any],
    provenance: Mapping[str, Any] | None,
    data: RepeatedBatches,
    bn_mode: str,
) -> xr.Dataset:
    """Label what is measured.

    Args:
        finished: The points.
        grid: What is to be measured.
        sides: Its directions.
        options: Every option that the numbers depend on.
        provenance: Where the model came from.
        data: The images.
        bn_mode: What batch normalisation did.

    Returns:
        The result, in which `done` is false at the points that are missing.
    """
    variables, coords = _arranged(finished, grid, sides)
    dataset = report(
        "surface",
        variables,
        coords,
        title="Loss surface",
        references=REFERENCES,
        options=options,
        provenance=provenance,
        data=data,
        bn_mode=bn_mode,
    )
    dataset.attrs |= {
        "num_images": finished.num_images,
        "directions": grid.directions,
        "direction_unit": UNITS[grid.directions],
        "weights_sha256": sides.sha256,
    }
    return dataset


def _arranged(finished: Finished, grid: Grid, sides: Sides) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give variables and coordinates; what is missing is NaN, or counts as not counted."""
    along = ("direction_x", "direction_y")[: grid.dims]
    first = "rank" if grid.directions == "hessian" else "draw"
    several = grid.num_lines > 1
    done = finished.done
    on_grid = {
        "loss": np.where(done, finished.loss, np.nan),
        "error": _error(np.where(done, finished.num_correct, NOT_COUNTED), finished.num_images),
        "num_correct": np.where(done, finished.num_correct, NOT_COUNTED),
        "done": done.copy(),
    }
    dims = (first, *along) if several else along
    baseline = finished.baseline
    variables: dict[str, Any] = {name: (dims, value if several else value[0]) for name, value in on_grid.items()}
    variables |= {
        "num_nonfinite": np.int64((done & ~np.isfinite(finished.loss)).sum()),
        "num_images": np.int64(finished.num_images),
        "baseline_loss": np.float64(baseline.loss_sum / finished.num_images),
        "baseline_num_correct": np.int64(baseline.num_correct),
        "baseline_error": _error(np.array(baseline.num_correct), finished.num_images),
    }
    coords: dict[str, Any] = {name: grid.distances for name in along}
    if sides.eigenvalues is not None:
        variables["eigenvalue"] = ("rank", np.array(sides.eigenvalues))
        coords["rank"] = np.arange(1, NUM_EIGENVECTORS + 1)
    elif several:
        coords["draw"] = np.arange(grid.num_lines)
    return variables, coords


def _error(num_correct: npt.NDArray[np.int64], num_images: int) -> npt.NDArray[np.float64]:
    return np.where(num_correct == NOT_COUNTED, np.nan, 1 - num_correct / num_images)


def _fingerprint(result: xr.Dataset) -> str | None:
    keys = ("analysis", "checkpoint_sha256", "data_sha256", "settings")
    return fingerprint(result.attrs) if all(key in result.attrs for key in keys) else None
