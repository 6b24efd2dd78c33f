"""What is measured of trained networks and kept as it comes, and how a study writes its result and figure."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from matplotlib.figure import Figure
from torch import nn
from trained_nets import Net, Options, duration, images, seconds_of_pass

import resprobe
from resprobe import plots
from resprobe.engine.devices import device_of
from resprobe.engine.repeated_batches import RepeatedBatches
from resprobe.normalisation.bn_modes import in_mode
from resprobe.probes.landscape.eigenpairs import top_eigenvectors
from resprobe.results.writing import whole_file


def for_each(
    checkpoints: Sequence[Path],
    measure: Callable[[Path], Mapping[str, float]],
    name: str,
    study: Options,
    *,
    passes: float,
) -> list[dict[str, float]]:
    """Measure one network after the other and keep what is done, so that an interrupted run goes on.

    Args:
        checkpoints: Files of trained networks.
        measure: Gives the numbers of one of them.
        name: Of the study; the numbers are kept under it, beside the networks that are trained for studies.
        study: Its options.
        passes: How many forward and backward passes of one image one network takes, about; says how long it will take.

    Returns:
        The numbers of each network.
    """
    kept = study.nets / f"{name}.json"
    rows: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() and not study.overwrite else {}
    waiting = [file for file in checkpoints if rows.get(file.stem, {}).get("sha256") != sha256(file)]
    if waiting:
        data = images(study, "train", 100)
        seconds = sum(seconds_of_pass(resprobe.load(file).model.to(study.device), data) for file in waiting) * passes
        print(f"{len(waiting)} networks to measure: about {duration(seconds)}", flush=True)
    start, done = time.perf_counter(), 0
    for file in waiting:
        rows[file.stem] = {"sha256": sha256(file), "numbers": dict(measure(file))}
        with whole_file(kept) as temporary:
            temporary.write_text(json.dumps(rows, indent=1))
        done += 1
        left = duration((time.perf_counter() - start) / done * (len(waiting) - done))
        print(f"{file.stem}: {done} of {len(waiting)} measured, about {left} left", flush=True)
    return [rows[file.stem]["numbers"] for file in checkpoints]


def sha256(file: Path) -> str:
    """Give the hash of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def top_eigenvalue(model: nn.Module, data: resprobe.ImageData, mode: str) -> float:
    """Find the largest eigenvalue of the Hessian of the mean loss, in a mode of batch normalisation."""
    batches = RepeatedBatches(data, device_of(model), torch.float32)
    values, _ = top_eigenvectors(in_mode(model, mode, torch.float32, batches.example), batches, 1)
    return float(values[0])


def training_log(net: Net, study: Options) -> xr.Dataset:
    """Read the log of a trained network."""
    path = net.file(study)
    return resprobe.results.open(path.with_name(f"{path.stem}-training.nc"))


def save(dataset: xr.Dataset, name: str, study: Options, *, options: str = "", **attributes: Any) -> Path:
    """Write the Dataset of a study, whole or not at all.

    Args:
        dataset: Every variable with `long_name` and `units`.
        name: Of the study.
        study: Its options.
        options: Options of its own, as they were given.
        **attributes: What else the file is to say.

    Returns:
        The file.
    """
    dataset.attrs = {
        "study": name,
        "command": " ".join(filter(None, [f"python analyses/{name}.py", study.given, options])),
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "resprobe_version": resprobe.__version__,
        "torch_version": torch.__version__,
        "device": str(study.device),
        "data": study.data,
        **attributes,
    }
    path = study.out / f"{name}.nc"
    with whole_file(path) as temporary:
        dataset.to_netcdf(temporary, engine="netcdf4")
    print(f"saved {path}")
    return path


def save_figure(figure: Figure, name: str, study: Options) -> None:
    """Write the figure of a study."""
    path = study.figures / f"{name}.png"
    plots.save_figure(figure, path)
    print(f"saved {path}")


def labelled(dims: Sequence[str], values: Any, long_name: str, units: str = "1") -> tuple[Any, ...]:
    """Make a variable with its labels."""
    return tuple(dims), np.asarray(values), {"long_name": long_name, "units": units}
