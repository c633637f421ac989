"""Trains in several processes: torch's elastic launcher starts them, here or in the pods of a TrainJob.

The step's own process does not train. It writes the call to a folder, starts `engines.launch`, which starts one process
(`engines.rank`) per rank, and reads the result. Rank 0 leads: it alone reports, writes checkpoints and writes outputs.
All other ranks run the same step function on the same inputs with temporary outputs, and end where the training ends
(`training.ranks`). On GPUs each process has one GPU; on a CPU the processes share the cores.

In a cluster (`nodes` above 1) the same command runs in each pod of a TrainJob (`engines.trainer`). The call and the
result are then in the object store, beside the training's checkpoints.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter

from gnn_encoder.artifacts import Draft
from gnn_encoder.artifacts.folder import Manifest
from gnn_encoder.artifacts.history import Curves
from gnn_encoder.engines import lifeline
from gnn_encoder.engines.launch import FAILURE, MACHINE_THREADS
from gnn_encoder.errors import UserError, one_line
from gnn_encoder.machine.memory import peak_gib
from gnn_encoder.settings.values import StepSettings
from gnn_encoder.storage.s3 import is_remote
from gnn_encoder.storage.transfer import get_folder, put_folder, remove_folder
from gnn_encoder.tracking.context import Context

COMMAND = ("-m", "gnn_encoder.engines.launch")
"""What Python runs on each machine, followed by the call's address. Its numbers are torchrun's `PET_` variables."""
CALL, RESULT = "call.json", "result.json"
"""Files at the address of a call: the call itself, and what rank 0 returns."""
WAIT = timedelta(hours=12)
"""Time limit of a collective operation: ranks wait while rank 0 ranks dev queries after an epoch."""


class Call(BaseModel):
    """A call of a step, for processes that train together."""

    step: str
    """MODULE:NAME of the step."""
    title: str
    key: str
    settings: dict[str, Any]
    sources: dict[str, str]
    inputs: dict[str, str]
    """Name → folder, or address in an object store."""
    outputs: dict[str, tuple[str, str]]
    """Name → schema, and the folder of the draft; no folder where rank 0 sends its outputs to the call's address."""
    run_id: str | None = None
    """The step's MLflow run."""


class Result(BaseModel):
    """What rank 0 returns."""

    model_config = ConfigDict(ser_json_inf_nan="constants")  # by default null, which no figure can be

    metrics: dict[str, Any]
    curves: Curves
    manifests: dict[str, dict[str, Any]]
    peak_memory_gib: float


def fitting_size(in_documents: bool, nodes: int = 1) -> int:
    """Returns the number of processes that `processes: auto` stands for: see `settings.shared`.

    nodes: above 1, the processes run in a pod of a TrainJob, and this process's machine does not count.
    """
    if nodes > 1:
        return 1
    return 2 if in_documents and not torch.cuda.is_available() and torch.get_num_threads() > 1 else 1


def call_of(
    run_step: Any,
    context: Context,
    settings: StepSettings,
    inputs: Mapping[str, str],
    outputs: Mapping[str, tuple[str, str]],
) -> Call:
    """Returns the call of a step (`@step`), with its inputs and outputs where the processes find them."""
    return Call(
        step=f"{run_step.__module__}:{run_step.__name__}",
        title=context.title,
        key=context.key,
        settings=settings.model_dump(mode="json"),
        sources=dict(context.sources),
        inputs=dict(inputs),
        outputs=dict(outputs),
        run_id=context.log.run_id,
    )


def train_in_processes(
    run_step: Any,
    size: int,
    context: Context,
    settings: StepSettings,
    inputs: Mapping[str, Path],
    drafts: Mapping[str, Draft],
) -> dict[str, Any]:
    """Calls the step's function in `size` processes of this machine that train together; returns rank 0's metrics.

    Args:
        run_step: the step (`@step`), importable by its module's name.

    Raises:
        UserError: there are fewer GPUs than processes, or a process raised a UserError.
        RuntimeError: a process was killed.
        Exception: the first error of a process.
    """
    if torch.cuda.is_available() and torch.cuda.device_count() < size:
        raise UserError(
            f"{context.step}.processes = {size}: this machine has {torch.cuda.device_count()} GPUs, one for each"
        )
    with tempfile.TemporaryDirectory() as folder:
        read = {name: str(path) for name, path in inputs.items()}
        written = {name: (draft.manifest.schema, str(draft.path)) for name, draft in drafts.items()}
        failures, threads = Path(folder, FAILURE), torch.get_num_threads()
        call = call_of(run_step, context, settings, read, written)
        Path(folder, CALL).write_text(call.model_dump_json(), encoding="utf-8")
        # 127.0.0.1: by default torch asks the name service for this machine's name, which may not have it.
        numbers = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": str(size), "PET_LOCAL_ADDR": "127.0.0.1"}
        variables = {
            lifeline.LAUNCHER: str(os.getpid()),
            MACHINE_THREADS: str(threads),
            "OMP_NUM_THREADS": str(max(1, threads // size)),
        }
        # A session of its own: Ctrl-C is for this process, which then ends the launcher, and so the ranks.
        launcher = subprocess.Popen(
            [sys.executable, *COMMAND, folder], env={**os.environ, **numbers, **variables}, start_new_session=True
        )
        try:
            code = launcher.wait()
        finally:
            launcher.kill()
            launcher.wait()
        if code:
            raise error_in(failures.read_text("utf-8") if failures.is_file() else "", code)
        return _take(Path(folder), context, drafts)


def train_on_nodes(
    run_step: Any, size: int, count: int, context: Context, settings: StepSettings, drafts: Mapping[str, Draft]
) -> dict[str, Any]:
    """Calls the step's function in the `count` pods of a TrainJob, in `size` processes each; returns rank 0's metrics.

    Raises UserError if the place of the checkpoints or an input is not at an address that pods can read, if the cluster
    refuses the TrainJob, or if a pod fails.
    """
    from gnn_encoder.engines.trainer import Training, follow, own_run

    address = context.address_of_training()
    if not is_remote(address):
        raise UserError(
            f"{context.step}.nodes = {count}: the pods of a TrainJob read their call at the place of the checkpoints, "
            f"and {address} is on one machine"
        )
    inputs = readable(context.addresses)
    # Another run with equal settings may train at the same time. A later attempt of this run takes this one's place.
    address += f"-{own_run(context.title)}"
    with tempfile.TemporaryDirectory() as folder:
        written = {name: (draft.manifest.schema, "") for name, draft in drafts.items()}
        call = call_of(run_step, context, settings, inputs, written)
        Path(folder, CALL).write_text(call.model_dump_json(), encoding="utf-8")
        put_folder(Path(folder), f"{address}/call")
        follow(Training(context.step, context.title, context.key, count, size, address))
        get_folder(f"{address}/result", Path(folder, "result"))
        for name, draft in drafts.items():
            get_folder(f"{address}/outputs/{name}", draft.path)
        metrics = _take(Path(folder, "result"), context, drafts)
    for part in ("call", "result", *(f"outputs/{name}" for name in drafts)):
        try:
            remove_folder(f"{address}/{part}")
        except Exception as error:  # the outputs are complete
            context.warn(f"{address}/{part}, which nobody needs, is left in the store: {one_line(error)}")
    return metrics


def readable(addresses: Mapping[str, str]) -> dict[str, str]:
    """Returns the inputs' addresses as `storage` reads them: minio:// is KFP's name for another S3 store."""
    converted = {name: address.replace("minio://", "s3://", 1) for name, address in addresses.items()}
    for name, address in converted.items():
        if not is_remote(address):
            raise UserError(
                f"the input {name} is at {address or 'no address'}, which the pods of a TrainJob cannot read: name an "
                "s3:// or minio:// pipeline_root in the cluster file, or set nodes to 1"
            )
    return converted


def _take(folder: Path, context: Context, drafts: Mapping[str, Draft]) -> dict[str, Any]:
    """Reads rank 0's result: its curves into the context, its manifests into the drafts; returns its metrics, and its
    memory."""
    result = Result.model_validate_json((folder / RESULT).read_text("utf-8"))
    context.curves.update(result.curves)
    for name, manifest in result.manifests.items():
        drafts[name].manifest = TypeAdapter(Manifest).validate_python(manifest)
    return {**result.metrics, "peak_memory_gib": result.peak_memory_gib}


def result_of(metrics: dict[str, Any], context: Context, drafts: Mapping[str, Draft]) -> str:
    """Returns rank 0's result as text."""
    manifests = {name: asdict(draft.manifest) for name, draft in drafts.items()}
    result = Result(metrics=metrics, curves=context.curves, manifests=manifests, peak_memory_gib=peak_gib())
    return result.model_dump_json()


def error_text(error: Exception) -> str:
    """Returns an error as text from which `error_in` makes it again."""
    kind = UserError if isinstance(error, UserError) else type(error)
    facts: dict[str, Any] = {"type": kind.__name__, "text": one_line(error)}
    if isinstance(error, OSError) and error.errno is not None:
        facts |= {"errno": error.errno, "strerror": error.strerror, "filename": error.filename}
    return json.dumps(facts, default=str)


def error_in(text: str, code: int) -> Exception:
    """Returns the error in a text of `error_text`; without a text, one that names the launcher's exit code."""
    if not text:
        return RuntimeError(f"torch's launcher ended with exit code {code} before a process of the training failed")
    facts = json.loads(text)
    if facts["type"] == UserError.__name__:
        return UserError(facts["text"])
    if "errno" in facts:
        return OSError(facts["errno"], facts["strerror"], facts["filename"])
    return RuntimeError(facts["text"] if facts["type"] == "RuntimeError" else f"{facts['type']}: {facts['text']}")
