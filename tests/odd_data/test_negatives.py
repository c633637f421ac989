"""Negatives of odd data are never a positive, nor a passage with the text of one, nor the query itself."""

import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from odd_data.data_sets import OddData, data_sets, write_beir
from odd_data.plain import form, full_text
from odd_data.test_ingestion import ingest, rows_of

from gnn_encoder.artifacts import Dataset, KnownPositives, PairScores
from gnn_encoder.errors import UserError
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.retrieval.first_stage import leaving_out, negative_pool, search_splits
from gnn_encoder.settings.bm25 import IndexBm25
from gnn_encoder.training.denoising import denoised_positives, hard_negatives

LOW, HIGH = 0.6, 0.8


class Plain:
    """Texts of passages by row, and the texts of judged and of relevant passages of each training query by row.

    A label of a query is one of all equal queries, and a query is no negative of itself.
    """

    def __init__(self, data: Dataset) -> None:
        passages, queries, labels = rows_of(data)
        self.texts = [form(full_text(title, text)) for _, title, text in passages]
        text_of = {name: text for (name, _, _), text in zip(passages, self.texts, strict=True)}
        query_of = {name: form(text) for name, text, split in queries if split == "train"}
        judged, relevant = defaultdict(set), defaultdict(set)
        for query, passage, relevance in labels:
            if query in query_of:
                judged[query_of[query]].add(text_of[passage])
                if relevance >= 1:
                    relevant[query_of[query]].add(text_of[passage])
        for (query, _, _), row in zip(queries, data.identical.tolist(), strict=True):
            if query in query_of and row >= 0:
                relevant[query_of[query]].add(self.texts[row])
        self.judged = {row: judged[form(text)] for row, (_, text, _) in enumerate(queries)}
        self.relevant = {row: relevant[form(text)] for row, (_, text, _) in enumerate(queries)}

    def is_positive(self, query: int, passage: int) -> bool:
        """Whether a passage must not be a negative of a training query."""
        return self.texts[passage] in self.relevant[query]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(data_sets(most=30), st.integers(0, 2**32 - 1))
def test_no_negative_has_the_text_of_a_positive(rows: OddData, seed: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        try:
            data, _ = ingest(write_beir(Path(root) / "data", rows))
        except UserError:
            assume(False)
        plain, generator = Plain(data), np.random.default_rng(seed)
        labels = data.split_qrels("train").positive()
        check_lexical(data, plain)
        check_candidates(data, plain, generator)
        batch = np.unique(generator.choice(len(labels.query), min(6, len(labels.query)), replace=False))
        queries, passages = labels.query[batch], np.unique(labels.passage[batch])
        positive = np.searchsorted(passages, labels.passage[batch])
        excluded = KnownPositives.of(data, "train").excluded(queries, passages, positive)
        assert set(zip(*excluded.tolist(), strict=True)) == {
            (i, j)
            for i, query in enumerate(queries.tolist())
            for j, passage in enumerate(passages.tolist())
            if j != positive[i] and plain.is_positive(query, passage)
        }


def check_lexical(data: Dataset, plain: Plain) -> None:
    """BM25 ranks no query itself, and its negatives are no positives."""
    try:
        index = Bm25.build(data.passages, IndexBm25())
    except UserError as error:
        assert "no passage has a word" in str(error)
        return
    search = leaving_out(data, lambda some, k: index.search(data.query_texts(some), k))
    run = search_splits(data, search, train_depth=100, eval_depth=100)
    assert not (run.passage == data.identical[run.query]).any()
    labels = data.split_qrels("train").positive()
    for query, negatives in zip(labels.query.tolist(), negative_pool(data, [run], 5).tolist(), strict=True):
        assert not any(plain.is_positive(query, passage) for passage in negatives if passage >= 0)


def check_candidates(data: Dataset, plain: Plain, generator: np.random.Generator) -> None:
    """Of random scores of all pairs, hard negatives and denoised positives are those of plain loops."""
    pairs = [
        (q, p) for q in data.query_rows("train").tolist() for p in range(len(plain.texts)) if data.identical[q] != p
    ]
    query, passage = np.array(pairs).T
    scores = generator.random(len(pairs), dtype=np.float32)
    candidates = PairScores(query, passage, scores, scores, np.empty((len(pairs), 0)))
    negatives = hard_negatives(candidates, KnownPositives.of(data, "train"), LOW)
    low = [pair for pair, score in zip(pairs, scores, strict=True) if score < LOW]
    assert pairs_of(negatives) == {pair for pair in low if not plain.is_positive(*pair)}
    denoised = denoised_positives(candidates, data.split_qrels("train"), HIGH, data.groups, data.passage_groups)
    high = [pair for pair, score in zip(pairs, scores, strict=True) if score > HIGH]
    assert pairs_of(denoised) == {(q, p) for q, p in high if plain.texts[p] not in plain.judged[q]}


def pairs_of(rows: object) -> set[tuple[int, int]]:
    return set(zip(rows.query.tolist(), rows.passage.tolist(), strict=True))
