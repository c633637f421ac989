"""torch's elastic launcher for the processes of one machine: `python -m gnn_encoder.engines.launch ADDRESS`.

It does what `torchrun -m gnn_encoder.engines.rank ADDRESS` does: it starts a process per rank, meets the launchers of
the other machines, and ends all processes when one fails. The numbers come from the variables that torchrun reads, such
as `PET_NNODES` and `PET_MASTER_ADDR`, which Kubeflow Trainer sets in a pod. Then it writes the cause of a failure as
one line where the step, or Kubernetes, reads it, instead of torchrun's page.
"""

import json
import os
import re
import signal
import sys
import tempfile
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from gnn_encoder.errors import one_line
from gnn_encoder.storage.s3 import is_remote

BROKEN = re.compile(r"gloo/|Dist\w*Error|NCCL|[Cc]onnection (closed|reset|refused)")
"""Pattern of the errors of a process that lost its connection to another process, which failed before."""
LONGEST = 4096
"""Bytes that Kubernetes keeps of a termination message."""
FAILURE = "failure.json"
"""File in the folder of a call on one machine: the cause of a failure."""
MEETING_SECONDS = 3600
"""How long the machines of a training wait for each other: pulling an image, or a new GPU node, takes minutes."""
MACHINE_FOLDER = "GNN_ENCODER_MACHINE_FOLDER"
"""Environment variable of a rank: a folder that the ranks of its machine share, and that ends with the launcher."""
MACHINE_THREADS = "GNN_ENCODER_MACHINE_THREADS"
"""Environment variable of a rank: the threads of all ranks of its machine together."""
TERMINATION_LOG = "GNN_ENCODER_TERMINATION_LOG"
"""Environment variable of a pod: the file in which Kubernetes reads why the container ended."""


def main(call_address: str) -> int:
    """Returns the exit code."""
    import torch

    # Before torch's launcher, which sets OMP_NUM_THREADS to 1: this number honours the variable and the CPU affinity.
    os.environ.setdefault(MACHINE_THREADS, str(torch.get_num_threads()))
    with tempfile.TemporaryDirectory() if is_remote(call_address) else nullcontext(call_address) as machine_folder:
        os.environ[MACHINE_FOLDER] = machine_folder
        return _run(call_address)


def _run(call_address: str) -> int:
    """Runs torch's launcher; returns the exit code."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    try:
        run(parse_args([f"--rdzv-conf=timeout={MEETING_SECONDS}", "-m", "gnn_encoder.engines.rank", call_address]))
    except ChildFailedError as error:
        cause = cause_of(error.failures)
        _report(call_address, f"rank {cause['rank']}: ", cause)
        return 1
    except SignalException as ended:
        return 128 + int(ended.sigval)
    except Exception as error:  # of torch: the machines did not meet
        _report(call_address, "", {"type": type(error).__name__, "text": one_line(error)})
        return 1
    return 0


def _report(call_address: str, rank: str, cause: dict[str, Any]) -> None:
    """Writes the cause of a failure where the step or Kubernetes reads it."""
    line = f"{rank}{cause['type']}: {cause['text']}"
    print(line, file=sys.stderr)
    if read_by_kubernetes := os.environ.get(TERMINATION_LOG):
        with suppress(OSError):
            Path(read_by_kubernetes).write_bytes(line.encode()[:LONGEST])
    else:
        Path(call_address, FAILURE).write_text(json.dumps(cause), encoding="utf-8")


def cause_of(failures: dict[int, Any]) -> dict[str, Any]:
    """Returns the error (`elastic.error_text`) of the process that failed first, with its rank.

    torch lists the processes that had ended when it looked. A process that lost its connection may end before the
    process that broke the connection, so the files of all processes are read.
    """
    errors: dict[int, dict[str, Any]] = {}
    for rank, failure in failures.items():
        first = rank - failure.local_rank
        for file in Path(failure.error_file).parents[1].glob("*/error.json") if failure.error_file else ():
            with suppress(OSError, ValueError, KeyError):
                errors[first + int(file.parent.name)] = json.loads(file.read_text("utf-8"))["error"]
    causes = sorted(({"rank": rank, **error} for rank, error in errors.items()), key=lambda error: float(error["time"]))
    for rank, failure in failures.items():
        if rank not in errors:
            causes.append({"rank": rank, "type": "RuntimeError", "text": _lost(rank, failure.pid, failure.exitcode)})
    return next((error for error in causes if not BROKEN.search(error["text"])), causes[0])


def _lost(rank: int, pid: int, code: int) -> str:
    """Returns what happened to a process that ended without a message."""
    ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    ending += " (out of memory?)" if code == -signal.SIGKILL else ""
    return f"the training process of rank {rank} (pid {pid}) {ending}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
