"""SS-BERT's passage evaluation against a plain loop: one pair at a time, in float64."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import first_stage, write_generator

from gnn_encoder.artifacts import Dataset, Run, drafting, read_manifest
from gnn_encoder.artifacts.tables import System
from gnn_encoder.inference.generation import pair_batch, passage_ids, query_ids
from gnn_encoder.models.query_generator import QueryGenerator
from gnn_encoder.settings.reranking import EvaluatePassages
from gnn_encoder.steps.evaluate_passages import evaluate_passages

DEPTH = 7
WEIGHTS = (0.02, 0.05, 0.1, 0.3, 1.0)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset, tiny_seq2seq: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("evaluate_passages")
    write_generator(tiny_seq2seq, folder / "generator", 16)
    queries, hits = first_stage(tiny_dataset)
    hits[-20:] = hits[-20:, [5, *range(5), 6, 7]]  # of the test queries the positives are first, so no weight is best
    scores = -np.sort(-0.02 * np.random.default_rng(0).random(hits.shape), axis=1)
    with drafting(folder / "run", "run") as draft:
        Run.from_hits(queries, hits, scores).write(draft)
    return {"dataset": tiny_dataset.path, "ranking": folder / "run", "query_generator": folder / "generator"}


@pytest.fixture(scope="module")
def likelihoods(inputs: dict[str, Path], tiny_dataset: Dataset) -> dict[tuple[int, int], tuple[float, int]]:
    """{(query, passage): log-likelihood, number of tokens} of the first hits of dev and test queries."""
    generator, run, values = QueryGenerator.load(inputs["query_generator"]).eval(), Run.read(inputs["ranking"]), {}
    rows = (run.rank <= DEPTH) & ~np.isin(run.query, tiny_dataset.query_rows("train"))
    for query, passage in zip(run.query[rows].tolist(), run.passage[rows].tolist(), strict=True):
        text = tiny_dataset.passages.take(np.array([passage])).full_texts()
        tokens = query_ids(generator, tiny_dataset.query_texts(np.array([query])))
        with torch.inference_mode():
            loss = generator(*pair_batch(generator, passage_ids(generator, text), tokens, np.array([0])))
        values[query, passage] = -float(loss), int(tokens.lengths[0])
    return values


def evaluate(inputs: dict[str, Path], out: Path, **settings: Any) -> tuple[Run, dict[str, Any]]:
    values = {"generator_weights": WEIGHTS, "evaluation_depth": DEPTH, "precision": "fp32", **settings}
    evaluate_passages(EvaluatePassages.model_validate(values), **inputs, run=out)
    return Run.read(out), System.of(out).facts


def by_hand(
    before: Run, query: int, weight: float, likelihoods: Any, per_token: bool = False
) -> list[tuple[float, int]]:
    """(score, passage) of the query's first hits, best first."""
    rows = np.flatnonzero((before.query == query) & (before.rank <= DEPTH))
    scored = []
    for passage, score in zip(before.passage[rows].tolist(), before.score[rows].tolist(), strict=True):
        value, length = likelihoods[query, passage]
        scored.append((score + weight * value / (length if per_token else 1), passage))
    return sorted(scored, key=lambda pair: -pair[0])


@pytest.mark.parametrize("per_token", [False, True])
def test_scores_are_the_rerankers_and_the_weighted_log_likelihood(
    per_token: bool, inputs: dict[str, Path], likelihoods: Any, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    before = Run.read(inputs["ranking"])
    after, _ = evaluate(inputs, tmp_path / "run", generator_weights=(0.3,), length_normalised=per_token)
    assert not np.isin(after.query, tiny_dataset.query_rows("train")).any()
    moved = 0
    for query in np.unique(after.query).tolist():
        rows, old = np.flatnonzero(after.query == query), before.passage[before.query == query].tolist()
        expected = by_hand(before, query, 0.3, likelihoods, per_token)
        assert after.passage[rows][:DEPTH].tolist() == [passage for _, passage in expected]
        np.testing.assert_allclose(after.score[rows][:DEPTH], [score for score, _ in expected], atol=1e-4)
        assert after.passage[rows][DEPTH:].tolist() == old[DEPTH:] and (np.diff(after.score[rows]) <= 0).all()
        other = by_hand(before, query, 0.3, likelihoods, not per_token)
        assert not np.allclose([score for score, _ in other], after.score[rows][:DEPTH], atol=1e-2)
        moved += after.passage[rows].tolist() != old
    assert moved > 10


def test_the_weight_is_the_best_one_on_dev_queries(
    inputs: dict[str, Path], likelihoods: Any, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    before, after = Run.read(inputs["ranking"]), evaluate(inputs, tmp_path / "run", measure="RR@3")
    means = {"dev": {}, "test": {}}
    for split, mean_of in means.items():
        labels = tiny_dataset.split_qrels(split)
        for weight in WEIGHTS:
            ranks = []
            for query, positive in zip(labels.query.tolist(), labels.passage.tolist(), strict=True):
                order = [passage for _, passage in by_hand(before, query, weight, likelihoods)]
                ranks.append(order.index(positive) + 1)
            mean_of[weight] = sum(1 / rank for rank in ranks if rank <= 3) / len(ranks)
    best = {split: max(mean_of, key=lambda weight: mean_of[weight]) for split, mean_of in means.items()}
    assert after[1]["figures"] == pytest.approx({str(weight): mean for weight, mean in means["dev"].items()})
    assert after[1]["generator_weight"] == read_manifest(tmp_path / "run").metrics["generator_weight"] == best["dev"]
    assert best["dev"] != best["test"] and len(set(means["dev"].values())) > 2


def test_without_dev_queries_the_middle_weight_is_taken(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Dataset.split_qrels
    monkeypatch.setattr(Dataset, "split_qrels", lambda self, split: real(self, "none" if split == "dev" else split))
    _, facts = evaluate(inputs, tmp_path / "run")
    assert facts == {"generator_weight": 0.1}
