"""What labels gain, and which to add next: against plain loops, on constructed cases, and on a tiny run."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import call
from labelled_bundles import built, bundle_of
from tiny_graph import D, M, N, encode, random_graph, write_models

from gnn_encoder.artifacts import Bundle, Dataset, reverse_csr
from gnn_encoder.errors import UserError
from gnn_encoder.labels.adding import add_labels
from gnn_encoder.labels.curve import DevQueries, Point, extrapolated, label_curve
from gnn_encoder.labels.nodes import FinishedRun, encoded
from gnn_encoder.labels.requests import Wanted
from gnn_encoder.labels.suggestions import LEAST, Suggestions, cold_precision, demand, expected_figures, read_log
from gnn_encoder.models.gnn import GNN, GnnConfig
from gnn_encoder.query_graph.edge_features import EdgeFeatures
from gnn_encoder.query_graph.propagation import Propagation


@pytest.fixture(scope="module")
def latest(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset, tiny_backbone: Path) -> Path:
    folder = tmp_path_factory.mktemp("root")
    models = write_models(folder / "models", tiny_backbone)
    outputs = encode(tiny_dataset.path, models, folder / "made", shards=2)
    (folder / "latest").mkdir()
    places = {name: outputs / name for name in ("bundle", "encoding", "graph", "passage_vectors")}
    for name, target in {**places, **models, "dataset": tiny_dataset.path}.items():
        (folder / "latest" / name).symlink_to(target)
    return folder / "latest"


@pytest.fixture(scope="module")
def run(latest: Path) -> FinishedRun:
    return FinishedRun.of(Bundle.read(latest / "bundle"))


@pytest.fixture(scope="module")
def dev(run: FinishedRun) -> DevQueries:
    return DevQueries.of(run)


@pytest.mark.parametrize("loops", [False, True])
def test_some_queries_alone_are_a_graph_without_the_others(loops: bool) -> None:
    graph = random_graph(True, True, loops)
    torch.manual_seed(0)
    gnn = GNN(GnnConfig(width=D, edge_width=EdgeFeatures(graph).width, learned_loops=not loops)).eval()
    generator = np.random.default_rng(0)
    h_q, h_p, cached = (generator.normal(size=(rows, D)).astype(np.float32) for rows in (N, M, M))
    kept = generator.random(N) < 0.5
    edges = np.where(kept[:, None], graph.edges, -1)
    indptr, reverse = reverse_csr(edges, M)
    expected = Propagation(gnn, replace(graph, indptr=indptr, reverse=reverse), h_q, cached).passages(np.arange(M), h_p)
    whole = Propagation(gnn, graph, h_q, cached)
    assert np.abs(whole.only(kept).passages(np.arange(M), h_p) - expected).max() < 1e-6
    assert np.abs(whole.passages(np.arange(M), h_p) - expected).max() > 1e-3  # Control: and the whole is as it was.


def test_the_curve_ends_at_the_run_and_begins_without_labels(run: FinishedRun, dev: DevQueries) -> None:
    points = label_curve(run, dev, draws=2)
    assert [point.queries for point in points] == [0, 8, 15, 30, 60] and points[-1].labels == 60
    assert points[0].gain == points[0].warm == 0 and math.isnan(points[0].warm_gain)
    assert points[-1].mean == pytest.approx(dev.figures(run, run.bundle.vectors).mean())
    encoding, gnn = run.sources.encoding, run.sources.gnn
    graph = run.sources.graph
    none = replace(graph, indptr=np.zeros(101, np.int64), reverse=np.empty(0, np.int64))
    alone = Propagation(gnn, none, encoding.queries, run.sources.cached_passages).passages(
        np.arange(100), np.array(encoding.passages)
    )
    assert points[0].mean == pytest.approx(dev.figures(run, alone).mean())
    assert any(point.gain for point in points)  # Control: the graph changes figures.
    assert all(point.low <= point.gain <= point.high for point in points)
    again = label_curve(run, dev, draws=2)
    assert [(one.mean, one.warm) for one in again] == [(one.mean, one.warm) for one in points]


def test_warm_shares_are_of_the_queries_in_the_graph(run: FinishedRun, dev: DevQueries, tiny_dataset: Dataset) -> None:
    train = tiny_dataset.split_qrels("train")
    passage = dev.qrels.passage.copy()
    passage[:10] = train.passage[:10]  # half of the dev queries ask for passages of ten training queries
    other = replace(dev, qrels=replace(dev.qrels, passage=passage))
    points = label_curve(run, other, draws=1)
    order, warm = np.random.default_rng(0).permutation(60), []
    for point in points:
        kept = set(tiny_dataset.query_rows("train")[order[: point.queries]].tolist())
        labelled = {p for q, p in zip(train.query.tolist(), train.passage.tolist(), strict=True) if q in kept}
        warm.append(float(np.mean([p in labelled for p in passage.tolist()])))
    assert [point.warm for point in points] == pytest.approx(warm) and warm[0] == 0 < warm[3] < warm[-1] == 0.5
    last = points[-1]
    assert last.gain == pytest.approx((last.warm_gain + last.cold_gain) / 2)


def test_the_curve_goes_on_as_in_its_last_doubling() -> None:
    a, b, c = (Point(share, n, n, warm, 0.5, gain, 0, 0, 0, 0, 0) for share, n, warm, gain in
               ((0.0, 0, 0.0, 0.0), (0.5, 10, 0.4, 0.1), (1.0, 20, 0.6, 0.15)))  # fmt: skip
    assert extrapolated([a, b, c]) == pytest.approx((40, 0.2, 0.8))
    assert extrapolated([a, replace(b, warm=0.1), c]) == pytest.approx((40, 0.2, 1.0))


def test_expected_figures_against_a_loop() -> None:
    generator = np.random.default_rng(1)
    dev, figures = generator.normal(size=(2, 200)), generator.random(200)
    logged = generator.normal(size=(2, 30))

    ends = [(np.quantile(values, 1 / 3), np.quantile(values, 2 / 3)) for values in dev]

    def third(value: float, kind: int) -> int:
        return 0 if value <= ends[kind][0] else 1 if value <= ends[kind][1] else 2

    expected = []
    for i in range(30):
        cell = [
            figures[j] for j in range(200)
            if all(third(dev[kind, j], kind) == third(logged[kind, i], kind) for kind in (0, 1))
        ]  # fmt: skip
        expected.append(np.mean(cell) if len(cell) >= LEAST else figures.mean())
    computed = expected_figures((logged[0], logged[1]), (dev[0], dev[1]), figures)
    np.testing.assert_allclose(computed, expected)
    assert len(set(np.round(computed, 9))) > 5
    few = expected_figures((logged[0], logged[1]), (dev[0, :5], dev[1, :5]), figures[:5])
    np.testing.assert_allclose(few, figures[:5].mean())


def test_demand_against_a_loop() -> None:
    generator = np.random.default_rng(2)
    hits = np.stack([generator.permutation(20)[:4] for _ in range(50)])
    hits[:5, 2:] = -1
    cold, relevant = generator.random(20) < 0.6, generator.random((50, 4)) < 0.3
    precision, expected = [], np.zeros(20)
    for rank in range(4):
        counted = [relevant[i, rank] for i in range(50) if hits[i, rank] >= 0 and cold[hits[i, rank]]]
        precision.append(np.mean(counted))
    for i in range(50):
        for rank in range(4):
            if hits[i, rank] >= 0 and cold[hits[i, rank]]:
                expected[hits[i, rank]] += precision[rank] / 50
    computed = cold_precision(hits, cold, relevant)
    np.testing.assert_allclose(computed, precision)
    np.testing.assert_allclose(demand(hits, cold, computed), expected)
    assert not demand(hits, cold, computed)[~cold].any() and expected.any()


def test_a_log_is_ranked_by_count_and_uncertainty(run: FinishedRun, dev: DevQueries, tiny_dataset: Dataset) -> None:
    suggestions = Suggestions(run, dev)
    train = tiny_dataset.query_texts(tiny_dataset.query_rows("train")[:2])
    test = tiny_dataset.query_texts(tiny_dataset.query_rows("test")[:1])
    log = {
        "what is copper": 2.0,
        "is the market narrow": 9.0,
        "an old garden": 1.0,
        train[0]: 99.0,
        test[0].upper(): 99.0,
    }
    suggested, value = suggestions.queries(log, 10)
    assert value > dev.figures(run, run.bundle.vectors).mean()  # a label of its own helps a query
    assert {suggestion.query for suggestion in suggested} <= set(list(log)[:3]) and suggested[
        0
    ].query == "is the market narrow"
    for suggestion in suggested:
        assert (
            suggestion.gain == pytest.approx(suggestion.count * (value - suggestion.expected)) and suggestion.gain > 0
        )
    assert [suggestion.gain for suggestion in suggested] == sorted(
        (suggestion.gain for suggestion in suggested), reverse=True
    )
    assert suggestions.queries(log, 1)[0] == suggested[:1]
    # Nearest training query and margin, by a loop.
    stored = np.asarray(run.sources.encoding.queries)
    for suggestion in suggested:
        (vector,) = encoded(run.bundle, [suggestion.query])
        cosines = [vector @ q / np.linalg.norm(vector) / np.linalg.norm(q) for q in stored]
        assert suggestion.similarity == pytest.approx(max(cosines), abs=1e-5)
        scores = sorted(run.bundle.vectors @ vector)[::-1]
        assert suggestion.margin == pytest.approx(scores[0] - scores[1], abs=1e-5)


def test_passages_without_a_label_are_suggested(run: FinishedRun, dev: DevQueries, tiny_dataset: Dataset) -> None:
    suggestions = Suggestions(run, dev)
    suggested = suggestions.passages(0.2, 100)
    labelled = {f"p{row}" for row in tiny_dataset.split_qrels("train").passage}
    assert suggested and not labelled & {suggestion.passage_id for suggestion in suggested}
    assert [suggestion.gain for suggestion in suggested] == sorted(
        (suggestion.gain for suggestion in suggested), reverse=True
    )
    assert all(suggestion.gain == pytest.approx(0.2 * suggestion.answers) for suggestion in suggested)
    assert suggestions.passages(0.0, 100) == [] == suggestions.passages(-0.1, 100)


def test_a_query_that_a_generator_wrote_is_no_label_of_a_person(
    latest: Path, tiny_dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, labels = tiny_dataset.query_rows("train"), tiny_dataset.split_qrels("train").positive()
    written = train[::2]
    log = dict.fromkeys(tiny_dataset.query_texts(train[:2]), 9.0)
    passages: dict[bool, set[str]] = {}
    for with_written, rows in ((True, written), (False, train[:0])):
        monkeypatch.setattr(Dataset, "written_rows", lambda _, split, rows=rows: rows if split == "train" else rows[:0])
        run = FinishedRun.of(Bundle.read(latest / "bundle"))
        suggestions = Suggestions(run, DevQueries.of(run))
        monkeypatch.setattr(suggestions, "labelled_value", lambda: 2.0)  # so that each query is expected to gain
        passages[with_written] = {suggestion.passage_id for suggestion in suggestions.passages(1.0, 1000)}
        suggested, _ = suggestions.queries(log, 10)
        assert [suggestion.query for suggestion in suggested] == [*log][: int(with_written)]
    by_people = {f"p{row}" for row in labels.passage[~np.isin(labels.query, written)]}
    by_generator = {f"p{row}" for row in labels.passage} - by_people
    assert not passages[True] & by_people and passages[True] & by_generator and not passages[False] & by_generator


def test_an_added_label_is_not_suggested_again(latest: Path, tmp_path: Path) -> None:
    links = tmp_path / "latest"
    links.mkdir()
    for link in latest.iterdir():
        (links / link.name).symlink_to(link.resolve())
    run = FinishedRun.of(Bundle.read(links / "bundle"))
    before = Suggestions(run, DevQueries.of(run)).passages(1.0, 100)
    add_labels(links / "bundle", [Wanted("is the market narrow", before[0].passage_id)])
    again = FinishedRun.of(Bundle.read(links / "bundle"))
    suggestions = Suggestions(again, DevQueries.of(again))
    assert before[0].passage_id not in {suggestion.passage_id for suggestion in suggestions.passages(1.0, 100)}
    suggested, _ = suggestions.queries({"Is the market narrow": 9.0, "an old garden": 1.0}, 10)
    assert [suggestion.query for suggestion in suggested] == ["an old garden"]


def test_the_graph_suggests_labels_for_a_recommended_bundle_without_a_graph(
    latest: Path, tiny_dataset: Dataset, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    root = tmp_path / "root"
    (root / "latest" / "bundles").mkdir(parents=True)
    for link in latest.iterdir():
        path = "bundles/gnn_encoder" if link.name == "bundle" else link.name
        (root / "latest" / path).symlink_to(link.resolve())
    inputs = built(tiny_dataset.path, (latest / "dual_encoder").resolve(), tmp_path)
    (root / "latest" / "bundle").symlink_to(bundle_of(inputs, tmp_path / "made", "sum", sum_weights=(0.5,)))
    log, out = tmp_path / "log", tmp_path / "out.json"
    log.write_text("is the market narrow\t9\nan old garden\n")
    command = ("labels", "suggest", "--queries", str(log), "--json", str(out), "--root", str(root), "--draws", "1")

    def suggested() -> list[str]:
        assert call(*command) == 0
        return [suggestion["query"] for suggestion in json.loads(out.read_text())["suggestions"]]

    assert suggested() == ["is the market narrow", "an old garden"]
    assert call("labels", "add", "is the market narrow", "p7", "--root", str(root)) == 0
    assert "1 passage has a new vector" in capsys.readouterr().out
    assert Bundle.read(root / "latest" / "bundles" / "gnn_encoder").added is None
    assert suggested() == ["an old garden"]


def test_logs(tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    file.write_text("\ufeffa need\t3\n\nA need \r\n\u200b\t7\nanother\nA\u00ad  need\u200b\n", encoding="utf-8")
    assert read_log(file) == {"a need": 5.0, "another": 1.0}
    for content, message in (
        ("a\tmany\n", "line 1: 'many' is no count"),
        ("a\t-1\n", "is no count"),
        ("\n", "no query"),
    ):
        file.write_text(content)
        with pytest.raises(UserError, match=message):
            read_log(file)


def test_the_command(latest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, files = tmp_path / "log.tsv", {name: tmp_path / f"out.{name}" for name in ("csv", "json", "plot")}
    log.write_text("is the market narrow\t9\nan old garden\n")
    options = [part for name, file in files.items() for part in (f"--{name}", str(file))]
    bundle = ("--bundle", str(latest / "bundle"))
    assert call("labels", "suggest", *bundle, "--queries", str(log), *options, "--draws", "1") == 0
    shown = capsys.readouterr().out
    for words in ("What labels gain", "of 20 dev queries", "~120", "Queries to label next", "is the market narrow"):
        assert words in shown
    written = json.loads(files["json"].read_text())
    assert len(written["curve"]) == 5 and written["extrapolated"]["queries"] == 120
    assert written["curve"][0]["warm_gain"] is None and written["suggestions"][0]["query"] == "is the market narrow"
    assert files["csv"].read_text().splitlines()[0].startswith("query,count,gain")
    assert files["plot"].read_bytes().startswith(b"\x89PNG")
    assert call("labels", "suggest", *bundle, "--draws", "1", "-k", "3") == 0
    assert "Passages to label next" in (shown := capsys.readouterr().out) or "no label is expected to gain" in shown
