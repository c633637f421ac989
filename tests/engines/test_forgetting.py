"""`gnn-encoder forget`: nothing of a text is left in a root and its exports, and the bundles answer as made without."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import call
from conftest import write_tiny_dataset
from forgotten_texts import PASSAGE, QUERY, with_text
from mlflow.tracking import MlflowClient
from mlflow_store import write_store
from slow_store import slow_store
from trained_root import write_beir

from gnn_encoder import Retriever
from gnn_encoder.artifacts import Bundle, Dataset, WrittenQueries, drafting
from gnn_encoder.artifacts.added_labels import AddedLabel, write_labels
from gnn_encoder.artifacts.digests import text_digests
from gnn_encoder.artifacts.finished_run import bundles_of
from gnn_encoder.artifacts.folder import read_manifest
from gnn_encoder.artifacts.history import Record, write_history
from gnn_encoder.artifacts.report import Decision
from gnn_encoder.data.forgotten import Forgotten
from gnn_encoder.engines import forgetting, forgotten_versions, pipelines, reranking
from gnn_encoder.engines.forgotten_files import Traces
from gnn_encoder.engines.latest import linked, with_added_labels
from gnn_encoder.errors import UserError
from gnn_encoder.inference.answers import JOURNAL
from gnn_encoder.promotion.registry import CHAMPION, DATASET, Version, open_registry
from gnn_encoder.settings.presets import changed_settings, parse_settings
from gnn_encoder.storage import CACHE, put_folder
from gnn_encoder.tracking.context import CHECKPOINTS
from gnn_encoder.tracking.pipeline_run import own_store
from gnn_encoder.update.paid import Paid


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    return tmp_path / "root"


def written(root: Path, name: str, schema: str, step: str = "rank", text: str = "", **inputs: Path) -> Path:
    """An artifact of a step; it has the digests and histories of its inputs, as the engine's have."""
    digests = {key: forgetting.read_manifest(path).digest for key, path in inputs.items()}
    with drafting(root / "pipeline" / name, schema) as draft:
        (draft / "content.txt").write_text(text or name)
        draft.manifest.step, draft.manifest.inputs = step, digests
        write_history(draft.path, {step: Record(inputs=digests)})
    return draft.target


@pytest.fixture
def updated(root: Path) -> Path:
    """A root whose update is done and whose deletions are not, with a text in each kind of file."""
    for folder in (
        "logs/of",
        "pipeline/.killed.partial-7",
        "labels",
        "tokens/0123",
        "tmp/run",
        "artifacts/a/artifacts/report",
        "artifacts/b/artifacts",
    ):
        (root / folder).mkdir(parents=True)
    (root / ".lock").touch()
    whole, clean = (write_tiny_dataset(root / "pipeline" / name) for name in ("whole", "clean-whole"))
    data = Dataset(clean)
    with drafting(root / "pipeline" / "clean", "dataset") as draft:
        passages = pa.table(next(data.passages.batches()).columns, ["passage_id", "title", "text"]).slice(8)
        pq.write_table(passages, draft / "corpus.parquet")
        draft.manifest.settings = {"dataset": "/data"}
    forgetting.shutil.rmtree(clean)
    clean = root / "pipeline" / "clean"
    written(root, "index", "bm25", "index_bm25", "the same", dataset=whole)
    written(root, "new-index", "bm25", "index_bm25", "the same", dataset=clean)
    run = written(root, "run", "run", dataset=whole)
    written(root, "merged", "run", "merge", part=run)
    linked(root, "report", written(root, "report", "report", text=PASSAGE, dataset=whole))
    with drafting(root / "pipeline" / "decision", "decision") as draft:
        Decision.write(draft, {"bundle": "s3://bucket/models/kept", "bundle_digest": "1" * 64})
        draft.manifest.inputs = {"dataset": forgetting.read_manifest(whole).digest}
    linked(root, "decision", draft.target)
    dpr = written(root, "dpr", "model", "train_dpr", dataset=whole)
    linked(root, "dual_encoder", written(root, "trained", "model", "train_dual_encoder", dataset=whole, dpr=dpr))
    linked(root, "dataset", clean)
    written(root, "new-run", "run", text="new", dataset=clean, dual_encoder=root / "latest" / "dual_encoder")
    for name, data, answer in (("written", whole, f"Of {PASSAGE}?"), ("new-written", clean, "What is left?")):
        with drafting(root / "pipeline" / name, "written_queries") as draft:
            WrittenQueries([0], ["k"], [answer], [PASSAGE if data == whole else ""], [answer]).write(draft)
            draft.manifest.inputs = {"dataset": forgetting.read_manifest(data).digest}
    write_labels(root / "labels" / "0.jsonl", [AddedLabel("q3", QUERY, "p1")])
    (root / "tokens" / "0123" / "ids.bin").write_bytes(b"tokens")
    for part in ("tmp/run/job.json", "pipeline/.killed.partial-7/corpus.jsonl"):
        (root / part).write_text(PASSAGE)
    with drafting(root / "pipeline" / "pruned-between", "bundle") as draft:
        pq.write_table(pa.table({"passage_id": ["7"], "title": ["River"], "text": [PASSAGE]}), draft / "corpus.parquet")
    (root / "logs" / "run.log").write_text(f"before\nerror at {QUERY!r}\nafter\n")
    (root / "artifacts" / "a" / "artifacts" / "report" / "index.js").write_text("of all queries")
    (root / "artifacts" / "b" / "artifacts" / "kept.json").write_text("{}")
    (root / "artifacts" / "b" / "artifacts" / "examples.md.gz").write_bytes(gzip.compress(PASSAGE.encode()))
    for name in (f"train_gnn-{'0' * 20}", f"answers-{'0' * 20}"):
        (root / "checkpoints" / name).mkdir(parents=True)
    answers = "".join(json.dumps({"key": "k", "text": text}) + "\n" for text in (f"Of {PASSAGE}?", "What is left?"))
    (root / "checkpoints" / f"answers-{'0' * 20}" / JOURNAL).write_text(answers)
    paid = Paid(root / "checkpoints" / f"paid-{'0' * 20}", 2)
    paid.add(text_digests([f"river {PASSAGE}", "other"]), np.array([[1, 2], [3, 4]], np.float32))
    for name, text in (("0" * 32, PASSAGE), ("1" * 32, "other")):
        (root.parent / "cache" / name).mkdir(parents=True)
        (root.parent / "cache" / name / "corpus.jsonl").write_text(text)
    return root


def forget(root: Path, passages: set[str], queries: set[str], exports: Sequence[Path] = ()) -> dict[str, Any]:
    def never(job: object) -> Any:
        raise AssertionError("nothing has to be updated")

    return forgetting.forget(root, {"passages": passages, "queries": queries}, exports, "somebody", never)[1]


def test_nothing_is_left_and_nothing_else_is_deleted(updated: Path) -> None:
    judged = updated.parent / "labels.jsonl"
    write_labels(judged, [AddedLabel("q3", QUERY, "p1"), AddedLabel("q4", "another", "p1")])
    before = with_text(updated, PASSAGE, QUERY)
    assert {"pipeline/whole/corpus.parquet", "artifacts/b/artifacts/examples.md.gz", "logs/run.log"} < before
    record = forget(updated, {"p7"}, {QUERY.upper()}, [judged])
    assert with_text(updated, PASSAGE, QUERY) == set() == with_text(updated.parent / "cache", PASSAGE)
    assert not with_text(updated.parent, PASSAGE, QUERY)
    left = {path.parent.name for path in (updated / "pipeline").glob("*/manifest.json")}
    assert left == {"clean", "index", "new-index", "new-run", "new-written", "decision", "trained"}
    assert sorted(path.name for path in (updated / "latest").iterdir()) == ["dataset", "decision", "dual_encoder"]
    assert (updated / "logs" / "run.log").read_text() == "before\nafter\n"
    kept = {path.name for path in (updated / "checkpoints").iterdir()}
    assert kept == {f"answers-{'0' * 20}", f"paid-{'0' * 20}"}
    assert (updated / "checkpoints" / f"answers-{'0' * 20}" / JOURNAL).read_text().count("\n") == 1
    paid = Paid(updated / "checkpoints" / f"paid-{'0' * 20}", 2)
    is_paid, vectors = paid.find(text_digests([f"river {PASSAGE}", "other"]))
    assert is_paid.tolist() == [False, True] and vectors.tolist() == [[3, 4]]
    assert [path.name for path in (updated.parent / "cache").iterdir()] == ["1" * 32]
    assert not list((updated / "tokens").iterdir()) and not list((updated / "tmp").iterdir())
    assert (updated / "artifacts/b/artifacts/kept.json").exists() and "another" in judged.read_text()
    assert record["signed"] == "somebody" and len(record["passages"]) == len(record["queries"]) == 1
    assert record["trained"] == [{"path": str(updated / "pipeline/trained"), "steps": ["train_dual_encoder"]}]
    assert record["training"] == f"gnn-encoder run --root {updated} --dataset /data" and record["left"] == []
    assert {str(judged), str(updated / "logs" / "run.log")} < {*record["rewritten"]}
    digest = record.pop("digest")
    assert digest == forgetting.digest_of(record)


def test_an_interrupted_forgetting_goes_on(updated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(forgetting.Forgetting, "delete_artifacts", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            forget(updated, {"p7"}, {QUERY})
    assert with_text(updated, PASSAGE, QUERY), "the artifacts are still there"
    with (updated / "forgotten" / forgetting.UNFINISHED).open("a") as notes:
        notes.write('\n["deleted", "/cut by a full di')
    record = forget(updated, {"p7"}, {QUERY})
    assert record["trained"] and not with_text(updated, PASSAGE, QUERY)
    assert str(updated / "logs" / "run.log") in record["rewritten"], "by the first attempt"
    assert {str(updated / "tokens" / "0123"), str(updated / "pipeline" / "whole")} < {*record["deleted"]}
    again = forget(updated, {"p7"}, {QUERY})
    assert not again["deleted"] and again["trained"], "weights are listed until they are trained anew"


def test_reports_since_another_interrupted_forgetting_go(updated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(forgetting.Forgetting, "take_labels_out", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            forget(updated, {"p7"}, set())
    report = updated / "artifacts" / "c" / "artifacts" / "report"
    report.mkdir(parents=True)
    (report / "index.js").write_text("of all queries but of that passage")
    forget(updated, {"p7"}, {QUERY})
    assert not report.exists()


def test_what_a_link_in_the_root_leads_to_stays(updated: Path) -> None:
    for name in ("tokens", "tmp"):
        (updated / name).rename(updated.parent / name)
        (updated / name).symlink_to(updated.parent / name)
    before = sorted(path for name in ("tokens", "tmp") for path in (updated.parent / name).rglob("*"))
    record = forget(updated, {"p7"}, set())
    assert before == sorted(path for name in ("tokens", "tmp") for path in (updated.parent / name).rglob("*"))
    assert set(record["left"]) == {str(updated / "tokens"), str(updated / "tmp")}


def test_each_later_run_of_the_root_leaves_them_out(updated: Path) -> None:
    forget(updated, {"p7"}, set())
    settings = with_added_labels(parse_settings({"ingest": {"dataset": "/data"}}), updated, writes=False)
    forgotten = Forgotten.read(settings.ingest.forgotten)
    assert forgotten.has_passage("River", f" {PASSAGE}") and not forgotten.has_passage("", PASSAGE)
    assert "forgotten" not in changed_settings(settings).get("ingest", {}), "it is of the root"
    for of_root, _ in (
        pipelines.ablating("quickstart", "/data", [], ["gate"], [], 1, updated),
        reranking.reranking("quickstart", "/data", [], ["colbert"], None, updated),
    ):
        assert of_root.ingest.forgotten == settings.ingest.forgotten
    other = with_added_labels(parse_settings({}), updated.parent, writes=False)
    assert other.ingest.forgotten == ""


def test_a_champion_is_of_the_data_that_an_interrupted_attempt_has_moved(updated: Path) -> None:
    def of_latest(**move: str) -> bool:
        job = forgetting.Forgetting(updated)
        if move:
            job.note("data", json.dumps(move))
        champion = Version("1", 0.0, {"dataset": "/old"}, (CHAMPION,), "", "")
        moves = [json.loads(noted) for noted in job.notes()["data"]]
        return forgotten_versions._is_of_latest(champion, job.latest, job.manifests(), {}, moves)

    (updated / "forgotten").mkdir(exist_ok=True)
    present = read_manifest(updated / "latest" / "dataset")
    assert present.settings["dataset"] == "/data" and not of_latest()
    assert not of_latest(**{"from": "/old", "to": "/old", "digest": "0"}), "a run of other data since"
    assert of_latest(**{"from": "/old", "to": "/data", "digest": "0"}), "its update has read the moved data"
    (updated / "forgotten" / forgetting.UNFINISHED).unlink()
    assert of_latest(**{"from": "/old", "to": "/old", "digest": present.digest})


def test_a_moved_root_loses_nothing(updated: Path) -> None:
    (updated / "latest" / "gone").symlink_to(updated / "pipeline" / "gone")
    moved = updated.rename(updated.with_name("moved"))
    before = sorted(moved.rglob("*"))
    with pytest.raises(UserError, match=r"latest/\w+ leads to .*, where nothing is: if the runs were there, move"):
        forget(moved, {"p7"}, {QUERY})
    assert sorted(moved.rglob("*")) == before


def test_a_name_of_nothing_changes_nothing(updated: Path) -> None:
    before = sorted(updated.rglob("*"))
    for names in ({"p7", "p700"}, {QUERY}):
        with pytest.raises(UserError, match="among its passages: name an id or a whole text"):
            forget(updated, names, set())
    assert sorted(updated.rglob("*")) == before


def test_object_stores_and_mlflow_servers_lose_what_is_of_the_root(
    updated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top, key, other = updated.parent, "a" * 20, "b" * 20
    uri = write_store(top / "elsewhere.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    client = MlflowClient(uri)
    experiment = client.create_experiment("of all", (top / "served").as_uri())

    of_root = {"root": str(updated), "log": str(updated / "logs" / "run.log")}

    def run(files: dict[str, str], **tags: str) -> str:
        name = str(client.create_run(experiment, tags=tags).info.run_id)
        for file, text in files.items():
            client.log_text(name, text, file)
        return name

    parent = run({"systems.json": "{}", "report/index.js": "of all queries"}, **of_root)
    reasons = {"mlflow.parentRunId": parent, "key": key + "0" * 44, "error": f"no vector of {QUERY!r}"}
    child = run({"profile/a.json": "{}", "profile/b.json": json.dumps(PASSAGE), "counts.md": "7"}, **reasons)
    foreign = run({"report/index.js": PASSAGE}, **{**of_root, "log": "/of/another/machine.log"}, error=QUERY)
    (top / "another.log").touch()  # of a root whose path differs in a quote
    another = run({"report/index.js": PASSAGE}, **{**of_root, "log": str(top / "another.log")})
    bundle, names = (
        updated / "pipeline" / "pruned-between",
        ["s3://bucket/models/of-version", "s3://bucket/models/kept"],
    )
    digest = forgetting.read_manifest(bundle).digest
    client.create_registered_model("river")
    client.create_model_version("river", "s3://bucket", tags={"bundle": names[0], "digest": digest})
    client.create_registered_model("lake")
    client.create_model_version("lake", "s3://bucket", tags={"digest": digest, "dataset": "/other data"})
    client.set_registered_model_alias("lake", CHAMPION, "1")
    unregistered = {"bundle": "s3://bucket/models/unregistered", "bundle_digest": digest}
    (updated / "pipeline" / "decided").mkdir()
    with drafting(updated / "pipeline" / "decided", "decision") as draft:
        Decision.write(draft, unregistered)
    with slow_store(monkeypatch) as store:
        monkeypatch.setenv(CHECKPOINTS, "s3://bucket/checkpoints")
        for address in (*names, unregistered["bundle"]):
            put_folder(bundle, address)
        for name in (f"{key}/files/weights", f"{key}-training/call/arguments.json", f"{other}/files/weights"):
            store.objects[f"checkpoints/train_gnn-{name}"] = PASSAGE.encode()
        before = with_text(top, PASSAGE, QUERY)
        record = forget(updated, {"p7"}, {QUERY})
        assert {name.split("/")[1] for name in store.objects} == {"kept", f"train_gnn-{other}"}
    assert {name.split("/")[0] for name in before} > {"root", "served", "elsewhere.db"}, "the control"
    assert with_text(top / "served", PASSAGE, QUERY) == {
        f"{name}/artifacts/report/index.js" for name in (foreign, another)
    }
    assert [file.path for file in client.list_artifacts(parent)] == ["systems.json"]
    assert [file.path for file in client.list_artifacts(child)] == ["counts.md"]
    assert "error" not in client.get_run(child).data.tags and "error" in client.get_run(foreign).data.tags
    assert not client.search_model_versions("name = 'river'")
    assert not client.search_model_versions("name = 'lake'"), "the bundle in latest/ is of other data"
    assert "models:/lake@champion" in record["deleted"]
    assert {names[0], unregistered["bundle"], f"s3://bucket/checkpoints/train_gnn-{key}"} < {*record["deleted"]}
    assert record["left"] == [
        "1 checkpoints of calls that no run of this root names, in s3://bucket/checkpoints",
        f"database, backups, former files, and runs without a log here, of {uri}",
    ]


def test_each_file_outside_of_the_pipeline_is_read_once(
    updated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (deep := updated / "artifacts" / "a" / "b" / "c").mkdir(parents=True)
    (deep / "kept.txt").write_text(PASSAGE)
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "kept.txt").write_text(PASSAGE)
    (updated / "linked").symlink_to(tmp_path / "far")
    read, real = list[Path](), Traces.in_file

    def reading(traces: Traces, path: Path, short: bool = False) -> bool:
        read.append(path)
        return real(traces, path, short)

    monkeypatch.setattr(Traces, "in_file", reading)
    job = forgetting.Forgetting(updated)
    job.file.parent.mkdir(exist_ok=True)
    job.search(Traces([PASSAGE]), [])
    assert {str(deep / "kept.txt"), str(updated / "linked")} <= {*job.notes()["left"]}
    assert len(read) == len({*read}) and not [path for path in read if "pipeline" in path.resolve().parts]


def without(data: Path, folder: Path, passages: set[str], queries: set[str]) -> Path:
    """A BEIR folder without some ids, and without their labels."""
    for path in sorted(path for path in data.rglob("*") if path.is_file()):
        names = passages | queries

        def stays(line: str, names: set[str] = names) -> bool:
            words = [json.loads(line)["_id"]] if line.startswith("{") else line.split("\t")
            return names.isdisjoint(words)

        target = folder / path.relative_to(data)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("".join(filter(stays, path.read_text().splitlines(keepends=True))))
    return folder


@pytest.mark.slow
def test_a_root_answers_as_one_that_was_made_without(
    root: Path, tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path
) -> None:
    data, latest = write_beir(tiny_dataset, tmp_path / "data"), root / "latest"
    added = "an unheard of word"
    changes = [
        f"encode.encoder={tiny_backbone}", f"shared.backbone={tiny_backbone}", "encode.query_length=16",
        "encode.passage_length=24", "fuse_parts.kinds=[field,linear]", "evaluate.permutations=50",
        "evaluate.resamples=20", "encode_with_labels.kinds=[sum,memory]", "recommend.margin=1.0",
        "recommend.significance=0.000000001", *(f"encode_with_labels.memory_{name}" for name in (
            "forms=[softmax]", "weights=[0.3]", "neighbours=[5]", "temperatures=[0.1]", "thresholds=[0.5]",
        )),
    ]  # fmt: skip
    settings = [word for change in changes for word in ("--set", change)]

    def climb(dataset: Path, where: Path) -> None:
        words = ["run", "--until", "labels", "--dataset", str(dataset), "--root", str(where), *settings]
        assert call(*words) == 0

    climb(data, root)
    assert call("labels", "add", added, "p7", "--root", str(root)) == 0
    exported, copied = tmp_path / "exported", tmp_path / "copied"
    memory = str(latest / "bundles" / "query_memory_untrained")
    assert call("export", "--bundle", memory, str(exported), "--format", "parquet") == 0
    assert call("copy", memory, str(copied)) == 2, "a folder is copied by cp"
    forgetting.shutil.copytree(latest / "bundles" / "query_sum_untrained", copied)
    (tmp_path / "queries.txt").write_text(f"q3\nq90\n{added}\n")
    (tmp_path / "passages.txt").write_text(f"{PASSAGE}\np50\n")
    corpus = dict(zip(tiny_dataset.passages.ids().to_pylist(), next(tiny_dataset.passages.stream()).texts, strict=True))
    query_texts = dict(zip(*(tiny_dataset.queries[name].to_pylist() for name in ("query_id", "text")), strict=True))
    texts = [PASSAGE, corpus["p50"], query_texts["q3"], query_texts["q90"], added]
    for text in texts:
        assert with_text(root, text), "the control"
    assert with_text(exported, PASSAGE) and with_text(copied, *texts[2:4])

    words = ["forget", "--queries", str(tmp_path / "queries.txt"), "--passages", str(tmp_path / "passages.txt")]
    words += ["--root", str(root), "--export", str(exported), "--export", str(copied)]
    assert call(*words, "--export", str(tmp_path / "nothing")) == 2, "it ends after the update"
    assert call(*words) == 0
    for folder in (root, exported, copied):
        assert with_text(folder, *texts) == set()
    champion = open_registry(own_store(root), "gnn-encoder").find(CHAMPION)
    assert champion.tags[DATASET] == read_manifest(latest / "dataset").digest
    assert champion.tags["bundle"] == str((latest / "bundle").resolve())
    (record,) = (root / "forgotten").glob("2*.json")
    assert json.loads(record.read_text())["trained"] == []

    other = tmp_path / "other"
    climb(without(data, tmp_path / "without", {"p7", "p50"}, {"q3", "q90"}), other)
    questions = ["what is the old river", "hidden letter number 3", query_texts["q5"], query_texts["q95"]]
    places = bundles_of(latest)
    assert len(places) == 7
    for folder_of_bundle in [*places, copied]:
        expected = other / (
            Path("latest/bundles/query_sum_untrained")
            if folder_of_bundle == copied
            else folder_of_bundle.relative_to(root)
        )
        one, two = Bundle.read(folder_of_bundle), Bundle.read(expected)
        same = {name for name, facts in two.manifest.files.items() if one.manifest.files[name] == facts}
        assert {*one.manifest.files} == {*two.manifest.files}
        # A tokenizer that has encoded something before it is saved names the length to which it cut.
        differing = {name for name in {*two.manifest.files} - same if not name.endswith(".npy")}
        assert differing <= {"query_encoder/tokenizer_config.json"}
        retrievers = Retriever.load(folder_of_bundle), Retriever.load(expected)
        for hits, others in zip(*(retriever.search(questions, 98) for retriever in retrievers), strict=True):
            assert [hit.passage_id for hit in hits] == [hit.passage_id for hit in others]
            np.testing.assert_allclose([hit.score for hit in hits], [hit.score for hit in others], atol=1e-4)
    table = pq.read_table(exported / "passages.parquet")
    assert table.num_rows == 98 and "p7" not in table["passage_id"].to_pylist()
