"""The whole step on the tiny dataset with random encoders, then its figures from first principles."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gnn_encoder.artifacts import (
    Bundle,
    Contents,
    Dataset,
    DatasetWriter,
    Encoding,
    Graph,
    Report,
    Run,
    create_vectors,
    drafting,
    verify,
)
from gnn_encoder.encoding import encode_passages, encode_texts
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.measures import NAMES
from gnn_encoder.evaluation.results import BASELINE, BM25, CANDIDATE, DPR, UNTRAINED, split_digest
from gnn_encoder.index_file import build_index
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.models.gnn import GNN, GnnConfig
from gnn_encoder.models.gnn_encoder import GnnEncoder
from gnn_encoder.settings import Evaluate
from gnn_encoder.steps.evaluate import evaluate


def write_graph(folder: Path, dataset: Dataset, encoders: DualEncoder, vectors: np.ndarray) -> None:
    """A graph of random edges, a random GNN, and h_p and h_q as they are without training."""
    train, m = dataset.query_rows("train"), len(dataset.passages)
    torch.manual_seed(0)
    edges = np.stack([np.random.default_rng(int(q)).permutation(m)[:4] for q in train]).astype(np.int32)
    with drafting(folder / "graph", "graph") as draft:
        Graph.write_structure(draft, train, edges, np.zeros(edges.shape, bool), edges, m)
    with drafting(folder / "gnn_encoder", "model") as draft:
        GnnEncoder(encoders, GNN(GnnConfig(vectors.shape[1], 0))).save(draft.path)
    with drafting(folder / "encoding", "encoding") as draft:
        Encoding.create(draft, "passages", vectors.shape)[:] = vectors
        asked = encode_texts(encoders.query_encoder, dataset.query_texts(train), precision="fp32")
        Encoding.create(draft, "queries", asked.shape)[:] = asked
        Contents.write(draft, {})


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset, tiny_backbone: Path) -> dict[str, Path]:
    """BM25 finds every positive first, DPR every positive third; M_de and the bundle are random."""
    folder = tmp_path_factory.mktemp("evaluate")
    queries, m = np.arange(len(tiny_dataset.queries)), len(tiny_dataset.passages)
    positive = tiny_dataset.qrels.passage[np.argsort(tiny_dataset.qrels.query)]
    others = np.stack([positive + 1, positive + 2], axis=1) % m
    scores = np.tile(np.float32([3, 2, 1]), (len(queries), 1))
    first = np.column_stack([positive, others])
    for name, hits in (("bm25_run", first), ("dpr_run", first[:, [1, 2, 0]])):
        with drafting(folder / name, "run") as draft:
            Run.from_hits(queries, hits, scores).write(draft)
    encoders = DualEncoder.from_backbone(
        str(tiny_backbone), pooling="mean", normalize="yes", query_length=16, passage_length=24, share_encoders=False
    )
    with drafting(folder / "dual_encoder", "model") as draft:
        encoders.save(draft.path)
    with drafting(folder / "passage_vectors", "vectors") as draft:
        vectors = create_vectors(draft, m, encoders.passage_encoder.width)
        encode_passages(encoders.passage_encoder, tiny_dataset.passages, vectors, precision="fp32")
        vectors.flush()
    with drafting(folder / "bundle", "bundle") as draft:
        # The GNN-encoder's stand-in: the same vectors with noise, so that some queries win and some lose.
        noisy = vectors + np.random.default_rng(0).normal(0, 0.02, vectors.shape).astype(np.float32)
        save = encoders.query_encoder.save
        Bundle.write(draft, noisy, tiny_dataset, save_index=build_index, save_query_encoder=save)
    write_graph(folder, tiny_dataset, encoders, vectors)
    names = ("bm25_run", "dpr_run", "dual_encoder", "passage_vectors", "graph", "gnn_encoder", "encoding", "bundle")
    return {"dataset": tiny_dataset.path, **{name: folder / name for name in names}}


@pytest.fixture(scope="module")
def evaluated(inputs: dict[str, Path], tiny_backbone: Path) -> SimpleNamespace:
    settings = Evaluate(untrained_backbone=str(tiny_backbone), permutations=200, precision="fp32")
    path = inputs["bundle"].with_name("report")
    evaluate(settings, report=path, **inputs)
    verify(path)
    return SimpleNamespace(report=Report.read(path), settings=settings)


def test_every_system_in_order_on_dev_and_test(evaluated: SimpleNamespace) -> None:
    metrics = evaluated.report.metrics
    assert list(metrics["results"]) == ["dev", "test"]
    for split in ("dev", "test"):
        assert list(metrics["results"][split]) == [BM25, UNTRAINED, DPR, BASELINE, CANDIDATE]
        assert list(metrics["p_values"][split]) == [BM25, UNTRAINED, DPR, CANDIDATE]
    assert metrics["queries"] == {"dev": 20, "test": 20}
    assert metrics["unlabelled_queries"] == {"dev": 0, "test": 0}


def test_figures_of_known_rankings(evaluated: SimpleNamespace) -> None:
    test = evaluated.report.metrics["results"]["test"]
    assert set(test[BM25].values()) == {1.0}
    assert test[DPR]["RR@10"] == pytest.approx(1 / 3)
    assert test[DPR]["nDCG@10"] == pytest.approx(1 / np.log2(4))


@pytest.mark.parametrize("system", [BASELINE, CANDIDATE])
def test_dense_figures_from_the_vectors(
    evaluated: SimpleNamespace, inputs: dict[str, Path], tiny_dataset: Dataset, system: str
) -> None:
    bundle = Bundle.read(inputs["bundle"])
    plain = np.load(inputs["passage_vectors"] / "vectors.npy")
    queries = tiny_dataset.query_rows("test")
    encoder = DualEncoder.load(inputs["dual_encoder"]).query_encoder
    asked = encode_texts(encoder, tiny_dataset.query_texts(queries), precision="fp32")

    def reciprocal_ranks(vectors: np.ndarray) -> np.ndarray:
        scores = asked @ vectors.T
        labels = tiny_dataset.qrels
        positive = labels.passage[np.argsort(labels.query)][queries]
        rank = 1 + (scores > np.take_along_axis(scores, positive[:, None], axis=1)).sum(axis=1)
        return np.where(rank <= 10, 1 / rank, 0.0)

    table = evaluated.report.per_query().to_pandas()
    rows = table[(table.split == "test") & (table.system == system)]
    assert rows["query"].tolist() == queries.tolist()
    assert rows["query_id"].tolist() == [f"q{q}" for q in queries]
    own, other = (bundle.vectors, plain) if system == CANDIDATE else (plain, bundle.vectors)
    np.testing.assert_allclose(rows["RR@10"], reciprocal_ranks(own), atol=1e-12)
    # The control: the other system's vectors give other figures.
    assert not np.allclose(rows["RR@10"], reciprocal_ranks(other))
    means = evaluated.report.metrics["results"]["test"][system]
    assert [means[name] for name in NAMES] == pytest.approx([rows[name].mean() for name in NAMES])


def test_metrics_are_scalars_with_a_headline(evaluated: SimpleNamespace) -> None:
    figures = evaluated.report.manifest.metrics
    assert figures["headline"].startswith("GNN-encoder MRR@10 0.")
    assert "dual encoder 0." in figures["headline"]
    assert figures["test/DPR/RR@10"] == pytest.approx(1 / 3)
    assert 0 < figures["test/DPR/p/RR@10"] <= 1
    assert all(isinstance(value, int | float | str) for value in figures.values())


def test_report_folder(evaluated: SimpleNamespace) -> None:
    files = {p.relative_to(evaluated.report.path).as_posix() for p in evaluated.report.path.rglob("*") if p.is_file()}
    plots = {"plots/systems.png", "plots/gains.png"}
    assert files == {"manifest.json", "metrics.json", "per_query.parquet", "report.html", *plots}
    page = evaluated.report.page.read_text(encoding="utf-8")
    assert "GNN-encoder won most" in page
    explained = page.count('<details class="why">')
    assert explained == page.count(f"<h4>{CANDIDATE},") * 3 > 0, "each of the candidate's passages, of no other's"
    assert page.count("the passage itself") == explained
    assert evaluated.report.manifest.inputs["graph"] in page
    assert "what is the" in page
    assert evaluated.report.manifest.inputs["bundle"] in page


def test_without_the_untrained_row_the_rest_is_the_same(
    evaluated: SimpleNamespace, inputs: dict[str, Path], tmp_path: Path
) -> None:
    settings = evaluated.settings.model_copy(update={"untrained_backbone": ""})
    evaluate(settings, report=tmp_path / "report", **inputs)
    expected = evaluated.report.metrics["results"]
    for systems in expected.values():
        del systems[UNTRAINED]
    assert Report.read(tmp_path / "report").metrics["results"] == expected


def one_passage_dataset(path: Path, split: str, relevance: int, text: str = "a stone") -> Dataset:
    with drafting(path, "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(["p"], [""], ["the old stone"])
        writer.queries(["q", "r"], [text, "a river"], [split, "train"], [[], []])
        writer.qrels(["q"], ["p"], [relevance], [0], [0])
        writer.close()
    return Dataset(path)


def test_data_without_labelled_queries_is_refused(inputs: dict[str, Path], tmp_path: Path) -> None:
    data = one_passage_dataset(tmp_path / "dataset", "test", relevance=0)
    with pytest.raises(UserError, match="no dev or test query with a positive label"):
        evaluate(Evaluate(untrained_backbone=""), report=tmp_path / "report", **{**inputs, "dataset": data.path})
    assert not (tmp_path / "report").exists()


def test_digest_sees_what_figures_depend_on(tmp_path: Path) -> None:
    def digest(name: str, **what: object) -> str:
        return split_digest(one_passage_dataset(tmp_path / name, **{"split": "test", "relevance": 1, **what}), "test")

    assert digest("a") == digest("b")
    assert len({digest("c"), digest("d", relevance=2), digest("e", text="a cloud"), digest("f", split="dev")}) == 4
