"""The memory of a process."""

import resource
import sys


def peak_gib() -> float:
    """Returns the largest resident memory of this process or of any ended child process, in GiB."""
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return peak / 2 ** (30 if sys.platform == "darwin" else 20)  # macOS counts bytes, Linux KiB
