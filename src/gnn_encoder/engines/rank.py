"""One of the processes that train together: `python -m gnn_encoder.engines.rank ADDRESS`, started by `engines.launch`.

ADDRESS is the folder of the call. For a TrainJob it is the address in the object store where the step left the call.
The first process of each pod fetches the inputs from the object store; rank 0 sends the outputs.
"""

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import torch
import torch.distributed as dist

from gnn_encoder.artifacts import Draft
from gnn_encoder.engines import lifeline
from gnn_encoder.engines.elastic import CALL, RESULT, WAIT, Call, error_text, result_of
from gnn_encoder.engines.launch import MACHINE_FOLDER, MACHINE_THREADS
from gnn_encoder.errors import UserError, print_any_text
from gnn_encoder.storage import Transfer
from gnn_encoder.storage.s3 import is_remote
from gnn_encoder.storage.transfer import get_folder, put_folder
from gnn_encoder.tracking.context import CHECKPOINTS, Context
from gnn_encoder.tracking.mlflow_runs import StepLog, reaching
from gnn_encoder.training.ranks import LOCAL_RANK, LOCAL_WORLD_SIZE, TrainingOver, meet

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Environment variable of torch's launcher: where it reads a process's error."""
GROUP_RANK = "GROUP_RANK"
"""Environment variable of torch's launcher: the machine's number, from 0."""


def main(call_address: str) -> int:
    """Returns the exit code; the error is written where the launcher reads it."""
    print_any_text()
    lifeline.attach()
    lifeline.end_with(os.getppid())
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the launcher's: another process has failed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the step's process
    try:
        with tempfile.TemporaryDirectory() as folder:
            _train(call_address, Path(folder))
    except TrainingOver:
        return 0
    except Exception as error:
        facts = {**json.loads(error_text(error)), "time": time.time()}
        if not isinstance(error, UserError):
            traceback.print_exc()
        if file := os.environ.get(ERROR_FILE):
            read_by_torch = {"message": facts["text"], "extraInfo": {"timestamp": int(time.time())}}
            Path(file).write_text(json.dumps({"message": read_by_torch, "error": facts}), encoding="utf-8")
        return 1
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return 0


def _train(call_address: str, scratch: Path) -> None:
    """Runs the step's function as this rank; rank 0 leaves the result at the call's address.

    `scratch`: a folder for temporary files.
    """
    remote = is_remote(call_address)
    if remote:
        get_folder(f"{call_address}/call", scratch / "call")
    call = Call.model_validate_json(
        (scratch / "call" / CALL if remote else Path(call_address, CALL)).read_text("utf-8")
    )
    local, size = int(os.environ[LOCAL_RANK]), int(os.environ[LOCAL_WORLD_SIZE])
    machine_folder = Path(os.environ[MACHINE_FOLDER])
    if torch.cuda.is_available():
        torch.cuda.set_device(local)
    else:
        torch.set_num_threads(max(1, int(os.environ[MACHINE_THREADS]) // size))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", timeout=WAIT)
    rank = dist.get_rank()
    if os.environ[GROUP_RANK] != "0":  # rank 0 hands its state over: this machine needs no store
        os.environ[CHECKPOINTS] = str(machine_folder / "checkpoints")
    inputs = {name: Path(address) for name, address in call.inputs.items()}
    if remote:
        inputs = _fetched(call.inputs, machine_folder / "inputs", local)
    drafts = {name: Draft(scratch / "outputs" / name, schema) for name, (schema, _) in call.outputs.items()}
    for name, (_, path) in call.outputs.items() if rank == 0 else ():
        if path:  # the draft of the step's own process
            drafts[name].path.rmdir()
            drafts[name].path = Path(path)
    step = getattr(import_module(call.step.partition(":")[0]), call.step.partition(":")[2])
    settings = get_type_hints(step.__wrapped__)["settings"].model_validate(call.settings)
    log = StepLog()
    if rank == 0 and call.run_id and (uri := os.environ.get("MLFLOW_TRACKING_URI")):
        with reaching(uri) as client:
            log = StepLog(client, call.run_id)
    context = Context(step.__name__, log, call.key, call.title, call.sources)
    try:
        metrics: dict[str, Any] = step.__wrapped__(context, settings, **inputs, **drafts)
    finally:
        log.close(None)
    if rank == 0:
        _leave(call_address, scratch, result_of(metrics, context, drafts), drafts if remote else {})


def _fetched(addresses: dict[str, str], folder: Path, local: int) -> dict[str, Path]:
    """Returns the folders of the inputs below `folder`, which the first process of each machine fetches."""
    for name, address in addresses.items() if local == 0 else ():
        # KFP's launcher writes no index. The digests in the manifests are checked when the artifact is read.
        get_folder(address, folder / name, Transfer(f"fetching {address}"), indexed=False)
    meet()
    return {name: folder / name for name in addresses}


def _leave(call_address: str, scratch: Path, result: str, drafts: dict[str, Draft]) -> None:
    """Writes the result of rank 0. In a TrainJob, sends the outputs first."""
    if not is_remote(call_address):
        Path(call_address, RESULT).write_text(result, encoding="utf-8")
        return
    for name, draft in drafts.items():
        put_folder(draft.path, f"{call_address}/outputs/{name}", Transfer(f"sending {name}"))
    (scratch / "result").mkdir()
    (scratch / "result" / RESULT).write_text(result, encoding="utf-8")
    put_folder(scratch / "result", f"{call_address}/result")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
