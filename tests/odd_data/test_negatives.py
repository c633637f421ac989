"""Negatives of odd data are never a positive, nor a passage with the text of one."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from odd_data.data_sets import OddData, data_sets, write_beir
from odd_data.plain import form, full_text
from odd_data.test_ingestion import ingest, rows_of

from gnn_encoder.artifacts import Dataset, KnownPositives, PairScores, Run
from gnn_encoder.errors import UserError
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.retrieval.first_stage import negative_pool, search_splits
from gnn_encoder.settings.bm25 import IndexBm25
from gnn_encoder.training.denoising import denoised_positives, hard_negatives


def forbidden(data: Dataset) -> dict[str, set[str]]:
    """Training query → forms of the passages that are no negatives: positives of the query or of an equal one."""
    passages, queries, labels = rows_of(data)
    text_of = {name: form(full_text(title, text)) for name, title, text in passages}
    asked = {name: form(text) for name, text, split in queries if split == "train"}
    positive: dict[str, set[str]] = {text: set() for text in asked.values()}
    for query, passage, relevance in labels:
        if query in asked and relevance >= 1:
            positive[asked[query]].add(text_of[passage])
    return {name: positive[text] for name, text in asked.items()}


@settings(max_examples=80, deadline=None, derandomize=True)
@given(data_sets(most=30), st.integers(0, 2**32 - 1))
def test_no_negative_has_the_text_of_a_positive(rows: OddData, seed: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        try:
            data, _ = ingest(write_beir(Path(root) / "data", rows))
        except UserError:
            assume(False)
        passages, queries, _ = rows_of(data)
        wrong = forbidden(data)
        texts = [form(full_text(title, text)) for _, title, text in passages]
        labels = data.split_qrels("train").positive()

        def check(query: np.ndarray, negative: np.ndarray) -> None:
            for row, other in zip(query.tolist(), negative.tolist(), strict=True):
                if row >= 0 and other >= 0:
                    same = [passages[i] for i in range(len(texts)) if texts[i] == texts[other]]
                    assert texts[other] not in wrong[queries[row][0]], same

        try:
            index = Bm25.build(data.passages, IndexBm25())
        except UserError as error:
            assert "no passage has a word" in str(error)
        else:
            run = search_splits(
                data, lambda some, k: index.search(data.query_texts(some), k), train_depth=100, eval_depth=100
            )
            assert not (run.passage == data.identical[run.query]).any()
            pool = negative_pool(data, [run], 5)
            check(np.repeat(labels.query, 5), pool.ravel())
        generator = np.random.default_rng(seed)
        train, m = data.query_rows("train"), len(passages)
        query, passage = (column.ravel() for column in np.meshgrid(train, np.arange(m), indexing="ij"))
        score = generator.random(len(query), dtype=np.float32)
        pairs = PairScores(query, passage, score, score, np.empty((len(query), 0)))
        known = KnownPositives.of(data, "train")
        negatives = hard_negatives(pairs, known, 0.7)
        check(negatives.query, negatives.passage)
        # Every other candidate of a low score is a negative.
        low = {(q, p) for q, p, s in zip(query.tolist(), passage.tolist(), score.tolist(), strict=True) if s < 0.7}
        right = {(q, p) for q, p in low if texts[p] not in wrong[queries[q][0]]}
        assert set(zip(negatives.query.tolist(), negatives.passage.tolist(), strict=True)) == right
        batch = np.unique(generator.choice(len(labels.query), min(6, len(labels.query)), replace=False))
        inside = np.unique(labels.passage[batch])
        place = np.searchsorted(inside, labels.passage[batch])
        excluded = set(zip(*known.excluded(labels.query[batch], inside, place).tolist(), strict=True))
        for i, row in enumerate(labels.query[batch].tolist()):
            for j, other in enumerate(inside.tolist()):
                is_wrong = j != place[i] and texts[other] in wrong[queries[row][0]]
                assert ((i, j) in excluded) == is_wrong
