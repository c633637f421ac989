"""NumPy's threads beside those of others, in a process of its own."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import faiss, numpy, torch
from threadpoolctl import threadpool_info
from gnn_encoder.machine.threads import numpy_on_one_core

def threads():
    return {library["filepath"]: library["num_threads"] for library in threadpool_info()}

before, matrix = threads(), numpy.random.default_rng(0).normal(size=(300, 300))
product = matrix @ matrix
numpy_on_one_core()
after = threads()
changed = [path for path in before if before[path] != after[path]]
assert set(before.values()) == {2}, before
assert len(changed) == 1 and "numpy" in changed[0] and after[changed[0]] == 1, (before, after)
assert torch.get_num_threads() == 2 and numpy.allclose(matrix @ matrix, product)
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="OpenBLAS has no more threads than there are cores")
def test_numpy_alone_computes_in_one_thread() -> None:
    threads = os.environ | {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=threads, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
