"""What the C library does with memory that tensors no longer need."""

import ctypes
import sys

# parameters of glibc's mallopt (malloc.h), and the largest threshold for mmap that it takes
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
LARGEST_MMAP_THRESHOLD = 32 << 20
KEPT = 1 << 30
STEP = 64 << 20


def keep_freed_memory() -> bool:
    """Have freed memory kept for the next tensor, up to a gigabyte, in place of a return to the system.

    A forward pass allocates and frees an activation in each layer. glibc gives large ones back at once, so that the
    system has to clear their pages anew: a twelfth of the time of a lesion study of ResNet-56 on two cores. This
    concerns the whole process, so it is for programs, not for libraries.

    Returns:
        Whether the C library took it; it is left as it is where that isn't glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((M_TRIM_THRESHOLD, KEPT), (M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD), (M_TOP_PAD, STEP))
    return all([mallopt(parameter, value) == 1 for parameter, value in settings])
