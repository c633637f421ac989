"""What a run recommends, on figures written by hand."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from recommend_inputs import FUSED, GRAPH, MEANS, PLAIN, advice, write_evaluation

from gnn_encoder.artifacts import Dataset, Evaluation, Recommended, drafting, read_manifest
from gnn_encoder.artifacts.arrays import EVALUATED, QUERIES, create_rows, create_vectors
from gnn_encoder.artifacts.extended_dataset import extend_queries
from gnn_encoder.errors import UserError
from gnn_encoder.settings.outcome import Evaluate, Recommend
from gnn_encoder.steps.recommend import recommend


@pytest.mark.parametrize(
    ("change", "system", "weight"),
    [
        ({}, GRAPH, None),
        ({GRAPH: 0.5}, PLAIN, None),
        ({FUSED: 0.9}, FUSED, 0.4),
        ({"BM25": 0.7}, "BM25", 0.0),
        ({f"{FUSED} (RRF)": 0.9}, GRAPH, None),  # cannot be served
    ],
)
def test_the_recommended_system_and_how_it_is_served(
    change: dict[str, float], system: str, weight: float | None, tmp_path: Path, tiny_dataset: Dataset
) -> None:
    facts = advice(tmp_path, tiny_dataset, MEANS | change, Recommend())
    assert (facts["system"], facts["weight"], facts["queries"]) == (system, weight, 20)
    assert facts["dense"] == (PLAIN if system in (FUSED, "BM25") else system)
    assert facts["sentence"] == read_manifest(tmp_path / "recommendation").metrics["headline"]
    assert facts["sentence"].startswith(f"Recommended: {system} (MRR@10 0.")
    assert [standing["system"] for standing in facts["standings"]] == ["BM25", PLAIN, FUSED, GRAPH]


def test_without_an_index_of_words_nothing_is_fused(tmp_path: Path, tiny_dataset: Dataset) -> None:
    means = MEANS | {FUSED: 0.9, "BM25": 0.9}
    facts = advice(tmp_path, tiny_dataset, means, Recommend(bm25=False))
    assert [standing["system"] for standing in facts["standings"]] == [PLAIN, GRAPH] and facts["system"] == GRAPH


def test_the_order_and_the_margin_are_settings(tmp_path: Path, tiny_dataset: Dataset) -> None:
    turned = Recommend(order=(GRAPH, PLAIN))
    assert advice(tmp_path / "turned", tiny_dataset, MEANS | {GRAPH: 0.5}, turned)["system"] == GRAPH
    wide = Recommend(margin=0.5, significance=0.0)
    assert advice(tmp_path / "wide", tiny_dataset, MEANS, wide)["system"] == "BM25"
    with pytest.raises(UserError, match=r"recommend\.order lacks Dual encoder"):
        advice(tmp_path / "without", tiny_dataset, MEANS, Recommend(order=(GRAPH,)))


def test_the_test_queries_are_reported_and_decide_nothing(tmp_path: Path, tiny_dataset: Dataset) -> None:
    facts = advice(tmp_path / "dev", tiny_dataset, MEANS, Recommend(), splits=("dev", "test"))
    assert f"; on test {facts['system']} has 0.700, the highest there" in facts["sentence"]
    evaluation = tmp_path / "dev" / "evaluation"
    metrics = Evaluation.read(evaluation).metrics
    metrics["results"]["test"][PLAIN]["RR@10"] = 0.99
    table = Evaluation.read(evaluation).per_query
    dev = table.filter(pa.array([split == "dev" for split in table.column("split").to_pylist()]))
    with drafting(tmp_path / "other", "evaluation") as draft:  # without one figure of a test query
        Evaluation.write(draft, metrics=metrics, per_query=dev, answers=None, first_hits={})
        draft.manifest.inputs = {"dataset": tiny_dataset.manifest.digest}
        draft.manifest.settings = Evaluate(permutations=200).model_dump(mode="json")
    paths = {"evaluation": tmp_path / "other", "recommendation": tmp_path / "again"}
    recommend(Recommend(), dataset=tiny_dataset.path, **paths)
    other = Recommended.read(tmp_path / "again").facts
    assert other["system"] == facts["system"] and "where the highest is 0.990 (Dual encoder)" in other["sentence"]


def test_a_loss_of_cold_queries_is_seen(tmp_path: Path, tiny_dataset: Dataset) -> None:
    """All dev queries of the tiny data are cold: what is worse there is not recommended, whatever the margin to the
    best system."""
    settings = Recommend(order=("BM25", PLAIN), margin=0.1, significance=0.0)
    facts = advice(tmp_path, tiny_dataset, {"BM25": 0.3, PLAIN: 0.5}, settings)
    (words, _) = facts["standings"]
    assert facts["system"] == PLAIN and "0.200 below Dual encoder on 20 cold queries" in words["objections"][0]


def test_dev_queries_unlike_the_test_queries_weigh_less(tmp_path: Path, tiny_dataset: Dataset) -> None:
    """The graph's system wins on dev queries that equal a training query, and loses on the others, as all test queries
    are. Not weighted, it is recommended."""
    train, dev, test = map(tiny_dataset.query_rows, ("train", "dev", "test"))
    means = {PLAIN: 0.5, GRAPH: 0.5}
    evaluation = write_evaluation(tmp_path / "evaluation", tiny_dataset, means, splits=("dev", "test"))
    table = Evaluation.read(evaluation).per_query
    values, near = np.array(table.column("RR@10")), np.isin(table.column("query"), dev[:-4])
    change = np.where(near, 0.3, -0.3) * (np.array(table.column("system")) == GRAPH)
    with drafting(tmp_path / "changed", "evaluation") as draft:
        changed = table.set_column(table.schema.get_field_index("RR@10"), "RR@10", pa.array(values + change))
        metrics = Evaluation.read(evaluation).metrics
        Evaluation.write(draft, metrics=metrics, per_query=changed, answers=None, first_hits={})
        draft.manifest.inputs = {"dataset": tiny_dataset.manifest.digest}
        draft.manifest.settings = Evaluate(permutations=200).model_dump(mode="json")
    with drafting(tmp_path / "passage_vectors", "vectors") as draft:
        create_vectors(draft, len(tiny_dataset.passages), 2)[:] = 1
        create_rows(draft, QUERIES, (len(train), 2))[:] = [1, 0]
        query_vectors = create_rows(draft, EVALUATED, (len(dev) + len(test), 2))
        query_vectors[:] = np.where(np.isin(np.union1d(dev, test), dev[:-4])[:, None], [1, 0], [0, 1])
    paths = {"dataset": tiny_dataset.path, "evaluation": tmp_path / "changed"}
    recommend(Recommend(), **paths, recommendation=tmp_path / "plain")
    recommend(Recommend(), **paths, passage_vectors=tmp_path / "passage_vectors", recommendation=tmp_path / "weighted")
    plain, weighted = (Recommended.read(tmp_path / name).facts for name in ("plain", "weighted"))
    assert (plain["system"], weighted["system"]) == (GRAPH, PLAIN)
    assert "dev queries are weighted" in weighted["sentence"] and "1.00 and 0.00" in weighted["sentence"]


def test_without_dev_queries_it_is_the_baseline(tmp_path: Path, tiny_dataset: Dataset) -> None:
    facts = advice(tmp_path, tiny_dataset, MEANS, Recommend(), splits=("test",))
    assert (facts["system"], facts["queries"], facts["standings"]) == (PLAIN, 0, [])
    assert "no labelled dev query" in facts["sentence"]


def test_generated_dev_queries_decide_nothing_unless_they_are_let(tmp_path: Path, tiny_dataset: Dataset) -> None:
    dev = tiny_dataset.split_qrels("dev")
    with drafting(tmp_path / "data", "dataset") as draft:
        extend_queries(draft, tiny_dataset, ["one more"], ["dev"], [[3, 4]], [-1], tiny_dataset.recurring, False)
    data = Dataset(tmp_path / "data")
    assert data.split_qrels("dev").passage.tolist() == [*dev.passage.tolist(), 3, 4] and data.written_splits == ("dev",)
    for settings, system in ((Recommend(), PLAIN), (Recommend(by_generated=True), GRAPH)):
        facts = advice(tmp_path / system, data, MEANS, settings)
        assert facts["system"] == system and ("the dev queries are generated" in facts["sentence"]) == (system == PLAIN)
        assert (" generated dev queries" in facts["sentence"]) == (system == GRAPH)
    with drafting(tmp_path / "test", "dataset") as draft:
        extend_queries(draft, tiny_dataset, ["one more"], ["test"], [[3, 4]], [-1], tiny_dataset.recurring, False)
    facts = advice(tmp_path / "of test", Dataset(tmp_path / "test"), MEANS, Recommend(), splits=("dev", "test"))
    assert (
        "; on generated test queries GNN-encoder has" in facts["sentence"] and " generated dev" not in facts["sentence"]
    )


def test_an_evaluation_of_other_data_is_refused(tmp_path: Path, tiny_dataset: Dataset, tiny_documents: Dataset) -> None:
    evaluation = write_evaluation(tmp_path / "evaluation", tiny_documents, MEANS)
    with pytest.raises(UserError, match="does not evaluate"):
        recommend(Recommend(), dataset=tiny_dataset.path, evaluation=evaluation, recommendation=tmp_path / "r")
