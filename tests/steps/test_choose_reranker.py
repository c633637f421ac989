"""The chosen re-ranker has the highest MAP on dev queries, by a plain loop."""

from pathlib import Path

import numpy as np
import pytest

from gnn_encoder.artifacts import Dataset, DatasetWriter, Run, drafting, read_manifest
from gnn_encoder.settings.reranking import ChooseReranker
from gnn_encoder.steps.choose_reranker import choose_reranker


def write_systems(folder: Path, data: Dataset) -> tuple[list[Path], list[Path], dict[str, float]]:
    """Runs and scorers of three systems, and the mean average precision of each on dev (one positive a query)."""
    dev, labels = data.query_rows("dev"), data.split_qrels("dev")
    positive = dict(zip(labels.query.tolist(), labels.passage.tolist(), strict=True))
    runs, scorers, figures = [], [], {}
    for seed, name in enumerate(("first", "second", "third")):
        with drafting(folder / f"scorer{seed}", "model") as draft:
            (draft / "sub").mkdir()
            (draft / "sub" / "weights").write_text(name)
        generator = np.random.default_rng(seed)
        queries = np.concatenate([dev, data.query_rows("test")])
        hits = np.stack([generator.permutation(100)[:30] for _ in queries])
        scores = np.tile(-np.arange(30.0), (len(queries), 1))
        with drafting(folder / f"run{seed}", "run") as draft:
            Run.from_hits(queries, hits, scores).write(draft, name)
            draft.manifest.inputs = {"scorer": read_manifest(folder / f"scorer{seed}").digest}
        ranks = [np.flatnonzero(row == positive[query]) for query, row in zip(dev.tolist(), hits, strict=False)]
        figures[name] = sum(1 / (rank[0] + 1) for rank in ranks if len(rank)) / len(dev)
        runs.append(folder / f"run{seed}")
        scorers.append(folder / f"scorer{seed}")
    return runs, scorers[::-1], figures


def test_the_best_on_dev_is_chosen(tmp_path: Path, tiny_dataset: Dataset) -> None:
    runs, scorers, figures = write_systems(tmp_path, tiny_dataset)
    best = max(figures, key=lambda name: figures[name])
    for order in (runs, runs[::-1]):
        out = tmp_path / f"out-{order[0].name}"
        choose_reranker(ChooseReranker(), dataset=tiny_dataset.path, runs=order, scorers=scorers, reranker=out)
        assert (out / "sub" / "weights").read_text() == best
    metrics = read_manifest(out).metrics
    assert metrics["headline"] == f"{best}, dev MAP {figures[best]:.3f}"
    assert {name: metrics[f"dev/{name}"] for name in figures} == pytest.approx(figures)


def test_without_dev_labels_the_last_is_chosen(tmp_path: Path, tiny_dataset: Dataset) -> None:
    runs, scorers, _ = write_systems(tmp_path, tiny_dataset)
    with drafting(tmp_path / "data", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(["p"], [""], ["a"])
        writer.queries(["q"], ["a"], ["test"], [[]])
        writer.qrels(["q"], ["p"], [1], [0], [0])
        writer.close()
    choose_reranker(ChooseReranker(), dataset=tmp_path / "data", runs=runs, scorers=scorers, reranker=tmp_path / "out")
    assert (tmp_path / "out" / "sub" / "weights").read_text() == "third"
