"""Freed memory of a process is used again."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource
from gnn_encoder.machine.memory import reuse_freed
libc, size = ctypes.CDLL(None), 40 << 20
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def faults():
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        array = libc.malloc(size)
        ctypes.memset(array, 1, size)
        libc.free(array)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begin

before = faults()
reuse_freed(2 * size)
reuse_freed(1 << 30)  # above the limit nothing changes
print(before, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc")
def test_freed_arrays_are_used_again():
    result = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    before, after = map(int, result.stdout.split())
    assert after < before / 5
