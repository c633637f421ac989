"""What `gnn-encoder prune` keeps and deletes: in roots of real runs, and in ones that are written by hand."""

import fcntl
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_pipeline
from command_line import call
from registered import register

from gnn_encoder.artifacts.folder import Artifact, Draft, drafting, read_manifest
from gnn_encoder.engines import lifeline
from gnn_encoder.engines.local_run import run_calls
from gnn_encoder.engines.processes import FORK_AFTER
from gnn_encoder.engines.prune import CHECKPOINTS, FETCHED, OUTPUTS, PARTS, remove, unneeded
from gnn_encoder.engines.supervision import Event
from gnn_encoder.errors import UserError
from gnn_encoder.machine.disk import freed
from gnn_encoder.promotion.registry import open_registry
from gnn_encoder.storage import CACHE
from gnn_encoder.tracking.mlflow_runs import create_run, experiment_id, reaching
from gnn_encoder.tracking.pipeline_run import LATE, STORES, own_store


class Data(Artifact):
    schema = "dataset"


class Root:
    """A root with artifacts and logs as runs write them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "logs").mkdir(parents=True)
        (path / ".lock").touch()
        self.time = 0.0

    def draft(self, path: str) -> Draft:
        return Draft(self.path / "pipeline" / path, "dataset")

    def artifact(self, path: str, text: str = "words") -> Path:
        with drafting(self.path / "pipeline" / path, "dataset") as draft:
            (draft / "words.txt").write_text(text)
        return draft.target

    def log(self, name: str, *outputs: Path) -> None:
        """Writes the events of a run with these outputs, after the runs before."""
        self.time += 1
        event = {"step": "s", "event": "outputs", "time": self.time, "outputs": {str(i): str(path) for i, path in
                 enumerate(outputs)}}  # fmt: skip
        (self.path / "logs" / f"{name}.events.jsonl").write_text(json.dumps(event) + "\n{cut")

    def found(self, keep: int = 0) -> dict[str, set[str]]:
        """Kind → what is not needed, by path in the root or in the cache."""
        found: dict[str, set[str]] = {}
        for item in unneeded(self.path, keep):
            top = self.path if item.path.is_relative_to(self.path) else self.path.parent
            found.setdefault(item.kind, set()).add(str(item.path.relative_to(top)).removeprefix("pipeline/"))
        return found


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv(FORK_AFTER, "never")
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root")


@pytest.mark.slow
def test_what_was_pruned_is_made_again_and_what_was_kept_is_reused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"

    def run(name: str, dataset: str, code: str = "1") -> tuple[dict[str, Path], list[str]]:
        events: list[Event] = []
        outcome = run_calls(tiny_pipeline.calls(code, dataset=dataset), root, name, {}, events.extend)
        assert outcome.status == "FINISHED", outcome.message
        return outcome.outputs, [event["event"] for event in events if event["event"] in ("cached", "starting")]

    def prune(*more: str) -> str:
        assert call("prune", "--root", str(root), *more) == 0
        return capsys.readouterr().out

    root.mkdir()
    first, _ = run("first", "old")
    second, _ = run("second", "new")
    third, how = run("third", "new", code="2")  # other code that makes the same data: the ranking is reused
    assert how == ["starting", "cached"] and third["bm25_run"] == second["bm25_run"]
    before = sorted(root.rglob("*"))
    shown = prune("--keep", "1")
    assert "outputs of earlier runs 3" in " ".join(shown.split()) and f"prune --root {root} --keep 1 --delete" in shown
    assert sorted(root.rglob("*")) == before, "without --delete nothing is deleted"
    assert "deleted" in prune("--keep", "1", "--delete")
    assert not any(path.exists() for path in (first["dataset"], first["bm25_run"], second["dataset"]))
    assert not first["dataset"].parents[1].exists() and second["bm25_run"].is_dir(), "no empty folders stay"
    assert "everything is needed" in prune("--keep", "1", "--delete")
    assert run("again", "new", code="2") == (third, ["cached", "cached"])
    outputs, how = run("old again", "old")
    assert how == ["starting", "starting"]
    assert (outputs["bm25_run"] / "run.txt").read_text() == "OLD"


def test_the_newest_runs_are_kept_with_what_they_reused(root: Root) -> None:
    one, two, three = (root.artifact(f"r/{name}/dataset", name) for name in ("one", "two", "three"))
    root.log("a", one, two)
    root.log("b", one)
    root.log("c", three)
    (root.path / "logs" / "began.events.jsonl").touch()  # without outputs it needs nothing
    assert root.found(3) == {}
    assert root.found(2) == {OUTPUTS: {"r/two/dataset"}}
    assert root.found(1) == {OUTPUTS: {"r/one/dataset", "r/two/dataset"}}


def test_links_and_what_a_kept_artifact_links_to_are_kept(root: Root) -> None:
    for name in ("latest", "own", "named", "shared", "free"):
        root.artifact(f"r/{name}/dataset", name)
    for name, of, how in (("by_name", "named", Draft.link), ("by_inode", "shared", Draft.share)):
        draft = root.draft(f"r/{name}/dataset")
        how(draft, Data.read(root.path / f"pipeline/r/{of}/dataset"), "words.txt")
        draft.finish()
    every = {path.parent.name for path in root.path.glob("pipeline/r/*/dataset")}
    assert {kept_path.split("/")[1] for kept_path in root.found()[OUTPUTS]} == every, "the control: nothing is linked"
    for link in ("latest/dataset", "mine/best", "latest/.labels/0001/former", "latest/bundles/x"):
        (root.path / link).parent.mkdir(parents=True, exist_ok=True)
    (root.path / "latest" / "dataset").symlink_to(root.path / "pipeline/r/latest/dataset")
    (root.path / "mine" / "best").symlink_to("../pipeline/r/own/dataset")
    (root.path / "latest/.labels/0001/former").symlink_to(root.path / "pipeline/r/by_name/dataset")
    (root.path / "latest/bundles/x").symlink_to(root.path / "pipeline/r/by_inode/dataset/words.txt")
    assert root.found() == {OUTPUTS: {"r/free/dataset", "r/shared/dataset"}}
    remove(unneeded(root.path, 0))
    assert (root.path / "latest/bundles/x").read_text() == "shared", "the file stays under its other name"


@pytest.mark.slow
def test_the_bundles_of_registered_versions_are_kept(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    registered, other, neither = (root.artifact(f"r/{name}/dataset") for name in ("own", "other", "neither"))
    elsewhere = f"sqlite:///{root.path.parent / 'elsewhere.db'}"
    for uri, name, path in ((own_store(root.path), "one", registered), (elsewhere, "two", other)):
        register(open_registry(uri, name), str(path), {})
    assert root.found() == {OUTPUTS: {f"r/{path.parent.name}/dataset" for path in (other, neither)}}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", elsewhere)
    assert root.found() == {OUTPUTS: {"r/neither/dataset"}}
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    (root.path / STORES).write_text(f"{elsewhere}\n")
    assert root.found() == {OUTPUTS: {"r/neither/dataset"}}, "a run has logged there"
    (root.path / STORES).write_text("http://127.0.0.1:9\n")
    with pytest.raises(UserError, match=f"may be registered there: .* delete its line in {root.path / STORES}"):
        root.found()
    (root.path / STORES).unlink()
    with drafting(root.path / "pipeline/r/moved/bundle", "bundle") as draft:
        (draft / "words.txt").write_text("moved")
    assert "r/moved/bundle" in root.found()[OUTPUTS], "the control"
    moved = {"digest": read_manifest(draft.target).digest}
    register(open_registry(own_store(root.path), "one"), "/another/place/bundle", moved)
    assert "r/moved/bundle" not in root.found()[OUTPUTS], "the root was moved, and has run again"
    gone = root.path / "gone" / "mlflow.db"
    (root.path / STORES).write_text(f"sqlite:///{gone}\n")
    with pytest.raises(UserError, match=f"no MLflow store sqlite:///{gone}; .* delete its line"):
        root.found()
    assert not gone.parent.exists(), "MLflow would make an empty store"
    (root.path / STORES).unlink()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert call("prune", "--root", str(root.path), "--keep", "0", "--delete") == 2
    assert neither.is_dir(), "a store that does not answer may have registered it"


def test_links_out_of_the_root_are_not_followed(root: Root, tmp_path: Path) -> None:
    outside = Root(tmp_path / "outside")
    theirs = outside.artifact("r/step/dataset")
    inside = root.artifact("r/step/dataset")
    (inside / "folder").symlink_to(theirs)
    (inside / "file").symlink_to(theirs / "words.txt")
    (root.path / "pipeline" / "r" / "other").symlink_to(theirs.parent)
    (root.path / "pipeline" / "other").symlink_to(theirs.parents[1])
    (outside.path / "pipeline" / "r" / ".x.partial-1").mkdir()
    (root.path / "tmp").mkdir()
    (root.path / "tmp" / "link").symlink_to(theirs)
    (root.path / "checkpoints").symlink_to(outside.path / "checkpoints")
    checkpoint = outside.path / "checkpoints" / f"train-{'0' * 20}"
    checkpoint.mkdir(parents=True)
    assert root.found() == {OUTPUTS: {"r/step/dataset"}, PARTS: {"tmp/link"}}
    before = sorted(outside.path.rglob("*"))
    assert call("prune", "--root", str(root.path), "--keep", "0", "--delete") == 0
    assert not inside.exists() and not (root.path / "tmp" / "link").is_symlink()
    assert sorted(outside.path.rglob("*")) == before and (theirs / "words.txt").read_text() == "words"
    shutil.rmtree(root.path / "pipeline")
    (root.path / "pipeline").symlink_to(outside.path / "pipeline")
    assert root.found() == {}, "nor is the folder of all outputs"


def test_what_was_fetched_in_part_goes_unless_it_is_being_fetched(root: Root, tmp_path: Path) -> None:
    for version in ("a" * 32, "b" * 32):
        (tmp_path / "cache" / f".{version}.partial").mkdir(parents=True)
    with (tmp_path / "cache" / f".{'b' * 32}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert root.found()[PARTS] == {f"cache/.{'a' * 32}.partial"}
    assert len(root.found()[PARTS]) == 2


def test_a_root_that_was_moved_is_refused(root: Root) -> None:
    root.artifact("r/step/dataset")
    link = root.path / "latest" / "dataset"
    link.parent.mkdir()
    link.symlink_to(root.path / "pipeline/r/deleted/dataset")
    assert root.found() == {OUTPUTS: {"r/step/dataset"}}, "the control: a user has deleted it"
    moved = root.path.rename(root.path.with_name("moved"))
    with pytest.raises(UserError, match=r"latest/dataset leads to .*/root/pipeline/r/deleted/dataset, where nothing"):
        unneeded(moved, 0)


@pytest.mark.parametrize("lock", [".lock", lifeline.STEPS_FILE])
def test_the_root_of_an_active_run_is_refused(
    root: Root, lock: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = root.artifact("r/step/dataset")
    monkeypatch.setattr(lifeline, "GRACE_SECONDS", 0.0)
    command = ("prune", "--root", str(root.path), "--keep", "0", "--delete")
    with lifeline._lock(root.path / lock, 0.0):
        assert call(*command) == 2
    assert "another run is going on" in capsys.readouterr().err
    assert artifact.is_dir()
    assert call(*command) == 0 and not artifact.exists(), "the control"


def test_a_folder_without_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("prune", "--root", str(tmp_path)) == 2
    assert f"no runs under {tmp_path}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def runs_of(root: Root) -> Iterator[tuple[Root, object]]:
    """A root, and a function that writes a run into its MLflow store."""
    with reaching(own_store(root.path)) as client:

        def write(name: str, status: str, **tags: str) -> None:
            run = create_run(client, experiment_id(client), name)
            for tag, value in tags.items():
                client.set_tag(run, tag, value)
            client.set_terminated(run, status)

        yield root, write


def test_checkpoints_are_kept_while_a_kept_run_can_go_on_from_them(runs_of: tuple[Root, object]) -> None:
    root, write = runs_of
    assert callable(write)
    artifact = root.artifact("r/step/dataset")
    for key in "abc":
        (root.path / "checkpoints" / f"train_gnn-{key * 20}").mkdir(parents=True)
    (root.path / "checkpoints" / "my-notes").mkdir()
    for paid in ("answers", "paid"):
        (root.path / "checkpoints" / f"{paid}-{'a' * 20}").mkdir()
    write("train_gnn", "FINISHED", key="a" * 64)
    write("train_gnn", "FAILED", key="b" * 64)
    root.log("done", artifact)
    root.log("killed", artifact)
    write("done", "FINISHED")
    write("killed", "KILLED")
    of_a = f"checkpoints/train_gnn-{'a' * 20}"
    assert root.found(2) == {CHECKPOINTS: {of_a}}
    root.log("late", artifact)
    write("late", "FINISHED", **{LATE: "yes"})
    assert root.found(1) == {CHECKPOINTS: {of_a}}, "its time was up, and the same command goes on"
    root.log("done", artifact)  # is the newest now
    assert root.found(1)[CHECKPOINTS] == {of_a.replace("a" * 20, key * 20) for key in "abc"}


def test_parts_of_killed_attempts_and_an_interrupted_deletion(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = root.artifact("r/step/dataset")
    for name in ("pipeline/r/step/.run.partial-7/.x.partial-8", "tokens/.partial-x", "tmp/killed"):
        (root.path / name).mkdir(parents=True)
    parts = {"r/step/.run.partial-7", "r/step/.run.partial-7/.x.partial-8", "tokens/.partial-x", "tmp/killed"}
    assert root.found() == {OUTPUTS: {"r/step/dataset"}, PARTS: parts}
    command, real = ("prune", "--root", str(root.path), "--keep", "0", "--delete"), shutil.rmtree

    def rmtree(path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert call(*command) == 2
    assert not artifact.exists(), "it is no artifact any more"
    monkeypatch.setattr(shutil, "rmtree", real)
    assert OUTPUTS not in root.found()
    assert call(*command) == 0
    assert root.found() == {} and not list(root.path.glob("pipeline/r/step/.*partial*"))


@pytest.mark.slow
def test_fetched_bundles_without_an_alias_are_found(root: Root, tmp_path: Path) -> None:
    def fetched(number: int, schema: str) -> str:
        with drafting(tmp_path / "cache" / f"{number:032x}", schema) as draft:
            (draft / "words.txt").write_text(str(number))
        return read_manifest(draft.target).digest

    champion, _, _ = fetched(1, "bundle"), fetched(2, "bundle"), fetched(3, "dataset")
    (tmp_path / "cache" / "mine").mkdir()
    places = {number: f"cache/{number:032x}" for number in (1, 2)}
    assert root.found() == {FETCHED: {places[1], places[2]}}
    models = open_registry(own_store(root.path), "model")
    register(models, "s3://bucket/champion", {"digest": champion})
    assert root.found() == {FETCHED: {places[1], places[2]}}, "a version without an alias is fetched again if needed"
    models.promote("1")
    assert root.found() == {FETCHED: {places[2]}}


def test_freed_space_is_counted_by_inode(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    (tmp_path / "one" / "large").write_bytes(bytes(2**20))
    alone, small = freed([tmp_path / "one", tmp_path / "three"])
    assert 2**20 <= alone < 2**20 + 2**16 > small
    (tmp_path / "two" / "same").hardlink_to(tmp_path / "one" / "large")
    assert freed([tmp_path / "one"])[0] < 2**16, "the file stays under its other name"
    assert freed([tmp_path / "one", tmp_path / "two"]) == [alone, small]
    (tmp_path / "three" / "link").symlink_to(tmp_path / "one" / "large")
    assert freed([tmp_path / "three"])[0] < 2**16
