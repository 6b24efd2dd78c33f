"""What the commands have in common that put several checkpoints into one result."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resprobe.cli.options import Common
from resprobe.cli.running import Subject, batch_size, finish, joint_out_path, notify, run_once
from resprobe.errors import ResprobeError

if TYPE_CHECKING:
    from resprobe.data import ImageData
    from resprobe.loading import Checkpoint


def analyse_together(analysis: str, function: str, options: Mapping[str, Any], common: Common) -> None:
    """Run one analysis on all checkpoints together, on the same batches, save the result and show it.

    Args:
        analysis: Name of the analysis in the schema.
        function: Name of the function in `resprobe`; of several checkpoints it takes a dict of models.
        options: Its own options.
        common: The options of every analysis.
    """
    from resprobe.cli.opening import open_settled
    from resprobe.engine.devices import pick_device, precision_dtype

    device = pick_device(common.device)
    precision_dtype(common.precision)
    out = joint_out_path(analysis, common)
    told = functools.partial(notify, quiet=common.quiet)
    opened = [open_settled(name, common, told) for name in common.ckpt]
    for checkpoint, _ in opened:
        checkpoint.model.to(device)
    data = _common_data(opened)
    dataset = run_once(
        analysis,
        function,
        options,
        batch_size(data, common),
        _subject([checkpoint for checkpoint, _ in opened]),
        data,
        out,
        common,
    )
    finish(dataset, out, common)


def _common_data(opened: "list[tuple[Checkpoint, ImageData]]") -> "ImageData":
    first, data = opened[0]
    for checkpoint, other in opened[1:]:
        for what in ("data", "split", "num_images", "normalisation"):
            one, two = data.provenance[what], other.provenance[what]
            if one != two:
                raise ResprobeError(
                    f"ckpt: expected checkpoints for the same images, got {what} {one} for {first.path.name} and {two} "
                    f"for {checkpoint.path.name}; give --data and --normalise, or run them one by one"
                )
    return data


def _subject(checkpoints: "list[Checkpoint]") -> Subject:
    """Describe one checkpoint as it is; several by their names, with all hashes and facts."""
    if len(checkpoints) == 1:
        (only,) = checkpoints
        return Subject(only.path.name, only.model, only.provenance)
    names = [Path(checkpoint.path.name).stem for checkpoint in checkpoints]
    each = [checkpoint.provenance for checkpoint in checkpoints]
    joined = {
        key: ", ".join(provenance[key] for provenance in each)
        for key in ("checkpoint", "checkpoint_sha256", "architecture")
    }
    facts = {name: provenance["facts"] for name, provenance in zip(names, each, strict=True)}
    models = {name: checkpoint.model for name, checkpoint in zip(names, checkpoints, strict=True)}
    return Subject(joined["checkpoint"], models, {**joined, "facts": facts})
