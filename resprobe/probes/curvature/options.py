"""The options of curvature, and what is refused."""

from numbers import Real
from typing import NamedTuple

from resprobe.engine.reporting import check_seed, is_whole
from resprobe.errors import ResprobeError
from resprobe.probes.curvature.parameter_blocks import BLOCKS


class Settings(NamedTuple):
    """The options that each block of the Hessian is measured with."""

    num_eigenvalues: int
    num_probes: int
    num_lanczos: int
    seed: int
    tol: float


def check_tolerance(tol: float) -> None:
    """Refuse a tolerance at which nothing converges, or anything does.

    Args:
        tol: As in `curvature`.

    Raises:
        ResprobeError: If it is no number between 0 and 1.
    """
    if not (isinstance(tol, Real) and 0 < tol < 1):
        raise ResprobeError(f"tol: expected a number between 0 and 1, got {tol}; leave it out for 0.01")


def check_options(settings: Settings, blocks: str | None) -> None:
    """Refuse options that are out of range.

    Args:
        settings: As each block is measured.
        blocks: As in `curvature`.

    Raises:
        ResprobeError: If one is.
    """
    for name, least, advice in (
        ("num_eigenvalues", 1, "leave it out for 5"),
        ("num_probes", 2, "leave it out for 16"),
        ("num_lanczos", 2, "leave it out for 20"),
    ):
        value = getattr(settings, name)
        if not is_whole(value) or value < least:
            raise ResprobeError(f"{name}: expected a whole number from {least}, got {value}; {advice}")
    check_tolerance(settings.tol)
    check_seed(settings.seed)
    if blocks is not None and blocks not in BLOCKS:
        raise ResprobeError(f"blocks: expected {' or '.join(BLOCKS)}, got {blocks!r}; leave it out for none")
