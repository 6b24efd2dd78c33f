"""Ensemble or chain: what Veit et al. say of residual and plain networks, beside what was measured."""

import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import xarray as xr

from resprobe.errors import ResprobeError

Study = Mapping[str, xr.Dataset]
"""Results of one network by analysis: lesion, lesion-curve, reorder, paths."""

ANALYSES = ("lesion", "lesion-curve", "reorder", "paths")
# Their network has 54 modules; of another number the same share is taken.
VEIT_UNITS = 54
VEIT_FEW, VEIT_MANY, VEIT_FEW_ERROR = 10, 20, 0.2
VEIT_EFFECTIVE = (5, 17)

# What the words are taken to mean here: a rise of the error, errors, a share of chance, correlations.
HARDLY = 0.05
FEW_AT_MOST, MANY_AT_LEAST = 0.3, 0.5
AT_CHANCE = 0.8
SMOOTH_CORRELATION = -0.8
EXPONENTIAL_FIT = 0.95
SHORT = 0.4


class Statement(NamedTuple):
    """One statement of the paper.

    Attributes:
        text: What it says.
        paper: Its numbers in the paper.
        residual: The residual network's.
        plain: The plain network's, for comparison.
        criterion: What has to be true for it to hold.
        holds: Whether it is.
    """

    text: str
    paper: str
    residual: str
    plain: str
    criterion: str
    holds: bool


def ensemble_statements(residual: Study, plain: Study) -> list[Statement]:
    """Compare results of a residual and a plain network with what Veit et al. report.

    Args:
        residual: Results of the residual network.
        plain: Results of the plain one.

    Returns:
        The statements, in the order of the paper. Percentages are errors; medians are over units or draws.

    Raises:
        ResprobeError: If a result is missing, or norms of single paths are not in that of the residual network.

    References:
        Veit, Wilber, Belongie 2016 (arXiv 1605.06431), sections 4 and 5.
    """
    for study, which in ((residual, "residual"), (plain, "plain")):
        missing = [name for name in ANALYSES if name not in study]
        if missing:
            raise ResprobeError(
                f"ensemble: expected {', '.join(ANALYSES)} of the {which} net, got no {', '.join(missing)}; run these"
            )
    if "path_grad_rms" not in residual["paths"]:
        raise ResprobeError("ensemble: expected norms of single paths, got none; run paths with estimator='signs'")
    return [
        _single(residual["lesion"], plain["lesion"]),
        _chain(residual["lesion"], plain["lesion"]),
        _few(residual["lesion-curve"], plain["lesion-curve"]),
        _many(residual["lesion-curve"], plain["lesion-curve"]),
        _order(residual["reorder"], plain["reorder"]),
        _short_paths(residual["paths"], plain["paths"]),
        _exponential(residual["paths"]),
    ]


def chance(result: xr.Dataset) -> float:
    """Give the error of guessing: of as many classes as the network's facts say, ten where they don't.

    Args:
        result: A result of a network.

    Returns:
        A fraction.
    """
    classes = json.loads(result.attrs["facts"]).get("num_classes", {}).get("value", 10)
    return 1 - 1 / int(classes)


def error_at(curve: xr.Dataset, share: float) -> float:
    """Give the median error where a share of the units is deleted, between measured sizes by a straight line.

    Args:
        curve: A result of `lesion-curve`.
        share: The share, a fraction.

    Returns:
        A fraction; NaN beyond the largest measured size.
    """
    sizes = np.concatenate([[0], curve["num_deleted"].values]) / curve.sizes["unit"]
    errors = np.concatenate([[float(curve.baseline_error)], curve["error"].median("draw").values])
    order = np.argsort(sizes)
    return float(np.interp(share, sizes[order], errors[order], right=np.nan))


def _single(residual: xr.Dataset, plain: xr.Dataset) -> Statement:
    return Statement(
        "deleting one unit of a residual network hardly matters",
        "hardly any effect, a modest one where the shape changes",
        _lesion_words(residual),
        _lesion_words(plain),
        f"median error rises by at most {HARDLY:.0%}",
        float(residual["error"].median() - residual.baseline_error) <= HARDLY,
    )


def _chain(residual: xr.Dataset, plain: xr.Dataset) -> Statement:
    at_chance = (plain["error"] >= AT_CHANCE * chance(plain)).mean()
    others = (residual["error"] >= AT_CHANCE * chance(residual)).mean()
    return Statement(
        "deleting any layer of a plain network leaves chance",
        "chance (VGG)",
        f"chance after {float(others):.0%} of the deletions",
        f"chance after {float(at_chance):.0%}, intact {float(plain.baseline_error):.1%}",
        f"nine of ten deletions at {AT_CHANCE:.0%} of chance or more",
        float(at_chance) >= 0.9,
    )


def _few(residual: xr.Dataset, plain: xr.Dataset) -> Statement:
    share = VEIT_FEW / VEIT_UNITS
    return Statement(
        f"error is small with {share:.0%} of the units deleted",
        f"about {VEIT_FEW_ERROR:.0%} ({VEIT_FEW} of {VEIT_UNITS})",
        f"{error_at(residual, share):.1%}",
        f"{error_at(plain, share):.1%}",
        f"at most {FEW_AT_MOST:.0%}",
        error_at(residual, share) <= FEW_AT_MOST,
    )


def _many(residual: xr.Dataset, plain: xr.Dataset) -> Statement:
    share = VEIT_MANY / VEIT_UNITS
    return Statement(
        f"error is severe with {share:.0%} of the units deleted",
        f"severe ({VEIT_MANY} of {VEIT_UNITS})",
        f"{error_at(residual, share):.1%}",
        f"{error_at(plain, share):.1%}",
        f"at least {MANY_AT_LEAST:.0%}",
        error_at(residual, share) >= MANY_AT_LEAST,
    )


def _order(residual: xr.Dataset, plain: xr.Dataset) -> Statement:
    first, correlation = _fewest_swaps(residual), _rank_correlation(residual)
    halfway = (float(residual.baseline_error) + chance(residual)) / 2
    return Statement(
        "error rises smoothly as the units leave their order",
        "smoothly with falling tau",
        _order_words(residual),
        _order_words(plain),
        f"below halfway to chance at the fewest swaps, correlation with tau at most {SMOOTH_CORRELATION:g}",
        float(first["error"].median()) < halfway and correlation <= SMOOTH_CORRELATION,
    )


def _short_paths(residual: xr.Dataset, plain: xr.Dataset) -> Statement:
    number = int(residual["path_length"].max())
    high = float(residual.effective_length_high) / number
    low, top = VEIT_EFFECTIVE
    return Statement(
        "nearly all of the gradient takes short paths",
        f"{low} to {top} of {VEIT_UNITS} units, 0.45% of the paths",
        f"{float(residual.effective_length_low):.0f} to {float(residual.effective_length_high):.0f} of {number} units, "
        f"{100 * float(residual.effective_path_share):.2g}% of the paths",
        f"one path, of {int(plain['path_length'].max())} units",
        f"95 % of it at or below {SHORT:.0%} of the units",
        high <= SHORT,
    )


def _exponential(residual: xr.Dataset) -> Statement:
    slope, fit = exponential_fit(residual)
    return Statement(
        "the gradient along one path falls exponentially with its length",
        "about exponentially",
        f"by {np.exp(slope):.2g} per unit, R2 of the logarithm {fit:.3f}",
        "",
        f"R2 at least {EXPONENTIAL_FIT:g}",
        bool(slope < 0 and fit >= EXPONENTIAL_FIT),
    )


def exponential_fit(paths: xr.Dataset) -> tuple[float, float]:
    """Fit a straight line to the logarithm of the root-mean-square norm of single paths.

    Args:
        paths: A result of `paths` with `path_grad_rms`.

    Returns:
        Slope per unit, and the share of the variance that the line explains.
    """
    norm = paths["path_grad_rms"].values
    shown = np.isfinite(norm) & (norm > 0)
    length, log = paths["path_length"].values[shown], np.log(norm[shown])
    slope, intercept = np.polyfit(length, log, 1)
    rest = log - slope * length - intercept
    return float(slope), float(1 - rest.var() / log.var()) if log.var() > 0 else float("nan")


def _lesion_words(result: xr.Dataset) -> str:
    error = result["error"]
    return f"{float(result.baseline_error):.1%}, median {float(error.median()):.1%}, worst {float(error.max()):.1%}"


def _order_words(result: xr.Dataset) -> str:
    first = _fewest_swaps(result)
    swaps = int(first["num_swaps"])
    return (
        f"{float(first['error'].median()):.1%} after {swaps} swap{'s' if swaps > 1 else ''} (tau "
        f"{float(first['kendall_tau'].median()):.2f}), correlation {_rank_correlation(result):.2f}"
    )


def _fewest_swaps(result: xr.Dataset) -> xr.Dataset:
    moved = result.sel(num_swaps=result["num_swaps"] > 0)
    return moved.isel(num_swaps=int(moved["num_swaps"].values.argmin()))


def _rank_correlation(result: xr.Dataset) -> float:
    from scipy.stats import spearmanr

    tau, error = result["kendall_tau"].values.ravel(), result["error"].values.ravel()
    if len(set(tau)) < 2 or len(set(error)) < 2:
        return float("nan")
    return float(spearmanr(tau, error).statistic)
