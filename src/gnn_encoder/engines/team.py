"""Runs one training in several processes, if `processes` is above 1, or on several machines (`runs.nodes`).

The step's own process does not train. It starts one process per rank, watches the processes, and logs their reports.
Only the leader, rank 0, reports, writes checkpoints and writes outputs. Each follower runs the same step function on
the same inputs with temporary outputs, and ends where the training ends (`training.ranks`). On GPUs each process has
one GPU; on a CPU the processes share the cores.

A process that waits in NCCL does not notice that another process is dead. The watching parent notices it 0.2 s later
from the end of a pipe (with `workers` 5 s later: they hold the pipe open until they exit). The parent
then ends the other processes, and a rerun continues from the last checkpoint. torch's elastic agent works alike, but
sets the step's signal handlers, opens a TCP port, and passes an error on as text, without its type.
"""

import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gnn_encoder.artifacts import Draft
from gnn_encoder.artifacts.folder import Manifest
from gnn_encoder.engines import lifeline
from gnn_encoder.engines.nodes import PREFIX_STORE, Nodes, Place
from gnn_encoder.errors import UserError, one_line
from gnn_encoder.settings.values import StepSettings
from gnn_encoder.tracking.context import CHECKPOINTS, Context
from gnn_encoder.tracking.mlflow_runs import StepLog
from gnn_encoder.training.ranks import LOCAL_RANK, LOCAL_WORLD_SIZE, TrainingOver

WAIT = timedelta(hours=12)
"""Time limit of a collective operation: followers wait while the leader ranks dev queries after an epoch."""


def fitting_size(in_documents: bool) -> int:
    """Returns the number of processes that `processes: auto` stands for: see `settings.shared`."""
    return 2 if in_documents and not torch.cuda.is_available() and torch.get_num_threads() > 1 else 1


def train_together(
    run_step: Callable[..., None],
    size: int,
    context: Context,
    settings: StepSettings,
    inputs: Mapping[str, Any],
    drafts: Mapping[str, Draft],
    nodes: Nodes | None = None,
) -> dict[str, Any]:
    """Calls the step's function in `size` processes that train together; returns the leader's metrics.

    Args:
        run_step: the step (`@step`), which must be picklable.
        nodes: the machines that train together, `size` processes on each. Where the leader is on another machine, the
            outputs stay empty.

    Raises:
        UserError: there are fewer GPUs than processes, or a process raised a UserError.
        RuntimeError: a process was killed.
        Exception: the first error of a process.
    """
    if torch.cuda.is_available() and torch.cuda.device_count() < size:
        raise UserError(
            f"{context.step}.processes = {size}: this machine has {torch.cuda.device_count()} GPUs, one for each"
        )
    facts = {name: value for name, value in vars(context).items() if name not in ("log", "curves")}
    team = Team(size, nodes.number, nodes.count, nodes.place) if nodes else Team(size)
    spawn = get_context("spawn")
    processes: dict[Connection, SpawnProcess] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for local in range(size):
                receiver, sender = spawn.Pipe(duplex=False)
                arguments = (local, team, folder, sender, run_step, facts, settings, inputs, drafts)
                process = spawn.Process(target=_member, args=arguments, name=f"rank {team.rank(local)}")
                process.start()
                sender.close()  # only the process has a sender now: the receiver notices its death
                processes[receiver] = process
            metrics, manifests = _watch(processes, context, nodes)
        except Exception as error:
            if nodes and (cause := nodes.cause(error)) is not error:
                raise cause from None
            raise
        finally:
            for process in processes.values():
                process.kill()
                process.join()
    for name, manifest in manifests.items():
        drafts[name].manifest = manifest
    return {"headline": nodes.name(nodes.number)} if nodes and nodes.number else metrics


@dataclass(frozen=True)
class Team:
    """The processes of a training: `size` of them on each of `nodes` machines, of which this one is number `node`."""

    size: int
    node: int = 0
    nodes: int = 1
    place: Place | None = None
    """Where the machines' store is; None: a folder of the one machine."""

    def rank(self, local: int) -> int:
        """The rank of the machine's process number `local`."""
        return self.node * self.size + local

    def join(self, local: int, folder: str) -> None:
        """Makes the calling process one of the group's, and waits until all are."""
        if self.place:
            store = PREFIX_STORE("ranks", self.place.store(WAIT))
        else:
            store = dist.FileStore(f"{folder}/meeting", self.size)  # type: ignore[attr-defined]
        backend, world = "nccl" if torch.cuda.is_available() else "gloo", self.size * self.nodes
        dist.init_process_group(backend, store=store, rank=self.rank(local), world_size=world, timeout=WAIT)


def _watch(
    processes: Mapping[Connection, SpawnProcess], context: Context, nodes: Nodes | None = None
) -> tuple[dict[str, Any], dict[str, Manifest]]:
    """Waits until all processes succeed; returns the leader's metrics and manifests, and logs the leader's curves.

    A failed process makes the others fail, too, because their connections to it break. The earliest failure is the
    cause. So does a failed machine, and `nodes` knows the cause.
    """
    waiting, alarms = list(processes), [nodes.alarm] if nodes else []
    failures: list[tuple[float, Exception]] = []
    result: tuple[dict[str, Any], dict[str, Manifest]] = {}, {}
    while waiting and (ready := connection.wait([*waiting, *alarms], timeout=0 if failures else None)):
        if nodes and nodes.failure:
            raise nodes.failure
        for receiver in processes.keys() & ready:
            try:
                kind, *facts = receiver.recv()
            except EOFError:
                kind, facts = "failure", [0.0, _lost(processes[receiver])]
            if kind == "metric":
                context.metric(*facts)
                continue
            waiting.remove(receiver)
            if kind == "failure":
                failures.append((facts[0], facts[1]))
            elif kind == "result":
                result = (facts[0], facts[1])
    if failures:
        raise min(failures, key=lambda failure: failure[0])[1]
    return result


def _lost(process: SpawnProcess) -> RuntimeError:
    """Returns the error for a process that ended without a message."""
    process.join()
    code = process.exitcode or 0
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    how += " (out of memory?)" if code == -signal.SIGKILL else ""
    return RuntimeError(f"the training process of {process.name} (pid {process.pid}) {how}")


class _Forwarded(StepLog):
    """The leader's log, which sends its points to the step's process."""

    def __init__(self, sender: Connection) -> None:
        super().__init__()
        self._sender = sender

    def metric(self, name: str, value: float, at: int) -> None:
        self._sender.send(("metric", name, value, at))


def _member(
    local: int,
    team: Team,
    folder: str,
    sender: Connection,
    run_step: Any,
    facts: dict[str, Any],
    settings: StepSettings,
    inputs: dict[str, Any],
    drafts: dict[str, Draft],
) -> None:
    """The main function of a training process."""
    parent = parent_process()
    assert parent is not None
    os.environ[lifeline.LAUNCHER] = str(parent.pid)  # this process ends with the step's process
    lifeline.attach()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the step's process handles Ctrl-C and ends this process
    os.environ |= {LOCAL_RANK: str(local), LOCAL_WORLD_SIZE: str(team.size)}
    if team.node:  # the leader hands its state over: this machine needs no store
        os.environ[CHECKPOINTS] = f"{folder}/checkpoints"
    rank = team.rank(local)
    context = Context(log=StepLog() if rank else _Forwarded(sender), **facts)
    for output, draft in drafts.items() if rank else ():
        draft.path = Path(folder, f"{output}-{rank}")
        draft.path.mkdir()
    try:
        if torch.cuda.is_available():
            torch.cuda.set_device(local)
        else:
            torch.set_num_threads(max(1, torch.get_num_threads() // team.size))
        team.join(local, folder)
        metrics = run_step.__wrapped__(context, settings, **inputs, **drafts)
        sender.send(("result", metrics, {output: draft.manifest for output, draft in drafts.items()}))
    except TrainingOver:
        sender.send(("over",))
    except Exception as error:
        failed = time.monotonic()  # all processes of a machine have the same clock
        if not isinstance(error, UserError):
            traceback.print_exc()
        sender.send(("failure", failed, _portable(error)))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _portable(error: Exception) -> Exception:
    """Returns the error, or its text if it is a library's error, which may not be picklable or readable elsewhere."""
    own = isinstance(error, UserError) or type(error).__module__ == "builtins"
    return error if own else RuntimeError(f"{type(error).__name__}: {one_line(error)}")
