"""A label in a bundle of labelled queries equals the same label in the training data; taking it back restores all."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from command_line import call
from labelled_bundles import USES, built, bundle_of, with_labels, write_inputs
from tiny_graph import ROUNDED

from gnn_encoder import Retriever
from gnn_encoder.artifacts import Bundle, Dataset, drafting, read_manifest
from gnn_encoder.artifacts.added_labels import AddedLabel, AddedLabels, new_query_id
from gnn_encoder.artifacts.finished_run import labelled_bundle
from gnn_encoder.explanation.labels import explain_by_labels
from gnn_encoder.labels.adding import add_labels, remove_labels
from gnn_encoder.labels.requests import Wanted
from gnn_encoder.labels.versions import Versions
from gnn_encoder.retrieval.search import Searcher
from gnn_encoder.serving.exports.rows import Changes as RowChanges
from gnn_encoder.serving.exports.rows import digests_of, passages_of
from gnn_encoder.settings.labels import settings_of_use
from gnn_encoder.settings.outcome import BundleDualEncoder
from gnn_encoder.steps.bundle_dual_encoder import bundle_dual_encoder

NEW = "is the hidden violin a letter"
QUESTIONS = (NEW, "what is river in north number 0", "the old copper")


def kind_of(name: str) -> str:
    return str(USES[name]["kind"])


def finished(inputs: dict[str, Path], folder: Path, bundle: Path) -> Path:
    """ROOT/latest of a run that recommends a bundle."""
    latest = folder / "latest"
    (latest / "bundles").mkdir(parents=True)
    folder_name = Bundle.read(bundle).system.lower().replace(" ", "_")
    for name, target in {"dataset": inputs["dataset"], "bundle": bundle, f"bundles/{folder_name}": bundle}.items():
        (latest / name).symlink_to(target)
    return latest


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> dict[str, Path]:
    return write_inputs(tmp_path_factory.mktemp("labels"), tiny_backbone)


@pytest.fixture(scope="module")
def bundles(inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bundles")
    return {name: bundle_of(inputs, folder, name) for name in USES}


@pytest.fixture
def latest(request: pytest.FixtureRequest, inputs: dict[str, Path], bundles: dict[str, Path], tmp_path: Path) -> Path:
    """ROOT/latest with the bundle of a use of labels, by default the sum."""
    return finished(inputs, tmp_path / "run", bundles[getattr(request, "param", "sum")])


def four(inputs: dict[str, Path], bundle: Path) -> list[Wanted]:
    """Labels of a new query and of an old one, each for a passage with labelled queries and for one without."""
    data, labels = Dataset(inputs["dataset"]), Bundle.read(bundle).labels
    assert labels
    warm, cold = labels.passages, np.setdiff1d(np.arange(40), labels.passages)
    old = data.query_texts(data.query_rows("train")[5:6])[0]
    most = int(np.argmax(labels.by_passage.sizes))
    assert most not in data.qrels.passage[data.qrels.query == data.query_rows("train")[5]]
    return [Wanted(NEW, f"p{warm[1]}"), Wanted(NEW, f"p{cold[3]}"), Wanted(old, f"p{cold[0]}"), Wanted(old, f"p{most}")]


def expected(
    inputs: dict[str, Path], folder: Path, name: str, like: Path, labels: Sequence[Wanted], index: str = "flat",
    vector_type: str = "fp32",
) -> Bundle:  # fmt: skip
    """The bundle that `encode_with_labels` writes with the use of another bundle, and the labels in the data."""
    dataset = with_labels(Dataset(inputs["dataset"]), folder / "dataset", labels)
    use = Bundle.read(like).label_use
    assert use
    settings = settings_of_use(kind_of(name), asdict(use))  # type: ignore[arg-type]
    more = built(dataset, inputs["dual_encoder"], folder, vector_type)
    return Bundle.read(bundle_of(more, folder, name, index=index, **settings))


def pairs(bundle: Bundle) -> set[tuple[str, int]]:
    """The labelled pairs: the query's text, and the passage."""
    assert bundle.labels and bundle.labelled
    passage, query = bundle.labels.by_passage.into(np.arange(40))
    _, texts = bundle.labelled.names(query)
    return set(zip(texts, passage.tolist(), strict=True))


def scores(bundle: Bundle) -> np.ndarray:
    """The score of every passage for each of `QUESTIONS`, [3, 40]."""
    searcher, by_question = Searcher(bundle), np.full((len(QUESTIONS), 40), np.nan)
    for row, question in zip(by_question, QUESTIONS, strict=True):
        _, values, rows = searcher.find(question, 40)
        row[rows] = values
    assert np.isfinite(by_question).all()
    return by_question


def assert_equal(bundle: Bundle, wanted: Bundle, atol: float = 1e-5) -> None:
    """The vectors, the labels and the scores of two bundles are equal up to rounding."""
    assert bundle.label_use == wanted.label_use and pairs(bundle) == pairs(wanted)
    assert bundle.labels and wanted.labels
    assert len(bundle.labels) - bundle.labels.unlabelled == len(wanted.labels) - wanted.labels.unlabelled
    assert bundle.labels.scale == pytest.approx(wanted.labels.scale, rel=1e-6)
    assert (bundle.vector_passages is None) == (wanted.vector_passages is None)
    if wanted.vector_passages is not None:
        np.testing.assert_array_equal(bundle.vector_passages, wanted.vector_passages)
    mine, other = ordered(bundle), ordered(wanted)
    assert bundle.vectors.dtype == wanted.vectors.dtype
    np.testing.assert_allclose(mine, other, rtol=ROUNDED, atol=atol)
    np.testing.assert_allclose(scores(bundle), scores(wanted), atol=atol)


def ordered(bundle: Bundle) -> np.ndarray:
    """The vectors of a bundle. Those of one passage are in the order of their first coordinate: any order is right."""
    of = np.arange(40) if bundle.vector_passages is None else bundle.vector_passages
    return np.asarray(bundle.vectors, np.float32)[np.lexsort((np.round(bundle.vectors[:, 0], 3), of))]


@pytest.mark.slow
@pytest.mark.parametrize("name", USES)
def test_equal_to_labels_in_the_data(
    name: str, inputs: dict[str, Path], bundles: dict[str, Path], tmp_path: Path
) -> None:
    latest = finished(inputs, tmp_path / "run", bundles[name])
    bundle, labels, before = latest / "bundle", four(inputs, bundles[name]), Bundle.read(bundles[name])
    changed: set[int] = set()
    for label in labels:
        changed |= set(add_labels(bundle, [label]).changed.tolist())
    relabelled, wanted = Bundle.read(bundle), expected(inputs, tmp_path / "today", name, bundles[name], labels)
    assert_equal(relabelled, wanted)
    # Control: the labels change the scores of the labelled passages, and of no others.
    moved = np.abs(scores(relabelled) - scores(before)).max(axis=0)
    rows = {int(label.passage_id[1:]) for label in labels}
    assert changed == (set() if name in ("softmax", "nothing") else rows)
    if name == "nothing":
        assert moved.max() == 0
    elif name == "softmax":  # every neighbour's share of the softmax is another
        assert moved.max() > 1e-3 and relabelled.vectors.tobytes() == before.vectors.tobytes()
    else:
        assert moved.max() > 1e-3 and set(np.flatnonzero(moved).tolist()) <= rows
    # Without one of the labels again, and then without any.
    remove_labels(bundle, labels[1:2])
    assert_equal(
        Bundle.read(bundle), expected(inputs, tmp_path / "fewer", name, bundles[name], [labels[0], *labels[2:]])
    )
    remove_labels(bundle, [labels[0], *labels[2:]])
    assert state(Bundle.read(bundle)) == state(before)


def state(bundle: Bundle) -> tuple[bytes, ...]:
    """Every bit that a search of a bundle reads."""
    labels, of = bundle.labels, bundle.vector_passages
    assert labels
    arrays = (bundle.vectors, labels.vectors, *labels.by_passage.into(np.arange(40)), np.empty(0) if of is None else of)
    return tuple(np.asarray(array).tobytes() for array in arrays)


@pytest.mark.parametrize("latest", USES, indirect=True)
def test_undo_restores_every_bit_and_nothing_of_the_corpus_is_copied(latest: Path, inputs: dict[str, Path]) -> None:
    run = (latest / "bundle").resolve()
    digest, states = read_manifest(run).digest, [state(Bundle.read(latest / "bundle"))]
    for passage in ("p7", "p8", "p9"):
        add_labels(latest / "bundle", [Wanted(NEW, passage)])
        states.append(state(Bundle.read(latest / "bundle")))
        version = (latest / "bundle").resolve()
        written = {path.relative_to(version).parts[0] for path in version.rglob("*") if path.is_file() and not
               path.is_symlink()}  # fmt: skip
        assert written == {"added", "bundle.json", "manifest.json"}
    remove_labels(latest / "bundle", [Wanted(NEW, "p8")])
    assert len({*states, state(Bundle.read(latest / "bundle"))}) == 5  # the memory changes whatever its use
    for former in reversed(states):
        with Versions.of(latest / "bundle") as versions:
            versions.undo()
        assert state(Bundle.read(latest / "bundle")) == former
    assert (latest / "bundle").resolve() == run and read_manifest(run).digest == digest


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sum", "clusters"])
def test_vectors_of_fp16(name: str, inputs: dict[str, Path], tmp_path: Path) -> None:
    bundles_fp16 = built(inputs["dataset"], inputs["dual_encoder"], tmp_path / "own", "fp16")
    latest = finished(inputs, tmp_path / "run", bundle_of(bundles_fp16, tmp_path / "made", name))
    labels = four(inputs, latest / "bundle")
    add_labels(latest / "bundle", labels)
    bundle = Bundle.read(latest / "bundle")
    assert bundle.vectors.dtype == np.float16
    wanted = expected(inputs, tmp_path / "today", name, latest / "bundle", labels, vector_type="fp16")
    assert_equal(bundle, wanted, atol=5e-4)


@pytest.mark.parametrize(
    ("name", "index"), [("sum", "sq8"), ("max", "ivf"), ("clusters", "flat_fp16"), ("clusters", "hnsw")]
)
def test_a_search_by_an_index_finds_the_new_vectors(
    name: str, index: str, inputs: dict[str, Path], tmp_path: Path
) -> None:
    latest = finished(inputs, tmp_path, bundle_of(inputs, tmp_path / "made", name, index=index))
    labels = four(inputs, latest / "bundle")
    before = scores(Bundle.read(latest / "bundle"))
    add_labels(latest / "bundle", labels)
    bundle = Bundle.read(latest / "bundle")
    searcher, rows = Searcher(bundle), [int(label.passage_id[1:]) for label in labels]
    of = np.arange(40) if bundle.vector_passages is None else bundle.vector_passages
    question, values, hits = searcher.find(NEW, 40)
    exact = np.maximum.reduceat(bundle.vectors @ question, np.searchsorted(of, np.arange(40)))
    assert sorted(hits.tolist()) == list(range(40)) and (np.diff(values) <= 0).all()
    here = np.isin(hits, rows)
    np.testing.assert_allclose(values[here], exact[hits[here]], atol=1e-6)
    assert np.array_equal(searcher.find(NEW, 5)[2], hits[:5])
    assert np.abs(exact - before[0])[rows[:2]].max() > 1e-2  # Control: the index itself has other scores.


@pytest.mark.parametrize("latest", ["sum", "max", "softmax", "clusters"], indirect=True)
def test_explain_names_the_added_query_and_a_copy_answers_alike(latest: Path, tmp_path: Path) -> None:
    labels = four({"dataset": latest / "dataset"}, latest / "bundle")
    add_labels(latest / "bundle", labels)
    bundle = Bundle.read(latest / "bundle")
    explained = explain_by_labels(Searcher(bundle), NEW, 40, queries=20)
    for hit, parts in explained:
        assert sum(part.amount for part in parts) == pytest.approx(hit.score, abs=1e-5)
        named = any(f"{NEW} [{new_query_id(NEW)}]" == part.source for part in parts)
        assert named == (hit.passage_id in {one.passage_id for one in labels[:2]})
    shutil.copytree(latest / "bundle", tmp_path / "elsewhere")  # as `gnn-encoder copy`: links are followed
    retriever = Retriever.load(tmp_path / "elsewhere")
    hits = retriever.search(NEW, 40)
    assert [hit.passage_id for hit in hits] == [hit.passage_id for hit, _ in explained]
    assert [one.hit.passage_id for one in retriever.explain(NEW, 3)] == [hit.passage_id for hit in hits[:3]]


@pytest.mark.parametrize("latest", ["sum", "max", "clusters"], indirect=True)
def test_an_export_sends_the_changed_passages_alone(latest: Path) -> None:
    before = digests_of(Bundle.read(latest / "bundle"), lambda _: None)
    labels = four({"dataset": latest / "dataset"}, latest / "bundle")
    add_labels(latest / "bundle", labels)
    bundle, passages = Bundle.read(latest / "bundle"), {int(label.passage_id[1:]) for label in labels}
    sent = RowChanges.between(digests_of(bundle, lambda _: None), before)
    assert set(passages_of(bundle, sent.new).tolist()) == passages
    assert sent.stayed + len(sent.new) == len(bundle.vectors) and sent.stayed + len(sent.old) == len(before)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sum", "softmax", "clusters"])
def test_a_label_that_the_run_has_read_is_removed(
    name: str, inputs: dict[str, Path], bundles: dict[str, Path], tmp_path: Path
) -> None:
    data, labels = Dataset(inputs["dataset"]), four(inputs, bundles[name])
    labels.append(Wanted("where is the market", labels[0].passage_id))
    known = dict(zip(data.queries.column("text").to_pylist(), data.queries.column("query_id").to_pylist(), strict=True))
    added = [AddedLabel(known.get(w.query, new_query_id(w.query)), w.query, w.passage_id) for w in labels]
    dataset = with_labels(data, tmp_path / "dataset", labels, added)
    use = Bundle.read(bundles[name]).label_use
    assert use
    settings = settings_of_use(kind_of(name), asdict(use))  # type: ignore[arg-type]
    read = bundle_of(built(dataset, inputs["dual_encoder"], tmp_path), tmp_path / "made", name, **settings)
    latest = finished({"dataset": dataset}, tmp_path, read)
    start = Bundle.read(latest / "bundle")
    assert start.added == AddedLabels(added)
    remove_labels(latest / "bundle", labels[:4])  # the last query is another number in the memory now
    assert_equal(Bundle.read(latest / "bundle"), expected(inputs, tmp_path / "one", name, bundles[name], labels[4:]))
    remove_labels(latest / "bundle", labels[4:])
    assert_equal(Bundle.read(latest / "bundle"), Bundle.read(bundles[name]))
    assert NEW not in {text for text, _ in pairs(Bundle.read(latest / "bundle"))}
    add_labels(latest / "bundle", labels)  # the same as before
    again = Bundle.read(latest / "bundle")
    assert state(again) == state(start) and again.changes is None


@pytest.mark.parametrize(
    ("latest", "words"),
    [
        ("sum", "1 passage has a new vector"),
        ("clusters", "1 passage has a new vector"),
        ("softmax", "no vector changes, a search looks at the queries of the labels"),
        ("nothing", "no score changes, because the run gave labels the weight 0"),
    ],
    indirect=["latest"],
)
def test_the_command_says_what_changes(latest: Path, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = ("--root", str(latest.parent))
    assert call("labels", "add", NEW, "p7", *root) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("1 added; ") and words in line and line.endswith("; added labels in force: 1")
    assert call("labels", "list", *root) == 0
    assert capsys.readouterr().out.split("\t")[1:] == [NEW, "p7\n"]
    for command in ("search", "explain"):
        assert call(command, NEW, "-k", "40", "--bundle", str(latest / "bundle")) == 0
        assert "[p7]" in capsys.readouterr().out
    assert call("labels", "undo", *root) == 0
    assert Bundle.read(latest / "bundle").added is None


def test_wrong_labels_and_other_folders_are_one_line(
    latest: Path, inputs: dict[str, Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def refused(*arguments: str) -> str:
        assert call("labels", *arguments, "--bundle", str(latest / "bundle")) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    data, before = Dataset(inputs["dataset"]), (latest / "bundle").resolve()
    train = data.query_rows("train")[0]
    answer = f"p{data.qrels.passage[data.qrels.query == train][0]}"
    (train_query,) = data.query_texts(np.array([train]))
    assert "this label exists already" in refused("add", train_query, answer)
    assert "no such label was added" in refused("remove", train_query, answer)
    assert "has no graph of queries" in refused("suggest")
    other = with_labels(data, tmp_path / "other", [Wanted(NEW, "p7")])
    (latest / "dataset").unlink()
    assert "no dataset beside it" in refused("add", NEW, "p7")
    (latest / "dataset").symlink_to(other)
    assert "is not what" in refused("add", NEW, "p7")
    assert (latest / "bundle").resolve() == before


def test_which_bundle_takes_labels(inputs: dict[str, Path], bundles: dict[str, Path], tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    artifacts = {name: inputs[name] for name in ("dataset", "dual_encoder", "passage_vectors", "bm25_index")}
    bundle_dual_encoder(BundleDualEncoder(), **artifacts, bundle=plain)
    for recommended in (*USES, "plain"):
        latest = finished(inputs, tmp_path / recommended, bundles.get(recommended, plain))
        graph = latest / "bundles" / "gnn_encoder"
        graph.symlink_to(plain)
        assert labelled_bundle(latest) == (graph if recommended == "plain" else latest / "bundle")
        # Labels that were added to the GNN-encoder's bundle alone are read.
        with drafting(tmp_path / "labelled" / recommended, "bundle") as draft:
            Bundle.read(plain).with_added(draft, AddedLabels([AddedLabel("q", "a query", "p1")]))
        graph.unlink()
        graph.symlink_to(tmp_path / "labelled" / recommended)
        assert labelled_bundle(latest) == graph
        if recommended != "plain":
            add_labels(latest / "bundle", [Wanted(NEW, "p7")])
            remove_labels(latest / "bundle", [Wanted(NEW, "p7")])
            assert labelled_bundle(latest) == graph  # the recommended bundle has the labels of its run again
            add_labels(latest / "bundle", [Wanted(NEW, "p7")])
            assert labelled_bundle(latest) == latest / "bundle"


def test_bundles_side_by_side_keep_their_versions(latest: Path, bundles: dict[str, Path]) -> None:
    folder = latest / "bundles"
    (folder / "query_clusters").symlink_to(bundles["clusters"])
    for name in ("query_sum", "query_clusters", "query_sum"):
        passage = "p8" if (latest / "bundles" / name / "added").is_dir() else "p7"
        add_labels(folder / name, [Wanted(NEW, passage)])
    for name, labels in (("query_sum", 2), ("query_clusters", 1)):
        added = Bundle.read(folder / name).added
        assert added and len(added.labels) == labels
    with Versions.of(folder / "query_clusters") as versions:
        versions.undo()
    assert len(Bundle.read(folder / "query_sum").added.labels) == 2  # type: ignore[union-attr]
    assert sorted(path.name for path in (folder / ".labels").iterdir() if path.is_dir()) == ["0001", "0003"]
