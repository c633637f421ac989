"""Adding a label equals an update with the label in the data; taking it back restores every bit."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bundles import write_bm25
from command_line import call
from labelled_bundles import with_labels
from tiny_graph import ROUNDED, encode_in_tasks, write_models

from gnn_encoder.artifacts import Bundle, Dataset, Graph, drafting, read_manifest
from gnn_encoder.artifacts.added_labels import new_query_id
from gnn_encoder.artifacts.finished_run import graph_bundle
from gnn_encoder.errors import UserError
from gnn_encoder.explanation.search import ExplainedHit, explain_search
from gnn_encoder.inference.encoding import fast_bf16
from gnn_encoder.labels.adding import add_labels, remove_labels
from gnn_encoder.labels.requests import Wanted, read_wanted
from gnn_encoder.labels.versions import KEPT, Versions
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.models.gnn import GNN, GnnConfig, GnnEncoder
from gnn_encoder.retrieval.search import Searcher
from gnn_encoder.settings.graph import BuildGraph
from gnn_encoder.settings.outcome import EncodeCorpus
from gnn_encoder.steps.build_graph import build_graph
from gnn_encoder.steps.encode_corpus import encode_corpus

NEW = Wanted("is the hidden violin a letter", "p7")
KINDS = {
    "retrieved": ({"edges": "retrieved"}, {}),
    "both, marked, int8": ({"edges": "retrieved+labelled", "edge_feature_type": "int8"}, {}),
    "labelled, own loops": ({"edges": "labelled", "self_loop_features": "cross_encoder"}, {}),
    "labelled, one layer, no features": ({"edges": "labelled", "edge_features": "none"}, {"layers": 1}),
    "own passages in eq. 6": ({"edges": "retrieved+labelled"}, {"cached_passages": False}),
}
"""Settings of the graph and of the GNN."""


def write_gnn(models: dict[str, Path], folder: Path, graph: Path, shape: dict[str, object]) -> Path:
    """A GNN-encoder that fits a graph, beside the models that built it."""
    import torch

    from gnn_encoder.query_graph.edge_features import EdgeFeatures

    torch.manual_seed(1)
    arrays, encoders = Graph.read(graph), DualEncoder.load(models["dual_encoder"])
    edges = EdgeFeatures(arrays).width
    config = GnnConfig(width=32, edge_width=edges, learned_loops=arrays.query_loops is None, **shape)  # type: ignore[arg-type]
    with drafting(folder, "model") as draft:
        GnnEncoder(encoders, GNN(config)).save(draft.path)
    return folder


def finished(
    dataset: Path, models: dict[str, Path], out: Path, kind: str, previous: Path | None = None, precision: str = "fp32",
    gnn: Path | None = None, index: str = "flat", parts: int = 1,
) -> Path:  # fmt: skip
    """ROOT/latest of a run: links to a graph, an encoding and a bundle of a dataset."""
    built, shape = KINDS[kind]
    both = {"precision": precision, "previous": str(previous or "")}
    graph = {"graph": out / "made" / "graph", "passage_vectors": out / "made" / "passage_vectors"}
    build_graph(
        BuildGraph.model_validate({"neighbors": 3, "retrieved": 6, **both, **built}), dataset=dataset,
        dual_encoder=models["dual_encoder"], cross_encoder=models["cross_encoder"], **graph,
    )  # fmt: skip
    gnn = gnn or write_gnn(models, out / "made" / "gnn_encoder", graph["graph"], shape)
    written = {name: out / "made" / name for name in ("bundle", "encoding")}
    places = {**graph, **written, "dataset": dataset, "gnn_encoder": gnn}
    taken = {name: path for name, path in places.items() if name not in written}
    encode_in_tasks(out / "made", 2, both, **taken)
    bm25_index = write_bm25(dataset, out / "made" / "bm25_index")
    indexed = {**both, "index": index, "index_parts": parts}
    encode_corpus(EncodeCorpus.model_validate(indexed), **places, bm25_index=bm25_index)
    of_graph = graph_bundle(out / "made")
    of_graph.parent.mkdir()
    of_graph.symlink_to(places["bundle"])
    places |= {name: models[name] for name in ("dual_encoder", "cross_encoder")}
    (out / "latest").mkdir()
    for name, target in places.items():
        (out / "latest" / name).symlink_to(target)
    return out / "latest"


@pytest.fixture(scope="module")
def models(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_models(tmp_path_factory.mktemp("models"), tiny_backbone)


@pytest.fixture(scope="module")
def original(tiny_dataset: Dataset, models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tiny_dataset.path, models, tmp_path_factory.mktemp("run"), "both, marked, int8")


@pytest.fixture
def latest(original: Path, tmp_path: Path) -> Path:
    """Links to the same run, of which a test may move one."""
    return Path(shutil.copytree(original, tmp_path / "latest", symlinks=True))


def old_query(dataset: Dataset, number: int) -> str:
    """The text of a training query."""
    return dataset.query_texts(dataset.query_rows("train")[number : number + 1])[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "precision"), [*((kind, "fp32") for kind in KINDS), *([("retrieved", "bf16")] if fast_bf16() else [])]
)
def test_equal_to_an_update(
    kind: str, precision: str, tiny_dataset: Dataset, models: dict[str, Path], tmp_path: Path
) -> None:
    latest = finished(tiny_dataset.path, models, tmp_path / "run", kind, precision=precision)
    labels = [NEW, Wanted(NEW.query, "p90"), Wanted(old_query(tiny_dataset, 5), "p11"), Wanted("what is copper", "p7")]
    before = np.array(Bundle.read(latest / "bundle").vectors)
    changed: set[int] = set()
    for label in labels:  # one after the other, so that earlier nodes are reused
        changed |= set(add_labels(latest / "bundle", [label]).changed.tolist())
    vectors = Bundle.read(latest / "bundle").vectors
    today = with_labels(tiny_dataset, tmp_path / "today", labels)
    gnn = latest / "gnn_encoder"
    update = finished(today, models, tmp_path / "update", kind, tmp_path / "run" / "made", precision, gnn.resolve())
    expected = Bundle.read(update / "bundle").vectors
    np.testing.assert_allclose(vectors, expected, rtol=ROUNDED, atol=1e-5)
    # Control: the labels changed these vectors and no others.
    drift = np.abs(expected - before).max(axis=1)
    assert drift.max() > 1e-3 and set(np.flatnonzero(drift > 1e-5).tolist()) <= changed
    assert np.array_equal(np.delete(vectors, sorted(changed), axis=0), np.delete(before, sorted(changed), axis=0))
    # Without one of the labels again, and then without any.
    remove_labels(latest / "bundle", labels[1:2])
    fewer = with_labels(tiny_dataset, tmp_path / "fewer", [labels[0], *labels[2:]])
    update = finished(fewer, models, tmp_path / "less", kind, tmp_path / "run" / "made", precision, gnn.resolve())
    np.testing.assert_allclose(
        Bundle.read(latest / "bundle").vectors, Bundle.read(update / "bundle").vectors, rtol=ROUNDED, atol=1e-5
    )
    remove_labels(latest / "bundle", [labels[0], *labels[2:]])
    assert np.array_equal(Bundle.read(latest / "bundle").vectors, before)


def test_a_query_that_is_not_trained_on_gets_no_node_in_a_graph_of_trained_queries(
    tiny_dataset: Dataset, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, "trained", ({"edges": "retrieved+labelled", "queries": "trained"}, {}))
    drawn = tiny_dataset.query_rows("train")[:30].tolist()
    data = Dataset(with_labels(tiny_dataset, tmp_path / "drawn", [], drawn=drawn))
    latest = finished(data.path, models, tmp_path / "run", "trained")
    before, label = np.array(Bundle.read(latest / "bundle").vectors), Wanted(old_query(data, 45), "p11")
    assert not len(add_labels(latest / "bundle", [label]).changed)
    today = with_labels(data, tmp_path / "today", [label], drawn=drawn)
    gnn = (latest / "gnn_encoder").resolve()
    update = finished(today, models, tmp_path / "update", "trained", tmp_path / "run" / "made", gnn=gnn)
    np.testing.assert_allclose(Bundle.read(update / "bundle").vectors, before, rtol=ROUNDED, atol=1e-5)
    assert len(add_labels(latest / "bundle", [Wanted(old_query(data, 5), "p11")]).changed), "a trained one has a node"


def test_ids_may_be_numbers_as_in_data(tmp_path: Path) -> None:
    (tmp_path / "labels.jsonl").write_text('{"query": "who", "passage_id": 3}\n')
    (wanted,) = read_wanted(tmp_path / "labels.jsonl")
    assert (wanted.query, wanted.passage_id) == ("who", "3")
    (tmp_path / "labels.jsonl").write_text('{"query": "who", "passage_id": true}\n')
    with pytest.raises(UserError, match="is no label"):
        read_wanted(tmp_path / "labels.jsonl")


def bits(latest: Path) -> bytes:
    return Bundle.read(latest / "bundle").vectors.tobytes()


def test_undo_restores_every_bit_and_the_run_never_changes(latest: Path) -> None:
    run = (latest / "bundle").resolve()
    digest, states = read_manifest(run).digest, [bits(latest)]
    for passage in ("p7", "p8", "p90"):  # two of them in one neighbourhood
        add_labels(latest / "bundle", [Wanted(NEW.query, passage)])
        states.append(bits(latest))
    remove_labels(latest / "bundle", [Wanted(NEW.query, "p8")])
    assert len({*states, bits(latest)}) == 5
    for state in reversed(states):
        with Versions.of(latest / "bundle") as versions:
            versions.undo()
        assert bits(latest) == state
    assert (latest / "bundle").resolve() == run and read_manifest(run).digest == digest
    with Versions.of(latest / "bundle") as versions, pytest.raises(UserError, match="no change of labels"):
        versions.undo()
    assert not [folder for folder in (latest / ".labels").iterdir() if folder.is_dir()]


def test_some_changes_can_be_taken_back(latest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnn_encoder.labels.versions.KEPT", 2)
    for passage in ("p7", "p8", "p9", "p10"):
        add_labels(latest / "bundle", [Wanted(NEW.query, passage)])
    assert sorted(f.name for f in (latest / ".labels").iterdir() if f.is_dir()) == ["0002", "0003", "0004"] and KEPT > 2
    with Versions.of(latest / "bundle") as versions:
        versions.undo()
        versions.undo()
        with pytest.raises(UserError, match="no change of labels"):
            versions.undo()
    added = Bundle.read(latest / "bundle").added
    assert added is not None and [label.passage_id for label in added.labels] == ["p7", "p8"]


def test_versions_are_the_same_by_every_path_that_leads_to_them(latest: Path, tmp_path: Path) -> None:
    alias, other = tmp_path / "alias", latest / "other"
    alias.symlink_to(latest)
    states = [bits(latest)]
    add_labels(latest / "bundle", [NEW])
    other.symlink_to(alias / (latest / "bundle").readlink().relative_to(latest))
    for passage, folder in (("p8", alias), ("p90", latest)):
        states.append(bits(latest))
        add_labels(folder / "bundle", [Wanted(NEW.query, passage)])
    assert Bundle.read(other).vectors.tobytes() == states[1]
    for state, folder in zip(reversed(states), (alias, latest, alias), strict=True):
        with Versions.of(folder / "bundle") as versions:
            versions.undo()
        assert bits(latest) == state
    assert Bundle.read(other).vectors.tobytes() == states[1], "the version that the other link names stays"


KILLED = """
import json, os, signal, sys
from pathlib import Path
from gnn_encoder.artifacts import Bundle
from gnn_encoder.artifacts.added_labels import AddedLabels
from gnn_encoder.labels.versions import Versions

latest, new = Path(sys.argv[1]), AddedLabels.read(Path(sys.argv[2]))
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT

def killed(moment):
    left = [moment]
    def watch(event, arguments):
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
        if writes or event in ("os.symlink", "os.rename", "os.mkdir", "os.rmdir", "os.remove"):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(watch)
    with Versions.of(latest / "bundle") as versions:
        versions.write(Bundle.read(latest / "bundle"), new)
    os._exit(0)

ended, moment = False, 0
while not ended:
    if not (child := os.fork()):
        killed(moment)
    ended = os.waitpid(child, 0)[1] == 0
    bundle = Bundle.read(latest / "bundle")
    changed = bundle.vectors.tobytes() != bundle.stored_vectors.tobytes()
    print(json.dumps([ended, changed, bundle.added is not None]))
    if changed:
        with Versions.of(latest / "bundle") as versions:
            versions.undo()
    moment += 1
with Versions.of(latest / "bundle") as versions:
    versions.write(Bundle.read(latest / "bundle"), new)
print(json.dumps(sorted(f.name for f in (latest / ".labels").iterdir() if f.is_dir())))
"""


@pytest.mark.slow
def test_a_killed_process_leaves_the_old_bundle_or_the_new(latest: Path, tmp_path: Path) -> None:
    """A process ends without notice at its first change of the file system, another at its second, and so on."""
    add_labels(latest / "bundle", [NEW])
    added = shutil.copytree((latest / "bundle").resolve() / "added", tmp_path / "added")
    with Versions.of(latest / "bundle") as versions:
        versions.undo()
    command = [sys.executable, "-c", KILLED, str(latest), str(added)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    *states, left = map(json.loads, ended.stdout.splitlines())
    assert states[0] == [False, False, False] and states[-1] == [True, True, True]
    assert all(changed == labelled for _, changed, labelled in states)
    assert len(states) > 30 and [False, True, True] in states  # also killed between the new link and the end
    assert len(left) == 1


@pytest.mark.parametrize(("index", "parts"), [("flat", 1), ("ivf", 1), ("hnsw", 3)])
def test_a_search_finds_the_new_vector(
    index: str, parts: int, tiny_dataset: Dataset, models: dict[str, Path], tmp_path: Path
) -> None:
    latest = finished(tiny_dataset.path, models, tmp_path, "both, marked, int8", index=index, parts=parts)
    add_labels(latest / "bundle", [NEW, Wanted(NEW.query, "p90")])
    bundle = Bundle.read(latest / "bundle")
    assert len(bundle.index_files) == (parts if index != "flat" else 0)
    assert bundle.added is not None and bundle.added.changes is not None
    changed = bundle.added.changes.rows
    searcher = Searcher(bundle)
    question, scores, rows = searcher.find(NEW.query, 100)
    assert sorted(rows.tolist()) == list(range(100))
    exact = bundle.vectors @ question
    np.testing.assert_allclose(scores[np.isin(rows, changed)], exact[rows[np.isin(rows, changed)]], atol=1e-6)
    assert (np.diff(scores) <= 0).all()
    few = searcher.find(NEW.query, 5)[2]
    assert np.array_equal(few, rows[:5])
    old = bundle.stored_vectors @ question
    assert np.abs(old - exact)[changed].max() > 1e-3  # Control: the stored vectors would give other scores.


def test_a_version_can_be_copied_and_get_a_reranker(latest: Path, tmp_path: Path) -> None:
    add_labels(latest / "bundle", [NEW])
    shutil.copytree(latest / "bundle", tmp_path / "elsewhere")  # as `gnn-encoder copy`: links are followed
    with drafting(tmp_path / "scorer", "model") as draft:
        (draft / "scorer.json").write_text("{}")
    with drafting(tmp_path / "reranked", "bundle") as draft:
        Bundle.read(latest / "bundle").copy_to(draft, tmp_path / "scorer")
    version = read_manifest(latest / "bundle")
    for name in ("elsewhere", "reranked"):
        copied = Bundle.read(tmp_path / name)
        assert copied.vectors.tobytes() == bits(latest) and copied.added is not None
        assert not [path for path in copied.path.rglob("*") if path.is_symlink()]
        assert (copied.manifest.digest == version.digest) == (name == "elsewhere")
    changed = json.loads((tmp_path / "elsewhere" / "bundle.json").read_text())["changed"]
    assert all((tmp_path / "elsewhere" / file).is_file() for file in changed.values())
    assert version.digest != read_manifest((latest / "graph").parent / ".labels" / "0001" / "former").digest


def explained(latest: Path) -> dict[str, ExplainedHit]:
    searcher = Searcher(Bundle.read(latest / "bundle"))
    return {hit.hit.passage_id: hit for hit in explain_search(searcher, NEW.query, k=100, neighbors=60)}


def test_explain_names_the_added_query(latest: Path) -> None:
    add_labels(latest / "bundle", [NEW])
    hits = explained(latest)
    (mine,) = [influence for influence in hits["p7"].why.influences if influence.query == NEW.query]
    assert mine.labelled and mine.query_id == new_query_id(NEW.query) and mine.score_change != 0
    for influence in hits.values():
        assert influence.why.score == pytest.approx(influence.hit.score, rel=ROUNDED)
    with Versions.of(latest / "bundle") as versions:
        versions.undo()
    hits = explained(latest)
    assert not [influence for influence in hits["p7"].why.influences if influence.query == NEW.query]


@pytest.mark.parametrize(
    ("query", "passage", "message"),
    [
        ("what is new", "p100", "the bundle has no such passage"),
        (" \u200b ", "p7", "the query is empty"),
        ("\ufeff\u3164", "p7", "the query is empty"),
        ("twice", "p7", "this label exists already"),
        ("TRAIN", "OWN", "this label exists already"),
        ("TEST", "p7", "a test query has these words"),
    ],
)
def test_wrong_labels_are_one_line(
    query: str, passage: str, message: str, latest: Path, tiny_dataset: Dataset,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    labels = tiny_dataset.split_qrels("train")
    if query == "TRAIN":
        query, passage = tiny_dataset.query_texts(labels.query[:1])[0], f"p{labels.passage[0]}"
    elif query == "TEST":
        query = tiny_dataset.query_texts(tiny_dataset.query_rows("test")[:1])[0].upper()
    add_labels(latest / "bundle", [Wanted("twice", "p7")])
    before = bits(latest)
    bundle = ("--bundle", str(latest / "bundle"))
    assert call("labels", "add", query, passage, *bundle) == 2
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 1 and message in shown[0] and bits(latest) == before


FORMS: dict[str, Callable[[str], str]] = {
    "byte order mark": lambda text: f"\ufeff{text}",
    "zero-width space": lambda text: f"{text}\u200b",
    "mark of direction, spaces": lambda text: f" {text.replace(' ', '  ')}\u200e ",
    "soft hyphen, capitals": lambda text: f"{text[:9]}\u00ad{text[9:]}".upper(),
    "full width": lambda text: "".join(chr(ord(sign) + 0xFEE0) if sign.isalnum() else sign for sign in text),
}
"""Ways to write a query that readers, and most tokenizers, take for the same."""


@pytest.mark.parametrize("name", FORMS)
def test_a_query_is_known_in_every_form_of_its_characters(name: str, latest: Path, tiny_dataset: Dataset) -> None:
    """Words of dev and test are refused; those of a training query are that query, and so with an added one."""
    bundle, form = latest / "bundle", FORMS[name]
    for split in ("dev", "test"):
        query = tiny_dataset.query_texts(tiny_dataset.query_rows(split)[:1])[0]
        with pytest.raises(UserError, match=f"a {split} query has these words"):
            add_labels(bundle, [Wanted(form(query), "p7")])
    labels = tiny_dataset.split_qrels("train")
    old = tiny_dataset.query_texts(labels.query[:1])[0]
    with pytest.raises(UserError, match="this label exists already"):
        add_labels(bundle, [Wanted(form(old), f"p{labels.passage[0]}")])
    free = next(f"p{i}" for i in (7, 8) if i != labels.passage[0])
    add_labels(bundle, [Wanted(form(old), free), NEW])
    added = add_labels(bundle, [Wanted(form(NEW.query), "p90")]).labels
    assert [(label.query, label.passage_id) for label in added] == [(old, free), (NEW.query, "p7"), (NEW.query, "p90")]
    assert added[0].query_id == f"q{labels.query[0]}" and added[1].query_id == added[2].query_id
    with pytest.raises(UserError, match="this label exists already"):
        add_labels(bundle, [Wanted(form(NEW.query), "p7")])
    kept = remove_labels(bundle, [Wanted(form(old), free), Wanted(form(NEW.query), "p7")]).labels
    assert [label.passage_id for label in kept] == ["p90"]
    with pytest.raises(UserError, match="no such label was added"):
        remove_labels(bundle, [Wanted(NEW.query, "p90"), Wanted(form(NEW.query), "p90")])


@pytest.mark.parametrize("line", ["{query}\t{passage}", '{{"query": "{query}", "passage_id": "{passage}"}}'])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_file_of_labels_may_come_from_any_editor(line: str, end: str, tmp_path: Path) -> None:
    """With a byte order mark, any line ends, lines that nobody sees, and Unicode's line separators inside a query."""
    pairs = [("first", "p1"), ("see\u2028two\x85lines", "p2"), ("last", "p3")]
    texts = [line.format(query=query, passage=passage) for query, passage in pairs]
    file = tmp_path / "labels.txt"
    file.write_bytes(("\ufeff" + end.join([texts[0], "\u200b", "  ", *texts[1:]]) + end).encode())
    assert [(label.query, label.passage_id) for label in read_wanted(file)] == pairs


def test_other_bundles_are_one_line(latest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = ("--bundle", str(latest / "bundle"))

    def refused(*arguments: str) -> str:
        assert call("labels", *arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "is a folder and not a link" in refused("add", "a", "p7", "--bundle", str((latest / "bundle").resolve()))
    alone = tmp_path / "alone" / "bundle"
    alone.parent.mkdir()
    alone.symlink_to((latest / "bundle").resolve())
    assert "no dataset, graph, gnn_encoder" in refused("add", "a", "p7", "--bundle", str(alone))
    assert "give both, or --file alone" in refused("add", "a", *bundle)
    assert "no such label was added" in refused("remove", "a", "p7", *bundle)
    assert "no change of labels" in refused("undo", *bundle)
    (latest / "cross_encoder").unlink()
    assert "no cross_encoder beside it" in refused("add", "a", "p7", *bundle)
    with drafting(tmp_path / "sum", "bundle") as draft:
        shutil.copytree(alone, draft.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json"))
        draft.rows(**read_manifest(alone).rows)
        draft.manifest.step = "encode_with_labels"
    alone.unlink()
    alone.symlink_to(tmp_path / "sum")
    assert "has no graph of queries" in refused("add", "a", "p7", "--bundle", str(alone))


def test_several_from_a_file(latest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, bundle = tmp_path / "labels.tsv", ("--bundle", str(latest / "bundle"))
    file.write_text('what is new\tp7\n\n{"query": "what is old", "passage_id": "p8"}\n')
    assert call("labels", "add", "--file", str(file), *bundle) == 0
    assert "2 added; " in capsys.readouterr().out
    assert call("labels", "list", *bundle) == 0
    assert [line.split("\t")[1:] for line in capsys.readouterr().out.splitlines()] == [
        ["what is new", "p7"], ["what is old", "p8"]
    ]  # fmt: skip
    both = bits(latest)
    # Together or one after the other.
    assert call("labels", "undo", *bundle) == 0
    add_labels(latest / "bundle", [Wanted("what is new", "p7")])
    add_labels(latest / "bundle", [Wanted("what is old", "p8")])
    vectors = np.frombuffer(both, np.float16).reshape(100, -1)
    np.testing.assert_allclose(Bundle.read(latest / "bundle").vectors, vectors, rtol=ROUNDED, atol=1e-6)
    file.write_text("what is new\tp7\nno tab\n")
    assert call("labels", "add", "--file", str(file), *bundle) == 2
    assert f"{file} line 2 is no label" in capsys.readouterr().err
