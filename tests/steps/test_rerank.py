from pathlib import Path

import numpy as np
import pytest
import torch

from gnn_encoder.artifacts import Dataset, Run, drafting, read_manifest
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.models.late_interaction import LateInteraction, LateInteractionLayout
from gnn_encoder.retrieval.reranking import reranked
from gnn_encoder.retrieval.scorers import CrossEncoderScorer, save_scorer
from gnn_encoder.settings.outcome import Rerank
from gnn_encoder.settings.shared import Merge
from gnn_encoder.steps.merge import merge
from gnn_encoder.steps.rerank import rerank


@pytest.fixture(scope="module")
def model(tiny_backbone: Path) -> CrossEncoder:
    torch.manual_seed(0)
    model = CrossEncoder.from_backbone(str(tiny_backbone), 48).eval()
    torch.nn.init.normal_(model.head.weight, std=1.0)
    return model


@pytest.fixture(scope="module")
def run() -> Run:
    generator = np.random.default_rng(0)
    passages = generator.permuted(np.tile(np.arange(100), (6, 1)), axis=1)[:, :12]
    passages[2, 3:] = -1  # fewer hits than are looked at
    return Run.from_hits(np.array([3, 5, 8, 61, 62, 90]), passages, -np.sort(-generator.random((6, 12)), axis=1))


def by_hand(model: CrossEncoder, data: Dataset, query: int, passages: list[int]) -> list[float]:
    """One pair at a time through the tokenizer's own pairing."""
    (question,) = data.query_texts(np.array([query]))
    scores = []
    for text in data.passages.take(np.array(passages)).full_texts():
        with torch.inference_mode():
            scores.append(float(model(**model.tokenizer(question, text, return_tensors="pt"))[0]))
    return scores


def test_first_hits_are_ordered_by_the_cross_encoder_and_the_rest_kept(
    model: CrossEncoder, run: Run, tiny_dataset: Dataset
) -> None:
    ranking = reranked(CrossEncoderScorer(model), tiny_dataset, run, 5, precision="fp32")
    np.testing.assert_array_equal(ranking.query, run.query)
    np.testing.assert_array_equal(ranking.rank, run.rank)
    changed = 0
    for query in np.unique(run.query):
        before, after = run.passage[run.query == query].tolist(), ranking.passage[ranking.query == query].tolist()
        scores = by_hand(model, tiny_dataset, int(query), before[:5])
        assert after[:5] == [before[i] for i in np.argsort(-np.array(scores), kind="stable")]
        assert after[5:] == before[5:]
        kept = ranking.score[ranking.query == query]
        np.testing.assert_allclose(kept[:5], sorted(scores, reverse=True), atol=1e-4)
        assert (np.diff(kept) <= 0).all()
        changed += after != before
    assert changed >= 4  # the control: it is another order


@pytest.mark.slow
def test_token_vectors_are_stored_as_the_settings_say(
    run: Run, tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path
) -> None:
    with drafting(tmp_path / "scorer", "model") as draft:
        colbert = LateInteraction.from_backbone(str(tiny_backbone), LateInteractionLayout(16))
        save_scorer("colbert", colbert, draft.path)
    with drafting(tmp_path / "run", "run") as draft:
        run.write(draft, "BM25")
    scores = {}
    for kind in ("fp16", "int8"):
        settings = Rerank(system="ColBERT", depth=12, token_vectors=kind, precision="fp32")
        inputs = {"dataset": tiny_dataset.path, "first_run": tmp_path / "run", "scorer": tmp_path / "scorer"}
        rerank(settings, **inputs, run=tmp_path / kind)
        ranking = Run.read(tmp_path / kind)
        scores[kind] = ranking.score[np.lexsort((ranking.passage, ranking.query))]
    difference = np.abs(scores["fp16"] - scores["int8"]).max()
    assert 1e-5 < difference < 0.1


@pytest.mark.slow
def test_tasks_rerank_the_bits_of_one_task(model: CrossEncoder, tiny_dataset: Dataset, tmp_path: Path) -> None:
    with drafting(tmp_path / "scorer", "model") as draft:
        save_scorer("cross_encoder", model, draft.path)
    hits = np.random.default_rng(0).permuted(np.tile(np.arange(100), (40, 1)), axis=1)[:, :12]
    with drafting(tmp_path / "first", "run") as draft:
        Run.from_hits(np.arange(60, 100), hits, np.tile(np.arange(12, 0, -1), (40, 1))).write(draft, "GNN-encoder")
    inputs = {"dataset": tiny_dataset.path, "first_run": tmp_path / "first", "scorer": tmp_path / "scorer"}
    for shards in (1, 3):
        parts = [tmp_path / f"{shard} of {shards}" for shard in range(shards)]
        for shard, part in enumerate(parts):
            rerank(Rerank(system="Re-ranked", depth=5, shards=shards, shard=shard), **inputs, run=part)
        merge(Merge(), parts=parts[::-1], dataset=tiny_dataset.path, merged=tmp_path / str(shards))
    whole, several = (read_manifest(tmp_path / name) for name in "13")
    assert whole.digest == several.digest and whole.rows == several.rows == {"hits": 480, "queries": 40}
    pairs = [read_history(tmp_path / name)["rerank"].metrics["pairs"] for name in "13"]
    assert pairs == [200, 200] and len(Run.read(tmp_path / "0 of 3").query) == 13 * 12
