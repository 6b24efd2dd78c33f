import os
import subprocess
import sys

import pytest

# what the C library holds for reuse after eight activations of 8 MiB were freed, and how many of them had a mapping of
# their own
SCRIPT = """
import ctypes, sys
from resprobe.engine.allocator import keep_freed_memory

class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo2
if sys.argv[1] == "kept":
    assert keep_freed_memory()
before = libc.mallinfo2().hblks
# as PyTorch asks for memory, whose import takes seconds
tensors = [ctypes.c_void_p() for _ in range(8)]
for tensor in tensors:
    assert libc.posix_memalign(ctypes.byref(tensor), ctypes.c_size_t(64), ctypes.c_size_t(8 << 20)) == 0
mapped = libc.mallinfo2().hblks - before
for tensor in tensors:
    libc.free(tensor)
print(mapped, libc.mallinfo2().fordblks >> 20)
"""


def held(how):
    done = subprocess.run([sys.executable, "-c", SCRIPT, how], check=True, capture_output=True, text=True)
    return tuple(map(int, done.stdout.split()))


def has_mallinfo2():
    if not sys.platform.startswith("linux") or "CS_GNU_LIBC_VERSION" not in os.confstr_names:
        return False
    version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()[-1]
    return tuple(map(int, version.split("."))) >= (2, 33)


@pytest.mark.skipif(not has_mallinfo2(), reason="needs glibc 2.33 or later, which counts in 64 bits")
def test_freed_memory_is_kept():
    mapped, mebibytes = held("kept")
    assert mapped == 0
    assert mebibytes >= 64
    mapped, mebibytes = held("returned")
    assert mapped > 0
    assert mebibytes < 64
