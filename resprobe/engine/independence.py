"""Whether images may be measured apart from each other, and in several threads at once."""

import torch

from resprobe.units import Segments
from resprobe.units.random_state import kept_random_state
from resprobe.units.structure.operations import is_known_kind


def runs_apart(segments: Segments, example: torch.Tensor) -> bool:
    """Tell whether parts of a batch may run at the same time with the results of the whole batch.

    They may where every layer is one of PyTorch's own or of this package, which keep nothing between calls, no random
    numbers are drawn, and the images of a batch don't influence each other. The latter two are tried.

    Args:
        segments: The model's segments, in inference mode.
        example: Some images in the number format of the segments, `(N, C, H, W)`.

    Returns:
        Whether they may; False also where it can't be told from one image.
    """
    if len(example) < 2 or torch.is_autocast_enabled(example.device.type) or not _keep_nothing(segments):
        return False
    with kept_random_state(example.device):
        before = torch.get_rng_state()
        alone = segments.forward(example)
        among_others = segments.forward(torch.cat([example, -example]))[: len(example)]
        if not torch.equal(torch.get_rng_state(), before):
            return False
    # kernels round differently for another number of images
    tolerance = torch.finfo(alone.dtype).eps ** 0.5 * float(alone.abs().max())
    return bool(((alone - among_others).abs() <= tolerance).all())


def _keep_nothing(segments: Segments) -> bool:
    pieces = [segments.stem, segments.head]
    for unit in segments.units:
        pieces += [unit.pre, unit.branch, unit.skip, unit.remains, unit.post]
    return all(is_known_kind(module) for piece in pieces for module in piece.modules())
