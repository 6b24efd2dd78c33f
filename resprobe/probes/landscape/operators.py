"""What is used of curvlinops, imported without a warning that is not ours."""

import warnings

with warnings.catch_warnings():
    # a dependency of curvlinops compiles something with torch.jit.script, which newer versions of PyTorch warn of
    warnings.simplefilter("ignore", FutureWarning)
    from curvlinops import HessianLinearOperator, lanczos_approximate_spectrum
    from curvlinops.papyan2020traces.spectrum import lanczos_approximate_spectrum_from_iter
    from curvlinops.sampling import rademacher

__all__ = [
    "HessianLinearOperator",
    "lanczos_approximate_spectrum",
    "lanczos_approximate_spectrum_from_iter",
    "rademacher",
]
