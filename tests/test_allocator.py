import os
import subprocess
import sys

import pytest

# page faults of 40 activations of 8 MiB, each freed before the next
SCRIPT = """
import resource, sys
import torch
from resprobe.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
torch.ones(2 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(40):
    a = torch.ones(2 << 20)
    b = torch.ones(2 << 20)
    del a, b
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how):
    done = subprocess.run([sys.executable, "-c", SCRIPT, how], check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or "CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="needs glibc"
)
def test_freed_memory_is_used_again():
    assert page_faults("kept") < page_faults("returned") / 2
