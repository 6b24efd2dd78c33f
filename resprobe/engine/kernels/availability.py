"""Whether kernels can be had here, and the one notice that they can't.

`RESPROBE_KERNELS=0` does without them. Where llvmlite is missing, broken or can't compile, or the processor has no
AVX2, convolutions are PyTorch's: the counts are the same, they take longer.
"""

import os
import platform
import warnings
from functools import cache

from resprobe.errors import ResprobeError, ResprobeWarning, first_line

SWITCH = "RESPROBE_KERNELS"
_SETTINGS = {"": True, "1": True, "0": False}
_PROCESSORS = ("x86_64", "amd64")
_NEEDED_FEATURES = ("avx2", "fma")
# of this process: why compiling failed, and what was said of it
_FAILURES: list[str] = []
_NOTICES: list[str] = []


class CompilationError(Exception):
    """Kernels couldn't be made into machine code here."""


def switched_on() -> bool:
    """Tell whether kernels are wanted: unless the environment variable `RESPROBE_KERNELS` is 0.

    Returns:
        Whether they are.

    Raises:
        ResprobeError: If the variable is neither 0 nor 1.
    """
    setting = os.environ.get(SWITCH, "")
    if setting not in _SETTINGS:
        raise ResprobeError(
            f"environment variable {SWITCH}: expected 0 (without kernels) or 1 (with them, the default), got "
            f"{setting!r}; set one of these or unset it"
        )
    return _SETTINGS[setting]


def obstacle() -> str | None:
    """Tell what is in the way of kernels.

    Returns:
        A clause for people: the processor, llvmlite, or how compiling failed before in this process. None where
        nothing is known.
    """
    return _FAILURES[0] if _FAILURES else _obstacle_of_machine()


def remember_failure(error: CompilationError) -> None:
    """Try no more in this process, after compiling has failed.

    Args:
        error: What was in the way.
    """
    _FAILURES.append(f"llvmlite couldn't compile them ({first_line(error)})")


@cache
def _obstacle_of_machine() -> str | None:
    processor = platform.machine()
    if processor.lower() not in _PROCESSORS:
        return f"they are for x86-64 processors with AVX2, this is {processor or 'another one'}"
    try:
        from llvmlite import binding

        features = binding.get_host_cpu_features()
    except Exception as error:  # whatever a missing, broken or foreign library raises
        return f"llvmlite can't be used ({type(error).__name__}: {first_line(error)})"
    missing = [name.upper() for name in _NEEDED_FEATURES if not features.get(name, False)]
    return f"this processor has no {' and no '.join(missing)}" if missing else None


def notify_of_obstacle() -> None:
    """Warn, once in a process, that an analysis goes without the kernels that it would have used."""
    reason = obstacle()
    if reason is not None and not _NOTICES:
        _NOTICES.append(reason)
        warnings.warn(
            f"convolutions without resprobe's kernels: {reason}; the counts are the same and take longer, "
            f"{SWITCH}=0 goes without this notice",
            ResprobeWarning,
            stacklevel=2,
        )
