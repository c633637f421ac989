"""What is said of dev figures that the dev queries themselves have chosen."""

from gnn_encoder.artifacts.history import Record
from gnn_encoder.evaluation.remarks import graph_remarks, in_sample_remarks


def test_systems_whose_weights_dev_chose_are_named() -> None:
    (said,) = in_sample_remarks({"Query sum": {"in_sample": True}, "BM25 + A": {"tuned_on": "dev"}})
    assert said.startswith("dev figures of Query sum (and of their sums) are in-sample")
    assert in_sample_remarks({"Query sum": {"in_sample": False}}) == []


def test_a_graph_that_dev_chose_is_said() -> None:
    tried = {f"dev/{name}/RR@10": 0.5 for name in ("Dual encoder", "one layer", "two layers")}
    (said,) = graph_remarks(Record(metrics={**tried, "seconds": 3.0}))
    assert said.startswith("dev figures of GNN-encoder") and said.endswith("chose its graph among 2 variants")
    del tried["dev/two layers/RR@10"]
    assert graph_remarks(Record(metrics=tried)) == [] == graph_remarks(None)
