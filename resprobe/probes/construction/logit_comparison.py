"""Two networks on the same images: how far apart their logits are, in each mode of batch normalisation."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import xarray as xr
from torch import nn

from resprobe.engine.batches import CheckedBatches, check_labels
from resprobe.engine.devices import device_of, exact_float32
from resprobe.engine.reporting import report
from resprobe.engine.scoring import Progress
from resprobe.errors import ResprobeError
from resprobe.normalisation.batch_norm import check_batch
from resprobe.normalisation.bn_modes import in_mode, modes_of


def compare_logits(
    reference: nn.Module,
    model: nn.Module,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    *,
    provenance: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Measure whether two networks compute the same function, in each mode of their batch normalisation.

    With stored statistics (`running`), with those of each batch (`batch`), and folded into the weights (`folded`);
    `none` where neither has batch normalisation. The change of a logit is ``|z' - z|``; the same number
    computed in another order of operations differs by rounding, about 1e-6 of the logit.

    Args:
        reference: Maps images `(B, C, H, W)` to logits `(B, classes)`; it is not touched.
        model: The other network, on the same device, with as many classes; it is not touched.
        batches: Normalised images and class indices `(B,)`, such as an `ImageData` or a DataLoader; read once.
        provenance: Where the reference came from, such as `Checkpoint.provenance`.
        settings: What the other network is, for the result's settings.
        progress: Called with images done, and the total where it is known.

    Returns:
        By `bn_mode`: `logit_change`, the largest ``|z' - z|`` over images and classes, NaN where one is not finite;
        `largest_logit` of the reference, by its size; `num_identical`, images whose logits are all equal to the bit;
        `num_changed`, images of which another class is predicted; `reference_loss`, `loss` (nat), `reference_error`,
        `error` (fractions). `num_images` ().

    Raises:
        ResprobeError: If the networks don't fit each other or the data, or a batch has a single image.

    Example:
        >>> import resprobe
        >>> net = resprobe.build(resprobe.parse_architecture("resnet8", in_channels=1), seed=0)
        >>> digits = resprobe.open_data("digits", num_images=20)
        >>> resprobe.compare_logits(net, net, digits).num_identical.values.tolist()
        [20, 20, 20]
    """
    data = CheckedBatches(batches, device_of(reference))
    modes = max(modes_of(reference), modes_of(model), key=len)
    pairs = {
        mode: [in_mode(one, mode, torch.float32, data.example).eval() for one in (reference, model)] for mode in modes
    }
    tallies = {mode: _Tally() for mode in modes}
    with torch.inference_mode(), exact_float32():
        for images, labels in data:
            if "batch" in modes:
                check_batch(len(labels), data.num_seen - len(labels))
            for mode, pair in pairs.items():
                before, after = (one(images.float()) for one in pair)
                check_labels(labels, before.shape[1], data.num_seen - len(labels))
                tallies[mode].add(before, after, labels)
            if progress is not None:
                progress(data.num_seen, data.num_images)
    by_mode = list(tallies.values())
    count = data.num_seen
    return report(
        "comparison",
        {
            "logit_change": ("bn_mode", np.array([one.change for one in by_mode])),
            "largest_logit": ("bn_mode", np.array([one.largest for one in by_mode])),
            "num_identical": ("bn_mode", np.array([one.num_identical for one in by_mode], np.int64)),
            "num_changed": ("bn_mode", np.array([one.num_changed for one in by_mode], np.int64)),
            "reference_loss": ("bn_mode", np.array([one.losses[0] / count for one in by_mode])),
            "reference_error": ("bn_mode", np.array([one.wrong[0] / count for one in by_mode])),
            "loss": ("bn_mode", np.array([one.losses[1] / count for one in by_mode])),
            "error": ("bn_mode", np.array([one.wrong[1] / count for one in by_mode])),
            "num_images": np.int64(count),
        },
        {"bn_mode": list(modes)},
        title="Logits of two networks",
        references="He, Zhang, Ren, Sun 2015, arXiv 1512.03385, section 1",
        options={"batch_size": data.batch_size, **(settings or {})},
        provenance=provenance,
        data=data,
    )


@dataclass
class _Tally:
    """What has been seen of two networks in one mode."""

    change: float = 0.0
    largest: float = 0.0
    num_identical: int = 0
    num_changed: int = 0
    losses: tuple[float, float] = (0.0, 0.0)
    wrong: tuple[int, int] = (0, 0)

    def add(self, before: torch.Tensor, after: torch.Tensor, labels: torch.Tensor) -> None:
        """Add the logits of a batch."""
        if before.shape != after.shape:
            raise ResprobeError(
                f"model: expected logits of shape {tuple(before.shape)} as those of the reference, got "
                f"{tuple(after.shape)}; compare networks for the same classes"
            )
        # np.fmax would drop a NaN
        self.change = float(np.maximum(self.change, float((after - before).abs().max())))
        self.largest = float(np.maximum(self.largest, float(before.abs().max())))
        self.num_identical += int((before == after).all(1).sum())
        self.num_changed += int((before.argmax(1) != after.argmax(1)).sum())
        both = (before, after)
        losses = [float(F.cross_entropy(logits, labels, reduction="sum").double()) for logits in both]
        wrong = [int((logits.argmax(1) != labels).sum()) for logits in both]
        self.losses = (self.losses[0] + losses[0], self.losses[1] + losses[1])
        self.wrong = (self.wrong[0] + wrong[0], self.wrong[1] + wrong[1])
