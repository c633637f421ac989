"""Steps in containers on this machine: as steps that are processes, and a failed one is a failed one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_pipeline
from engines.test_local import Recorder, tracked
from integration.engine import BASE, Engine
from waiting import wait_for

from gnn_encoder.cli import app
from gnn_encoder.engines import lifeline
from gnn_encoder.engines.containers import CERTIFICATES, IMAGE, Containers, ContainerSteps, check_engine
from gnn_encoder.engines.local_run import Outcome, run_calls
from gnn_encoder.errors import UserError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

TESTS = Path(__file__).parents[1]
TINY = "gnn-encoder-python-tiny:1"


@pytest.fixture(scope="module")
def image(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image of two steps that behave as the variable GNN_ENCODER_TINY says."""
    folder = tmp_path_factory.mktemp("tiny")
    steps = (TESTS / "tiny_pipeline.py").read_text()
    (folder / "tiny_pipeline.py").write_text(steps)
    (folder / "Containerfile").write_text(
        f"FROM {IMAGE}\nCOPY tiny_pipeline.py /opt/gnn-encoder/lib/python3.11/site-packages/\n"
    )
    engine.docker("build", "--quiet", "--tag", TINY, "--file", str(folder / "Containerfile"), str(folder))
    return TINY


@pytest.fixture(autouse=True)
def environment(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.socket)


def go(root: Path, image: str, name: str, memory: str = "", **settings: str) -> tuple[Outcome, Recorder]:
    root.mkdir(exist_ok=True)
    recorder, containers = Recorder(), Containers(str(root), memory=memory, image=image)
    return run_calls(tiny_pipeline.calls(**settings), root, name, {}, recorder.show, containers), recorder


def test_steps_run_and_are_reused(image: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    outcome, heard = go(root, image, "first", dataset="words")
    assert outcome.status == "FINISHED", outcome.log.read_text()[-3000:]
    assert (outcome.outputs["bm25_run"] / "run.txt").read_text() == "WORDS"
    assert heard.kinds("ingest") == ["starting", "started", "finished", "outputs"]
    runs = tracked(root, "first")
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    tracked_step = runs["bm25_retrieve"]  # a short step, as the other may be, has no run
    assert tracked_step.data.tags["image"].startswith("0.1.0@"), "the tracked run says which image it was"
    assert outcome.outputs["bm25_run"].stat().st_uid == os.getuid()
    _, heard = go(root, image, "second", dataset="words")
    assert heard.kinds("ingest") == heard.kinds("bm25_retrieve") == ["cached"]


@pytest.mark.parametrize(
    ("trouble", "memory", "cause"),
    [
        ("exit", "", "ended with exit code 3"),
        ("greedy", "512m", "took more than the 512m of memory"),
        ("silent", "", "wrote no output"),
        ("die", "", "killed by SIGKILL"),
    ],
)
def test_a_failed_step_fails_the_run_with_its_name_and_cause_and_a_rerun_goes_on(
    image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str, memory: str, cause: str
) -> None:
    root = tmp_path / "root"
    monkeypatch.setenv("GNN_ENCODER_TINY", json.dumps({"bm25_retrieve": trouble}))
    failed, heard = go(root, image, "first", memory, dataset="words")
    assert (failed.status, failed.failed_step, failed.exit_code) == ("FAILED", "bm25_retrieve", 1)
    assert cause in failed.message.split("\n")[0]
    assert heard.kinds("bm25_retrieve")[-1] == "failed"
    monkeypatch.delenv("GNN_ENCODER_TINY")
    again, heard = go(root, image, "second", memory, dataset="words")
    assert again.status == "FINISHED"
    assert heard.kinds("ingest") == ["cached"] and heard.kinds("bm25_retrieve")[-1] == "outputs"


def test_what_the_step_says_is_what_is_told(image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNN_ENCODER_TINY", json.dumps({"bm25_retrieve": "fail"}))
    outcome, _ = go(tmp_path / "root", image, "first", dataset="words")
    assert (outcome.exit_code, outcome.message) == (2, "the data is wrong: mend it")


@pytest.mark.parametrize("variable", CERTIFICATES)
def test_a_private_authority_is_trusted_in_there_too(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    certificate, root = tmp_path / "authority.pem", tmp_path / "root"
    certificate.write_text("whom to trust")
    root.mkdir()
    monkeypatch.setenv(variable, str(certificate))
    containers = Containers(str(root))
    command = ["sh", "-c", f'cat "${variable}" > {root}/seen']
    steps = ContainerSteps(containers)
    steps.client.containers.run(IMAGE, command, remove=True, **steps.options)
    assert (root / "seen").read_text() == "whom to trust"


def containers_of(engine: Engine) -> list[str]:
    return engine.docker("ps", "--all", "--quiet").split()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_survives_the_launcher(
    engine: Engine, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setenv("GNN_ENCODER_TINY", json.dumps({"ingest": "wait"}))
    monkeypatch.setenv("PYTHONPATH", f"{Path(lifeline.__file__).parents[2]}:{TESTS}")
    command = [sys.executable, str(TESTS / "tiny_pipeline.py"), "--docker", str(root), "dataset=slow"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    events = root / "logs" / f"tiny-{process.pid}.events.jsonl"
    wait_for(lambda: events.is_file() and '"progress"' in events.read_text(), seconds=90)
    assert containers_of(engine)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert not list(root.glob("pipeline/*/ingest/dataset"))
    if number == signal.SIGINT:
        assert process.returncode == 130, output
        assert {run.info.status for run in tracked(root, f"tiny-{process.pid}").values()} == {"KILLED"}
        assert containers_of(engine) == []
    else:  # nobody is left to remove the container, but it has ended
        wait_for(lambda: not engine.docker("ps", "--quiet").split())
        engine.docker("rm", *containers_of(engine))


def test_what_cannot_work_is_refused_before_the_first_step(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    check_engine(IMAGE)
    with pytest.raises(UserError, match=r"no image gnn-encoder-python:none here: make images"):
        check_engine("gnn-encoder-python:none")
    engine.docker("tag", os.environ.get("BASE", BASE), "other:1")
    with pytest.raises(UserError, match="made from other source"):
        check_engine("other:1")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(UserError, match="no container engine answers"):
        check_engine(IMAGE)
    monkeypatch.setattr(sys, "argv", ["gnn-encoder", "run", "--preset", "quickstart", "--runner", "podman"])
    with pytest.raises(SystemExit) as caught:
        app.main()
    assert caught.value.code == 2


def test_the_image_holds_what_it_should_and_nothing_else(engine: Engine) -> None:
    def inside(*command: str) -> str:
        return engine.docker("run", "--rm", "--network=host", IMAGE, *command)

    assert inside("id", "-u").strip() == "1000"
    assert "✗" not in inside("gnn-encoder", "doctor")
    for program in ("gcc", "make", "git", "curl"):
        with pytest.raises(RuntimeError):
            inside("which", program)
    image = json.loads(engine.docker("inspect", IMAGE))[0]
    assert image["Config"]["Labels"]["org.opencontainers.image.version"] == "0.1.0"
    sizes = engine.docker("history", "--human=false", "--format", "{{.Size}}", IMAGE).split()
    package, packages = [int(size) for size in sizes if int(size) > 0][:2]
    assert package < 10e6 < packages, "the package has a layer of its own"
