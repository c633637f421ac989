"""The step on the tiny dataset: what it finds, what it leaves out, what it reports."""

from pathlib import Path

import numpy as np
from bundles import write_bm25

from gnn_encoder.artifacts import Dataset, Run, read_manifest
from gnn_encoder.settings.foundation import Bm25Retrieve
from gnn_encoder.steps.bm25_retrieve import bm25_retrieve


def test_run_of_all_splits(tmp_path: Path, tiny_dataset: Dataset) -> None:
    inputs = {"dataset": tiny_dataset.path, "bm25_index": write_bm25(tiny_dataset.path, tmp_path / "index")}
    bm25_retrieve(Bm25Retrieve(train_depth=5), **inputs, bm25_run=tmp_path / "run")
    run, manifest = Run.read(tmp_path / "run"), read_manifest(tmp_path / "run", "run")
    hits = np.bincount(run.query, minlength=100)
    assert hits[tiny_dataset.query_rows("train")].max() == 5
    assert hits[tiny_dataset.query_rows("test")].max() > 5
    assert hits.max() < 100, "passages that share no term are no hits"
    assert (run.score > 0).all()
    # Topic and detail are both in the query: its passage is always among the hits.
    assert manifest.metrics["dev/R_at_100"] == 1.0
    assert manifest.metrics["dev/RR_at_10"] > 0.8
    assert manifest.metrics["headline"] == "dev R@100 1.000"
    assert manifest.rows["hits"] == len(run.query)


def test_hits_share_a_word_with_their_query(tmp_path: Path, tiny_dataset: Dataset) -> None:
    index = write_bm25(tiny_dataset.path, tmp_path / "index", stemmer="none")
    bm25_retrieve(Bm25Retrieve(), dataset=tiny_dataset.path, bm25_index=index, bm25_run=tmp_path / "run")
    run = Run.read(tmp_path / "run")
    texts = tiny_dataset.passages.take(np.arange(100)).full_texts()
    queries = tiny_dataset.query_texts(np.arange(100))
    stop = {"the", "of", "a", "is", "and", "in"}
    sharing = {
        (q, p)
        for q, query in enumerate(queries)
        for p, text in enumerate(texts)
        if (set(query.split()) & set(text.split())) - stop
    }
    listed = set(zip(run.query.tolist(), run.passage.tolist(), strict=True))
    evaluated = {(q, p) for q, p in sharing if q >= 60}
    assert {pair for pair in listed if pair[0] >= 60} == evaluated
    assert listed <= sharing
