"""What is said of the data, counted by hand."""

from pathlib import Path

import numpy as np
import pytest

from gnn_encoder.artifacts import Dataset, Graph, drafting
from gnn_encoder.report.charts import profile_charts
from gnn_encoder.report.profile import data_profile


@pytest.fixture
def graph(tmp_path: Path, tiny_dataset: Dataset) -> Graph:
    """Every training query has edges to its own passage and to passage 7."""
    train, labels = tiny_dataset.query_rows("train"), tiny_dataset.split_qrels("train")
    passage_of = labels.passage[np.argsort(labels.query)]
    edges = np.stack([passage_of, np.where(passage_of == 7, -1, 7)], axis=1).astype(np.int32)
    with drafting(tmp_path / "graph", "graph") as draft:
        Graph.write_structure(draft, train, edges, np.zeros(edges.shape, bool), edges, len(tiny_dataset.passages))
    return Graph.read(tmp_path / "graph")


def test_degrees_labels_and_words(tiny_dataset: Dataset, graph: Graph) -> None:
    profile = data_profile(tiny_dataset, graph)
    facts, labels = profile.facts, tiny_dataset.split_qrels("train")
    reached = {*labels.passage.tolist(), 7}
    assert profile.degrees.tolist() == [60 if p == 7 else int(p in reached) for p in range(100)]
    assert facts["isolated"] == pytest.approx(1 - len(reached) / 100)
    test = tiny_dataset.split_qrels("test").passage.tolist()
    expected = {"train": 1.0, "test": sum(p in reached for p in test) / len(test)}
    assert {split: facts["labels_with_neighbors"][split] for split in expected} == expected
    counts = {"queries": 20, "labelled": 20, "labels": 20, "warm_queries": 0, "warm_labels": 0, "recurring": 0}
    assert facts["splits"]["dev"] == counts
    assert facts["degrees"]["most"] == 60
    # "the DETAIL TOPIC is in the DETAIL TOPIC", "what is the DETAIL TOPIC number N"
    assert set(profile.words["passages"].tolist()) == {8} and facts["words"]["dev queries"]["median"] == 7
    drawn = profile_charts(profile)
    degrees = {bar["queries"]: bar["share"] for bar in drawn["degrees"]["data"]["values"]}
    assert degrees["33+"] == 0.01 and degrees["0"] == facts["isolated"]
    shares = [row["share"] for row in drawn["lengths"]["data"]["values"] if row["texts"] == "passages"]
    assert sum(shares) == pytest.approx(1)
