"""Several machines train what one trains: processes on loopback, each with a root of its own, and an object store."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from gnn_encoder.settings.calls import calls
from gnn_encoder.settings.tasks import by_parameter, node_label, training_label
from node_machines import Machine, machines_of, of_train_gnn, train_apart
from slow_store import SlowStore, slow_store
from tiny_graph import write_gnn_inputs

from gnn_encoder.artifacts import Dataset, read_manifest
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.engines import nodes
from gnn_encoder.engines.reranking import every_reranking_call
from gnn_encoder.errors import UserError
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.settings.foundation import TrainQueryGenerator
from gnn_encoder.settings.graph import BuildGraph, TrainGnn
from gnn_encoder.settings.pipeline import PIPELINES, Settings
from gnn_encoder.settings.shared import Merge
from gnn_encoder.steps.merge import merge
from gnn_encoder.tracking.context import CHECKPOINTS, Context
from gnn_encoder.tracking.mlflow_runs import StepLog

pytestmark = pytest.mark.timeout(600)
ROOT = "s3://bucket/checkpoints"
PATIENCE = 60
"""Seconds in which the other nodes have to end when one is killed."""
LONGER = {"epochs": 10, "dropout": 0.1}


@pytest.fixture(scope="module")
def inputs(tiny_dataset: Dataset, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    build = BuildGraph(neighbors=3, retrieved=5, edges="labelled", precision="fp32")
    return write_gnn_inputs(tiny_dataset, tiny_backbone, tmp_path_factory.mktemp("given"), build)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowStore]:
    with slow_store(monkeypatch) as store:
        yield store


@pytest.fixture
def machines(tmp_path: Path, inputs: dict[str, Path]) -> Iterator[Callable[..., list[Machine]]]:
    made: list[Machine] = []

    def make(name: str, count: int, **settings: object) -> list[Machine]:
        made.extend(found := machines_of(tmp_path / name, inputs, count, ROOT, **settings))
        return found

    yield make
    for machine in made:
        machine.kill()


def test_four_nodes_train_what_one_trains(
    machines: Callable[..., list[Machine]], inputs: dict[str, Path], store: SlowStore
) -> None:
    (alone,), together = machines("alone", 1), machines("four", 4)
    train_apart(alone, together)
    assert not store.objects, "what is finished leaves no checkpoints and no announcement"
    start, learned = (DualEncoder.load(path).state_dict() for path in (inputs["dual_encoder"], together[0].out))
    assert max(float((learned[name] - weight).abs().max()) for name, weight in start.items()) > 1e-3, "nothing learned"
    assert read_manifest(together[0].out, "model").metrics["steps"] == 20
    outputs, dataset = [machine.out for machine in together], together[0].folder / "dataset"
    merge(Merge(), parts=outputs[::-1], dataset=dataset, merged=together[0].folder / "merged")
    merged, records = read_manifest(together[0].folder / "merged", "model"), read_history(together[0].folder / "merged")
    assert merged.digest == read_manifest(outputs[0]).digest
    assert list(records) == ["build_graph", "train_gnn", "merge"] and len(records["train_gnn"].curves["loss"]) == 20
    # Where a TrainJob has the followers, only the leader has an output.
    merge(Merge(), parts=outputs[:1], dataset=dataset, merged=together[0].folder / "led")
    assert read_manifest(together[0].folder / "led").digest == merged.digest
    assert list(read_history(together[0].folder / "led")) == list(records)
    with pytest.raises(UserError, match="train_gnn has 4 parts, and merge was given 2, 3, 4"):
        merge(Merge(), parts=outputs[1:], dataset=dataset, merged=together[0].folder / "less")


@pytest.fixture(scope="module")
def undisturbed(inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """The leader of two nodes that trained with dropout."""
    with pytest.MonkeyPatch.context() as patch, slow_store(patch):
        pair = machines_of(tmp_path_factory.mktemp("undisturbed"), inputs, 2, ROOT, **LONGER)
        for machine in pair:
            machine.start()
        logs = [machine.end() for machine in pair]
        assert [machine.process.returncode for machine in pair] == [0, 0], logs
        yield pair[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "cause"),
    [
        ("leader", r"node 1 of 2, the leader, was lost: the connection to it broke; run again"),
        ("follower", r"node 2 of 2 was lost: no sign of life for \d+ s"),
        ("follower's rank", r"node 2 of 2 failed: the training process of rank 1 \(pid \d+\) was killed by SIGKILL"),
    ],
)
def test_a_killed_node_ends_the_others_and_they_resume_with_the_same_bits(
    victim: str, cause: str, machines: Callable[..., list[Machine]], undisturbed: Machine, store: SlowStore
) -> None:
    leader, follower = (machine.start() for machine in machines("pair", 2, **LONGER))
    wait_for(lambda: any("/states/" in key for key in store.objects))
    killed = leader if victim == "leader" else follower
    os.kill(rank_of(follower) if victim == "follower's rank" else killed.process.pid, signal.SIGKILL)
    began = time.monotonic()
    if victim == "follower":  # it is tried again before the leader knows: it must not join the attempt that is over
        follower.process.wait()
        follower.start()
    survivor = follower if victim == "leader" else leader
    said = survivor.end(PATIENCE)
    assert time.monotonic() - began < PATIENCE and survivor.process.returncode == 1
    assert re.search(f"(RuntimeError|LeaderLost): {cause}", said), said
    assert not leader.out.exists() and not follower.out.exists()
    for machine in (leader,) if victim == "follower" else (follower, leader):
        machine.process.wait(PATIENCE)
        machine.start()
    logs = [machine.end() for machine in (leader, follower)]
    assert [machine.process.returncode for machine in (leader, follower)] == [0, 0], logs
    assert "resumed at" in logs[0]
    assert not store.objects
    assert all(torch.equal(leader.weights[name], weight) for name, weight in undisturbed.weights.items())


def test_the_pipeline_has_a_task_for_each_node() -> None:
    several, alone = (calls(Settings(train_gnn=TrainGnn(nodes=n)), PIPELINES["train"]) for n in (3, 1))
    tasks = by_parameter({name: f"{call.settings.node} {call.label}" for name, call in of_train_gnn(several)})
    assert tasks == {"train_gnn": ["0 node 1 of 3", "1 node 2 of 3", "2 node 3 of 3"]}
    assert "merge_train_gnn" in several
    assert [(call.settings.node, call.label) for _, call in of_train_gnn(alone)] == [(None, "")]


def test_the_rerank_pipeline_has_a_task_for_each_node_of_its_query_generator() -> None:
    settings = Settings(train_query_generator=TrainQueryGenerator(nodes=2))
    given = {
        system: by_parameter({name: call.label for name, call in every_reranking_call(settings, [system]).items()})
        for system in ("colbert", "ss_bert_h")
    }
    tasks = {system: labels["train_query_generator"] for system, labels in given.items()}
    assert tasks == {"colbert": [""], "ss_bert_h": ["node 1 of 2", "node 2 of 2"]}, "only one needs the generator"
    assert given["ss_bert_h"]["merge_train_query_generator"] == "train_query_generator"


def test_nodes_have_the_label_of_their_training() -> None:
    for whole in ("", "ColBERT", "SS-BERT(h), node"):
        second = node_label(whole, 1, 12)
        assert training_label(second) == training_label(whole) == whole and second.endswith("node 2 of 12")
        assert node_label(node_label(whole, 0, 12), 1, 12) == second


@pytest.fixture(params=["folder", "store"])
def context(
    request: pytest.FixtureRequest, store: SlowStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Context:
    monkeypatch.setenv(CHECKPOINTS, ROOT if request.param == "store" else str(tmp_path))
    monkeypatch.setenv(nodes.LOST, "2")
    return Context("train_gnn", StepLog(), "key")


@contextmanager
def leading(context: Context, count: int, fails: Exception | None = None) -> Iterator[list[Exception]]:
    """The leader in a thread; its block ends with the caller's. Its errors."""
    over, errors = threading.Event(), list[Exception]()

    def lead() -> None:
        try:
            with nodes.gathered(context, 0, count):
                over.wait()
                if fails:
                    raise fails
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=lead)
    thread.start()
    try:
        yield errors
    finally:
        over.set()
        thread.join()


def test_a_number_joins_an_attempt_once(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    late = pytest.raises(UserError, match=r"^node 2 of 2 found no leader at [\d.]+:\d+ within 1 s")
    with late, leading(context, 2) as errors, nodes.gathered(context, 1, 2) as follower:
        wait_for(lambda: not context.meeting().read())  # when all have met, nobody else is to come
        context.meeting().announce(json.dumps(vars(follower.place)))
        monkeypatch.setenv(nodes.WAIT, "1")
        nodes.Nodes("again", 1, 2).meet(context.meeting())
    assert re.match("node 2 of 2 failed: node 2 of 2 found no leader", str(errors[0]))


@pytest.mark.parametrize("error", [UserError("mend it"), OSError("the disk is gone")])
def test_the_cause_is_told_with_its_kind(error: Exception, context: Context) -> None:
    kind = UserError if isinstance(error, UserError) else RuntimeError
    told = pytest.raises(kind, match=f"^node 1 of 2, the leader, failed: {error}$")
    with told, ExitStack() as stack, leading(context, 2, error) as errors:
        stack.enter_context(nodes.gathered(context, 1, 2))
    assert errors == [error]


def test_nodes_that_do_not_come_are_named(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(nodes.WAIT, "1")
    with leading(context, 3) as errors:
        pass
    assert re.match(r"of the 3 nodes, 2, 3 did not come within 1 s \(they meet at ", str(errors[0]))
    assert not context.meeting().read()


def test_a_frozen_leader_is_lost(context: Context) -> None:
    """Its connections stay open, as those to a machine that is gone."""
    code = "from test_nodes import *; nodes.gathered(Context('train_gnn', StepLog(), 'key'), 0, 2).__enter__(); wait()"
    paths = [str(Path(nodes.__file__).parents[2]), *(str(Path(__file__).parents[i]) for i in (0, 1))]
    leader = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)})
    try:
        with (
            pytest.raises(RuntimeError, match=r"^node 1 of 2, the leader, was lost: no answer for"),
            nodes.gathered(context, 1, 2),
        ):
            leader.send_signal(signal.SIGSTOP)
            frozen = time.monotonic()
    finally:
        leader.kill()
        leader.wait()
    assert time.monotonic() - frozen < PATIENCE


def wait() -> None:
    time.sleep(PATIENCE)


def rank_of(machine: Machine) -> int:
    """The id of the machine's process that trains."""
    pid = machine.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (rank,) = (child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes())
    return int(rank)


def wait_for(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)
